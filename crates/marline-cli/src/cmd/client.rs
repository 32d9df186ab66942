//! `marline client`: the client side of the proxy.

mod ports;

use std::cell::RefCell;
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
use marline_proxy::client::tunnel::{Patience, Tunnel};
use marline_proxy::client::udp_ports::UdpForward;
use marline_proxy::client::udp_tunnel::UdpTunnel;
use marline_proxy::invite::Invite;
use marline_proxy::server::allowances::unix_s;
use marline_proxy::shutdown::{Stop, Stopper};
use marline_proxy::signals::Signals;
use marline_proxy::tls::connector;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::monitor::print;
use super::opened::{OpenedClient, ServerWay};
use super::settings::{Live, Settings};
use super::watched::watched;
use crate::config::Forward;
use crate::config::client::{ClientOptions, ClientPlan, Route};
use crate::native::raise_file_limit;
use crate::reload::{Reloads, reloads};
use ports::{Opened, Ports, Wanted};

/// The ways in of a client with a server.
type Front = SocksListener<Current<Tunnel<Dialer>>>;

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
pub struct Prepared {
    plan: ClientPlan,
    settings: Settings<ClientOptions>,
    ports: Vec<(Wanted, std::net::TcpListener)>,
    transparent: Vec<std::net::TcpListener>,
    udp_ports: Vec<UdpForward>,
}

/// Completes the privileged setup, then drops the privileges.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<Prepared> {
    let (settings, mut plan) = Settings::read(args.options, args.config)?;
    // Ports first: the likeliest error, and it must not cost a handshake.
    let ports = wanted(&plan).into_iter().map(|each| Ok((each.clone(), bind(each.0)?)));
    let ports = ports.collect::<anyhow::Result<_>>()?;
    let transparent = plan.transparent.map(transparent::bind).transpose()?;
    let transparent = transparent.into_iter().flatten().collect();
    let bind = |forward: &Forward| UdpForward::bind(forward.listen, forward.target.clone());
    let udp_ports = plan.udp_forwards.iter().map(bind).collect::<anyhow::Result<_>>()?;
    raise_file_limit();
    plan.network.carrier(plan.carrier.clone().open()?);
    Ok(Prepared { plan, settings, ports, transparent, udp_ports })
}

/// The ports of SOCKS5 and of forwards.
fn wanted(plan: &ClientPlan) -> Vec<Wanted> {
    let socks5 = plan.socks5.iter().map(|address| (*address, Service::Socks5));
    let forward = |forward: &Forward| (forward.listen, Service::Forward(forward.target.clone()));
    socks5.chain(plan.forwards.iter().map(forward)).collect()
}

/// Runs the client.
///
/// # Errors
/// An error message for the user.
pub async fn run(prepared: Prepared) -> anyhow::Result<ExitCode> {
    let (ask, reloads) = reloads();
    let opened = OpenedClient::open(&prepared.plan, Some(ask)).await?;
    let _watched = watched(&prepared.plan.runtime, Arc::clone(&opened.handle) as _).await?;
    match prepared.plan.route.clone() {
        Route::Direct => {
            let way = Arc::new(Direct::new(opened.client.clone()));
            serve(way, (prepared, reloads), &opened, |_| Ok(Box::new(|| ())), |_, _| Ok(()))
                .await?;
        }
        Route::Through(invite) => run_through(invite, (prepared, reloads), &opened).await?,
    }
    opened.close().await;
    Ok(ExitCode::SUCCESS)
}

async fn run_through(
    invite: Invite,
    (mut prepared, reloads): (Prepared, Reloads),
    opened: &OpenedClient,
) -> anyhow::Result<()> {
    let (client, plan) = (&opened.client, &prepared.plan);
    let transport = plan.carrier.transport();
    let first = tunnel(client, &invite, transport, plan.warm)?;
    let used = RefCell::new((invite, plan.warm, plan.behaviour.clone()));
    let way: ServerWay = Arc::new(Current::new(first));
    opened.goes_by(&way);
    let datagrams = plan.datagrams.clone().map(watch::Sender::new);
    let renew = |plan: &ClientPlan| -> anyhow::Result<Step<'_>> {
        let wanted = match &plan.route {
            Route::Through(invite) => Some((invite.clone(), plan.warm, plan.behaviour.clone())),
            Route::Direct => None,
        };
        let wanted = wanted.filter(|wanted| *wanted != *used.borrow());
        if let Some((invite, ..)) = &wanted {
            // What could fail below.
            connector(invite.pin)?;
        }
        let config = plan.datagrams.clone();
        Ok(Box::new(|| {
            if let (Some(lanes), Some(config)) = (&datagrams, config) {
                lanes.send_replace(config);
            }
            let Some(wanted) = wanted else { return };
            // Also with another behaviour: the connections that wait have the old one.
            match tunnel(client, &wanted.0, transport, wanted.1) {
                Ok(tunnel) => way.replace(tunnel).close(),
                Err(error) => return tracing::error!("the old way stays: {error:#}"),
            }
            if wanted.0 != used.borrow().0 {
                tracing::info!("another invite: new connections go by it");
            }
            used.replace(wanted);
        }))
    };
    let remotes = plan.remote_forwards.clone();
    let udp_ports = std::mem::take(&mut prepared.udp_ports);
    let also = |front: &Arc<Front>, serving: &mut JoinSet<()>| {
        keep_remotes(remotes, front, serving);
        if let Some(lanes) = &datagrams {
            carry_udp(lanes.subscribe(), (Arc::clone(&opened.udp), udp_ports), front, serving)?;
        }
        Ok(())
    };
    serve(Arc::clone(&way), (prepared, reloads), opened, renew, also).await?;
    way.now().close();
    Ok(())
}

