//! Opportunistic retransmission and penalization (Raiciu et al., NSDI 2012, mechanisms M1 and M2).
//!
//! *Problem.* All subflows share one receive window. When the oldest outstanding segment is on a slow subflow, the
//! window fills behind it, and the fast subflow is idle although it has room.
//!
//! *How.* When the window blocks the next segment and the fast subflow F has room, the oldest outstanding segment is
//! sent on F as well, unless F carried it (M1). The subflows that blocked it are penalized: their windows are halved,
//! so that they occupy less of the receive window next time (M2). Each is configured separately:
//!
//! | retransmit | what is repeated on F |
//! |---|---|
//! | `paper` | the oldest segment, on whichever subflow |
//! | `kernel` | the oldest, if its first holder has a window of at most 4 segments, or more than 4 times the RTT of F |
//! | `wide` | as `kernel`, plus all data held by subflows with more than 4 times the RTT of F, while F has room |
//!
//! | penalize | penalized subflow | how often | ssthresh |
//! |---|---|---|---|
//! | `paper` | the first holder S, if its window divided by its RTT is less than that of F | per RTT of S | the halved
//! window |
//! | `kernel` | every holder with a longer RTT than F that repairs no loss | per RTT of F | slow start continues |
//!
//! *Source.* The paper; its first code (2012) for `penalize=paper`; the later out-of-tree Linux scheduler for `kernel`.
//! Reimplemented from descriptions.
//!
//! *Choices.* The paper has no condition for the retransmission, but all implementations have one: `paper` follows the
//! paper, `kernel` what was measured in 2014 and later. Linux considers only the segment at the trailing edge and waits
//! for its DATA_ACK: one segment per RTT of F. A path whose rate collapses slows the connection down to this rate.
//! `wide` (used by `min-rtt`) lets F repeat as much as it has room for. When only the send buffer is exhausted, Linux
//! repeats data, and penalizes if no memory is left. Here this means that the buffer is full at its maximum size.
//! (`wide` does not penalize then.)

use marline_policy::{
    Dsn, Eligibility, Mapping, Penalty, Phase, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

use super::classes::{self, Class};

/// Window, in segments, below which it pays to bypass a slow subflow regardless of its RTT.
const SMALL_WINDOW_SEGMENTS: u64 = 4;
/// Factor by which the slow subflow's RTT must otherwise exceed that of the fast one.
const RTT_RATIO: u32 = 4;
/// Maximum number of ranges repeated at once.
const MAX_RANGES: usize = 64;

/// Data that is sent again on the fast subflow when it is blocked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Retransmit {
    /// Nothing is sent again.
    Off,
    /// The oldest segment, on whichever subflow it is.
    Paper,
    /// The oldest segment, if its holder's window is tiny or its RTT more than 4 times as long.
    Kernel,
    /// Like `Kernel`, plus all data that such subflows hold, while there is room.
    Wide,
}

/// Subflow that is slowed down for blocking the fast one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Penalize {
    /// No subflow is penalized.
    Off,
    /// The first holder if its throughput is lower, once per RTT of this holder; ends slow start.
    Paper,
    /// Every holder with a longer RTT, once per RTT of the fast subflow; slow start continues.
    Kernel,
}

/// Rules for both mechanisms.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct OpportunisticRules {
    /// Retransmission (M1).
    pub retransmit: Retransmit,
    /// Penalization (M2).
    pub penalize: Penalize,
    /// True to also retransmit when only the send buffer is exhausted.
    pub for_send_buffer: bool,
    /// True to also penalize in that case, if the buffer is full at its maximum size.
    pub penalize_for_send_buffer: bool,
}

