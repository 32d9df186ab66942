//! Costs of paths in decisions of [`Auto`](super::Auto): which paths new data avoids, and the additional gain that they
//! require of a copy.
//!
//! *Problem.* A metered path, or one whose radio sleeps, is often the fastest for a single segment. Using it whenever
//! it is fastest would cost the most where it helps the least: when another path delivers the data in time. Never using
//! it would leave a message on a path that has just failed.
//!
//! *How.* Costs are converted to time ([`Terms`](marline_policy::Terms)). New data uses such a path only if the cheaper
//! ones need more time for *all* unsent data than it needs for one segment, by
//! - `patience` on a metered path, plus the time that all unsent data takes at `metered_rate`. So if both paths are
//!   fast enough, the metered one carries nothing, and bulk data uses it only if the other path is slower than this
//!   rate;
//! - the share of `wake` that a packet on it costs now: all of it if the radio sleeps, almost nothing if the radio was
//!   just used. So a stream that has woken a radio keeps using it, and one that pauses lets it sleep.
//!
//! These costs also apply to a copy. On a path with its own budget, the required gain also rises as that budget is
//! spent, except for late data on a limited path. If the copy would wake a radio, it must also be expected to save the
//! share of `wake`. So data that is late by a round trip or two does not wake a radio. A path that does not answer soon
//! becomes silent, and then only the radio is left. A path with a sleeping radio is not explored: what is known about
//! it is old, and the first copy that justifies a wake-up updates it. Without a limit (mode `redundant`), copies wake
//! any radio, but per-path budgets still apply, because bytes cost money in every mode.
//!
//! *Source.* Ours. The tail energy of cellular radios: Balasubramanian et al., IMC 2009; Huang et al., MobiSys 2012.

use marline_policy::{
    BudgetState, Eligibility, SchedulerAction, SchedulerContext, SubflowSet, SubflowView,
};
use marline_time::Duration;

use super::arrivals::{cautious_arrival_time, trouble_delay};
use super::copy_gain::{self, RequiredGain};
use super::{EXPLORE_AFTER, MAX_SPENDING};
use crate::schedulers::classes::{self, Class, members};
use crate::schedulers::delivery::{arrival, is_overdue, is_window_opening, send_time_by_answers};

/// Idle time after which a metered path is explored, if at most this share of its budget is spent. The rest is reserved
/// for late data.
const EXPLORE_METERED_AFTER: Duration = Duration::from_secs(3);
const MAX_EXPLORE_SHARE: f32 = 0.5;

/// Returns true if using the path costs more than time.
pub(super) fn is_costly(view: &SubflowView) -> bool {
    view.metered || view.wake_share > 0.0
}

/// Costs of paths, given the spent budgets.
#[derive(Copy, Clone, Debug)]
pub(super) struct Costs<'a>(pub(super) &'a BudgetState);

