//! Connections that wait for a request: warm ones, which have carried none yet, and used ones.
//!
//! *Warm.* An authenticated connection is kept idle, so that a request costs one round trip instead of three. A keeper
//! task holds it and reads from it: a byte, an end or an error before the request makes it unusable. The keeper closes
//! old connections before the server does.
//!
//! *Used.* A further request needs no handshake and starts on all paths, with the current state of their congestion
//! controllers. These connections wait for a few seconds, because most further requests follow quickly (the files of a
//! page, the next call of a program), and their number is bounded. No task reads from them: a connection is checked
//! when it is taken.
//!
//! A connection may have failed unnoticed. In this case the server does not send `Working`, and the request is repeated
//! on another one, unless the application's first bytes were sent ahead (`early_bytes.rs`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::transport::Transport;

/// Maximum number of waiting connections. Beyond it, the oldest is closed.
const MAX_WAITING: usize = 64;
/// Maximum waiting time of a connection. It is below the inactivity timers of cellular radios, so that closing does not
/// wake one.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Interval between checks for expired connections.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for an orderly end.
const CLOSING_TIME: Duration = Duration::from_secs(5);

type StreamSender<S> = oneshot::Sender<S>;

/// Pool of warm connections.
#[derive(Debug)]
pub struct Pool<S> {
    size: AtomicUsize,
    keepers: Mutex<VecDeque<oneshot::Sender<StreamSender<S>>>>,
    changed: Arc<Notify>,
}

impl<S: Transport> Pool<S> {
    /// Creates a pool with a target of `size` connections.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Pool { size: AtomicUsize::new(size), keepers: Mutex::default(), changed: Arc::default() }
    }

    fn keepers(&self) -> MutexGuard<'_, VecDeque<oneshot::Sender<StreamSender<S>>>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the most recent live connection.
    pub async fn take(&self) -> Option<S> {
        loop {
            let keeper = self.keepers().pop_back()?;
            self.changed.notify_one();
            let (order, delivery) = oneshot::channel();
            // A keeper whose connection has just failed drops the request, so try the next one.
            if keeper.send(order).is_ok()
                && let Ok(stream) = delivery.await
            {
                return Some(stream);
            }
        }
    }

    /// Adds a new connection, to be kept for at most `life`.
    pub fn add(&self, stream: S, life: Duration) {
        let (keeper, order) = oneshot::channel();
        let changed = Arc::clone(&self.changed);
        tokio::spawn(async move {
            keep_until_ordered(stream, order, life).await;
            changed.notify_one();
        });
        self.keepers().push_back(keeper);
    }

    /// Drops all connections. To be called when one has failed, because the others may have failed as well.
    pub fn clear(&self) {
        self.keepers().clear();
        self.changed.notify_one();
    }

    /// Drops all connections and accepts no more.
    pub fn close(&self) {
        self.size.store(0, Ordering::Relaxed);
        self.clear();
    }

    /// Returns the number of missing connections, after failed ones were removed.
    pub fn missing_count(&self) -> usize {
        let mut keepers = self.keepers();
        keepers.retain(|keeper| !keeper.is_closed());
        self.size.load(Ordering::Relaxed).saturating_sub(keepers.len())
    }

    /// Resolves when `wanted` may have changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

async fn keep_until_ordered<S: Transport>(
    mut stream: S,
    mut order: oneshot::Receiver<StreamSender<S>>,
    life: Duration,
) {
    let mut byte = [0];
    tokio::select! {
        biased;
        // Before the request, the server sends nothing but the end of the stream.
        _ = stream.read(&mut byte) => {}
        order = &mut order => {
            if let Ok(order) = order {
                // The requesting task may be gone.
                let _ = order.send(stream);
                return;
            }
        }
        () = sleep(life) => {}
    }
    // Stop accepting requests before closing; otherwise one could be lost while the connection closes.
    drop(order);
    let _ = timeout(CLOSING_TIME, stream.shutdown()).await;
}

/// Waiting connections, the oldest first.
#[derive(Debug)]
struct WaitingConnections<S> {
    streams: Vec<(S, Instant)>,
    /// True if a task checks for expired ones.
    watched: bool,
    /// True if no further connections are accepted.
    closed: bool,
}

/// Used connections that wait for a request.
#[derive(Debug)]
pub(super) struct UsedConnections<S>(Arc<Mutex<WaitingConnections<S>>>);

impl<S> Default for UsedConnections<S> {
    fn default() -> Self {
        UsedConnections(Arc::new(Mutex::new(WaitingConnections {
            streams: Vec::new(),
            watched: false,
            closed: false,
        })))
    }
}

fn lock<S>(waiting: &Mutex<WaitingConnections<S>>) -> MutexGuard<'_, WaitingConnections<S>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Transport> UsedConnections<S> {
    /// Takes the most recently used connection that still works, with the time since its use.
    pub(super) fn take(&self) -> Option<(S, Duration)> {
        loop {
            let (mut stream, since) = lock(&self.0).streams.pop()?;
            if is_silent(&mut stream) {
                return Some((stream, since.elapsed()));
            }
            close_gracefully(stream);
        }
    }

    /// Adds a waiting connection. Needs a runtime.
    pub(super) fn add(&self, stream: S) {
        let mut waiting = lock(&self.0);
        if waiting.closed {
            return close_gracefully(stream);
        }
        if waiting.streams.len() == MAX_WAITING {
            close_gracefully(waiting.streams.remove(0).0);
        }
        waiting.streams.push((stream, Instant::now()));
        if !std::mem::replace(&mut waiting.watched, true) {
            tokio::spawn(close_expired(Arc::clone(&self.0)));
        }
    }

    /// Closes all connections. To be called when one has failed, because the others may have failed as well.
    pub(super) fn clear(&self) {
        let streams = std::mem::take(&mut lock(&self.0).streams);
        streams.into_iter().for_each(|(stream, _)| close_gracefully(stream));
    }

    /// Closes all connections and accepts no more.
    pub(super) fn close(&self) {
        lock(&self.0).closed = true;
        self.clear();
    }

    /// Returns the number of waiting connections.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.0).streams.len()
    }
}

/// Returns true if nothing was received. Between requests the server sends nothing, so a byte, an end or an error
/// makes the connection unusable.
fn is_silent(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut byte = [0];
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
}

/// Closes a connection properly.
fn close_gracefully<S: Transport>(mut stream: S) {
    tokio::spawn(async move { timeout(CLOSING_TIME, stream.shutdown()).await });
}

/// Closes expired connections until none are left.
async fn close_expired<S: Transport>(waiting: Arc<Mutex<WaitingConnections<S>>>) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let mut now = lock(&waiting);
        let old = now.streams.partition_point(|(_, since)| since.elapsed() >= MAX_WAIT);
        now.streams.drain(..old).for_each(|(stream, _)| close_gracefully(stream));
        if now.streams.is_empty() {
            now.streams = Vec::new();
            now.watched = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests;
