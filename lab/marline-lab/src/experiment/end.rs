//! One end of a run: a separate process in its host's namespace.
//!
//! The process gets its job as a JSON argument. The server prints `ready` when the client may connect. Each end prints
//! its log as one JSON line when it exits.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use marline::config::InteractiveParameters;
use marline::monitor::ConnectionInfo;
use marline::policy::Role;
use marline::{Carrier, Client, Server};
use marline_qlog::Vantage;
use marline_time::Instant;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use super::plan::{self, End};
use super::qlog::Traces;
use super::stream_task::{self, StopCondition};
use super::{Flow, Load, QlogConfig, Stack, Variant};
use crate::kernel::Kernel;
use crate::scenario::Side;
use crate::workload::{EndLogs, Stream, now_ns, wait_until};

/// The server's first byte, because a kernel client does not join further subflows before it has received data.
const GREETING: u8 = b'M';
/// Time limit for connecting, after which the run fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for closing connections.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// A path of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PathUse {
    /// The interface with flags, as [`marline::paths::PathSpec`] writes it.
    pub(super) spec: String,
    /// The local address.
    pub(super) address: IpAddr,
}

/// Everything an end needs for its run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// Client or server.
    pub(super) side: Side,
    /// TCP stack.
    pub(super) stack: Stack,
    /// Policies and buffers.
    pub(super) variant: Variant,
    /// The server's address on the first path.
    pub(super) address: SocketAddr,
    /// The server's address of the other family, if there are paths of both.
    pub(super) other_address: Option<SocketAddr>,
    /// The paths to use, in order.
    pub(super) paths: Vec<PathUse>,
    /// Workloads, each on its own connection.
    pub(super) loads: Vec<Load>,
    /// Start of the workloads, ns of the monotonic clock.
    pub(super) start_ns: u64,
    /// Seed of the run.
    pub(super) seed: u64,
    /// Time to wait for missing messages after the planned end.
    pub(super) patience: Duration,
    /// Limits on the traces to write, if this end is Marline.
    pub(super) traces: Option<QlogConfig>,
}

/// Runs the job, and prints the log and, if traces are enabled, a line with the traces. `time_of_day` returns the
/// wall-clock start of a trace in RFC 3339 format.
///
/// # Errors
/// The run failed and is invalid.
pub fn run_end(job: &str, time_of_day: fn() -> String) -> anyhow::Result<()> {
    let job: Job = serde_json::from_str(job).context("cannot parse the job")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let traces = job.traces(time_of_day);
    let log = runtime.block_on(LocalSet::new().run_until(async {
        match (job.stack.is_marline(), job.side) {
            (true, Side::Client) => marline_client(&job, traces.clone()).await,
            (true, Side::Server) => marline_server(&job, traces.clone()).await,
            (false, Side::Client) => kernel_client(&job).await,
            (false, Side::Server) => kernel_server(&job).await,
        }
    }))?;
    println!("{}", serde_json::to_string(&log)?);
    if let Some(traces) = traces {
        let traces = traces.lock().unwrap_or_else(PoisonError::into_inner).finish();
        let texts: Vec<String> = traces.into_iter().map(|trace| trace.text).collect();
        println!("{}", serde_json::to_string(&texts)?);
    }
    Ok(())
}

impl Job {
    /// Number of connections: one per path, or one per workload connection.
    fn connections(&self) -> usize {
        match self.stack {
            Stack::Duplicate => self.paths.len(),
            _ => plan::connections(&self.loads).len(),
        }
    }

    /// Trace writers of a Marline end.
    fn traces(&self, time_of_day: fn() -> String) -> Option<Arc<Mutex<Traces>>> {
        let config = self.traces.filter(|_| self.stack.is_marline())?;
        let title = format!("{}, seed {}, live", self.variant.name, self.seed);
        let vantage = if self.side == Side::Client { Vantage::Client } else { Vantage::Server };
        Some(Arc::new(Mutex::new(Traces::new(title, vantage, config, Some(time_of_day)))))
    }

    fn kernel(&self) -> Kernel {
        let bytes = |buffer: Option<u64>| buffer.map(|bytes| bytes as usize);
        Kernel {
            mptcp: self.stack == Stack::Mptcp,
            congestion: self.variant.congestion.clone(),
            send_buffer: bytes(self.variant.send_buffer),
            receive_buffer: bytes(self.variant.receive_buffer),
        }
    }

    async fn run_client(&self, mut streams: Vec<Stream>) -> anyhow::Result<EndLogs> {
        for (number, stream) in (0..).zip(&mut streams) {
            let mut byte = [0];
            timeout(CONNECT_TIMEOUT, stream.read_exact(&mut byte))
                .await
                .context("the server did not send its greeting in time")??;
            stream.write_all(&[number]).await?;
            stream.flush().await?;
        }
        anyhow::ensure!(
            now_ns() < self.start_ns,
            "the connection was established after the workload's start"
        );
        wait_until(self.start_ns).await;
        self.run_workloads(streams).await
    }

    async fn run_server(&self, streams: Vec<Stream>) -> anyhow::Result<EndLogs> {
        let mut numbered = Vec::new();
        for mut stream in streams {
            stream.write_all(&[GREETING]).await?;
            stream.flush().await?;
            // Connections are accepted in any order.
            let number = timeout(CONNECT_TIMEOUT, stream.read_u8())
                .await
                .context("the client did not send its stream number in time")??;
            numbered.push((number, stream));
        }
        numbered.sort_by_key(|(number, _)| *number);
        self.run_workloads(numbered.into_iter().map(|(_, stream)| stream).collect()).await
    }

