//! Queue of incoming connections that wait for the application.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use marline_core::ConnectionId;
use tokio::sync::Notify;

/// Accepted connection that waits for the application.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Connection id. It contains the shard's index and is unique over all shards that share the queue.
    pub id: ConnectionId,
    /// The peer's address on the first subflow.
    pub peer: SocketAddr,
}

/// Queue of incoming connections that wait for `accept`. It holds only their ids: the shards own the connections.
#[derive(Debug)]
pub struct AcceptQueue {
    waiting: Mutex<VecDeque<Incoming>>,
    capacity: usize,
    closed: AtomicBool,
    notify: Notify,
}

impl AcceptQueue {
    /// Creates a queue for at most `capacity` connections.
    #[must_use]
    pub fn new(capacity: usize) -> Arc<Self> {
        let waiting = Mutex::new(VecDeque::new());
        Arc::new(AcceptQueue {
            waiting,
            capacity: capacity.max(1),
            closed: AtomicBool::new(false),
            notify: Notify::new(),
        })
    }

    /// Adds a connection. Returns false if the queue is full or closed.
    pub(super) fn push(&self, incoming: Incoming) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= self.capacity || self.closed.load(Ordering::Relaxed) {
            return false;
        }
        waiting.push_back(incoming);
        drop(waiting);
        self.notify.notify_one();
        true
    }

    /// Waits for the next connection. Returns `None` once the queue is closed. Safe to cancel.
    pub async fn pop(&self) -> Option<Incoming> {
        loop {
            let notified = self.notify.notified();
            let (next, more) = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                (waiting.pop_front(), !waiting.is_empty())
            };
            if next.is_some() {
                if more {
                    self.notify.notify_one();
                }
                return next;
            }
            if self.closed.load(Ordering::Relaxed) {
                return None;
            }
            notified.await;
        }
    }

    /// Closes the queue and wakes its waiters. Returns the connections that were never accepted, which the caller
    /// must release ([`Shard::release`](super::Shard::release)).
    #[must_use = "the shards still hold these connections"]
    pub fn close(&self) -> Vec<Incoming> {
        self.closed.store(true, Ordering::Relaxed);
        let all =
            core::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.notify.notify_waiters();
        all.into()
    }
}
