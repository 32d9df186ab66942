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

use core::task::Context;
use std::io;

use marline_time::Instant;

use super::reception::{Looked, Reception};
use super::shard::Shard;
use super::state::State;

/// Batches that are received at a time before silence is judged.
const CATCH_UP_BATCHES: u32 = 64;

impl Shard {
    /// If the task is late: receives a batch in its place, and sees to the timers if there is no more. To be called
    /// before the state is locked.
    pub(super) fn stand_in(&self) {
        if self.receiving.readiness.is_late() {
            self.receive_now();
        }
    }

    /// Receives what the sockets hold, whosever turn it is. To be called before silence is judged: a process that did
    /// not run for a while finds the end of its patience and the answer at the same time.
    pub fn catch_up(&self) {
        for _ in 0..CATCH_UP_BATCHES {
            if self.receive_now() {
                return;
            }
        }
    }

    /// Receives a batch in the task's place, and sees to the timers if there is no more. `false`: there may be more.
    fn receive_now(&self) -> bool {
        // Somebody does already.
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

    /// The timer is due, and what has come is taken in.
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

    /// Receives once from a socket and answers, now or in a moment; `false`: there was nothing. `may_busy_poll`: it is
    /// looked at although nothing is said of it.
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
        self.take_in(reception, at, |state, now| {
            if self.tell(state, now) && drained {
                cx.waker().wake_by_ref();
            } else if !state.turns.goes_on(now) {
                self.serve(state, now);
            }
        });
        Ok(true)
    }

    /// Receives a batch in the task's place. `true`: no socket has anything.
    fn receive(&self, reception: &mut Reception) -> bool {
        for _ in 0..reception.sockets() {
            let Some((at, drained)) = reception.receive_in_turn() else { continue };
            self.take_in(reception, at, |state, now| {
                self.serve(state, now);
            });
            if !drained {
                return false;
            }
        }
        true
    }

    /// Gives what was received from a socket to those whose it is: other processes, carrier and core, other shards.
    /// `then`: what follows while the shard is locked.
    fn take_in(
        &self,
        reception: &mut Reception,
        at: usize,
        then: impl FnOnce(&mut State, Instant),
    ) {
        if let Some(elders) = self.links.living_elders() {
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
