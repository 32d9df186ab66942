//! Reception by the shard's task, or by a caller of the library while that task waits behind others.
//!
//! *Problem.* The task is one of many. When twelve thousand connections end at the same time, as many tasks are
//! ready, and each has its turn before the receiving task has its next. Meanwhile, sockets hold datagrams for
//! seconds or drop them. Peers assume that unanswered packets are lost and retransmit them, which fills the sockets
//! further.
//!
//! *Solution.* The task's waker records since when the task has been ready
//! ([`Readiness`](super::reception::Readiness)). Reading, writing or closing a stream checks that first. If the task
//! has been ready for more than a moment, or many calls have been made since the last check of the sockets, the
//! caller receives one batch. Once the sockets are empty, it also serves the timers. So reception keeps pace with
//! the application in any order in which the runtime polls its tasks. TCP does not depend on which thread receives.

use core::task::Context;
use std::io;

use marline_time::Instant;

use super::reception::{Looked, Reception};
use super::shard::Shard;
use super::state::State;

/// Maximum number of batches received before silence is judged.
const CATCH_UP_BATCHES: u32 = 64;

impl Shard {
    /// If the task is late, receives a batch on its behalf, and serves the timers if the sockets are empty. Must be
    /// called before the state is locked.
    pub(super) fn stand_in(&self) {
        if self.receiving.readiness.is_late() {
            self.receive_now();
        }
    }

    /// Receives what the sockets hold, even if the task is not late. Call this before silence is judged: after a
    /// process did not run for some time, the timeout and the answer appear at the same time.
    pub fn catch_up(&self) {
        for _ in 0..CATCH_UP_BATCHES {
            if self.receive_now() {
                return;
            }
        }
    }

    /// Receives a batch on behalf of the task, and serves the timers if the sockets are empty. Returns false if
    /// there may be more.
    fn receive_now(&self) -> bool {
        // Another thread is receiving already.
        let Some(mut reception) = self.receiving.try_lock() else { return true };
        let mut state = self.lock();
        if state.stopped {
            return true;
        }
        reception.refresh(&mut state);
        drop(state);
        let is_drained = self.receive(&mut reception);
        if is_drained {
            self.receiving.readiness.looked();
            let mut state = self.lock();
            let now = self.now(&mut state);
            if state.armed.is_some_and(|at| at <= now) {
                self.on_timer(&mut state, now);
            }
        }
        is_drained
    }

    /// Handles the timer, after available packets have been received.
    pub(super) fn on_timer(&self, state: &mut State, now: Instant) {
        state.armed = None;
        self.alarm.clear();
        if state.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            state.endpoint.handle_timeout(now);
        }
        state.carrier.on_timeout(now);
        state.lanes.on_timeout(now);
        state.rerouting.routes.on_timeout(now);
        self.serve(state, now);
    }

    /// Receives once from a socket and sends the answers, now or soon. Returns false if there was nothing.
    /// `may_busy_poll` means to try even without readiness.
    pub(super) fn poll_socket(
        &self,
        reception: &mut Reception,
        cx: &mut Context<'_>,
        at: usize,
        may_busy_poll: bool,
    ) -> io::Result<bool> {
        let drained = match reception.poll_receive(cx, at, may_busy_poll)? {
            Looked::Nothing => return Ok(false),
            Looked::Error => return Ok(true),
            Looked::Batch { drained } => drained,
        };
        self.dispatch_batch(reception, at, |state, now| {
            if self.tell(state, now) && drained {
                cx.waker().wake_by_ref();
            } else if !state.turns.goes_on(now) {
                self.serve(state, now);
            }
        });
        Ok(true)
    }

    /// Receives a batch on behalf of the task. Returns true if all sockets are empty.
    fn receive(&self, reception: &mut Reception) -> bool {
        for _ in 0..reception.sockets() {
            let Some((at, drained)) = reception.receive_in_turn() else { continue };
            self.dispatch_batch(reception, at, |state, now| {
                self.serve(state, now);
            });
            if !drained {
                return false;
            }
        }
        true
    }

    /// Passes on the packets of a batch to their owners: other processes, carrier and core, other shards. `then`
    /// runs while the shard is still locked.
    fn dispatch_batch(
        &self,
        reception: &mut Reception,
        at: usize,
        then: impl FnOnce(&mut State, Instant),
    ) {
        if let Some(elders) = self.links.connected_older_processes() {
            reception.sift(at, elders);
        }
        let (socket, buffer) = reception.batch(at);
        let mut state = self.lock();
        let now = self.now(&mut state);
        let others = self.on_batch(&mut state, now, socket, buffer);
        then(&mut state, now);
        drop(state);
        self.pass_on(others);
    }
}

#[cfg(test)]
mod tests;
