//! `marline client`: the client side of the proxy.

mod ports;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use marline::datagrams::LaneConfig;
use marline_proxy::client::current::Current;
use marline_proxy::client::dialer::Dialer;
use marline_proxy::client::direct::Direct;
use marline_proxy::client::open::Open;
use marline_proxy::client::remote::RemoteForward;
use marline_proxy::client::socks_listener::{Service, SocksListener, bind};
use marline_proxy::client::transparent;
use marline_proxy::client::tunnel::Tunnel;
use marline_proxy::client::udp_ports::UdpForward;
use marline_proxy::client::udp_tunnel::UdpTunnel;
use marline_proxy::shutdown::{Stop, Stopper};
use marline_proxy::signals::Signals;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::client_network::OpenedClient;
use super::monitor::print;
use super::renewal::{Renewal, Step};
use super::settings::{LiveSettings, Settings};
use super::startup::wait_for_path;
use super::watched::{ServedViews, with_watchers};
use crate::config::Forward;
use crate::config::client::{ClientOptions, ClientPlan, Route};
use crate::memory;
use crate::native::capabilities_for_ports;
use crate::reload::{Reloads, reloads};
use ports::{OpenPort, Ports, WantedPort};

/// Listener for applications whose streams go through a server.
type ClientListener = SocksListener<Current<Tunnel<Dialer>>>;

/// Arguments of `marline client`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// TOML file whose keys are the names of these flags; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// All other options.
    #[command(flatten)]
    pub options: ClientOptions,
}

/// A client that has completed its privileged setup.
#[derive(Debug)]
pub struct PreparedClient {
    plan: ClientPlan,
    settings: Settings<ClientOptions>,
    ports: Vec<(WantedPort, std::net::TcpListener)>,
    transparent: Vec<std::net::TcpListener>,
    udp_ports: Vec<UdpForward>,
}

/// Completes the privileged setup, then drops the privileges.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<PreparedClient> {
    let (settings, mut plan) = Settings::read(args.options, args.config)?;
    // Opens the ports first: they are the most likely cause of an error, which should precede the handshake.
    let ports = wanted_ports(&plan).into_iter().map(|each| Ok((each.clone(), bind(each.address)?)));
    let ports = ports.collect::<anyhow::Result<_>>()?;
    let transparent = plan.transparent.map(transparent::bind).transpose()?;
    let transparent = transparent.into_iter().flatten().collect();
    let bind = |forward: &Forward| UdpForward::bind(forward.listen, forward.target.clone());
    let udp_ports = plan.udp_forwards.iter().map(bind).collect::<anyhow::Result<_>>()?;
    let shown = [plan.runtime.metrics, plan.runtime.dashboard].into_iter().flatten();
    let kept = capabilities_for_ports(shown.map(|address| address.port()));
    plan.network.carrier(plan.carrier.clone().open(kept)?);
    Ok(PreparedClient { plan, settings, ports, transparent, udp_ports })
}

/// Returns the configured ports for SOCKS5 and forwards.
fn wanted_ports(plan: &ClientPlan) -> Vec<WantedPort> {
    let socks5 = plan.socks5.iter();
    let socks5 = socks5.map(|address| WantedPort { address: *address, service: Service::Socks5 });
    let forward = |forward: &Forward| WantedPort {
        address: forward.listen,
        service: Service::Forward(forward.target.clone()),
    };
    socks5.chain(plan.forwards.iter().map(forward)).collect()
}

/// Runs the client.
///
/// # Errors
/// An error message for the user.
pub async fn run(prepared: PreparedClient) -> anyhow::Result<ExitCode> {
    let (ask, reloads) = reloads();
    let opened = OpenedClient::open(&prepared.plan, Some(ask)).await?;
    let watched = with_watchers(&prepared.plan.runtime, Arc::clone(&opened.handle) as _)?;
    // The ports are already open, so connections queue in the meantime.
    let mut beside = JoinSet::new();
    beside.spawn(wait_for_path(opened.client.clone()));
    let is_direct = matches!(prepared.plan.route, Route::Direct);
    let running = RunningClient { prepared, reloads, opened: &opened, watched: &watched };
    if is_direct {
        let way = Arc::new(Direct::new(opened.client.clone(), opened.deadlines.clone()));
        running.serve(way, |_| Ok(Box::new(|| ())), |_, _| Ok(())).await?;
    } else {
        running.relay_through_server().await?;
    }
    opened.close().await;
    Ok(ExitCode::SUCCESS)
}

/// A client with an open network.
struct RunningClient<'a> {
    prepared: PreparedClient,
    reloads: Reloads,
    opened: &'a OpenedClient,
    watched: &'a ServedViews,
}

