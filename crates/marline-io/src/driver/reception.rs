//! Receiving half of a shard: its sockets, the buffer, and since when the task that reads them has been ready.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::task::Waker;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Wake;

use marline_time::{Duration, Instant};

use super::receive_buffer::ReceiveBuffer;
use super::socket::Sock;
use super::state::{CarrierKind, State};
use crate::clock::Clock;

/// A task that has been ready for longer is late: a turn of a runtime that is not crowded takes less.
const LATE: Duration = Duration::from_millis(1);
/// So many calls between two looks at the sockets are of many tasks: a runtime polls them one after the other and looks
/// less often itself.
pub(super) const CROWD: u32 = 16;
/// What there is to receive from, and into what.
pub(super) struct Reception {
    pub(super) sockets: Vec<(u16, SocketAddr, Arc<Sock>)>,
    pub(super) buffer: ReceiveBuffer,
    /// Receive errors since something was received.
    pub(super) errors: u32,
    /// The socket that a caller looks at next.
    pub(super) next: usize,
}

impl Reception {
    fn new(kind: CarrierKind) -> Reception {
        Reception { sockets: Vec::new(), buffer: ReceiveBuffer::new(kind), errors: 0, next: 0 }
    }

    /// Takes over a change of the sockets.
    pub(super) fn refresh(&mut self, state: &mut State) {
        if !core::mem::take(&mut state.sockets_changed) {
            return;
        }
        let open = state.sockets.iter().enumerate().filter(|_| state.receiving);
        let open = open.filter_map(|(index, entry)| {
            let socket = &entry.as_ref()?.socket;
            Some((index as u16, socket.local, Arc::clone(socket)))
        });
        self.sockets = open.collect();
        self.next = 0;
    }

    /// Lets go of the sockets.
    pub(super) fn close(&mut self) {
        self.sockets.clear();
    }

    /// Of how many sockets.
    pub(super) const fn sockets(&self) -> usize {
        self.sockets.len()
    }
}

/// Whether the task of a shard is late.
#[derive(Debug)]
pub(super) struct Readiness {
    clock: Clock,
    /// Since when it has been ready to be polled, nanoseconds of the clock; 0: it is not.
    since: AtomicU64,
    /// When sockets were looked at last, by the task or in its place, nanoseconds of the clock.
    looked_at: AtomicU64,
    /// Calls since.
    calls: AtomicU32,
}

impl Readiness {
    fn new(clock: Clock) -> Readiness {
        let looked_at = AtomicU64::new(clock.now().as_nanos());
        Readiness { clock, since: AtomicU64::new(0), looked_at, calls: AtomicU32::new(0) }
    }

    fn note(&self) {
        let now = self.clock.now().as_nanos();
        // Since when it has been ready, not when it was last told.
        let _ = self.since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// A call: whether the task has been ready for long, or there were so many calls that the runtime may not have
    /// looked whether it is.
    pub(super) fn is_late(&self) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let since = self.since.load(Ordering::Acquire);
        if since == 0 && calls < CROWD {
            return false;
        }
        let from = since.max(self.looked_at.load(Ordering::Relaxed));
        self.clock.now().since(Instant::from_nanos(from)) > LATE
    }

    /// All sockets were looked at.
    pub(super) fn looked(&self) {
        self.looked_at.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
    }

    /// The task is polled.
    pub(super) fn is_polled(&self) {
        self.since.store(0, Ordering::Release);
        self.looked();
    }
}

/// Wakes the task of a shard and notes that it is ready.
struct Noting {
    readiness: Arc<Readiness>,
    task: Waker,
}

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.readiness.note();
        self.task.wake_by_ref();
    }
}

/// The waker of a shard's task that notes when the task becomes ready. Made anew only if the runtime's is another.
#[derive(Default)]
pub(super) struct NotingWaker(Option<(Waker, Waker)>);

impl NotingWaker {
    pub(super) fn of(&mut self, readiness: &Arc<Readiness>, task: &Waker) -> Waker {
        match &self.0 {
            Some((known, noting)) if known.will_wake(task) => noting.clone(),
            _ => {
                let (readiness, task) = (Arc::clone(readiness), task.clone());
                let noting = Waker::from(Arc::new(Noting { readiness, task: task.clone() }));
                self.0 = Some((task, noting.clone()));
                noting
            }
        }
    }
}

/// The receiving half of a shard.
pub(super) struct Receiving {
    reception: Mutex<Reception>,
    pub(super) readiness: Arc<Readiness>,
}

impl Receiving {
    pub(super) fn new(kind: CarrierKind, clock: Clock) -> Receiving {
        let readiness = Arc::new(Readiness::new(clock));
        Receiving { reception: Mutex::new(Reception::new(kind)), readiness }
    }

    /// Whoever receives. Locked before the state, never within.
    pub(super) fn lock(&self) -> MutexGuard<'_, Reception> {
        self.reception.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Reception>> {
        match self.reception.try_lock() {
            Ok(reception) => Some(reception),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
