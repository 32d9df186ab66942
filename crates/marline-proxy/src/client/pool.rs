//! Pool of warm connections: authenticated and idle, so that a request costs one round trip instead of three.
//!
//! A keeper task holds each connection and reads from it: a byte, an end or an error before the request makes it
//! unusable. The keeper closes old connections before the server does. A connection may have failed unnoticed. In
//! this case the server does not send `Working`, and the request is repeated on a new connection (no application
//! data has been sent by then).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use crate::transport::Transport;

type Order<S> = oneshot::Sender<S>;

/// Pool of warm connections.
#[derive(Debug)]
pub struct Pool<S> {
    size: AtomicUsize,
    keepers: Mutex<VecDeque<oneshot::Sender<Order<S>>>>,
    changed: Arc<Notify>,
}

impl<S: Transport> Pool<S> {
    /// A pool with a target of `size` connections.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Pool { size: AtomicUsize::new(size), keepers: Mutex::default(), changed: Arc::default() }
    }

    fn keepers(&self) -> std::sync::MutexGuard<'_, VecDeque<oneshot::Sender<Order<S>>>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the most recent live connection.
    pub async fn take(&self) -> Option<S> {
        loop {
            let keeper = self.keepers().pop_back()?;
            self.changed.notify_one();
            let (order, delivery) = oneshot::channel();
            // A keeper whose connection has just failed drops the order, so ask the next one.
            if keeper.send(order).is_ok()
                && let Ok(stream) = delivery.await
            {
                return Some(stream);
            }
        }
    }

    /// Adds a new connection, to be kept for at most `life`.
    pub fn put(&self, stream: S, life: Duration) {
        let (keeper, order) = oneshot::channel();
        let changed = Arc::clone(&self.changed);
        tokio::spawn(async move {
            keep(stream, order, life).await;
            changed.notify_one();
        });
        self.keepers().push_back(keeper);
    }

    /// Drops all connections. To be called when one has failed, because the others may have as well.
    pub fn clear(&self) {
        self.keepers().clear();
        self.changed.notify_one();
    }

    /// Drops all connections and accepts no more.
    pub fn close(&self) {
        self.size.store(0, Ordering::Relaxed);
        self.clear();
    }

    /// Number of missing connections, after failed ones were removed.
    pub fn wanted(&self) -> usize {
        let mut keepers = self.keepers();
        keepers.retain(|keeper| !keeper.is_closed());
        self.size.load(Ordering::Relaxed).saturating_sub(keepers.len())
    }

    /// Resolves when `wanted` may have changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

async fn keep<S: Transport>(mut stream: S, mut order: oneshot::Receiver<Order<S>>, life: Duration) {
    const CLOSING_TIME: Duration = Duration::from_secs(5);
    let mut byte = [0];
    tokio::select! {
        biased;
        // Before the request, the server sends nothing except its end.
        _ = stream.read(&mut byte) => {}
        order = &mut order => {
            if let Ok(order) = order {
                // The receiver of the order may be gone.
                let _ = order.send(stream);
                return;
            }
        }
        () = sleep(life) => {}
    }
    // Refuse orders before closing, or one could be lost during it.
    drop(order);
    let _ = timeout(CLOSING_TIME, stream.shutdown()).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::yield_now;

    use super::*;

    const MAX_LIFETIME: Duration = Duration::from_secs(100);

    fn pool_with(count: usize) -> (Pool<DuplexStream>, Vec<DuplexStream>) {
        let pool = Pool::new(count);
        let far = (0..count).map(|_| {
            let (near, far) = duplex(64);
            pool.put(near, MAX_LIFETIME);
            far
        });
        let far = far.collect();
        (pool, far)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pooled_connection_is_taken_once() {
        let (pool, mut far) = pool_with(2);
        assert_eq!(pool.wanted(), 0);
        let mut stream = pool.take().await.unwrap();
        assert_eq!(pool.wanted(), 1);
        stream.write_all(b"x").await.unwrap();
        assert_eq!(far[1].read_u8().await.unwrap(), b'x', "the youngest first");
        assert!(pool.take().await.is_some());
        assert!(pool.take().await.is_none());
        assert_eq!(pool.wanted(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn dead_and_talking_pooled_connections_are_dropped() {
        let (pool, mut far) = pool_with(3);
        far.remove(2);
        far[1].write_all(b"unasked").await.unwrap();
        pool.changed().await;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(pool.wanted(), 2);
        assert!(pool.take().await.is_some());
        assert!(pool.take().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn expired_pooled_connections_are_closed_cleanly() {
        let (pool, mut far) = pool_with(1);
        sleep(MAX_LIFETIME + Duration::from_secs(1)).await;
        assert_eq!(pool.wanted(), 1);
        assert!(pool.take().await.is_none());
        assert_eq!(far[0].read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cleared_pool_closes_its_connections() {
        let (pool, mut far) = pool_with(2);
        pool.clear();
        yield_now().await;
        for stream in &mut far {
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        }
        assert_eq!(pool.wanted(), 2);
    }
}
