//! Lets cellular radios sleep: decides whether a client's subflows over them are open.
//!
//! *Problem.* A join wakes a cellular radio, which then draws power for about ten seconds, and every further packet
//! prolongs this. A mesh opens a subflow over each radio for every connection, so the radio never sleeps while WiFi
//! carries all data.
//!
//! *How.* If a client has paths with and without a radio that should sleep ([`PathCost::tail_ms`]), subflows over the
//! radio are opened when they are worth a wake-up:
//! - *Failure.* No other path works. If all are degraded or gone, the radio is woken immediately. If they are
//!   unreachable, it is woken after two round trips: by then, the answer to a probe shows whether a single segment was
//!   lost.
//! - *Transfer.* In nine of the last ten tenths of a second, bytes were transferred, and they were at least
//!   [`TRANSFER_BYTES`], or a queue of [`LONG_QUEUE`] holds them up. A transfer that has lasted a second will probably
//!   last another one. A second path of the same rate then saves half a second, as much as `auto` requires of a
//!   wake-up.
//!
//! They are closed when another path has worked for [`SETTLE`], no transfer is left, and they have carried nothing new
//! for [`QUIET`].
//!
//! *Source.* MultiMob opens the cellular subflow only after a failure, eMPTCP (Lim and others, CoNEXT 2015) after some
//! bytes or seconds. The measurement of transfers, and all constants, are ours.
//!
//! *Limits.* A client does not know how much the server has to send, so a download is recognized only after a second. A
//! slow stream without a queue is taken for a call, and stays on one path. After a failure, a join takes its round
//! trips.
//!
//! [`PathCost::tail_ms`]: marline_policy::PathCost::tail_ms

use std::collections::VecDeque;

use marline_policy::{
    PathAction, PathContext, PathEvent, Role, SubflowId, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::mesh::{Hold, starts_at};

/// Minimum number of bytes in a second of a transfer, unless they wait in a queue. A call of 100 packets a second has
/// fewer.
const TRANSFER_BYTES: u64 = 25_000;
/// Minimum queueing delay of a transfer with fewer bytes.
const LONG_QUEUE: Duration = Duration::from_millis(200);
/// Interval between two samples during a transfer, and their number.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
const SAMPLES: usize = 10;
/// Maximum interval between two samples of an idle connection.
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(30);
/// Shortest and longest time for which the other paths must be unreachable.
const MIN_PATIENCE: Duration = Duration::from_millis(30);
const MAX_PATIENCE: Duration = Duration::from_millis(150);
/// Time for which another path must have worked before the radio's subflows are closed.
const SETTLE: Duration = Duration::from_secs(1);
/// Time for which the radio's subflows must have carried no new data before they are closed.
const QUIET: Duration = Duration::from_secs(2);

/// Decides whether the subflows over radios are open.
#[derive(Clone, Debug, Default)]
pub(super) struct RadioSleep {
    /// True if radios are kept awake.
    off: bool,
    open: bool,
    /// Time since which no other path has worked.
    failed_since: Option<Instant>,
    /// Time since which another path has worked.
    working_since: Option<Instant>,
    transfer: TransferMeter,
    /// Subflows that were closed and may still be listed.
    closing: SubflowSet,
    wake_at: Option<Instant>,
}

impl RadioSleep {
    /// Creates a state that keeps radios awake.
    pub(super) fn off() -> RadioSleep {
        RadioSleep { off: true, ..RadioSleep::default() }
    }

    pub(super) const fn is_off(&self) -> bool {
        self.off
    }

    /// Returns true if this side chooses between paths with and without a radio that should sleep.
    pub(super) fn has_choice(cx: &PathContext<'_>) -> bool {
        let any = |radio: bool| {
            cx.local
                .iter()
                .any(|local| local.subflow && local.up && local.cost.has_radio() == radio)
        };
        cx.role == Role::Client && any(true) && any(false)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.transfer.next_at.into_iter().chain(self.wake_at).min()
    }

    pub(super) fn record_event(&mut self, event: &PathEvent) {
        // A subflow that has ended may still be listed.
        if let PathEvent::SubflowUp(id) = *event {
            self.closing.remove(id);
        }
    }

    /// Returns true if subflows over radios should exist.
    pub(super) const fn is_open(&self) -> bool {
        self.open
    }

    /// Returns true if no other path works, so that a join should not wait for round trips.
    pub(super) const fn is_urgent(&self) -> bool {
        self.failed_since.is_some()
    }

    /// Decides again. Returns the subflows to be closed, and true if subflows over radios are to be opened now.
    pub(super) fn update(&mut self, cx: &PathContext<'_>) -> (Vec<PathAction>, bool) {
        self.wake_at = None;
        self.transfer.sample_if_due(cx);
        let others: Vec<&SubflowView> = cx
            .subflows
            .iter()
            .filter(|view| view.is_active() && !is_on_radio(view.id, cx))
            .collect();
        if others.iter().any(|view| is_working(view)) {
            self.failed_since = None;
            self.working_since.get_or_insert(cx.now);
        } else {
            self.working_since = None;
            self.failed_since.get_or_insert(cx.now);
        }
        let before = self.open;
        let exists = cx.paths.iter().any(|p| is_on_radio(p.id, cx) && !self.closing.contains(p.id));
        let is_transferring = self.transfer.is_transferring(cx);
        self.open = exists || is_transferring || self.is_failure(cx.now, &others);
        let mut closed = Vec::new();
        if exists && !is_transferring && self.are_unused(cx) {
            for path in cx.paths.iter().filter(|path| is_on_radio(path.id, cx)) {
                self.closing.insert(path.id);
                closed.push(PathAction::CloseSubflow(path.id));
            }
            self.open = false;
        }
        (closed, self.open && !before)
    }

    /// Returns true if the other paths have failed. If they may have, sets the timer.
    fn is_failure(&mut self, now: Instant, others: &[&SubflowView]) -> bool {
        let Some(since) = self.failed_since else { return false };
        if others.iter().all(|view| is_degraded(view)) {
            return true;
        }
        let round_trip = others.iter().filter_map(|view| view.srtt).max().unwrap_or(MAX_PATIENCE);
        let at = since + (round_trip * 2).clamp(MIN_PATIENCE, MAX_PATIENCE);
        if at > now {
            self.wake(at);
        }
        at <= now
    }

    /// Returns true if the subflows over radios are no longer needed. If they may soon not be, sets the timer.
    fn are_unused(&mut self, cx: &PathContext<'_>) -> bool {
        let Some(since) = self.working_since else { return false };
        let on_radio = cx.subflows.iter().filter(|view| is_on_radio(view.id, cx));
        let at = Hold { settle: SETTLE, quiet: QUIET }.end(since, on_radio, cx.now);
        if at > cx.now {
            self.wake(at);
        }
        at <= cx.now
    }

    fn wake(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |wake| wake.min(at)));
    }
}

