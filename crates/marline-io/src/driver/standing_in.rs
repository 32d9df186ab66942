//! Reception by the shard's task, or by whoever calls the library while that task waits behind others.
//!
//! *Problem.* The task is one of many. When twelve thousand connections end in one moment, as many tasks are ready, and
//! each has its turn before the one that receives has its next. Meanwhile sockets hold datagrams for seconds, or drop
//! them; peers take what is not answered for lost and repeat it, which fills the sockets further.
//!
//! *How.* The task's waker notes since when the task has been ready ([`Readiness`](super::reception::Readiness)). A
//! stream that is read, written or closed looks at that first. If the task has been waiting for more than a moment, or
//! many calls were made since anybody looked at the sockets, the caller receives one batch, and when they are empty it
//! sees to the timers. So what is received keeps up with what is done, whatever the order in which the runtime polls
//! its tasks. Who receives is no matter to TCP.

use core::task::{Context, Poll};
use std::io;

use marline_time::Instant;

use super::native_shards::ForOthers;
use super::reception::Reception;
use super::shard::Shard;
use super::state::State;

/// Receive errors after which a socket is looked at only when it becomes ready again.
const ERRORS_IN_A_ROW: u32 = 8;

/// What a look at a socket brought.
pub(super) enum Received {
    Nothing,
    Something,
}

impl Shard {
    /// If the task is late: receives a batch in its place, and sees to the timers if there is no more. To be called
    /// before the state is locked.
    pub(super) fn stand_in(&self) {
        if !self.receiving.readiness.is_late() {
            return;
        }
        // Somebody does already.
        let Some(mut reception) = self.receiving.try_lock() else { return };
        let mut state = self.lock();
        if state.stopped {
            return;
        }
        reception.refresh(&mut state);
        drop(state);
        if self.receive(&mut reception) {
            self.receiving.readiness.looked();
            let mut state = self.lock();
            let now = self.clock.now();
            if state.armed.is_some_and(|at| at <= now) {
                self.on_timer(&mut state, now);
            }
        }
    }

    /// The timer is due, and what has come is taken in.
    pub(super) fn on_timer(&self, state: &mut State, now: Instant) {
        state.armed = None;
        if state.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            state.endpoint.handle_timeout(now);
        }
        state.carrier.on_timeout(now);
        state.lanes.on_timeout(now);
        state.rerouting.routes.on_timeout(now);
        self.serve(state, now);
    }

    /// Receives once from a socket and answers, now or in a moment. `may_busy_poll`: also if nothing is said of it.
    pub(super) fn poll_socket(
        &self,
        reception: &mut Reception,
        cx: &mut Context<'_>,
        at: usize,
        may_busy_poll: bool,
    ) -> io::Result<Received> {
        let (_, _, socket) = &reception.sockets[at];
        let mut guard = match socket.fd.poll_read_ready(cx) {
            Poll::Ready(guard) => Some(guard?),
            Poll::Pending if may_busy_poll => None,
            Poll::Pending => return Ok(Received::Nothing),
        };
        let drained = match reception.buffer.receive(socket) {
            Ok(drained) => drained,
            // Nobody said that there was anything.
            Err(_) if guard.is_none() => return Ok(Received::Nothing),
            Err(error) => {
                // An ICMP error is the business of the watcher of errors, and there may be datagrams
                // behind it; but an error that stays must not keep us busy.
                reception.errors += 1;
                let useless = error.kind() == io::ErrorKind::WouldBlock;
                if let Some(guard) = &mut guard
                    && (useless || reception.errors > ERRORS_IN_A_ROW)
                {
                    guard.clear_ready();
                }
                return Ok(Received::Something);
            }
        };
        reception.errors = 0;
        if let Some(guard) = &mut guard
            && drained
        {
            guard.clear_ready();
        }
        self.sift(reception, at);
        let mut state = self.lock();
        let now = self.clock.now();
        let others = self.take_in(reception, &mut state, now, at);
        if self.tell(&mut state, now) && drained {
            cx.waker().wake_by_ref();
        } else if !state.turns.goes_on(now) {
            self.serve(&mut state, now);
        }
        drop(state);
        self.pass_on(others);
        Ok(Received::Something)
    }

    /// Passes on what is for other processes that share the socket.
    fn sift(&self, reception: &mut Reception, at: usize) {
        let (_, local, _) = &reception.sockets[at];
        if let Some(elders) = self.links.living_elders() {
            reception.buffer.sift(elders, *local);
        }
    }

    /// Gives what was received from a socket to carrier and core. Returns what may be other shards'.
    fn take_in<'a>(
        &self,
        reception: &'a Reception,
        state: &mut State,
        now: Instant,
        at: usize,
    ) -> ForOthers<'a> {
        let (index, local, _) = &reception.sockets[at];
        self.on_batch(state, now, (*index, *local), &reception.buffer)
    }

    /// Receives a batch in the task's place. `true`: no socket has anything.
    fn receive(&self, reception: &mut Reception) -> bool {
        for _ in 0..reception.sockets.len() {
            let at = reception.next % reception.sockets.len();
            let Ok(drained) = reception.buffer.receive(&reception.sockets[at].2) else {
                // It is empty, or has an error, which is the task's business.
                reception.next += 1;
                continue;
            };
            self.sift(reception, at);
            let mut state = self.lock();
            let now = self.clock.now();
            let others = self.take_in(reception, &mut state, now, at);
            self.serve(&mut state, now);
            drop(state);
            self.pass_on(others);
            if !drained {
                return false;
            }
            reception.next += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests;