impl RunningClient<'_> {
    async fn relay_through_server(mut self) -> anyhow::Result<()> {
        let opened = self.opened;
        let renewal = Renewal::start(&opened.client, &opened.deadlines, &self.prepared.plan)?;
        opened.set_server_tunnel(&renewal.way);
        let remotes = self.prepared.plan.remote_forwards.clone();
        let udp_ports = std::mem::take(&mut self.prepared.udp_ports);
        let also = |front: &Arc<ClientListener>, serving: &mut JoinSet<()>| {
            maintain_remotes(remotes, front, serving);
            if let Some(lanes) = renewal.lanes() {
                carry_udp(lanes, &opened.udp, udp_ports, front, serving)?;
            }
            Ok(())
        };
        self.serve(Arc::clone(&renewal.way), |plan| renewal.prepare(plan), also).await?;
        renewal.way.now().close();
        Ok(())
    }

    /// Serves applications until a signal. `renew` prepares changes of the tunnel at a reload, and `also` starts
    /// additional services.
    async fn serve<'s, O: Open>(
        self,
        way: Arc<O>,
        renew: impl Fn(&ClientPlan) -> anyhow::Result<Step<'s>>,
        also: impl FnOnce(&Arc<SocksListener<O>>, &mut JoinSet<()>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let RunningClient { prepared, reloads, opened, watched } = self;
        let PreparedClient { plan, settings, ports: bound, transparent, .. } = prepared;
        let (stopper, signals) = (Stopper::default(), Signals::new()?);
        let front = SocksListener::new(
            way,
            plan.max_connections,
            stopper.listen(),
            opened.handle.targets.clone(),
            memory::process_account().clone(),
        );
        let mut serving = JoinSet::new();
        // These services start before the ports, because applications there may need them.
        also(&front, &mut serving)?;
        let (mut ports, begun) = Ports::new();
        for (wanted, socket) in bound {
            announce(socket.local_addr()?, &wanted.service);
            ports.open(wanted, socket)?;
        }
        for listener in transparent {
            announce(listener.local_addr()?, &Service::Transparent);
            let listener = TcpListener::from_std(listener)?;
            let served =
                Arc::clone(&front).serve(listener, Service::Transparent, std::future::pending());
            serving.spawn(served);
        }
        crate::service::notify_ready();
        let work = serve_ports(Arc::clone(&front), begun, serving, stopper.listen());
        let apply = |plan: &ClientPlan| {
            // Everything that may fail comes first.
            let shown = watched.prepare(&plan.runtime)?;
            let change = ports.prepare(&wanted_ports(plan))?;
            let renewed = renew(plan)?;
            opened.change(plan)?;
            renewed();
            for (address, service) in ports.commit(change) {
                announce(address, &service);
            }
            front.bound(plan.max_connections);
            watched.commit(shown);
            Ok(())
        };
        stopper
            .run_until_signal(signals, &mut LiveSettings::new(settings, reloads, apply), work)
            .await
    }
}

/// Serves the opened ports until the drain, and their connections until they end.
async fn serve_ports<O: Open>(
    front: Arc<SocksListener<O>>,
    mut begun: mpsc::UnboundedReceiver<OpenPort>,
    mut serving: JoinSet<()>,
    stop: Stop,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            Some(OpenPort { listener, service, closed }) = begun.recv() => {
                let closed = async { drop(closed.await) };
                serving.spawn(Arc::clone(&front).serve(listener, service, closed));
            }
            Some(ended) = serving.join_next() => ended.context("a listener task failed")?,
            () = stop.draining(), if serving.is_empty() => return Ok(()),
        }
    }
}

/// Carries the UDP of applications, for associations and these forwards.
fn carry_udp(
    config: watch::Receiver<LaneConfig>,
    udp: &Arc<UdpTunnel>,
    ports: Vec<UdpForward>,
    front: &Arc<ClientListener>,
    serving: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    front.carry_udp(Arc::clone(udp));
    serving.spawn(Arc::clone(front).keep_udp(Arc::clone(udp), config));
    for port in ports {
        let (address, target) = (port.local_addr()?, port.target());
        print_line(&format!("udp forward listening on {address} to {target}"));
        serving.spawn(Arc::clone(front).forward_udp(Arc::clone(udp), port));
    }
    Ok(())
}

/// Maintains the remote forwards. Each prints a line to standard output whenever the server starts to listen.
fn maintain_remotes(
    forwards: Vec<Forward>,
    front: &Arc<ClientListener>,
    serving: &mut JoinSet<()>,
) {
    for Forward { listen, target } in forwards {
        let to = target.clone();
        let announce =
            move |address| print_line(&format!("remote forward listening on {address} to {to}"));
        serving.spawn(Arc::clone(front).remote(RemoteForward { listen, target }, announce));
    }
}

/// Prints the port to standard output, for programs that start a client.
fn announce(address: SocketAddr, service: &Service) {
    let line = match service {
        Service::Socks5 => format!("socks5 listening on {address}"),
        Service::Forward(target) => format!("forward listening on {address} to {target}"),
        Service::Transparent => format!("transparent listening on {address}"),
    };
    print_line(&line);
}

/// Prints a line to standard output. A closed output is ignored.
fn print_line(line: &str) {
    let _ = print(&format!("{line}\n"));
}