/// Bytes of the last second, to recognize a transfer.
#[derive(Clone, Debug, Default)]
struct TransferMeter {
    next_at: Option<Instant>,
    last_bytes_at: Option<Instant>,
    /// Bytes sent and received by each subflow until the last sample, modulo 2^32.
    counters: Vec<(SubflowId, u32)>,
    /// Bytes of the last samples.
    samples: VecDeque<u32>,
}

impl TransferMeter {
    fn sample_if_due(&mut self, cx: &PathContext<'_>) {
        if self.next_at.is_some_and(|at| at > cx.now) {
            return;
        }
        let mut counters = Vec::with_capacity(cx.subflows.len());
        let mut bytes: u32 = 0;
        for view in cx.subflows {
            let total = view.bytes_sent.wrapping_add(view.bytes_received);
            let before = self.counters.iter().find(|(id, _)| *id == view.id);
            bytes = bytes.wrapping_add(total.wrapping_sub(before.map_or(total, |(_, n)| *n)));
            counters.push((view.id, total));
        }
        self.counters = counters;
        // A new connection counts as active.
        if bytes > 0 || self.last_bytes_at.is_none() {
            self.last_bytes_at = Some(cx.now);
        }
        let idle = self.last_bytes_at.map_or(Duration::ZERO, |at| cx.now.since(at));
        let interval = (idle / 2).clamp(SAMPLE_INTERVAL, MAX_SAMPLE_INTERVAL);
        if interval > SAMPLE_INTERVAL {
            self.samples.clear();
        } else {
            self.samples.truncate(SAMPLES - 1);
            self.samples.push_front(bytes);
        }
        self.next_at = Some(cx.now + interval);
    }

    fn is_transferring(&self, cx: &PathContext<'_>) -> bool {
        let with_bytes = self.samples.iter().filter(|bytes| **bytes > 0).count();
        let bytes: u64 = self.samples.iter().copied().map(u64::from).sum();
        let queues = |view: &SubflowView| {
            view.srtt.zip(view.min_rtt).is_some_and(|(srtt, min)| srtt >= min + LONG_QUEUE)
        };
        with_bytes + 1 >= SAMPLES && (bytes >= TRANSFER_BYTES || cx.subflows.iter().any(queues))
    }
}

fn is_on_radio(id: SubflowId, cx: &PathContext<'_>) -> bool {
    let path = cx.paths.iter().find(|path| path.id == id);
    path.is_some_and(|path| cx.local.iter().any(|l| l.cost.has_radio() && starts_at(path, l)))
}

const fn is_degraded(view: &SubflowView) -> bool {
    view.health.is_degraded() || view.health.has_degraded_address_pair()
}

const fn is_working(view: &SubflowView) -> bool {
    !view.health.is_unreachable() && !is_degraded(view)
}

#[cfg(test)]
mod tests;