    /// Runs all workloads concurrently, each on the stream of its connection, or on all streams.
    async fn run_workloads(&self, streams: Vec<Stream>) -> anyhow::Result<EndLogs> {
        let start = Instant::from_nanos(self.start_ns);
        let flows = plan::flows(&self.loads, start, self.seed);
        let groups = plan::connections(&self.loads);
        let ends = self.loads.iter().enumerate();
        let ends = ends.map(|(number, load)| load.ends(Load::seed(self.seed, number)));
        let deadline = start + ends.max().unwrap_or_default() + self.patience;
        let mut running = JoinSet::new();
        for (number, stream) in (0..).zip(streams) {
            let twice = self.stack == Stack::Duplicate;
            let group = groups.get(if twice { 0 } else { usize::from(number) });
            let group = group.context("too many streams")?;
            let [client, server] = End::both_ends(&self.loads, group, start, self.seed, &flows);
            let stop = StopCondition { floods: End::bulk_end(&self.loads, group, start), deadline };
            match self.side {
                Side::Client => {
                    let end = client.with_stream(if twice { number } else { 0 });
                    running.spawn_local(stream_task::client(stream, end, stop))
                }
                Side::Server => running.spawn_local(async move {
                    stream_task::server(stream, server, stop).await;
                    Ok(())
                }),
            };
        }
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        let side = |flow: &Flow| match self.side {
            Side::Client => flow.client.clone(),
            Side::Server => flow.server.clone(),
        };
        let flows = flows.borrow().iter().map(side).collect();
        Ok(EndLogs { flows, reinjected_bytes: 0 })
    }
}

fn box_stream(stream: TcpStream) -> io::Result<Stream> {
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

async fn kernel_client(job: &Job) -> anyhow::Result<EndLogs> {
    let each_path = job.stack == Stack::Duplicate;
    let path = |number| job.paths.get(if each_path { number } else { 0 });
    let from = (0..job.connections()).filter_map(path).map(|path| path.address);
    let mut streams = Vec::new();
    for from in from {
        let connecting = job.kernel();
        let stream = timeout(CONNECT_TIMEOUT, connecting.connect(Some(from), job.address)).await;
        streams.push(box_stream(stream.context("cannot connect")?.context("cannot connect")?)?);
    }
    job.run_client(streams).await
}

async fn kernel_server(job: &Job) -> anyhow::Result<EndLogs> {
    let kernel = job.kernel();
    let listener = kernel.listen(job.address).context("cannot listen")?;
    println!("ready");
    let mut streams = Vec::new();
    for _ in 0..job.connections() {
        let stream = timeout(CONNECT_TIMEOUT, kernel.accept(&listener))
            .await
            .context("cannot accept a connection")??;
        streams.push(box_stream(stream)?);
    }
    job.run_server(streams).await
}

async fn marline_client(job: &Job, traces: Option<Arc<Mutex<Traces>>>) -> anyhow::Result<EndLogs> {
    let mut client = Client::builder();
    if let Some(traces) = traces {
        client.event_observer(traces);
    }
    client.carrier(Carrier::Raw).transport(job.variant.end(Role::Client)?).path_health_monitor(
        job.variant.interactive()?.map(InteractiveParameters::path_health_monitor),
    );
    for path in &job.paths {
        client.path(path.spec.parse()?);
    }
    let client = client.bind().await?;
    let servers: Vec<SocketAddr> = [job.address].into_iter().chain(job.other_address).collect();
    let mut streams: Vec<Stream> = Vec::new();
    for _ in 0..job.connections() {
        streams.push(Box::new(client.connect(&servers[..]).await.context("cannot connect")?));
    }
    let mut log = job.run_client(streams).await?;
    log.reinjected_bytes = reinjected_bytes(client.connections());
    client.drained(CLOSING_TIME).await;
    Ok(log)
}

async fn marline_server(job: &Job, traces: Option<Arc<Mutex<Traces>>>) -> anyhow::Result<EndLogs> {
    let mut server = Server::builder();
    if let Some(traces) = traces {
        server.event_observer(traces);
    }
    if let Some(other) = job.other_address {
        server.listen(other);
    }
    server
        .carrier(Carrier::Raw)
        .listen(job.address)
        .transport(job.variant.end(Role::Server)?)
        .path_health_monitor(
            job.variant.interactive()?.map(InteractiveParameters::path_health_monitor),
        );
    let server = server.bind().await?;
    println!("ready");
    let mut streams: Vec<Stream> = Vec::new();
    for _ in 0..job.connections() {
        let accepted = timeout(CONNECT_TIMEOUT, server.accept())
            .await
            .context("cannot accept a connection")?;
        streams.push(Box::new(
            accepted.context("cannot accept a connection: the server was closed")?.0,
        ));
    }
    let mut log = job.run_server(streams).await?;
    log.reinjected_bytes = reinjected_bytes(server.connections());
    server.drained(CLOSING_TIME).await;
    Ok(log)
}

/// Bytes sent again by all subflows, including closed ones.
fn reinjected_bytes(connections: Vec<ConnectionInfo>) -> u64 {
    let subflows =
        connections.into_iter().flat_map(|info| info.subflows.into_iter().chain(info.gone));
    subflows.map(|subflow| subflow.bytes_reinjected).sum()
}