impl OpportunisticRules {
    /// Rules of `min-rtt`.
    pub const WIDE: Self = OpportunisticRules {
        retransmit: Retransmit::Wide,
        penalize: Penalize::Kernel,
        for_send_buffer: true,
        penalize_for_send_buffer: false,
    };
    /// Rules of later versions of the out-of-tree Linux scheduler.
    pub const KERNEL: Self = OpportunisticRules {
        retransmit: Retransmit::Kernel,
        penalize: Penalize::Kernel,
        for_send_buffer: true,
        penalize_for_send_buffer: true,
    };
    /// Neither retransmission nor penalization.
    pub const OFF: Self = OpportunisticRules {
        retransmit: Retransmit::Off,
        penalize: Penalize::Off,
        for_send_buffer: false,
        penalize_for_send_buffer: false,
    };
}

/// Bytes beyond the MSS in a segment in the middle of a run, which has no mapping option. A repeat on another subflow
/// must cover all of it, or the data behind it still waits.
const MAPPING_OPTION_BYTES: u64 = 20;

/// State of both mechanisms, one per connection.
#[derive(Clone, Debug)]
pub struct Opportunistic {
    rules: OpportunisticRules,
    /// Per subflow: the time at which it last caused others to be penalized (`kernel`; there is no penalty in its first
    /// RTT), or was last penalized itself (`paper`). Only subflows with such a time have an entry.
    last_penalty: Vec<(SubflowId, Instant)>,
}

impl Opportunistic {
    /// Creates the initial state, in which nothing has been blocked.
    #[must_use]
    pub const fn new(rules: OpportunisticRules) -> Self {
        Opportunistic { rules, last_penalty: Vec::new() }
    }

    /// Must be called for every event. Appends the requested actions to `out`.
    pub fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        match event {
            SchedulerEvent::SubflowUp(id) => {
                let spared = self.rules.penalize == Penalize::Kernel;
                self.set_stamp(id, spared.then_some(cx.now));
            }
            SchedulerEvent::SubflowDown(id) => self.set_stamp(id, None),
            SchedulerEvent::PeerWindowBlocked { picked } => self.unblock(picked, true, cx, out),
            SchedulerEvent::SendBufferBlocked if self.rules.for_send_buffer => {
                let Some(class) = classes::best_class(cx.subflows) else { return };
                let members = classes::members(cx.subflows, class);
                let full = cx.written.since(cx.data_una) >= cx.send_limit;
                let penalize = self.rules.penalize_for_send_buffer && full;
                if let Some(picked) = classes::pick(members, class).map(|view| view.id) {
                    self.unblock(picked, penalize, cx, out);
                }
            }
            _ => {}
        }
    }

    fn last_penalty(&self, id: SubflowId) -> Option<Instant> {
        self.last_penalty.iter().find(|(of, _)| *of == id).map(|(_, at)| *at)
    }

    fn set_stamp(&mut self, id: SubflowId, at: Option<Instant>) {
        self.last_penalty.retain(|(of, _)| *of != id);
        if let Some(at) = at {
            self.last_penalty.reserve_exact(1);
            self.last_penalty.push((id, at));
        }
    }

    fn unblock(
        &mut self,
        picked: SubflowId,
        penalize: bool,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let (Some(fast), Some(oldest)) = (cx.subflow(picked), cx.mappings.oldest()) else { return };
        let Some(fast_srtt) = fast.srtt else { return };
        let held_up = HeadOfLineBlocking { fast, fast_srtt, oldest, cx };
        if penalize {
            match self.rules.penalize {
                Penalize::Off => {}
                Penalize::Paper => self.penalize_trailing_holder(&held_up, out),
                Penalize::Kernel => self.penalize_slow_holders(&held_up, out),
            }
        }
        held_up.repeat(self.rules.retransmit, out);
    }

    /// Penalizes the holder of the trailing edge if its throughput is lower, once per RTT of this holder.
    fn penalize_trailing_holder(
        &mut self,
        held_up: &HeadOfLineBlocking<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(slow) = held_up.holders().next() else { return };
        let Some(slow_srtt) = slow.srtt else { return };
        // Compares window / RTT without dividing.
        let brings = |view: &SubflowView, other_srtt: Duration| {
            u128::from(view.cwnd) * other_srtt.as_nanos()
        };
        let slower = brings(slow, held_up.fast_srtt) < brings(held_up.fast, slow_srtt);
        let now = held_up.cx.now;
        let due = self.last_penalty(slow.id).is_none_or(|last| now.since(last) >= slow_srtt);
        if slower && due {
            self.set_stamp(slow.id, Some(now));
            let penalty = Penalty::WindowAndThreshold;
            out.push(SchedulerAction::Penalize { subflow: slow.id, penalty });
        }
    }

    /// Penalizes every holder with a longer round trip, once per round trip of the fast subflow.
    fn penalize_slow_holders(
        &mut self,
        held_up: &HeadOfLineBlocking<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let (now, fast_srtt) = (held_up.cx.now, held_up.fast_srtt);
        let stamp = self.last_penalty(held_up.fast.id);
        if stamp.is_some_and(|last| now.since(last) < fast_srtt) {
            return;
        }
        let slow = |s: &&SubflowView| {
            s.phase == Phase::Open && s.srtt.is_some_and(|srtt| fast_srtt < srtt)
        };
        let before = out.len();
        out.extend(held_up.holders().filter(slow).map(|s| {
            let (subflow, penalty) = (s.id, Penalty::Window);
            SchedulerAction::Penalize { subflow, penalty }
        }));
        if out.len() > before {
            self.set_stamp(held_up.fast.id, Some(now));
        }
    }
}

