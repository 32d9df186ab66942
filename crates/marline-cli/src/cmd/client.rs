//! `marline client`: the client side of the proxy.

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
use marline_proxy::shutdown::Stopper;
use marline_proxy::signals::Signals;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::settings::{Live, Settings};
use super::watched::watched;
use crate::config::Forward;
use crate::config::client::{ClientOptions, ClientPlan, Route};
use crate::control::ClientHandle;
use crate::native::raise_file_limit;
use crate::radio_meter::RadioMeter;

/// At the end of a process, closing connections get this long to say so to the peer.
pub(super) const FAREWELL: marline::Duration = marline::Duration::from_secs(2);

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
    ports: Vec<(std::net::TcpListener, Service)>,
    udp_ports: Vec<UdpForward>,
}

/// Completes the privileged setup, then drops the privileges.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<Prepared> {
    let (settings, mut plan) = Settings::read(args.options, args.config)?;
    // Ports first: the likeliest error, and it must not cost a handshake.
    let ports = bind_all(&plan)?;
    let bind = |forward: &Forward| UdpForward::bind(forward.listen, forward.target.clone());
    let udp_ports = plan.udp_forwards.iter().map(bind).collect::<anyhow::Result<_>>()?;
    raise_file_limit();
    plan.network.carrier(plan.carrier.clone().open()?);
    Ok(Prepared { plan, settings, ports, udp_ports })
}

/// Runs the client.
///
/// # Errors
/// An error message for the user.
pub async fn run(prepared: Prepared) -> anyhow::Result<ExitCode> {
    let Prepared { plan, settings, ports, udp_ports } = prepared;
    let radios = RadioMeter::new();
    let client = plan.network.clone().observer(radios.observer()).bind().await?;
    let udp = Arc::new(UdpTunnel::default());
    let handle = ClientHandle { client: client.clone(), radios, udp: Arc::clone(&udp) };
    let handle = Arc::new(handle);
    let _watched = watched(&plan.runtime, handle).await?;
    match plan.route.clone() {
        Route::Direct => {
            let way = Arc::new(Direct::new(client.clone()));
            serve(way, (plan, settings), ports, |_| Ok(()), |_, _| Ok(())).await?;
        }
        Route::Through(invite) => {
            let mut used = (invite, plan.warm);
            let tunnel = tunnel(&client, &used.0, &plan)?;
            let way = Arc::new(Current::new(tunnel));
            let renew = |plan: &ClientPlan| {
                let Route::Through(invite) = &plan.route else { return Ok(()) };
                if (invite, plan.warm) == (&used.0, used.1) {
                    return Ok(());
                }
                way.replace(self::tunnel(&client, invite, plan)?).close();
                if *invite != used.0 {
                    tracing::info!("another invite: new connections go by it");
                }
                used = (invite.clone(), plan.warm);
                Ok(())
            };
            let (remotes, datagrams) = (plan.remote_forwards.clone(), plan.datagrams.clone());
            let also = |front: &Arc<Front>, serving: &mut JoinSet<()>| {
                keep_remotes(remotes, front, serving);
                if let Some(config) = datagrams {
                    carry_udp(config, (udp, udp_ports), front, serving)?;
                }
                Ok(())
            };
            serve(Arc::clone(&way), (plan, settings), ports, renew, also).await?;
            way.now().close();
        }
    }
    // What the streams were told last must still leave.
    client.drained(FAREWELL).await;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn tunnel(
    client: &marline::Client,
    invite: &Invite,
    plan: &ClientPlan,
) -> anyhow::Result<Arc<Tunnel<Dialer>>> {
    let dialer = Dialer::new(client.clone(), invite.servers.clone(), plan.carrier.transport());
    Tunnel::new(dialer, invite.pin, invite.token.clone(), Patience::default(), plan.warm)
}

/// Serves applications until a signal; `renew` takes over what is new of the way when the configuration
/// was read again, `also` starts what is served besides.
async fn serve<O: Open>(
    way: Arc<O>,
    (plan, settings): (ClientPlan, Settings<ClientOptions>),
    ports: Vec<(std::net::TcpListener, Service)>,
    mut renew: impl FnMut(&ClientPlan) -> anyhow::Result<()>,
    also: impl FnOnce(&Arc<SocksListener<O>>, &mut JoinSet<()>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (stopper, signals) = (Stopper::default(), Signals::new()?);
    let front = SocksListener::new(way, plan.max_connections, stopper.listen());
    let mut serving = JoinSet::new();
    // First: who comes to a port may ask for it.
    also(&front, &mut serving)?;
    for (listener, service) in ports {
        let listener = TcpListener::from_std(listener)?;
        announce(&listener, &service)?;
        serving.spawn(Arc::clone(&front).serve(listener, service));
    }
    crate::service::ready();
    let work = async {
        while let Some(ended) = serving.join_next().await {
            ended.context("a listening port failed")?;
        }
        Ok(())
    };
    let apply = |plan: &ClientPlan| {
        renew(plan)?;
        front.bound(plan.max_connections);
        Ok(())
    };
    stopper.run_until_signal(signals, &mut Live { settings, apply }, work).await
}

/// Carries UDP of applications: of associations, and of these forwards.
fn carry_udp(
    config: LaneConfig,
    (udp, ports): (Arc<UdpTunnel>, Vec<UdpForward>),
    front: &Arc<Front>,
    serving: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    front.carry_udp(Arc::clone(&udp));
    serving.spawn(Arc::clone(front).keep_udp(Arc::clone(&udp), config));
    for port in ports {
        let (address, target) = (port.local_addr()?, port.target());
        println!("udp forward listening on {address} to {target}");
        serving.spawn(Arc::clone(front).forward_udp(Arc::clone(&udp), port));
    }
    Ok(())
}

/// Keeps the remote forwards; each tells on standard output whenever the server listens.
fn keep_remotes(forwards: Vec<Forward>, front: &Arc<Front>, serving: &mut JoinSet<()>) {
    for Forward { listen, target } in forwards {
        let to = target.clone();
        let announce = move |address| println!("remote forward listening on {address} to {to}");
        serving.spawn(Arc::clone(front).remote(RemoteForward { listen, target }, announce));
    }
}

fn bind_all(plan: &ClientPlan) -> anyhow::Result<Vec<(std::net::TcpListener, Service)>> {
    let mut ports = Vec::new();
    for address in &plan.socks5 {
        ports.push((bind(*address)?, Service::Socks5));
    }
    for listener in plan.transparent.map(transparent::bind).transpose()?.into_iter().flatten() {
        ports.push((listener, Service::Transparent));
    }
    for forward in &plan.forwards {
        ports.push((bind(forward.listen)?, Service::Forward(forward.target.clone())));
    }
    Ok(ports)
}

/// On standard output: programs that start a client read the port from it.
fn announce(listener: &TcpListener, service: &Service) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    match service {
        Service::Socks5 => println!("socks5 listening on {address}"),
        Service::Forward(target) => println!("forward listening on {address} to {target}"),
        Service::Transparent => println!("transparent listening on {address}"),
    }
    Ok(())
}
