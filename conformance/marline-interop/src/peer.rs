//! One end of a cell: a separate process in the namespace of its host.
//!
//! The process gets its job as one JSON argument, prints `ready` when clients may connect (the server) and one JSON
//! line per connection.

mod kernel;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use marline::advanced::ConnectionConfig;
use marline::config::ServerAddress;
use marline::paths::PathChange;
use marline::{Carrier, Client, Server};
use marline_lab::experiment::Variant;
use marline_lab::kernel::Kernel;
use marline_lab::scenario::Side;
use serde::{Deserialize, Serialize};

use crate::exchange::{self, Outcome, Pipe, Plan};
use kernel::KernelPipe;

/// Time limit for closing the connections at the end.
const CLOSING_TIME: Duration = Duration::from_secs(10);

/// Kind of TCP stack.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stack {
    Kernel,
    /// The kernel's TCP without Multipath TCP.
    Tcp,
    Marline,
}

/// A case's special settings for the Marline end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Extra {
    /// Addresses announced by the server.
    pub(crate) announced: Vec<AnnouncedAddress>,
    /// True if joins to the first address are forbidden (flag C).
    pub(crate) deny_join_id0: bool,
    /// Subflows per connection.
    pub(crate) subflows: Option<usize>,
    /// Changes of the client's paths, with times in ms after it has connected: `up`, `down`, `backup`, `primary`.
    pub(crate) changes: Vec<(u64, String, String)>,
    /// Changes of the server's addresses, with times in ms after it has accepted.
    pub(crate) address_changes: Vec<(u64, SocketAddr, String)>,
    /// Policies.
    pub(crate) variant: Variant,
    /// Uses MultiMob's policies instead, with every extension.
    pub(crate) interactive: bool,
}

/// An address that a server announces.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AnnouncedAddress {
    pub(crate) address: SocketAddr,
    /// The address that clients use, if it differs.
    pub(crate) advertised: Option<SocketAddr>,
    pub(crate) backup: bool,
}

/// Complete job of an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) stack: Stack,
    pub(crate) side: Side,
    /// The server's address.
    pub(crate) address: SocketAddr,
    /// Interfaces of a Marline client.
    pub(crate) paths: Vec<String>,
    pub(crate) checksum: bool,
    /// Receive buffer in bytes. `None`: the default.
    pub(crate) receive_buffer: Option<u32>,
    pub(crate) plan: Plan,
    pub(crate) extra: Extra,
}

impl Pipe for marline::Stream {
    fn abort(self) {
        marline::Stream::abort(self);
    }

    fn fallback(&self) -> Option<String> {
        marline::Stream::fallback(self).map(|reason| format!("{reason:?}"))
    }
}

/// Runs the job.
///
/// # Errors
/// The job could not be started. Later errors are reported in the printed lines.
pub(crate) fn run(job: &Job) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match (job.stack, job.side) {
            (Stack::Kernel | Stack::Tcp, Side::Client) => kernel_client(job).await,
            (Stack::Kernel | Stack::Tcp, Side::Server) => kernel_server(job).await,
            (Stack::Marline, Side::Client) => marline_client(job).await,
            (Stack::Marline, Side::Server) => marline_server(job).await,
        }
    })
}

fn tell(outcome: &Outcome) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(outcome)?);
    Ok(())
}

fn kernel(job: &Job) -> Kernel {
    let receive_buffer = job.receive_buffer.map(|bytes| bytes as usize);
    Kernel {
        mptcp: job.stack == Stack::Kernel,
        receive_buffer,
        send_buffer: None,
        congestion: None,
    }
}

async fn wait_for_start_time(job: &Job, connection: usize, began: Instant) {
    if connection > 0 {
        tokio::time::sleep_until((began + job.plan.interval).into()).await;
    }
}

async fn kernel_client(job: &Job) -> anyhow::Result<()> {
    let kernel = kernel(job);
    let began = Instant::now();
    for connection in 0..job.plan.connections() {
        wait_for_start_time(job, connection, began).await;
        let pipe = KernelPipe(kernel.connect(None, job.address).await.context("cannot connect")?);
        tell(&exchange::run(pipe, Side::Client, &job.plan, connection).await)?;
    }
    Ok(())
}

