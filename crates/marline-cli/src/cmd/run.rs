//! Subcommand `marline run`: a program in its own namespaces, whose connections go through the server.

use std::convert::Infallible;
use std::ffi::OsString;
use std::future::poll_fn;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use marline_proxy::client::direct::Direct;
use marline_proxy::client::open::Open;
use marline_proxy::client::udp_keeper::keep_lane;
use marline_proxy::secret::hide_invites;
use marline_proxy::shutdown::{Reload, Stopper};
use marline_tun::addresses::Addresses;
use marline_tun::datagram::{Datagrams, NoDatagrams};
use marline_tun::gateway::{Gateway, GatewaySettings, PacketSource};
use marline_tun::inside::{self, Names, OuterProcess, ProcessRole, Program, ProgramInterface};
use marline_tun::resolver::Resolvers;
use marline_tun::tunnel_datagrams::{Senders, TunnelDatagrams};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::client_network::OpenedClient;
use super::names::resolvers;
use super::renewal::Renewal;
use super::settings::{LiveSettings, Settings};
use super::watched::{ServedViews, with_watchers};
use crate::config::client::{ClientOptions, ClientPlan, Route};
use crate::config::program::ProgramOptions;
use crate::memory;
use crate::native::capabilities_for_ports;
use crate::reload::{Reloads, reloads};
use crate::{log, state_file};