/// State in which a fast subflow has room, but the oldest data is on another one.
struct HeadOfLineBlocking<'a> {
    fast: &'a SubflowView,
    fast_srtt: Duration,
    oldest: Mapping,
    cx: &'a SchedulerContext<'a>,
}

impl HeadOfLineBlocking<'_> {
    /// Other subflows that carry the oldest data.
    fn holders(&self) -> impl Iterator<Item = &SubflowView> {
        let holds =
            |s: &&SubflowView| s.id != self.fast.id && self.oldest.carried_by.contains(s.id);
        self.cx.subflows.iter().filter(holds)
    }

    fn repeat(&self, rule: Retransmit, out: &mut Vec<SchedulerAction>) {
        let much_slower = |slow: &SubflowView| {
            slow.cwnd <= SMALL_WINDOW_SEGMENTS * u64::from(slow.mss)
                || slow.srtt.is_none_or(|srtt| self.fast_srtt * RTT_RATIO < srtt)
        };
        let worth = match rule {
            Retransmit::Off => false,
            Retransmit::Paper => true,
            Retransmit::Kernel | Retransmit::Wide => self.holders().next().is_some_and(much_slower),
        };
        let fast = self.fast;
        // A backup may help only if backups carry data anyway.
        let class = Class::from_view(fast);
        let may_carry = class.is_some() && class == classes::best_class(self.cx.subflows);
        if worth && may_carry && fast.is_ready() && !self.oldest.carried_by.contains(fast.id) {
            let range = self.oldest.range.prefix(u64::from(fast.mss) + MAPPING_OPTION_BYTES);
            out.push(SchedulerAction::Reinject { range, on: fast.id });
            if rule == Retransmit::Wide {
                self.repeat_data_of_slow_subflows(range.end, out);
            }
        }
    }

    /// Repeats, beyond the oldest segment, data held only by subflows with a much longer RTT, while the fast subflow
    /// has room.
    fn repeat_data_of_slow_subflows(&self, from: Dsn, out: &mut Vec<SchedulerAction>) {
        let HeadOfLineBlocking { fast, fast_srtt, cx, .. } = *self;
        let Eligibility::Ready { room } = fast.eligibility else { return };
        let mut left = room.saturating_sub(from.since(self.oldest.range.start));
        let mut at = from;
        for _ in 0..MAX_RANGES {
            let next = cx.mappings.next_not_on(fast.id, at).filter(|_| left > 0);
            let Some(next) = next else { return };
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
}

#[cfg(test)]
mod tests;