async fn kernel_server(job: &Job) -> anyhow::Result<()> {
    let kernel = kernel(job);
    let listener = kernel.listen(job.address).context("cannot listen")?;
    println!("ready");
    for connection in 0..job.plan.connections() {
        let pipe =
            KernelPipe(kernel.accept(&listener).await.context("cannot accept a connection")?);
        tell(&exchange::run(pipe, Side::Server, &job.plan, connection).await)?;
    }
    Ok(())
}

fn connection_config(job: &Job) -> anyhow::Result<ConnectionConfig> {
    let mut config = job.extra.variant.connection()?;
    if job.extra.interactive {
        let client = job.side == Side::Client;
        let role =
            if client { marline::policy::Role::Client } else { marline::policy::Role::Server };
        marline::advanced::interactive(
            &mut config,
            role,
            marline::config::InteractiveParameters::Prompt,
        );
    }
    config.dss_checksum = job.checksum;
    config.deny_join_id0 = job.extra.deny_join_id0;
    if let Some(bytes) = job.receive_buffer {
        config.receive_buffer = u64::from(bytes);
    }
    Ok(config)
}

async fn marline_client(job: &Job) -> anyhow::Result<()> {
    let mut client = Client::builder();
    client.carrier(Carrier::Raw).transport(connection_config(job)?);
    for path in &job.paths {
        client.path(path.parse()?);
    }
    if let Some(subflows) = job.extra.subflows {
        client.limits_mut().subflows = subflows;
    }
    let client = client.bind().await?;
    let began = Instant::now();
    for connection in 0..job.plan.connections() {
        wait_for_start_time(job, connection, began).await;
        let stream = client.connect(job.address).await.context("cannot connect")?;
        let exchange = exchange::run(stream, Side::Client, &job.plan, connection);
        let (outcome, changed) = tokio::join!(exchange, change_paths(&client, &job.extra.changes));
        changed?;
        tell(&outcome)?;
    }
    client.drained(CLOSING_TIME).await;
    Ok(())
}

fn server_address(announced: &AnnouncedAddress) -> ServerAddress {
    let AnnouncedAddress { address, advertised, backup } = *announced;
    let mut server = ServerAddress::new(address);
    (server.advertised, server.backup) = (advertised, backup);
    server
}

async fn change_paths(client: &Client, changes: &[(u64, String, String)]) -> anyhow::Result<()> {
    let began = Instant::now();
    for (after_ms, path, change) in changes {
        tokio::time::sleep_until((began + Duration::from_millis(*after_ms)).into()).await;
        client.set_path(path, path_change(change)?)?;
    }
    Ok(())
}

fn path_change(word: &str) -> anyhow::Result<PathChange> {
    Ok(match word {
        "up" => PathChange::Up,
        "down" => PathChange::Down,
        "backup" => PathChange::Backup,
        "primary" => PathChange::Primary,
        "metered" => PathChange::Metered,
        "unmetered" => PathChange::Unmetered,
        "fading" => PathChange::Fading,
        "steady" => PathChange::Steady,
        other => anyhow::bail!("unknown path change {other}"),
    })
}

async fn change_addresses(
    server: &Server,
    changes: &[(u64, SocketAddr, String)],
) -> anyhow::Result<()> {
    let began = Instant::now();
    for (after_ms, address, change) in changes {
        tokio::time::sleep_until((began + Duration::from_millis(*after_ms)).into()).await;
        server.set_address(*address, path_change(change)?)?;
    }
    Ok(())
}

async fn marline_server(job: &Job) -> anyhow::Result<()> {
    let mut server = Server::builder();
    server.carrier(Carrier::Raw).listen(job.address).transport(connection_config(job)?);
    if let Some(subflows) = job.extra.subflows {
        server.limits_mut().subflows = subflows;
    }
    for address in &job.extra.announced {
        server.announce(server_address(address));
    }
    let server = server.bind().await?;
    println!("ready");
    for connection in 0..job.plan.connections() {
        let (stream, _) = server.accept().await.context("the server was closed")?;
        let exchange = exchange::run(stream, Side::Server, &job.plan, connection);
        let changes = change_addresses(&server, &job.extra.address_changes);
        let (outcome, changed) = tokio::join!(exchange, changes);
        changed?;
        tell(&outcome)?;
    }
    server.drained(CLOSING_TIME).await;
    Ok(())
}
