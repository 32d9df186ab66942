//! Costs of a path in the judgement of [`Auto`](super::Auto): which paths are spared by new data, and what a copy must
//! gain there beside the price of its bytes.
//!
//! *Problem.* A metered path, or one whose radio sleeps, is often the fastest for a single segment. To use it
//! whenever it is would cost the most where it helps the least: beside a path that brings the data in time.
//! Never to use it would leave a message on a path that just died.
//!
//! *How.* Costs are counted in time, as everything else is ([`Terms`](marline_policy::Terms)). New data goes on
//! such a path only if the cheaper ones would need longer for *all* that is unsent than it for a segment, by
//! - `patience` where it is metered, and by the time that all of it takes at `metered_rate`: of two paths,
//!   both fast enough, the metered one has nothing, and bulk goes there only beside one that is slower than this rate;
//! - the share of `wake` that a packet costs there now: all of it where the radio sleeps, and next to nothing where it
//!   was just used. Whoever has woken a radio goes on using it, and who stops lets it sleep.
//!
//! A copy has the same costs: on a path with a purse its price rises with that purse as well, and where it would wake a
//! radio it must be expected to save the share of `wake` beside that. So what is late by a round trip or two wakes
//! none: a path that does not answer falls silent soon, and then the radio is all there is. Such a path is not
//! explored: what is known of it is old, and the first copy that is worth a wake-up makes it new. Without a limit
//! (mode `redundant`) copies wake whatever there is, but a purse is still a purse: who is charged by the byte is so in
//! every mode.
//!
//! *Source.* Ours. The tail energy of cellular radios: Balasubramanian et al., IMC 2009; Huang et al., MobiSys 2012.

use marline_policy::{
    Eligibility, SchedulerAction, SchedulerContext, Spending, SubflowSet, SubflowView,
};
use marline_time::Duration;

use super::arrivals::{careful_arrival, trouble};
use super::worth::{Price, price};
use super::{EXPLORE_AFTER, MOST_SPENT};
use crate::schedulers::classes::{self, Class, members};
use crate::schedulers::delivery::{answer_by_answer, arrival, is_overdue, opens_soon};

/// A metered path that carried nothing for so long is explored, as long as no more than this share of its purse is
/// spent: the rest is for what is late.
const EXPLORE_METERED_AFTER: Duration = Duration::from_secs(3);
const EXPLORE_PURSE: f32 = 0.5;

/// Whether its use costs more than time.
pub(super) fn is_dear(view: &SubflowView) -> bool {
    view.metered || view.wake_share > 0.0
}

/// What paths cost, by what is spent.
#[derive(Copy, Clone, Debug)]
pub(super) struct Costs<'a>(pub(super) &'a Spending);

