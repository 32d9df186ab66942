//! Per-path budgets: limits on copies on each metered, limited or backup path.
//!
//! *Problem.* A single budget for all copies limits how many bytes are sent twice, but not on which path. A quarter of
//! the stream costs nothing at a flat rate, but a lot if bytes are charged.
//!
//! *How.* Each metered or backup path has its own budget in addition to the common one ([`BudgetConfig`] with another
//! share and rate), over the same ten seconds. So does a limited path, with the common budget's share and rate: the
//! common budget may include a share of the idle capacity of other paths, which must not be spent on it. The share
//! refers to all new data of the connection, on any path, so that the budget does not depend on what the path itself
//! carries. The core counts which bytes a path carried as copies, for any reason ([`SubflowView::bytes_copied`]).

use marline_policy::{SchedulerContext, SubflowId, SubflowView};
use marline_time::Instant;

use crate::budget::{Budget, BudgetConfig};

/// Budget of one path.
#[derive(Clone, Debug)]
struct PathBudget {
    of: SubflowId,
    /// True if the path is limited, but neither metered nor a backup.
    only_limited: bool,
    budget: Budget,
    /// Value of `bytes_copied` at the last count.
    copied: u32,
}

/// Budgets of a connection's paths, at most one per path.
#[derive(Clone, Debug, Default)]
pub(super) struct PathBudgets(Vec<PathBudget>);

/// Returns true if a path has its own budget.
fn needs_budget(view: &SubflowView) -> bool {
    view.metered || view.backup || view.limited
}

impl PathBudgets {
    /// Counts `new` data of the connection and the bytes copied since the last call.
    pub(super) fn count(&mut self, new: u64, cx: &SchedulerContext<'_>) {
        if self.0.is_empty() && !cx.subflows.iter().any(needs_budget) {
            return;
        }
        self.0.retain(|entry| cx.subflow(entry.of).is_some_and(needs_budget));
        for view in cx.subflows.iter().filter(|view| needs_budget(view)) {
            self.budget_of(view).count(cx.now, new, view.bytes_copied);
        }
    }

    /// Counts a repair sent on a path.
    pub(super) fn on_repair(&mut self, now: Instant, on: SubflowId, bytes: u64) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.of == on) {
            entry.budget.on_copy(now, bytes);
        }
    }

    fn budget_of(&mut self, view: &SubflowView) -> &mut PathBudget {
        let at = self.0.iter().position(|entry| entry.of == view.id).unwrap_or_else(|| {
            let budget = Budget::default();
            let (of, copied) = (view.id, view.bytes_copied);
            self.0.push(PathBudget { of, only_limited: false, budget, copied });
            self.0.len() - 1
        });
        let entry = &mut self.0[at];
        entry.only_limited = !view.metered && !view.backup;
        entry
    }

    /// Returns the spent share of each budget: `common` configures the budgets of limited paths, `own` those of the
    /// others.
    pub(super) fn spent_shares(
        &mut self,
        now: Instant,
        common: &BudgetConfig,
        own: &BudgetConfig,
        out: &mut Vec<(SubflowId, f32)>,
    ) {
        out.clear();
        out.extend(self.0.iter_mut().map(|entry| {
            let config = if entry.only_limited { common } else { own };
            (entry.of, entry.budget.spent_share(now, config))
        }));
    }
}

impl PathBudget {
    fn count(&mut self, now: Instant, new: u64, copied: u32) {
        if new > 0 {
            self.budget.on_new(now, new);
        }
        // A decrease means that another subflow now uses this slot.
        let more = match copied.wrapping_sub(self.copied) {
            more if more > u32::MAX / 2 => copied,
            more => more,
        };
        if more > 0 {
            self.budget.on_copy(now, more.into());
        }
        self.copied = copied;
    }
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::{Stream, backup, view};
    use marline_time::Rate;

    use super::*;

    fn spent(budgets: &mut PathBudgets) -> Vec<(SubflowId, f32)> {
        let own = BudgetConfig { share: 0.1, rate: Rate::from_bytes_per_s(1_000) };
        let common = BudgetConfig { share: 0.2, ..own };
        let mut out = Vec::new();
        budgets.spent_shares(Instant::from_secs(1), &common, &own, &mut out);
        out
    }

    #[test]
    fn only_costly_paths_have_a_budget_of_their_own() {
        let (stream, mut budgets) = (Stream::new(0), PathBudgets::default());
        let plain = [view(0, 20), view(1, 30)];
        budgets.count(50_000, &stream.context(&plain));
        assert_eq!(spent(&mut budgets), []);
        let metered = |copied| SubflowView { metered: true, bytes_copied: copied, ..view(1, 30) };
        // Copies made before the path had its budget do not count.
        let mut paths = [view(0, 20), metered(7_000), backup(view(2, 40))];
        budgets.count(0, &stream.context(&paths));
        paths[1] = metered(9_000);
        budgets.count(200_000, &stream.context(&paths));
        // 10 kB are free, but a tenth of 200 kB is more: 2,000 bytes of 20,000, counted in units of 64.
        assert_eq!(spent(&mut budgets), [(SubflowId(1), 0.1024), (SubflowId(2), 0.0)]);
        // The slot now contains another subflow, which has carried 640 bytes.
        paths[1] = metered(640);
        budgets.count(0, &stream.context(&paths));
        assert_eq!(spent(&mut budgets)[0], (SubflowId(1), 0.1344));
        budgets.count(0, &stream.context(&plain));
        assert_eq!(spent(&mut budgets), []);
    }

    #[test]
    fn a_limited_path_has_the_share_and_rate_of_the_common_budget() {
        let (stream, mut budgets) = (Stream::new(0), PathBudgets::default());
        let limited = |copied| SubflowView { limited: true, bytes_copied: copied, ..view(1, 30) };
        budgets.count(200_000, &stream.context(&[view(0, 20), limited(0)]));
        budgets.count(0, &stream.context(&[view(0, 20), limited(6_400)]));
        assert_eq!(spent(&mut budgets), [(SubflowId(1), 0.16)]);
    }
}
