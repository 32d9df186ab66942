//! Accept loops of the long-running commands.

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use marline::{ConnectionInfo, Server, Stream, SubflowInfo, SubflowState};
use tokio::task::JoinSet;

use marline_proxy::shutdown::Stop;

/// How often a process that has handed over looks whether it has anything left.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A connection that is half open for longer than this belongs to a client that has repeated its SYN, which the
/// other process has answered.
const HALF_OPEN: Duration = Duration::from_secs(5);

/// Serves everyone who connects until the drain, and those it has until they end. After a handover that is the end: who
/// was on the way then is served here still.
///
/// It runs beside what it serves, not on the main thread, which would have to be woken for each of them.
pub(super) async fn accept<F>(
    listener: Server,
    stop: Stop,
    serve: impl Fn(Stream, SocketAddr) -> F + Send + Sync + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    // A set of one: who gives up waiting ends it.
    let mut beside = JoinSet::new();
    beside.spawn(serve_all(listener, stop, serve));
    beside.join_next().await.context("nothing was begun")?.context("accepting failed")?
}

/// Resolves when another process accepts, and nobody is left here.
async fn left_alone(stop: &Stop, listener: &Server) {
    stop.handed_over().await;
    let since = Instant::now();
    loop {
        let late = since.elapsed() > HALF_OPEN;
        let counts = |connection: &ConnectionInfo| !(late && is_half_open(connection));
        if !listener.connections().iter().any(counts) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn is_half_open(connection: &ConnectionInfo) -> bool {
    let opening = |flow: &SubflowInfo| flow.state == SubflowState::SynReceived;
    !connection.subflows.is_empty() && connection.subflows.iter().all(opening)
}

async fn serve_all<F>(
    listener: Server,
    stop: Stop,
    serve: impl Fn(Stream, SocketAddr) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    loop {
        let next = tokio::select! {
            next = listener.accept() => next,
            // Reaps those that ended.
            Some(_) = running.join_next(), if !running.is_empty() => continue,
            () = stop.draining() => break,
            () = left_alone(&stop, &listener), if running.is_empty() => break,
        };
        match next {
            Some((stream, peer)) => {
                running.spawn(serve(stream, peer));
            }
            None => anyhow::bail!("the network side ended"),
        }
    }
    // From now on whoever asks is refused, instead of waiting for nothing.
    listener.close();
    while running.join_next().await.is_some() {}
    Ok(())
}
