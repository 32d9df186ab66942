//! Accept loops of the long-running commands.

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use marline::monitor::{ConnectionInfo, SubflowInfo, SubflowState};
use marline::{Server, Stream};
use tokio::task::JoinSet;

use marline_proxy::shutdown::Stop;

/// Interval at which a process that has handed over checks for remaining connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Age above which a half-open connection counts as unused: its client has repeated the SYN, and the new process has
/// answered.
const MAX_HALF_OPEN_TIME: Duration = Duration::from_secs(5);

/// Accepts connections until the drain, and serves them until they end. After a handover this accepts only
/// connections whose handshake was in progress.
///
/// Runs in a separate task instead of on the main thread, which would have to be woken for each connection.
pub(super) async fn accept<F>(
    listener: Server,
    stop: Stop,
    serve: impl Fn(Stream, SocketAddr) -> F + Send + Sync + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    // A set of one task, so that dropping it ends the task.
    let mut beside = JoinSet::new();
    beside.spawn(serve_all(listener, stop, serve));
    beside
        .join_next()
        .await
        .context("the listener task did not start")?
        .context("the listener task failed")?
}

/// Resolves when another process accepts and no connection is left here.
async fn wait_until_unused(stop: &Stop, listener: &Server) {
    stop.handed_over().await;
    let since = Instant::now();
    loop {
        let late = since.elapsed() > MAX_HALF_OPEN_TIME;
        let counts = |connection: &ConnectionInfo| !(late && is_half_open(connection));
        if !listener.connections().iter().any(counts) {
            return;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
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
            // Removes ended tasks.
            Some(_) = running.join_next(), if !running.is_empty() => continue,
            () = stop.draining() => break,
            () = wait_until_unused(&stop, &listener), if running.is_empty() => break,
        };
        match next {
            Some((stream, peer)) => {
                running.spawn(serve(stream, peer));
            }
            None => anyhow::bail!("the listener has stopped"),
        }
    }
    // From now on, new connections are refused instead of waiting until they time out.
    listener.close();
    while running.join_next().await.is_some() {}
    Ok(())
}