impl Costs<'_> {
    /// Paths of a class that new data spares, since cheaper ones bring it soon enough.
    pub(super) fn spared(self, class: Class, cx: &SchedulerContext<'_>) -> SubflowSet {
        let mut spared = SubflowSet::EMPTY;
        if !cx.subflows.iter().any(is_dear) {
            return spared;
        }
        for view in members(cx.subflows, class).filter(|view| is_dear(view)) {
            if self.stand_in(view, class, cx).is_some() {
                spared.insert(view.id);
            }
        }
        spared
    }

    /// The path that spares this one, and when it has brought all that is unsent.
    pub(super) fn stand_in<'a>(
        self,
        view: &SubflowView,
        class: Class,
        cx: &SchedulerContext<'a>,
    ) -> Option<(&'a SubflowView, Duration)> {
        let left = cx.written.since(cx.unsent.start);
        let arrives = careful_arrival(view, u64::from(view.mss).min(left), left);
        // One of which nothing is known might be as fast as can be.
        let arrives = if arrives == Duration::MAX { Duration::ZERO } else { arrives };
        let (metered, awake) =
            (view.metered, |other: &SubflowView| view.wake_share - other.wake_share);
        let cheaper = |other: &&SubflowView| {
            let (bytes, wake) = (metered && !other.metered, awake(other));
            let not_dearer = metered || !other.metered;
            other.id != view.id && not_dearer && wake >= 0.0 && (bytes || wake > 0.0)
        };
        let in_time = |other: &'a SubflowView| {
            let all = brings_all(other, left, cx)?;
            let terms = &self.0.terms;
            let mut may_save = terms.wake.mul_f32(awake(other));
            if metered && !other.metered {
                let bytes = terms.metered_rate.time_for(left);
                may_save = may_save.saturating_add(terms.patience).saturating_add(bytes);
            }
            (all <= arrives.saturating_add(may_save)).then_some((other, all))
        };
        members(cx.subflows, class).filter(cheaper).filter_map(in_time).min_by_key(|(_, all)| *all)
    }

    /// What a copy on this path has to gain; `None`: nothing is copied there.
    pub(super) fn price_on(self, view: &SubflowView, class: Class) -> Option<Price> {
        // Without a limit a copy is made even if nothing is expected of it.
        let common = if self.0.unlimited { -1.0 } else { price(self.0.spent) };
        let purse = self.purse(view, class).unwrap_or(0.0);
        if purse >= MOST_SPENT {
            return None;
        }
        let least = if purse > 0.0 { common.max(price(purse)) } else { common };
        let spares = view.wake_share > 0.0 && !self.0.unlimited;
        let wake = if spares { self.0.terms.wake.mul_f32(view.wake_share) } else { Duration::ZERO };
        Some(Price { least, wake })
    }

    /// Whether what is done on the chance that it helps may still be paid from the path's purse.
    pub(super) fn purse_lasts(self, view: &SubflowView, class: Class, up_to: f32) -> bool {
        self.purse(view, class).is_none_or(|spent| spent < up_to)
    }

    /// Of what an event has repeated elsewhere, what would go on a path that is to be spared is left out.
    pub(super) fn leave_out_dear_repeats(
        self,
        actions: &mut Vec<SchedulerAction>,
        from: usize,
        cx: &SchedulerContext<'_>,
    ) {
        if actions.len() == from || !cx.subflows.iter().any(is_dear) {
            return;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return };
        let may = |id| cx.subflow(id).is_none_or(|view| self.may_unblock(view, class));
        let left_out = |action: &mut SchedulerAction| match action {
            SchedulerAction::Reinject { on, .. } => !may(*on),
            _ => false,
        };
        actions.extract_if(from.., left_out).for_each(drop);
    }

    /// Whether a path that holds up others may have its data repeated on this one.
    fn may_unblock(self, view: &SubflowView, class: Class) -> bool {
        let asleep = view.wake_share >= 1.0 && !self.0.unlimited;
        !asleep && self.purse_lasts(view, class, 1.0)
    }

    /// Whether a path that has been unused for so long is explored by a copy.
    pub(super) fn explores(self, view: &SubflowView, class: Class, unused: Duration) -> bool {
        let spared = view.wake_share > 0.0 && !self.0.unlimited;
        let after = if view.metered { EXPLORE_METERED_AFTER } else { EXPLORE_AFTER };
        unused > after && !spared && self.purse_lasts(view, class, EXPLORE_PURSE)
    }

    /// The share that is spent of the path's own purse. That of a backup counts where backups carry data.
    fn purse(self, view: &SubflowView, class: Class) -> Option<f32> {
        let counts = view.metered || class == Class::Backup;
        if counts { self.0.purse(view.id) } else { None }
    }
}

/// When a path has brought all that is left, as nine of ten times, if something moves it or it has room.
fn brings_all(view: &SubflowView, left: u64, cx: &SchedulerContext<'_>) -> Option<Duration> {
    let moves =
        view.bytes_in_flight > 0 || matches!(view.eligibility, Eligibility::PacingLimited(_));
    if !view.forecast.is_known() || !(moves || view.is_ready()) {
        return None;
    }
    let leaves = answer_by_answer(view, left)?;
    let arrives = arrival(view, left).max(arrival(view, 0).saturating_add(leaves));
    let mut later = trouble(view, arrives);
    if let Eligibility::PacingLimited(at) = view.eligibility {
        later += at.since(cx.now);
    }
    if !view.is_ready() && !opens_soon(view) {
        later += view.srtt.unwrap_or_default();
    }
    // What did not answer for so long will not, as often as not, for as long again.
    if is_overdue(view, cx.now) {
        later += view.overdue_at.map_or(Duration::ZERO, |at| cx.now.since(at));
    }
    Some(later.saturating_add(arrives))
}

#[cfg(test)]
mod tests;