/// Exit statuses for failures before the program starts, as used by `env` and `nice`.
const FAILED: i32 = 125;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Arguments of `marline run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// TOML configuration file of a client
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// All other options of a client.
    #[command(flatten)]
    pub options: ClientOptions,
    /// Program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}

/// The half of the process that relays the program's traffic, with its privileged setup completed.
#[derive(Debug)]
pub struct PreparedRelay {
    plan: ClientPlan,
    settings: Settings<ProgramOptions>,
    /// True if the program has the terminal and no flag requests the log there.
    yields_terminal: bool,
    resolvers: Resolvers,
    addresses: Addresses,
    outside: OuterProcess,
    interface: ProgramInterface,
}

/// Splits the process: one half becomes the program and does not return from here. Must be called before threads
/// are started. Returns `None` if the other half failed and has reported why.
#[must_use]
pub fn prepare(args: Args) -> Option<PreparedRelay> {
    let addresses = Addresses::default();
    let yields_terminal = args.options.log.is_none() && std::io::stderr().is_terminal();
    let half = match begin(args, addresses) {
        Ok(half) => half,
        Err(error) => end(&error),
    };
    let OuterHalf { mut plan, settings, resolvers, outside } = half;
    match open_privileged_sockets(&mut plan, &outside) {
        Ok(interface) => {
            let interface = interface?;
            Some(PreparedRelay {
                plan,
                settings,
                yields_terminal,
                resolvers,
                addresses,
                outside,
                interface,
            })
        }
        Err(error) => {
            outside.failed(&hide_invites(&format!("{error:#}")));
            None
        }
    }
}

/// Prints an error that occurred before the start of the program, and exits.
pub(super) fn end(error: &anyhow::Error) -> ! {
    eprintln!("marline: {}", hide_invites(&format!("{error:#}")));
    std::process::exit(FAILED)
}

/// The outer half, before it has its interface.
struct OuterHalf {
    plan: ClientPlan,
    settings: Settings<ProgramOptions>,
    resolvers: Resolvers,
    outside: OuterProcess,
}

fn begin(args: Args, addresses: Addresses) -> anyhow::Result<OuterHalf> {
    let Args { config, options, command } = args;
    options.refuse_ports()?;
    let (settings, plan) = Settings::read(ProgramOptions(options), config)?;
    let resolvers = resolvers(&plan)?;
    let names = Names::use_gateway_dns(&addresses)?;
    match inside::split()? {
        ProcessRole::Outside(outside) => Ok(OuterHalf { plan, settings, resolvers, outside }),
        ProcessRole::Program(program) => {
            match become_program(program, &command, &addresses, &names) {
                Ok(never) => match never {},
                Err(error) => end(&error),
            }
        }
    }
}

fn become_program(
    program: Program,
    command: &[OsString],
    addresses: &Addresses,
    names: &Names,
) -> anyhow::Result<Infallible> {
    let tun = inside::enter(addresses, names)?;
    program.hand_over(tun)?;
    let (name, arguments) = command.split_first().context("missing program to run")?;
    become_command(Command::new(name).args(arguments))
}

/// Becomes this program, or exits with the status of a program that cannot be run.
pub(super) fn become_command(command: &mut Command) -> ! {
    let error = command.exec();
    eprintln!("marline: cannot run {}: {error}", command.get_program().display());
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    std::process::exit(if missing { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// Opens the sockets that need privileges, and waits for the interface.
fn open_privileged_sockets(
    plan: &mut ClientPlan,
    outside: &OuterProcess,
) -> anyhow::Result<Option<ProgramInterface>> {
    // The program's half is another process by now, which keeps its privileges.
    let shown = [plan.runtime.metrics, plan.runtime.dashboard].into_iter().flatten();
    let kept = capabilities_for_ports(shown.map(|address| address.port()));
    plan.network.carrier(plan.carrier.clone().open(kept)?);
    outside.receive_interface().context("did not receive the TUN device")
}

/// Relays the program's traffic until it has ended.
///
/// # Errors
/// An error message for the user.
pub async fn run(prepared: PreparedRelay) -> anyhow::Result<ExitCode> {
    let PreparedRelay { plan, settings, yields_terminal, resolvers, addresses, outside, interface } =
        prepared;
    let (ask, reloads) = reloads();
    let opened = match OpenedClient::open(&plan, Some(ask)).await {
        Ok(opened) => opened,
        Err(error) => return Ok(report_start_failure(outside, &error)),
    };
    let watched = match with_watchers(&plan.runtime, Arc::clone(&opened.handle) as _) {
        Ok(watched) => watched,
        Err(error) => return Ok(report_start_failure(outside, &error)),
    };
    let gateway = GatewaySettings {
        addresses,
        resolvers: Some(resolvers),
        served: PacketSource::Program,
        connections: plan.max_connections,
        targets: opened.handle.targets.clone(),
        memory: memory::process_account().clone(),
    };
    let patience = watch::Sender::new(plan.runtime.drain);
    let traffic = ProgramTraffic {
        interface,
        settings: gateway,
        outside,
        yields_terminal,
        patience: patience.subscribe(),
    };
    let beside = SideTasks {
        opened: &opened,
        watched: &watched,
        patience,
        reloads,
        hangups: signal(SignalKind::hangup())?,
    };
    match &plan.route {
        Route::Direct => {
            let way = Arc::new(Direct::new(opened.client.clone(), opened.deadlines.clone()));
            tokio::select! {
                carried = traffic.relay_connections(way, Box::new(NoDatagrams)) => carried?,
                never = beside.reload_on_request(settings, None) => match never {},
            }
        }
        Route::Through(_) => beside.relay_through_server(&plan, settings, traffic).await?,
    }
    opened.close().await;
    Ok(ExitCode::SUCCESS)
}

/// Reports to the program's half that it cannot be started.
fn report_start_failure(outside: OuterProcess, error: &anyhow::Error) -> ExitCode {
    outside.failed(&format!("{error:#}"));
    ExitCode::FAILURE
}

/// Tasks in addition to relaying.
struct SideTasks<'a> {
    opened: &'a OpenedClient,
    watched: &'a ServedViews,
    /// Time for delivering the program's last data.
    patience: watch::Sender<Duration>,
    reloads: Reloads,
    hangups: Signal,
}

impl SideTasks<'_> {
    /// Relays the traffic through a server.
    async fn relay_through_server(
        self,
        plan: &ClientPlan,
        settings: Settings<ProgramOptions>,
        traffic: ProgramTraffic,
    ) -> anyhow::Result<()> {
        let (client, udp) = (&self.opened.client, &self.opened.udp);
        let addresses = traffic.settings.addresses;
        let renewal = Renewal::start(client, &self.opened.deadlines, plan)?;
        let way = &renewal.way;
        self.opened.set_server_tunnel(way);
        let reload_on_request = self.reload_on_request(settings, Some(&renewal));
        match renewal.lanes() {
            Some(lanes) => {
                let datagrams =
                    Box::new(TunnelDatagrams::start(Arc::clone(udp), addresses, Senders::Own));
                tokio::select! {
                    carried = traffic.relay_connections(Arc::clone(way), datagrams) => carried?,
                    never = Box::pin(keep_lane(way, udp, lanes)) => match never {},
                    never = reload_on_request => match never {},
                }
            }
            // The carrier does not support lanes.
            None => tokio::select! {
                carried = traffic.relay_connections(Arc::clone(way), Box::new(NoDatagrams)) => carried?,
                never = reload_on_request => match never {},
            },
        }
        way.now().close();
        Ok(())
    }

    /// Reloads the configuration on request.
    async fn reload_on_request(
        self,
        settings: Settings<ProgramOptions>,
        renewal: Option<&Renewal<'_>>,
    ) -> Infallible {
        let SideTasks { opened, watched, patience, reloads, mut hangups } = self;
        let mut live = LiveSettings::new(settings, reloads, |plan: &ClientPlan| {
            // Everything that may fail comes first.
            let shown = watched.prepare(&plan.runtime)?;
            let renewed = renewal.map(|renewal| renewal.prepare(plan)).transpose()?;
            opened.change(plan)?;
            if let Some(renewed) = renewed {
                renewed();
            }
            watched.commit(shown);
            patience.send_replace(plan.runtime.drain);
            Ok(())
        })
        .without_service_notices();
        loop {
            tokio::select! {
                _ = hangups.recv() => {}
                () = poll_fn(|cx| live.poll_reload_request(cx)) => {}
            }
            live.reload();
        }
    }
}

/// Moves the log away from the terminal, where it would disturb the program's output.
fn redirect_log() {
    let path = state_file::run_log_path();
    if let Err(error) = log::continue_in(&path) {
        let shown = path.display();
        tracing::warn!("cannot write {shown}: {error}; further warnings are lost (-v shows them)");
        // Without a null device, the log stays on the terminal.
        let _ = log::continue_in(Path::new("/dev/null"));
    }
}

/// The traffic to relay, and the time limit for its end.
struct ProgramTraffic {
    interface: ProgramInterface,
    settings: GatewaySettings,
    outside: OuterProcess,
    yields_terminal: bool,
    patience: watch::Receiver<Duration>,
}

impl ProgramTraffic {
    /// Relays connections through `way` until the program and its descendants have ended and their last data is
    /// delivered.
    async fn relay_connections<O: Open>(
        self,
        way: Arc<O>,
        datagrams: Box<dyn Datagrams>,
    ) -> anyhow::Result<()> {
        let ProgramTraffic { interface, settings, outside, yields_terminal, patience } = self;
        let ProgramInterface { tun, program } = interface;
        let stopper = Stopper::default();
        let gateway = match Gateway::start(tun, settings, datagrams) {
            Ok(gateway) => gateway,
            Err(error) => {
                outside.failed(&format!("TUN interface failed: {error}"));
                return Ok(());
            }
        };
        let serving = tokio::spawn(gateway.serve(way, stopper.listen()));
        if yields_terminal {
            redirect_log();
        }
        outside.notify_ready();
        program.wait_for_program().await?;
        // Closes standard error, so that its readers see the end.
        let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stderr(&nowhere)?;
        program.wait_for_descendants().await;
        stopper.drain();
        let patience = *patience.borrow();
        tokio::pin!(serving);
        if tokio::time::timeout(patience, &mut serving).await.is_err() {
            stopper.end();
            serving.await.context("the gateway failed")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marline_run_refuses_listeners_and_forwards() {
        let none = ClientOptions::default();
        for (flag, options) in [
            (
                "--socks5",
                ClientOptions { socks5: vec![([127, 0, 0, 1], 9).into()], ..none.clone() },
            ),
            ("-L", ClientOptions { local_forward: vec!["9:h:1".parse().unwrap()], ..none.clone() }),
            (
                "-R",
                ClientOptions { remote_forward: vec!["9:h:1".parse().unwrap()], ..none.clone() },
            ),
            ("-U", ClientOptions { udp_forward: vec!["9:h:1".parse().unwrap()], ..none.clone() }),
            ("--share", ClientOptions { share: true, ..none }),
        ] {
            let error = options.refuse_ports().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{flag} applies only to")), "{error}");
        }
    }
}