impl Costs<'_> {
    /// Returns the paths of a class that new data avoids because cheaper ones deliver it soon enough.
    pub(super) fn paths_to_avoid(self, class: Class, cx: &SchedulerContext<'_>) -> SubflowSet {
        let mut spared = SubflowSet::EMPTY;
        if !cx.subflows.iter().any(is_costly) {
            return spared;
        }
        for view in members(cx.subflows, class).filter(|view| is_costly(view)) {
            if self.replacement_path(view, class, cx).is_some() {
                spared.insert(view.id);
            }
        }
        spared
    }

    /// Returns the cheaper path to use instead of this one, and the time until it has delivered all unsent data.
    pub(super) fn replacement_path<'a>(
        self,
        view: &SubflowView,
        class: Class,
        cx: &SchedulerContext<'a>,
    ) -> Option<(&'a SubflowView, Duration)> {
        let left = cx.written.since(cx.unsent.start);
        let arrives = cautious_arrival_time(view, u64::from(view.mss).min(left), left);
        // An unknown path might be arbitrarily fast.
        let arrives = if arrives == Duration::MAX { Duration::ZERO } else { arrives };
        let (metered, awake) =
            (view.metered, |other: &SubflowView| view.wake_share - other.wake_share);
        let cheaper = |other: &&SubflowView| {
            let (bytes, wake) = (metered && !other.metered, awake(other));
            let not_dearer = metered || !other.metered;
            other.id != view.id && not_dearer && wake >= 0.0 && (bytes || wake > 0.0)
        };
        let in_time = |other: &'a SubflowView| {
            let all = delivery_time_of_rest(other, left, cx)?;
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

    /// Returns the minimum gain of a copy on this path; `None` if no copy is allowed on it.
    pub(super) fn required_gain_on(self, view: &SubflowView, class: Class) -> Option<RequiredGain> {
        let path_budget = self.path_budget(view, class).unwrap_or(0.0);
        let price = self.common_required_gain_on(view);
        let least = if path_budget > 0.0 {
            price.least.max(copy_gain::price(path_budget))
        } else {
            price.least
        };
        (path_budget < MAX_SPENDING).then_some(RequiredGain { least, ..price })
    }

    /// Returns the minimum gain of a copy of late data. On a limited path, only the common budget counts: late data is
    /// a small share of all data, and would be sent anyway if it were known to be lost.
    pub(super) fn required_gain_of_late_data(
        self,
        view: &SubflowView,
        class: Class,
    ) -> Option<RequiredGain> {
        let only_limited = view.limited && !view.metered && class != Class::Backup;
        if only_limited {
            Some(self.common_required_gain_on(view))
        } else {
            self.required_gain_on(view, class)
        }
    }

    /// Returns the minimum gain according to the common budget.
    fn common_required_gain_on(self, view: &SubflowView) -> RequiredGain {
        // Without a limit, copies are made even if no gain is expected.
        let least = if self.0.unlimited { -1.0 } else { copy_gain::price(self.0.spent) };
        let spares = view.wake_share > 0.0 && !self.0.unlimited;
        let wake = if spares { self.0.terms.wake.mul_f32(view.wake_share) } else { Duration::ZERO };
        RequiredGain { least, wake }
    }

    /// Returns true if the path's budget still allows speculative copies.
    pub(super) fn allows_speculative_copies(
        self,
        view: &SubflowView,
        class: Class,
        up_to: f32,
    ) -> bool {
        self.path_budget(view, class).is_none_or(|spent| spent < up_to)
    }

    /// Drops repeats that an event requested on paths to be avoided.
    pub(super) fn drop_costly_repeats(
        self,
        actions: &mut Vec<SchedulerAction>,
        from: usize,
        cx: &SchedulerContext<'_>,
    ) {
        if actions.len() == from || !cx.subflows.iter().any(is_costly) {
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

    /// Returns true if this path may repeat data of a blocking path.
    fn may_unblock(self, view: &SubflowView, class: Class) -> bool {
        let asleep = view.wake_share >= 1.0 && !self.0.unlimited;
        !asleep && self.allows_speculative_copies(view, class, 1.0)
    }

    /// Returns true if a path that has been idle for `unused` should be explored with a copy.
    pub(super) fn should_explore(self, view: &SubflowView, class: Class, unused: Duration) -> bool {
        let spared = view.wake_share > 0.0 && !self.0.unlimited;
        let after = if view.metered { EXPLORE_METERED_AFTER } else { EXPLORE_AFTER };
        unused > after && !spared && self.allows_speculative_copies(view, class, MAX_EXPLORE_SHARE)
    }

    /// Spent share of the path's budget. A backup's budget counts only while backups carry data.
    fn path_budget(self, view: &SubflowView, class: Class) -> Option<f32> {
        let counts = view.metered || view.limited || class == Class::Backup;
        if counts { self.0.path_budget(view.id) } else { None }
    }
}

/// Returns the time by which, in nine out of ten cases, a path that has or will get room has delivered all remaining
/// data.
fn delivery_time_of_rest(
    view: &SubflowView,
    left: u64,
    cx: &SchedulerContext<'_>,
) -> Option<Duration> {
    let moves =
        view.bytes_in_flight > 0 || matches!(view.eligibility, Eligibility::PacingLimited(_));
    if !view.forecast.is_known() || !(moves || view.is_ready()) {
        return None;
    }
    let leaves = send_time_by_answers(view, left)?;
    let arrives = arrival(view, left).max(arrival(view, 0).saturating_add(leaves));
    let mut later = trouble_delay(view, arrives);
    if let Eligibility::PacingLimited(at) = view.eligibility {
        later += at.since(cx.now);
    }
    if !view.is_ready() && !is_window_opening(view) {
        later += view.srtt.unwrap_or_default();
    }
    // In half of the cases, a path that has not answered for this long stays silent for equally long again.
    if is_overdue(view, cx.now) {
        later += view.overdue_at.map_or(Duration::ZERO, |at| cx.now.since(at));
    }
    Some(later.saturating_add(arrives))
}

#[cfg(test)]
mod tests;
