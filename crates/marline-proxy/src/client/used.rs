//! Reuse of connections that have carried a request. Another request needs no handshake and starts on all paths,
//! with the state of their congestion controllers.
//!
//! Connections wait for a few seconds, because most further requests follow quickly (the files of a page, the next
//! call of a program), and their number is bounded. No task reads from them: a connection is checked when it is
//! taken. If it failed unnoticed, the server does not send `Working`, and the request is repeated on another,
//! unless the application's first bytes were sent ahead (`ahead.rs`).

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, sleep, timeout};

use crate::transport::Transport;

/// Largest number of waiting connections. Beyond it, the oldest is closed.
const MAX_WAITING: usize = 64;
/// Waiting time of a connection. It is below the inactivity timers of cellular radios, so that closing does not
/// wake one.
const MAX_LIFETIME: Duration = Duration::from_secs(5);
/// Interval of checks for expired connections.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for an orderly end.
const CLOSING_TIME: Duration = Duration::from_secs(5);

/// Waiting connections, the oldest first.
#[derive(Debug)]
struct Waiting<S> {
    streams: Vec<(S, Instant)>,
    /// True if a task checks for expired ones.
    watched: bool,
    /// True if no further connections are accepted.
    closed: bool,
}

/// Used connections in waiting.
#[derive(Debug)]
pub(super) struct Used<S>(Arc<Mutex<Waiting<S>>>);

impl<S> Default for Used<S> {
    fn default() -> Self {
        Used(Arc::new(Mutex::new(Waiting { streams: Vec::new(), watched: false, closed: false })))
    }
}

fn lock<S>(waiting: &Mutex<Waiting<S>>) -> MutexGuard<'_, Waiting<S>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Transport> Used<S> {
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
    pub(super) fn put(&self, stream: S) {
        let mut waiting = lock(&self.0);
        if waiting.closed {
            return close_gracefully(stream);
        }
        if waiting.streams.len() == MAX_WAITING {
            close_gracefully(waiting.streams.remove(0).0);
        }
        waiting.streams.push((stream, Instant::now()));
        if !std::mem::replace(&mut waiting.watched, true) {
            tokio::spawn(watch(Arc::clone(&self.0)));
        }
    }

    /// Closes all connections. To be called when one has failed, because the others may have as well.
    pub(super) fn clear(&self) {
        let streams = std::mem::take(&mut lock(&self.0).streams);
        streams.into_iter().for_each(|(stream, _)| close_gracefully(stream));
    }

    /// Closes all connections and accepts no more.
    pub(super) fn close(&self) {
        lock(&self.0).closed = true;
        self.clear();
    }

    /// Number of waiting connections.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.0).streams.len()
    }
}

/// True if nothing was received. Between requests the server sends nothing, so a byte, an end or an error makes the
/// connection unusable.
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
async fn watch<S: Transport>(waiting: Arc<Mutex<Waiting<S>>>) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let mut now = lock(&waiting);
        let old = now.streams.partition_point(|(_, since)| since.elapsed() >= MAX_LIFETIME);
        now.streams.drain(..old).for_each(|(stream, _)| close_gracefully(stream));
        if now.streams.is_empty() {
            now.streams = Vec::new();
            now.watched = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    fn put(used: &Used<DuplexStream>) -> DuplexStream {
        let (near, far) = duplex(64);
        used.put(near);
        far
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_used_is_taken_first_and_the_dead_never() {
        let used = Used::default();
        let (mut first, dead, mut last) = (put(&used), put(&used), put(&used));
        drop(dead);
        for far in [&mut last, &mut first] {
            let (mut near, _) = used.take().unwrap();
            near.write_all(b"x").await.unwrap();
            assert_eq!(far.read_u8().await.unwrap(), b'x');
        }
        assert!(used.take().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn used_connections_wait_for_seconds_and_close_cleanly() {
        let used = Used::default();
        let mut old = put(&used);
        sleep(Duration::from_secs(3)).await;
        let _young = put(&used);
        sleep(Duration::from_secs(3)).await;
        assert_eq!((used.count(), old.read(&mut [0]).await.unwrap()), (1, 0));
        sleep(Duration::from_secs(3)).await;
        assert_eq!(used.count(), 0);
        // The task that checked for expired connections has ended, and is started again.
        let mut late = put(&used);
        assert_eq!(late.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_makes_room_and_a_closed_store_takes_none() {
        let used = Used::default();
        let mut far: Vec<_> = (0..=MAX_WAITING).map(|_| put(&used)).collect();
        assert_eq!((used.count(), far[0].read(&mut [0]).await.unwrap()), (MAX_WAITING, 0));
        used.close();
        let mut refused = put(&used);
        assert_eq!((used.count(), refused.read(&mut [0]).await.unwrap()), (0, 0));
    }
}