pub(super) fn tunnel(
    client: &marline::Client,
    invite: &Invite,
    transport: &'static str,
    warm: usize,
) -> anyhow::Result<Arc<Tunnel<Dialer>>> {
    let dialer = Dialer::new(client.clone(), invite.servers.clone(), transport);
    Tunnel::new(dialer, invite.pin, invite.token.clone(), Patience::default(), warm)
}

/// What is done once everything that may fail has not.
type Step<'a> = Box<dyn FnOnce() + 'a>;

/// Serves applications until a signal; `renew` prepares what is new of the way when the configuration
/// was read again, `also` starts what is served besides.
async fn serve<'a, O: Open>(
    way: Arc<O>,
    (prepared, reloads): (Prepared, Reloads),
    opened: &OpenedClient,
    renew: impl Fn(&ClientPlan) -> anyhow::Result<Step<'a>>,
    also: impl FnOnce(&Arc<SocksListener<O>>, &mut JoinSet<()>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Prepared { plan, settings, ports: bound, transparent, .. } = prepared;
    let (stopper, signals) = (Stopper::default(), Signals::new()?);
    let front = SocksListener::new(way, plan.max_connections, stopper.listen());
    let mut serving = JoinSet::new();
    // First: who comes to a port may ask for it.
    also(&front, &mut serving)?;
    let (mut ports, begun) = Ports::new();
    for (wanted, socket) in bound {
        announce(socket.local_addr()?, &wanted.1);
        ports.open(wanted, socket)?;
    }
    for listener in transparent {
        announce(listener.local_addr()?, &Service::Transparent);
        let listener = TcpListener::from_std(listener)?;
        let served =
            Arc::clone(&front).serve(listener, Service::Transparent, std::future::pending());
        serving.spawn(served);
    }
    crate::service::ready();
    let work = serve_ports(Arc::clone(&front), begun, serving, stopper.listen());
    let client = &opened.client;
    let apply = |plan: &ClientPlan| {
        // All that may fail, and then the rest.
        client.check_paths(&plan.paths)?;
        let change = ports.prepare(&wanted(plan))?;
        let renewed = renew(plan)?;
        client.set_paths(&plan.paths)?;
        client.set_transport(plan.network.get_transport());
        opened.quotas.change(plan.path_quotas.clone());
        opened.quotas.look(client, unix_s());
        renewed();
        for (address, service) in ports.commit(change) {
            announce(address, &service);
        }
        front.bound(plan.max_connections);
        Ok(())
    };
    stopper.run_until_signal(signals, &mut Live::new(settings, reloads, apply), work).await
}

/// Serves the ports that are opened, until the drain and to the end of what was begun.
async fn serve_ports<O: Open>(
    front: Arc<SocksListener<O>>,
    mut begun: mpsc::UnboundedReceiver<Opened>,
    mut serving: JoinSet<()>,
    stop: Stop,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            Some(Opened { listener, service, closed }) = begun.recv() => {
                let closed = async { drop(closed.await) };
                serving.spawn(Arc::clone(&front).serve(listener, service, closed));
            }
            Some(ended) = serving.join_next() => ended.context("a listening port failed")?,
            () = stop.draining(), if serving.is_empty() => return Ok(()),
        }
    }
}

/// Carries UDP of applications: of associations, and of these forwards.
fn carry_udp(
    config: watch::Receiver<LaneConfig>,
    (udp, ports): (Arc<UdpTunnel>, Vec<UdpForward>),
    front: &Arc<Front>,
    serving: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    front.carry_udp(Arc::clone(&udp));
    serving.spawn(Arc::clone(front).keep_udp(Arc::clone(&udp), config));
    for port in ports {
        let (address, target) = (port.local_addr()?, port.target());
        say(&format!("udp forward listening on {address} to {target}"));
        serving.spawn(Arc::clone(front).forward_udp(Arc::clone(&udp), port));
    }
    Ok(())
}

/// Keeps the remote forwards; each tells on standard output whenever the server listens.
fn keep_remotes(forwards: Vec<Forward>, front: &Arc<Front>, serving: &mut JoinSet<()>) {
    for Forward { listen, target } in forwards {
        let to = target.clone();
        let announce =
            move |address| say(&format!("remote forward listening on {address} to {to}"));
        serving.spawn(Arc::clone(front).remote(RemoteForward { listen, target }, announce));
    }
}

/// On standard output: programs that start a client read the port from it.
fn announce(address: SocketAddr, service: &Service) {
    let line = match service {
        Service::Socks5 => format!("socks5 listening on {address}"),
        Service::Forward(target) => format!("forward listening on {address} to {target}"),
        Service::Transparent => format!("transparent listening on {address}"),
    };
    say(&line);
}

/// A line on standard output, where somebody may listen or not.
fn say(line: &str) {
    let _ = print(&format!("{line}\n"));
}
