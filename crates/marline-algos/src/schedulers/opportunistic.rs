//! Opportunistic retransmission and penalisation (Raiciu et al., NSDI 2012, mechanisms M1 and M2).
//!
//! *Problem.* All subflows share one receive window. When the oldest outstanding segment sits on a
//! slow subflow, the window fills behind it and the fast subflow idles, though it has room.
//!
//! *How.* When the window blocks the next segment and the fast subflow F has room, the oldest
//! outstanding segment, if F did not carry it, is sent on F as well. The subflows that held it up are
//! penalised, at most once per RTT of F: their window is halved, so that they hold less of the window
//! next time. When only the send buffer is exhausted, the retransmission happens without penalty.
//!
//! *Source.* Rules as in the out-of-tree Linux scheduler: a slow subflow S is worth repeating if its
//! window is down to 4 segments or if its RTT is more than 4 times F's; it is penalised if its RTT
//! is larger than F's and it is not repairing losses. Written anew.
//!
//! *Differences.* Linux repeats one segment and waits for its DATA_ACK: one segment per RTT of F, and
//! a path whose rate collapses drags the connection down to that. Here F repeats as much of what
//! much slower subflows hold as it has room for. Linux also penalises when the send buffer is
//! exhausted and memory is short; the send buffer here grows by itself, so that case is none.

use marline_policy::{
    Dsn, Eligibility, Phase, SchedulerAction, SchedulerContext, SchedulerEvent, SubflowId,
    SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::classes::{self, Class};

/// Below this many segments of window a slow subflow is worth bypassing whatever its RTT.
const SMALL_WINDOW_SEGMENTS: u64 = 4;
/// Else its RTT must be larger than this many of the fast one's.
const RTT_RATIO: u32 = 4;
/// Ranges repeated in one go.
const MAX_RANGES: usize = 64;

/// The state of both mechanisms, one per connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Opportunistic {
    /// When each fast subflow last had others penalised. A subflow's first RTT is free of it.
    last_penalty: [Option<Instant>; SubflowSet::CAPACITY as usize],
}

impl Opportunistic {
    pub(super) fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        match event {
            SchedulerEvent::SubflowUp(id) => *self.stamp(id) = Some(cx.now),
            SchedulerEvent::SubflowDown(id) => *self.stamp(id) = None,
            SchedulerEvent::PeerWindowBlocked { picked } => self.unblock(picked, true, cx, out),
            SchedulerEvent::SendBufferBlocked => {
                let Some(class) = classes::best_class(cx.subflows) else { return };
                let members = classes::members(cx.subflows, class);
                if let Some(picked) = classes::pick(members, class).map(|view| view.id) {
                    self.unblock(picked, false, cx, out);
                }
            }
            SchedulerEvent::ProbeTimeout(_) | SchedulerEvent::SubflowRto(_) => {}
        }
    }

    fn stamp(&mut self, id: SubflowId) -> &mut Option<Instant> {
        &mut self.last_penalty[usize::from(id.0 % SubflowSet::CAPACITY)]
    }

    fn unblock(
        &mut self,
        picked: SubflowId,
        penalise: bool,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let (Some(fast), Some(oldest)) = (cx.subflow(picked), cx.mappings.oldest()) else { return };
        let Some(fast_srtt) = fast.srtt else { return };
        let holders =
            || cx.subflows.iter().filter(|s| s.id != picked && oldest.carried_by.contains(s.id));
        let due = self.stamp(picked).is_none_or(|last| cx.now.since(last) >= fast_srtt);
        if penalise && due {
            let slow = |s: &&SubflowView| {
                s.phase == Phase::Open && s.srtt.is_some_and(|srtt| fast_srtt < srtt)
            };
            let before = out.len();
            out.extend(holders().filter(slow).map(|s| SchedulerAction::Penalise(s.id)));
            if out.len() > before {
                *self.stamp(picked) = Some(cx.now);
            }
        }
        // A backup may help out of this only if backups carry data anyway.
        let may_carry =
            Class::of(fast).is_some() && Class::of(fast) == classes::best_class(cx.subflows);
        let worth = holders().next().is_some_and(|slow| {
            slow.cwnd <= SMALL_WINDOW_SEGMENTS * u64::from(slow.mss)
                || slow.srtt.is_none_or(|srtt| fast_srtt * RTT_RATIO < srtt)
        });
        if worth && may_carry && fast.is_ready() && !oldest.carried_by.contains(picked) {
            let range = oldest.range.prefix(u64::from(fast.mss));
            out.push(SchedulerAction::Reinject { range, on: picked });
            repeat_what_much_slower_ones_hold(fast, fast_srtt, range.end, cx, out);
        }
    }
}

/// Beyond the oldest segment: as far as the fast subflow has room and only subflows with a much longer
/// RTT hold the data.
fn repeat_what_much_slower_ones_hold(
    fast: &SubflowView,
    fast_srtt: Duration,
    from: Dsn,
    cx: &SchedulerContext<'_>,
    out: &mut Vec<SchedulerAction>,
) {
    let Eligibility::Ready { room } = fast.eligibility else { return };
    let mut left = room.saturating_sub(u64::from(fast.mss));
    let mut at = from;
    for _ in 0..MAX_RANGES {
        let Some(next) = cx.mappings.next_not_on(fast.id, at).filter(|_| left > 0) else { return };
        let slow = |id| {
            let holder = cx.subflow(id);
            holder.is_none_or(|s| s.srtt.is_none_or(|srtt| fast_srtt * RTT_RATIO < srtt))
        };
        if !next.carried_by.iter().all(slow) {
            return;
        }
        let range = next.range.prefix(left);
        out.push(SchedulerAction::Reinject { range, on: fast.id });
        left -= range.len();
        at = range.end;
    }
}

#[cfg(test)]
mod tests;
