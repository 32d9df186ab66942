//! One end of a run: a process of its own in its host's namespace.
//!
//! It gets its job as one JSON argument; the server prints `ready` when the client may come; at the
//! end each prints its log as one JSON line.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use marline::{
    Carrier, Client, ClientConfig, ConnectionConfig, Listener, Registry, ServerConfig,
    default_policies,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::contestant::Contestant;
use crate::kernel::Kernel;
use crate::scenario::Side;
use crate::workload::{Log, Stream, Workload, now_ns, until};

/// The server's first byte: a kernel's client does not join before it has heard data.
const GREETING: u8 = b'M';
/// Connections are there before the start, or the run does not count.
const CONNECTING: Duration = Duration::from_secs(10);
/// Time to say farewell at the end.
const FAREWELL: Duration = Duration::from_secs(2);

/// A path of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathUse {
    /// The interface.
    pub interface: String,
    /// The local address.
    pub address: IpAddr,
    /// Use it only if nothing else works.
    pub backup: bool,
}

/// All an end must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Which end.
    pub side: Side,
    /// Whose stack.
    pub contestant: Contestant,
    /// The server's address.
    pub address: SocketAddr,
    /// The client's paths.
    pub paths: Vec<PathUse>,
    /// What the application does.
    pub workload: Workload,
    /// Send buffer, bytes, in the stack's own way of counting.
    pub send_buffer: Option<u64>,
    /// Receive buffer likewise.
    pub receive_buffer: Option<u64>,
    /// When it starts to, ns of the monotonic clock.
    pub start_ns: u64,
    /// Of the schedule.
    pub seed: u64,
}

/// Does the job and prints the log.
///
/// # Errors
/// Anything that went wrong: the run does not count.
pub fn run_end(job: &str) -> anyhow::Result<()> {
    let job: Job = serde_json::from_str(job).context("the job")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let log = runtime.block_on(async {
        match (job.contestant.is_marline(), job.side) {
            (true, Side::Client) => marline_client(&job).await,
            (true, Side::Server) => marline_server(&job).await,
            (false, Side::Client) => kernel_client(&job).await,
            (false, Side::Server) => kernel_server(&job).await,
        }
    })?;
    println!("{}", serde_json::to_string(&log)?);
    Ok(())
}

impl Job {
    const fn connections(&self) -> usize {
        match self.contestant {
            Contestant::Duplicate => 2,
            _ => 1,
        }
    }

    fn kernel(&self) -> Kernel {
        let bytes = |buffer: Option<u64>| buffer.map(|bytes| bytes as usize);
        Kernel {
            mptcp: self.contestant == Contestant::Kernel,
            send_buffer: bytes(self.send_buffer),
            receive_buffer: bytes(self.receive_buffer),
        }
    }

    fn connection(&self) -> anyhow::Result<ConnectionConfig> {
        let mut policies = default_policies();
        if self.contestant == Contestant::Redundant {
            policies.scheduler = Registry::default().scheduler("redundant")?;
        }
        let mut config = ConnectionConfig::new(policies);
        config.send_buffer = self.send_buffer.unwrap_or(config.send_buffer);
        config.receive_buffer = self.receive_buffer.unwrap_or(config.receive_buffer);
        Ok(config)
    }

    async fn run_client(&self, mut streams: Vec<Stream>) -> anyhow::Result<Log> {
        for stream in &mut streams {
            let mut byte = [0];
            timeout(CONNECTING, stream.read_exact(&mut byte)).await.context("no greeting")??;
        }
        anyhow::ensure!(now_ns() < self.start_ns, "connected after the start");
        until(self.start_ns).await;
        Ok(self.workload.client(streams, self.start_ns, self.seed).await?)
    }

    async fn run_server(&self, mut streams: Vec<Stream>) -> anyhow::Result<Log> {
        for stream in &mut streams {
            stream.write_all(&[GREETING]).await?;
            stream.flush().await?;
        }
        Ok(self.workload.server(streams, self.start_ns, self.seed).await?)
    }
}

fn boxed(stream: TcpStream) -> io::Result<Stream> {
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

async fn kernel_client(job: &Job) -> anyhow::Result<Log> {
    let from = |number: usize| job.paths.get(number).map(|path| path.address);
    let from = match job.contestant {
        Contestant::FirstPath => vec![from(0)],
        Contestant::SecondPath => vec![from(1)],
        Contestant::Duplicate => vec![from(0), from(1)],
        _ => vec![None],
    };
    let mut streams = Vec::new();
    for from in from {
        let connecting = job.kernel();
        let stream = timeout(CONNECTING, connecting.connect(from, job.address)).await;
        streams.push(boxed(stream.context("connect")?.context("connect")?)?);
    }
    job.run_client(streams).await
}

async fn kernel_server(job: &Job) -> anyhow::Result<Log> {
    let kernel = job.kernel();
    let listener = kernel.listen(job.address).context("listen")?;
    println!("ready");
    let mut streams = Vec::new();
    for _ in 0..job.connections() {
        let stream = timeout(CONNECTING, kernel.accept(&listener)).await.context("accept")??;
        streams.push(boxed(stream)?);
    }
    job.run_server(streams).await
}

async fn marline_client(job: &Job) -> anyhow::Result<Log> {
    let mut config = ClientConfig::new(job.connection()?);
    config.carrier = Carrier::Raw;
    for path in &job.paths {
        let flags = if path.backup { ",backup" } else { "" };
        config.paths.push(format!("{}{flags}", path.interface).parse()?);
    }
    let client = Client::bind(config).await?;
    let stream = client.connect(&[job.address]).await.context("connect")?;
    let log = job.run_client(vec![Box::new(stream)]).await?;
    client.drained(FAREWELL).await;
    Ok(log)
}

async fn marline_server(job: &Job) -> anyhow::Result<Log> {
    let mut config = ServerConfig::new(vec![job.address], job.connection()?);
    config.carrier = Carrier::Raw;
    let listener = Listener::bind(config).await?;
    println!("ready");
    let (stream, _) = timeout(CONNECTING, listener.accept()).await.context("accept")??;
    let log = job.run_server(vec![Box::new(stream)]).await?;
    listener.drained(FAREWELL).await;
    Ok(log)
}
