//! `marline client`: the proxy's near end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::watched::watched;
use crate::control::ClientHandle;
use crate::proxy::client::dialer::Dialer;
use crate::proxy::client::front::{Front, Service, bind};
use crate::proxy::client::tunnel::{Patience, Tunnel};
use crate::proxy::config::client::{ClientOptions, ClientPlan};
use crate::proxy::shutdown::Stopper;

/// At the end of a process, closing connections get this long to say so to the peer.
pub(super) const FAREWELL: marline::Duration = marline::Duration::from_secs(2);

/// Arguments of `marline client`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A TOML file whose keys are these flags' names; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Everything else.
    #[command(flatten)]
    pub options: ClientOptions,
}

/// Runs it.
///
/// # Errors
/// What went wrong, in words for the user.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let plan = args.options.with_file(args.config.as_deref())?.plan()?;
    // Ports first: the likeliest error, and it must not cost a handshake.
    let ports = bind_all(&plan).await?;
    let client = marline::Client::bind(plan.network.clone()).await?;
    let handle = Arc::new(ClientHandle(client.clone()));
    let _watched = watched(&plan.conduct, handle).await?;
    let stopper = Stopper::default();
    let dialer = Dialer::new(client.clone(), plan.invite.servers);
    let patience = Patience::default();
    let tunnel = Tunnel::new(dialer, plan.invite.pin, plan.invite.token, patience, plan.warm)?;
    let front = Front::new(Arc::clone(&tunnel), plan.max_connections, stopper.listen());
    let mut serving = JoinSet::new();
    for (listener, service) in ports {
        announce(&listener, &service)?;
        serving.spawn(Arc::clone(&front).serve(listener, service));
    }
    let work = async {
        while let Some(ended) = serving.join_next().await {
            ended.context("a listening port failed")?;
        }
        Ok(())
    };
    stopper.run_until_signal(plan.conduct.drain, work).await?;
    // What the streams were told last must still leave.
    tunnel.close();
    client.drained(FAREWELL).await;
    Ok(ExitCode::SUCCESS)
}

async fn bind_all(plan: &ClientPlan) -> anyhow::Result<Vec<(TcpListener, Service)>> {
    let mut ports = Vec::new();
    for address in &plan.socks5 {
        ports.push((bind(*address).await?, Service::Socks5));
    }
    for forward in &plan.forwards {
        ports.push((bind(forward.listen).await?, Service::Forward(forward.target.clone())));
    }
    Ok(ports)
}

/// On standard output: programs that start a client read the port from it.
fn announce(listener: &TcpListener, service: &Service) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    match service {
        Service::Socks5 => println!("socks5 listening on {address}"),
        Service::Forward(target) => println!("forward listening on {address} to {target}"),
    }
    Ok(())
}
