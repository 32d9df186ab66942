//! Subcommand `marline up`: sends the whole machine's traffic through the server until stopped.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use marline::advanced::KeptCapabilities;
use marline_proxy::client::dialer::NameLookup;
use marline_proxy::client::udp_keeper::keep_lane;
use marline_proxy::shutdown::{Reload, Stopper, next_request};
use marline_proxy::signals::{SignalRequest, Signals};
use marline_tun::addresses::Addresses;
use marline_tun::dns::DirectNames;
use marline_tun::exceptions::Exceptions;
use marline_tun::gateway::{Gateway, GatewaySettings, PacketSource};
use marline_tun::machine::routing::{MARK, RoutingSettings};
use marline_tun::machine::{
    CleanupExtent, Machine, ReleaseReason, UndoProcess, clean_up, engage, make_interface,
    resolve_server,
};
use marline_tun::tunnel_datagrams::{Senders, TunnelDatagrams};
use rustix::fd::OwnedFd;
use tokio::sync::mpsc;

use super::client_network::{CLOSING_TIME, OpenedClient};
use super::down::PidFile;
use super::names::resolvers;
use super::renewal::Renewal;
use super::settings::{LiveSettings, Settings};
use super::startup::wait_for_server;
use super::watched::with_watchers;
use crate::config::client::{ClientOptions, ClientPlan};
use crate::config::machine::{MachineOptions, MachinePlan};
use crate::config::up::UpOptions;
use crate::memory;
use crate::reload::reloads;

/// Maximum number of names waiting for their addresses to be made direct.
const MAX_QUEUED_NAMES: usize = 64;

/// Arguments of `marline up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// TOML configuration file of a client; its table `up` has the options of this command
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Block all traffic outside the tunnel (lockdown) before the network is up, and exit; `marline down` ends this
    #[arg(long)]
    pub lockdown_only: bool,
    /// Part of the traffic that goes through the tunnel.
    #[command(flatten)]
    pub up: UpOptions,
    /// All other options of a client.
    #[command(flatten)]
    pub options: ClientOptions,
}

/// The machine's tunnel, whose privileged setup is complete.
#[derive(Debug)]
pub struct PreparedTunnel {
    plan: ClientPlan,
    settings: Settings<MachineOptions>,
    routing: RoutingSettings,
    exceptions: Exceptions,
    tun: OwnedFd,
    undo: UndoProcess,
    /// True if a kill switch is already engaged.
    held: bool,
    pid_file: PidFile,
}

/// Completes the privileged setup, then drops all privileges except CAP_NET_ADMIN. Must be called before threads are
/// started. Returns `None` if the request is already complete.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<Option<PreparedTunnel>> {
    let Args { config, lockdown_only, up, options } = args;
    if !marline_io::has_net_admin() {
        bail!(
            "`marline up` changes this machine's routes and needs root (CAP_NET_ADMIN): run `sudo marline \
             up`, or `marline run -- PROGRAM` for one program without root"
        );
    }
    options.refuse_ports()?;
    let options = MachineOptions { options, up };
    if lockdown_only {
        engage_lockdown_only(options, config.as_deref())?;
        return Ok(None);
    }
    let (settings, plan) = Settings::read(options, config)?;
    let MachinePlan { client: mut plan, routing, exceptions } = plan;
    // The undo process also holds the lock, but must not get the interface.
    let pid_file = PidFile::write()?;
    if routing.lockdown {
        engage_lockdown(&routing)?;
    }
    // Rules of a killed `marline up` would misroute the server's answers.
    let left = block_on_current(clean_up(CleanupExtent::AllButSwitch))?;
    let held = left.context("cannot remove the rules and routes of an earlier `marline up`")?.held;
    if held && !routing.lockdown {
        tracing::info!(
            "kill switch of an earlier `marline up` stays on until the server is reached"
        );
    }
    plan.names = NameLookup::with_lookup(|host| {
        let host = host.to_owned();
        Box::pin(async move { resolve_server(&host).await })
    });
    let undo = UndoProcess::start()?;
    let tun = make_interface()?;
    plan.network.mark(MARK);
    plan.network.carrier(plan.carrier.clone().open(KeptCapabilities::NetAdmin)?);
    Ok(Some(PreparedTunnel { plan, settings, routing, exceptions, tun, undo, held, pid_file }))
}

/// Engages the lockdown, without exceptions if the configuration cannot be read, so that the machine is not left
/// open.
fn engage_lockdown_only(options: MachineOptions, config: Option<&Path>) -> anyhow::Result<()> {
    let routing = options.with_file(config).and_then(MachineOptions::routing);
    engage_lockdown(routing.as_ref().unwrap_or(&RoutingSettings::default()))?;
    routing.map(drop).context("locked down, but without the exceptions in the configuration")
}

