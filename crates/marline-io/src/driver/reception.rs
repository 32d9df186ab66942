//! Receiving half of a shard: its sockets, the buffer, and since when the task that reads them has been ready.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Wake;

use marline_time::{Duration, Instant};

use super::elders::Elders;
use super::receive_buffer::ReceiveBuffer;
use super::socket::Sock;
use super::state::{CarrierKind, State};
use crate::clock::Clock;

/// A task that has been ready for longer is late: a turn of a runtime that is not crowded takes less.
const LATE: Duration = Duration::from_millis(1);
/// So many calls between two looks at the sockets are of many tasks: a runtime polls them one after the other and looks
/// less often itself.
pub(super) const CROWD: u32 = 16;

/// Receive errors after which a socket is looked at only when it becomes ready again.
const ERRORS_IN_A_ROW: u32 = 8;

/// What there is to receive from, and into what.
pub(super) struct Reception {
    sockets: Vec<(u16, SocketAddr, Arc<Sock>)>,
    buffer: ReceiveBuffer,
    /// Receive errors since something was received.
    errors: u32,
    /// The socket that a caller looks at next.
    next: usize,
}

/// What a look at a socket brought.
pub(super) enum Looked {
    Nothing,
    /// An error, behind which there may be more.
    Error,
    /// A batch lies in the buffer. `drained`: the socket is empty now.
    Batch {
        drained: bool,
    },
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

    /// Receives once from a socket, for the task. `may_busy_poll`: also if nothing is said of it.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        may_busy_poll: bool,
    ) -> io::Result<Looked> {
        let (_, _, socket) = &self.sockets[at];
        let mut guard = match socket.fd.poll_read_ready(cx) {
            Poll::Ready(guard) => Some(guard?),
            Poll::Pending if may_busy_poll => None,
            Poll::Pending => return Ok(Looked::Nothing),
        };
        let drained = match self.buffer.receive(socket) {
            Ok(drained) => drained,
            // Nobody said that there was anything.
            Err(_) if guard.is_none() => return Ok(Looked::Nothing),
            Err(error) => {
                // An ICMP error is the business of the watcher of errors, and there may be datagrams
                // behind it; but an error that stays must not keep us busy.
                self.errors += 1;
                let useless = error.kind() == io::ErrorKind::WouldBlock;
                if let Some(guard) = &mut guard
                    && (useless || self.errors > ERRORS_IN_A_ROW)
                {
                    guard.clear_ready();
                }
                return Ok(Looked::Error);
            }
        };
        self.errors = 0;
        if let Some(guard) = &mut guard
            && drained
        {
            guard.clear_ready();
        }
        Ok(Looked::Batch { drained })
    }

    /// Receives once from the socket whose turn it is, in the task's place: from which, and whether it is empty now.
    /// `None`: it was, or has an error, which is the task's business.
    pub(super) fn receive_in_turn(&mut self) -> Option<(usize, bool)> {
        let at = self.next % self.sockets.len();
        let received = self.buffer.receive(&self.sockets[at].2);
        if !matches!(received, Ok(false)) {
            self.next += 1;
        }
        received.ok().map(|drained| (at, drained))
    }

    /// Passes on what of the batch is for other processes that share the socket it came from.
    pub(super) fn sift(&mut self, at: usize, elders: &Elders) {
        self.buffer.sift(elders, self.sockets[at].1);
    }

    /// The batch that came from a socket, and which socket that is.
    pub(super) fn batch(&self, at: usize) -> ((u16, SocketAddr), &ReceiveBuffer) {
        let (index, local, _) = &self.sockets[at];
        ((*index, *local), &self.buffer)
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
