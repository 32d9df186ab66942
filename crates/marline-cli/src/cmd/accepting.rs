//! Accept loops of the long-running commands.

use std::future::Future;
use std::net::SocketAddr;

use anyhow::Context;
use marline::{Server, Stream};
use tokio::task::JoinSet;

use marline_proxy::shutdown::Stop;

/// Serves everyone who connects until the drain, and those it has until they end.
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
