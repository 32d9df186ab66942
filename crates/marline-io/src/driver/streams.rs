//! Streams of a shard: wakers and outcomes of its connections, and the queue of incoming connections.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex, PoisonError};

use marline_core::{CloseReason, ConnectionId, FallbackReason, FourTuple};
use tokio::sync::{Notify, mpsc};

use crate::carrier::IdHasher;

/// Driver state of a connection that an application holds.
#[derive(Debug, Default)]
struct Slot {
    reader: Option<Waker>,
    writer: Option<Waker>,
    connecting: Option<Waker>,
    connected: Option<Option<FallbackReason>>,
    closed: Option<CloseReason>,
}

impl Slot {
    /// Wakes all tasks that wait for this connection.
    fn wake_all(&mut self) {
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
type Slots = HashMap<ConnectionId, Slot, BuildHasherDefault<IdHasher>>;

/// Receiver of all non-TCP packets from a gateway's interface, including malformed packets and fragments.
pub trait PacketSink: Send {
    /// Takes a packet, starting at the IP header if it has one. The shard is locked during the call, so this must
    /// neither wait nor call the shard.
    fn on_packet(&mut self, packet: &[u8]);
}

/// Accepted connection that waits for the application.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Connection id. It contains the shard's index and is unique among all shards that share the queue.
    pub id: ConnectionId,
    /// The peer's address on the first subflow.
    pub peer: SocketAddr,
}

/// Queue of incoming connections that wait for `accept`. It holds only ids; the shards own the connections.
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
    #[must_use = "the caller must release these connections"]
    pub fn close(&self) -> Vec<Incoming> {
        self.closed.store(true, Ordering::Relaxed);
        let all =
            core::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.notify.notify_waiters();
        all.into()
    }
}

/// Event of a connection that a task waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum AwaitedEvent {
    /// The end of the handshake.
    Connecting,
    /// Data to read.
    Reading,
    /// Room for data to write.
    Writing,
}

/// Outcome of a connection's handshake, if known.
#[derive(Copy, Clone, Debug)]
pub(super) enum Handshake {
    Pending,
    Done(Option<FallbackReason>),
    Failed(CloseReason),
}

/// Streams of a shard, and the receivers of its new connections.
pub(super) struct Streams {
    slots: Slots,
    queue: Option<Arc<AcceptQueue>>,
    /// Receiver of a gateway's connection requests.
    requests: Option<mpsc::UnboundedSender<FourTuple>>,
    /// Sink for a gateway's non-TCP packets.
    sink: Option<Box<dyn PacketSink>>,
}

impl Streams {
    pub(super) fn new(queue: Option<Arc<AcceptQueue>>) -> Streams {
        Streams { slots: Slots::default(), queue, requests: None, sink: None }
    }

    /// Makes the shard a gateway.
    pub(super) fn set_gateway(
        &mut self,
        requests: mpsc::UnboundedSender<FourTuple>,
        sink: Box<dyn PacketSink>,
    ) {
        (self.requests, self.sink) = (Some(requests), Some(sink));
    }

    /// Passes a gateway's connection request to the application. Returns false if the application does not accept
    /// requests.
    pub(super) fn request(&self, path: FourTuple) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.send(path).is_ok())
    }

    /// Gives a gateway's packet to its sink. Returns false if there is none.
    pub(super) fn sink_packet(&mut self, packet: &[u8]) -> bool {
        self.sink.as_mut().map(|sink| sink.on_packet(packet)).is_some()
    }

    /// Adds a connection that the application holds.
    pub(super) fn add(&mut self, id: ConnectionId) {
        self.slots.insert(id, Slot::default());
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        self.slots.remove(&id);
    }

    /// Queues an incoming connection. Returns false if the application does not accept it.
    pub(super) fn accept(&mut self, id: ConnectionId, incoming: Incoming) -> bool {
        let is_accepted = self.queue.as_ref().is_some_and(|queue| queue.push(incoming));
        if is_accepted {
            self.slots.insert(id, Slot { connected: Some(None), ..Slot::default() });
        }
        is_accepted
    }

    /// Stores the waker of a waiting task.
    pub(super) fn wait(&mut self, id: ConnectionId, waiting: AwaitedEvent, cx: &Context<'_>) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let place = match waiting {
            AwaitedEvent::Connecting => &mut slot.connecting,
            AwaitedEvent::Reading => &mut slot.reader,
            AwaitedEvent::Writing => &mut slot.writer,
        };
        register(place, cx);
    }

    /// Returns the outcome of the handshake; `None` if the connection is unknown.
    pub(super) fn handshake(&self, id: ConnectionId) -> Option<Handshake> {
        let slot = self.slots.get(&id)?;
        Some(match (slot.connected, slot.closed) {
            (Some(fallback), _) => Handshake::Done(fallback),
            (None, Some(reason)) => Handshake::Failed(reason),
            (None, None) => Handshake::Pending,
        })
    }

    /// Returns the reason why a connection ended.
    pub(super) fn close_reason(&self, id: ConnectionId) -> Option<CloseReason> {
        self.slots.get(&id).and_then(|slot| slot.closed)
    }

    /// Wakes the reader. Returns false if there is none.
    pub(super) fn on_readable(&mut self, id: ConnectionId) -> bool {
        self.slots.get_mut(&id).is_some_and(|slot| wake(slot.reader.take()))
    }

    /// Wakes the writer. Returns false if there is none.
    pub(super) fn on_writable(&mut self, id: ConnectionId) -> bool {
        self.slots.get_mut(&id).is_some_and(|slot| wake(slot.writer.take()))
    }

    /// Records the end of the handshake. Returns false if the connection is unknown.
    pub(super) fn on_connected(
        &mut self,
        id: ConnectionId,
        fallback: Option<FallbackReason>,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        slot.connected = Some(fallback);
        slot.wake_all();
        true
    }

    /// Records the end of a connection. Returns false if it is unknown.
    pub(super) fn on_closed(&mut self, id: ConnectionId, reason: CloseReason) -> bool {
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        slot.closed = Some(reason);
        slot.wake_all();
        true
    }

    /// Wakes all tasks that wait for a connection.
    pub(super) fn wake_all(&mut self) {
        #[expect(clippy::iter_over_hash_type, reason = "wakes all; the order does not matter")]
        for slot in self.slots.values_mut() {
            slot.wake_all();
        }
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