fn engage_lockdown(routing: &RoutingSettings) -> anyhow::Result<()> {
    block_on_current(engage(routing, &Addresses::default()))?
        .context("cannot engage the lockdown")?;
    println!("locked down: all traffic outside the tunnel is blocked until `marline down`");
    Ok(())
}

/// Runs a future before there are threads.
fn block_on_current<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(work))
}

/// Relays the machine's traffic until a signal.
///
/// # Errors
/// An error message for the user.
pub async fn run(prepared: PreparedTunnel) -> anyhow::Result<ExitCode> {
    let PreparedTunnel { plan, settings, routing, exceptions, tun, undo, held, pid_file } =
        prepared;
    let mut signals = Signals::new()?;
    let (ask_reload, reloads) = reloads();
    let opened = OpenedClient::open(&plan, Some(ask_reload)).await?;
    let (client, udp) = (&opened.client, &opened.udp);
    let watched = with_watchers(&plan.runtime, Arc::clone(&opened.handle) as _)?;
    let renewal = Renewal::start(client, &opened.deadlines, &plan)?;
    let way = &renewal.way;
    opened.set_server_tunnel(way);
    let mut live = LiveSettings::new(settings, reloads, |plan: &MachinePlan| {
        // Everything that may fail comes first.
        let shown = watched.prepare(&plan.client.runtime)?;
        let renewed = renewal.prepare(&plan.client)?;
        opened.change(&plan.client)?;
        renewed();
        watched.commit(shown);
        Ok(())
    });
    tokio::select! {
        reached = wait_for_server(client, way) => reached.map_err(|error| unreached_server_error(&error, held))?,
        () = wait_for_early_end(&mut signals) => return Ok(ExitCode::SUCCESS),
    }
    let addresses = Addresses::default();
    let (ask, mut asked) = mpsc::channel(MAX_QUEUED_NAMES);
    let served = PacketSource::Machine {
        exceptions,
        handles_dns_queries: routing.handles_dns_queries(),
        direct_names: DirectNames::new(MARK, addresses.gateway_v4.into(), ask),
    };
    let settings = GatewaySettings {
        addresses,
        resolvers: Some(resolvers(&plan)?),
        served,
        connections: plan.max_connections,
        targets: opened.handle.targets.clone(),
        memory: memory::process_account().clone(),
    };
    let datagrams = TunnelDatagrams::start(Arc::clone(udp), addresses, Senders::All);
    let gateway =
        Gateway::start(tun, settings, Box::new(datagrams)).context("the TUN interface failed")?;
    let stopper = Stopper::default();
    let mut serving = tokio::spawn(gateway.serve(Arc::clone(way), stopper.listen()));
    let mut machine = Machine::take_over(routing, &addresses, undo).await?;
    announce(&addresses);
    let lanes = renewal.lanes().context("this carrier does not support datagrams")?;
    let lost = "the TUN interface has stopped";
    let ended = tokio::select! {
        never = Box::pin(keep_lane(way, udp, lanes)) => match never {},
        () = machine.maintain(&mut asked) => Err(anyhow!(lost)),
        ended = &mut serving => Err(match ended {
            Ok(()) => anyhow!(lost),
            Err(error) => anyhow!(error).context(lost),
        }),
        () = wait_for_stop(&mut signals, &mut live) => Ok(()),
    };
    let ending = if ended.is_ok() { ReleaseReason::Requested } else { ReleaseReason::Failed };
    machine.restore(ending).await;
    // Resets notify programs that their connections have ended.
    stopper.end();
    if !serving.is_finished() {
        let _ = tokio::time::timeout(CLOSING_TIME, serving).await;
    }
    way.now().close();
    opened.close().await;
    drop(pid_file);
    ended.map(|()| ExitCode::SUCCESS)
}

/// Adds the resulting state of the machine to the error of an `up` that did not reach its server. `held` is true if a
/// kill switch was already engaged.
fn unreached_server_error(error: &anyhow::Error, held: bool) -> anyhow::Error {
    let state = match held {
        true => "the kill switch stays on (`sudo marline down` removes it)",
        false => "this machine's routing was not changed",
    };
    anyhow!("{error:#}; {state}")
}

/// Waits for a request to stop, before the machine's traffic uses the tunnel. Reload requests from the control socket
/// wait.
async fn wait_for_early_end(signals: &mut Signals) {
    while signals.next().await == SignalRequest::Reload {
        tracing::info!("SIGHUP ignored: still starting, with the configuration just read");
    }
}

/// Waits for a request to stop. Reloads the configuration on request in the meantime.
async fn wait_for_stop(signals: &mut Signals, live: &mut dyn Reload) {
    while next_request(signals, live).await == SignalRequest::Reload {
        live.reload();
    }
}

/// Prints to standard output, and notifies the service manager.
fn announce(addresses: &Addresses) {
    println!("up: {} goes through the server, including DNS", addresses.host_v4);
    crate::service::notify_ready();
}
