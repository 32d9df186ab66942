//! Base of the redundant schedulers: an inner scheduler (`min-rtt` unless another is wrapped) places new data, and a
//! copy rule decides which of it is sent a second time, when, and on which other subflow.
//!
//! *Problem.* Full redundancy costs every byte twice. Most of the gain comes from a few copies: those of data without
//! successors that would reveal its loss, and those made while a path is poor. The degrees of redundancy between none
//! and full differ only in the copy rule, so each scheduler consists only of its rule (`redundant_idle`, `burst_end`,
//! `probing`, `hedged`, `auto_redundant`).
//!
//! Common to all rules:
//! - New data goes first: a copy is made only if there is no new data to send, or no subflow for it.
//! - Only subflows of the best class carry copies. Backups never do, because they may be metered. Suspected subflows
//!   get none while a healthy one exists, because a returning path must deliver its old data before anything newer.
//! - A subflow carries each piece of data once. The core ensures that nothing acknowledged is sent again.
//!
//! The functions are public so that external redundant schedulers can use them.

use core::fmt::Debug;

use marline_policy::{
    DataRange, Decision, Dsn, Reinjection, Scheduler, SchedulerAction, SchedulerContext,
    SchedulerEvent, SubflowId, SubflowView,
};
use marline_time::Duration;

use super::classes::{self, Class};
use super::min_rtt::{MinRtt, MinRttConfig};

/// Decides which data is sent again, where, and when.
pub trait CopyRule: Debug + Send {
    /// Settings of the rule.
    type Config: Copy + Debug + Default + Send + Sync;

    /// Creates the rule from its settings.
    fn from_config(config: Self::Config) -> Self;

    /// Returns the default scheduler for new data.
    #[must_use]
    fn base_scheduler() -> MinRtt {
        default_base()
    }

    /// Returns true if the rule needs to see every segment. If so, new data is sent one segment at a time, and
    /// [`on_new`](Self::on_new) is called for each.
    fn watches_segments(&self) -> bool {
        false
    }

    /// Called when new data starting at `start` is sent on `on`. The core may shorten it.
    fn on_new(&mut self, _on: &SubflowView, _start: Dsn, _cx: &SchedulerContext<'_>) {}

    /// Returns the next copy on a subflow of this class with room. Called when there is no new data to send, or none
    /// can be sent.
    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision;

    /// Handles an event.
    fn on_event(&mut self, _event: SchedulerEvent, _cx: &SchedulerContext<'_>) {}
}

/// Scheduler for new data, with a rule for copies.
#[derive(Debug)]
pub struct CopyingScheduler<R> {
    base: Box<dyn Scheduler>,
    rule: R,
}

impl<R: CopyRule> CopyingScheduler<R> {
    /// Adds copies according to `config` to the data sent by `base`.
    #[must_use]
    pub fn wrap(base: Box<dyn Scheduler>, config: R::Config) -> Self {
        CopyingScheduler { base, rule: R::from_config(config) }
    }

    /// Adds the rule to its default scheduler.
    #[must_use]
    pub fn new(config: R::Config) -> Self {
        Self::wrap(Box::new(R::base_scheduler()), config)
    }
}

impl<R: CopyRule> Default for CopyingScheduler<R> {
    fn default() -> Self {
        Self::new(R::Config::default())
    }
}

impl<R: CopyRule> Scheduler for CopyingScheduler<R> {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        let decision = self.base.next_send(cx);
        if let Some((subflow, range)) = decision.data() {
            // With one subflow, nothing is copied.
            if !self.rule.watches_segments() || cx.subflows.len() == 1 {
                return decision;
            }
            if let Some(view) = cx.subflow(subflow) {
                self.rule.on_new(view, range.start, cx);
            }
            return decision.limited_to_segment();
        }
        let Some(class) = copying_class(cx.subflows) else { return decision };
        match self.rule.next_copy(class, cx) {
            Decision::Wait => decision,
            Decision::WaitUntil(at) => match decision {
                Decision::WaitUntil(opens) => Decision::WaitUntil(at.min(opens)),
                _ => Decision::WaitUntil(at),
            },
            copy @ (Decision::Send { .. }
            | Decision::SendRun { .. }
            | Decision::Repair { .. }
            | Decision::RepeatNewest { .. }) => copy,
        }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        self.base.next_reinjection(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.base.on_event(event, cx, out);
        self.rule.on_event(event, cx);
    }

    fn probe_patience(&self) -> Option<Duration> {
        self.base.probe_patience()
    }

    fn watches_acks(&self) -> bool {
        self.base.watches_acks()
    }

    fn watches_delivery(&self) -> bool {
        self.base.watches_delivery()
    }

    fn watches_losses(&self) -> bool {
        self.base.watches_losses()
    }
}

/// Default scheduler for new data: `min-rtt`, except that data for which a fast path has no room is immediately sent on
/// a slow one. Redundant schedulers trade bytes for latency, and a window closed by a loss stays closed for more than a
/// round trip.
#[must_use]
pub fn default_base() -> MinRtt {
    MinRtt::new(MinRttConfig { completes_early: false, ..MinRttConfig::default() })
}

/// Returns the class whose members carry copies: the best one, unless it consists of backups.
#[must_use]
pub fn copying_class(subflows: &[SubflowView]) -> Option<Class> {
    let class = classes::best_class(subflows)?;
    matches!(class, Class::Regular | Class::Unreachable).then_some(class)
}

/// Returns true if all written data has been sent.
#[must_use]
pub fn queue_is_empty(cx: &SchedulerContext<'_>) -> bool {
    cx.unsent.is_empty() && cx.unsent.start >= cx.written
}

/// Returns the first data at or after `from` that this subflow did not carry and the peer does not have.
#[must_use]
pub fn first_uncarried_range(
    id: SubflowId,
    from: Dsn,
    cx: &SchedulerContext<'_>,
) -> Option<DataRange> {
    let from = from.max(cx.data_una);
    let mapping = cx.mappings.next_not_on(id, from)?;
    let range = DataRange::new(mapping.range.start.max(from), mapping.range.end);
    (!range.is_empty()).then_some(range)
}

/// Returns a copy of the oldest data at or after `from` that a subflow with room did not carry, on the fastest such
/// subflow.
#[must_use]
pub fn oldest_copy(class: Class, from: Dsn, cx: &SchedulerContext<'_>) -> Option<Decision> {
    classes::members(cx.subflows, class)
        .filter(|view| view.is_ready())
        .filter_map(|view| Some((view, first_uncarried_range(view.id, from, cx)?)))
        .min_by_key(|(view, range)| (range.start, classes::rank(view)))
        .map(|(view, range)| Decision::Send { subflow: view.id, range })
}
