//! Streams of a shard: wakers and outcomes of its connections, and the queue of incoming ones.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex, PoisonError};

use marline_core::{CloseReason, ConnectionId, FallbackReason};
use tokio::sync::Notify;

use crate::carrier::IdHasher;

/// Driver state of a connection that an application holds.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
    pub(crate) connecting: Option<Waker>,
    pub(crate) connected: Option<Option<FallbackReason>>,
    pub(crate) closed: Option<CloseReason>,
}

impl Slot {
    /// Wakes all tasks that wait for this connection.
    pub(crate) fn wake_all(&mut self) {
        for waker in [self.reader.take(), self.writer.take(), self.connecting.take()] {
            wake(waker);
        }
    }
}

/// Wakes a waiting task. Returns false if there was none.
pub(crate) fn wake(waker: Option<Waker>) -> bool {
    waker.is_some_and(|waker| {
        waker.wake();
        true
    })
}

/// Stores the waker of the current task.
pub(crate) fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

/// Slots by connection id.
pub(crate) type Slots = HashMap<ConnectionId, Slot, BuildHasherDefault<IdHasher>>;

/// Receiver of the packets from a gateway's interface that are not TCP, including malformed packets and fragments.
pub trait PacketSink: Send {
    /// Takes a packet, starting at the IP header if it has one. The shard is locked during the call, so this must
    /// neither wait nor call the shard.
    fn on_packet(&mut self, packet: &[u8]);
}

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    use super::*;

    /// The lower half of an id counts slots; the upper half counts how often the slot was used.
    #[test]
    fn connections_lie_apart_in_the_table() {
        const CONNECTIONS: u64 = 16_384;
        for (generation, step) in [(0, 1), (1, 1), (7, 1), (1, 2), (1, 16)] {
            let ids = (0..CONNECTIONS).map(|slot| ConnectionId((generation << 32) | (slot * step)));
            let hashes: Vec<u64> = ids.map(|id| Slots::default().hasher().hash_one(id)).collect();
            let places: BTreeSet<u64> = hashes.iter().map(|hash| hash % CONNECTIONS).collect();
            let tags: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(
                places.len() as u64 >= CONNECTIONS / step,
                "{generation} {step}: {}",
                places.len()
            );
            assert_eq!(tags.len(), 128, "{generation} {step}");
        }
    }
}
