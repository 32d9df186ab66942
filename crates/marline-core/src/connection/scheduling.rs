//! Scheduling step: a decision is requested from the scheduler, validated, and kept until it is
//! applied.
//!
//! The scheduler names a range and a subflow. This code checks that the range is data that may be sent there. A wrong
//! answer is a bug in the policy: an assertion in debug builds, a `Wait` otherwise.

use marline_policy::{
    DataRange, Decision, Dsn, MappingIndex as _, Reason, Reinjection, ReinjectionCause, Scheduler,
    SchedulerAction, SchedulerEvent, SchedulerFactory, SubflowId, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::reinjection::QueuedRange;
use super::sender::{Constraints, Sender};
use crate::on_demand::OnDemand;
use crate::tables::scheduler_scratch::SchedulerScratch;

/// Maximum number of queued reinjections that are examined before new data.
const LOOK_AHEAD: usize = 8;

/// A validated decision: the next data and its subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) subflow: SubflowId,
    pub(super) range: DataRange,
    pub(super) kind: Kind,
    /// The decision applies to all segments of the range, not only to the first.
    pub(super) run: bool,
}

impl Choice {
    /// Creates a decision for one segment.
    pub(super) const fn single(subflow: SubflowId, range: DataRange, kind: Kind) -> Self {
        Choice { subflow, range, kind, run: false }
    }

    /// Remaining part of a run after all data before `end` was sent.
    pub(super) fn remaining(&self, end: Dsn) -> Option<Choice> {
        let range = DataRange::new(end.max(self.range.start), self.range.end.max(end));
        (self.run && !range.is_empty()).then_some(Choice { range, ..*self })
    }
}

/// Kind of data that a decision sends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Data for the first time.
    New,
    /// Data that was sent before.
    Repeat,
    /// A repair of data that was sent before.
    Repair,
}

/// The scheduler, its views, and its decisions.
#[derive(Debug)]
pub(super) struct Scheduling {
    scheduler: Box<dyn Scheduler>,
    scratch: OnDemand<SchedulerScratch>,
    /// A decision made while the batch was for another subflow, or the rest of a run, with the time of the decision.
    decided: Option<(Instant, Choice)>,
    /// Time at which the scheduler wants to be called again.
    wake_at: Option<Instant>,
}

impl Scheduling {
    pub(super) fn new(factory: &dyn SchedulerFactory) -> Self {
        Scheduling {
            scheduler: factory.build(),
            scratch: OnDemand::new(),
            decided: None,
            wake_at: None,
        }
    }

    /// Replaces the scheduler.
    pub(super) fn replace(&mut self, factory: &dyn SchedulerFactory) {
        self.scheduler = factory.build();
        self.decided = None;
    }

    pub(super) fn views(&self) -> &[SubflowView] {
        &self.scratch.views
    }

    /// Exchanges the buffers with the endpoint's before and after a call. They are then empty, because their views
    /// belonged to another connection.
    pub(super) fn swap_scratch(&mut self, lent: &mut OnDemand<SchedulerScratch>) {
        core::mem::swap(&mut self.scratch, lent);
        if let Some(scratch) = self.scratch.if_used() {
            scratch.views.clear();
        }
    }

    /// Records the reasons for decisions until they are taken.
    pub(super) fn record_reasons(&mut self) {
        self.scratch.reasons = Some(Vec::new());
    }

    /// Takes the recorded reasons and stops recording.
    pub(super) fn take_reasons(&mut self) -> Vec<Reason> {
        self.scratch.if_used().and_then(|scratch| scratch.reasons.take()).unwrap_or_default()
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        self.scratch.retire();
    }

    /// Refreshes the views of all subflows that carry data.
    pub(super) fn refresh(&mut self, views: impl Iterator<Item = SubflowView>) {
        self.scratch.views.clear();
        self.scratch.views.extend(views);
    }

    /// Refreshes the view of one subflow after data was assigned to it.
    pub(super) fn refresh_one(&mut self, view: SubflowView) {
        if let Some(old) = self.scratch.views.iter_mut().find(|old| old.id == view.id) {
            *old = view;
        }
    }

    /// Time from an unanswered probe to the reinjection of the subflow's data; `None` waits for the RTO.
    pub(super) fn probe_patience(&self) -> Option<Duration> {
        self.scheduler.probe_patience()
    }

    /// True if the scheduler uses events about acknowledged data.
    pub(super) fn watches_acks(&self) -> bool {
        self.scheduler.watches_acks()
    }

    /// True if the scheduler uses events about lost data.
    pub(super) fn watches_losses(&self) -> bool {
        self.scheduler.watches_losses()
    }

    /// True if the scheduler needs to know which data was delivered.
    pub(super) fn watches_delivery(&self) -> bool {
        self.scheduler.watches_delivery()
    }

    /// Time at which the scheduler wants to be called again.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Clears the scheduler's wake-up time if it has passed.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.wake_at = self.wake_at.filter(|at| *at > now);
    }

    /// Discards decisions for a subflow that is silent or carries no more data.
    pub(super) fn discard_for(&mut self, id: SubflowId) {
        self.decided = self.decided.filter(|(_, choice)| choice.subflow != id);
    }

    /// Discards all decisions.
    pub(super) const fn discard_all(&mut self) {
        self.decided = None;
    }

    fn is_ready(&self, id: SubflowId) -> bool {
        self.scratch.views.iter().any(|view| view.id == id && view.is_ready())
    }

    /// Next data to send, if any may be sent now. Views must be fresh.
    pub(super) fn choose(&mut self, constraints: Constraints, sender: &Sender) -> Option<Choice> {
        if let Some((at, choice)) = self.decided.take()
            && (at == constraints.now || !choice.run)
            && self.is_choice_valid(&choice, constraints, sender)
        {
            return Some(choice);
        }
        if !self.scratch.views.iter().any(SubflowView::is_ready) {
            return None;
        }
        self.choose_reinjection(constraints, sender)
            .or_else(|| self.choose_by_scheduler(constraints, sender))
    }

    /// Takes the subflow whose newest segment the scheduler wants repeated.
    pub(super) fn take_repeat_newest(&mut self) -> Option<SubflowId> {
        self.scratch.if_used()?.repeat_newest.take()
    }

    /// Keeps a decision for the next batch.
    pub(super) const fn defer(&mut self, now: Instant, choice: Choice) {
        self.decided = Some((now, choice));
    }

    fn is_choice_valid(&self, choice: &Choice, constraints: Constraints, sender: &Sender) -> bool {
        let fresh = match choice.kind {
            Kind::New => {
                let first = !choice.run || sender.reinjections().is_empty();
                choice.range.start == sender.sent() && first && !sender.is_mapping_limit_reached()
            }
            Kind::Repeat => choice.range.start >= sender.una(),
            Kind::Repair => choice.range.start >= sender.una() && constraints.repairs,
        };
        self.is_ready(choice.subflow) && fresh && choice.range.end <= sender.written_end()
    }

    /// Queued data to send again, and the subflow that the scheduler chooses.
    pub(super) fn choose_reinjection(
        &mut self,
        constraints: Constraints,
        sender: &Sender,
    ) -> Option<Choice> {
        let queue = sender.reinjections();
        if queue.is_empty() {
            return None;
        }
        queue
            .iter()
            .take(LOOK_AHEAD)
            .find_map(|item| self.choose_for_queued(constraints, sender, item))
    }

    fn choose_for_queued(
        &mut self,
        constraints: Constraints,
        sender: &Sender,
        queued: &QueuedRange,
    ) -> Option<Choice> {
        let fit = |view: &&SubflowView| view.is_active() && view.health.is_usable();
        let named = self.scratch.views.iter().find(|view| Some(view.id) == queued.on);
        // If the chosen subflow cannot carry the data, any other may, because the peer may be waiting for it.
        if let Some(on) = named.filter(|view| view.is_ready() || fit(view)) {
            let choice = Choice::single(on.id, queued.range, Kind::Repeat);
            return on.is_ready().then_some(choice);
        }
        let part = sender.mappings().run(queued.range)?;
        let carried_by = match queued.cause {
            // The subflows that carried the data did not deliver it, so each of them may try again.
            ReinjectionCause::DataRto => SubflowSet::EMPTY,
            _ => part.carried_by,
        };
        let item =
            Reinjection { range: part.range, carried_by, cause: queued.cause, since: queued.since };
        let decision = match self.scratch.if_used() {
            Some(SchedulerScratch { views, reasons: Some(reasons), .. }) => self
                .scheduler
                .explain_reinjection(&item, &sender.context(constraints, views), reasons),
            _ => self
                .scheduler
                .next_reinjection(&item, &sender.context(constraints, &self.scratch.views)),
        };
        let Decision::Send { subflow, range } = decision else { return None };
        let range = range.intersection(&part.range);
        let allowed = self.is_ready(subflow) && !range.is_empty();
        debug_assert!(allowed, "{decision:?} for {item:?}");
        allowed.then_some(Choice::single(subflow, range, Kind::Repeat))
    }

    fn choose_by_scheduler(&mut self, constraints: Constraints, sender: &Sender) -> Option<Choice> {
        let decision = match self.scratch.if_used() {
            Some(SchedulerScratch { views, reasons: Some(reasons), .. }) => {
                self.scheduler.explain_send(&sender.context(constraints, views), reasons)
            }
            _ => self.scheduler.next_send(&sender.context(constraints, &self.scratch.views)),
        };
        match decision {
            Decision::Wait => None,
            Decision::RepeatNewest { subflow } => {
                self.scratch.repeat_newest = Some(subflow).filter(|_| constraints.repeats);
                None
            }
            Decision::WaitUntil(at) => {
                // A time in the past would cause a busy loop.
                self.wake_at = Some(at).filter(|at| *at > constraints.now);
                None
            }
            Decision::Send { subflow, range } => self.check(subflow, range, constraints, sender),
            Decision::SendRun { subflow, range } => {
                let choice = self.check(subflow, range, constraints, sender)?;
                Some(Choice { run: true, ..choice })
            }
            Decision::Repair { subflow, range } => {
                self.check_repair(subflow, range, constraints, sender)
            }
        }
    }

    fn check(
        &self,
        subflow: SubflowId,
        range: DataRange,
        constraints: Constraints,
        sender: &Sender,
    ) -> Option<Choice> {
        let ready = self.is_ready(subflow);
        let next = sender.sent();
        if range.start == next {
            let range = range.intersection(&sender.unsent());
            let allowed = ready && !range.is_empty();
            debug_assert!(allowed, "{subflow} {range:?}");
            return allowed.then_some(Choice::single(subflow, range, Kind::New));
        }
        let sent = DataRange::new(sender.una(), next);
        let part = sender.mappings().next_not_on(subflow, range.start)?;
        let range = range.intersection(&sent).intersection(&part.range);
        let allowed = ready && !range.is_empty() && constraints.repeats;
        debug_assert!(allowed, "{subflow} {range:?}");
        allowed.then_some(Choice::single(subflow, range, Kind::Repeat))
    }

    fn check_repair(
        &self,
        subflow: SubflowId,
        range: DataRange,
        constraints: Constraints,
        sender: &Sender,
    ) -> Option<Choice> {
        let sent = DataRange::new(sender.una(), sender.sent());
        let range = range.intersection(&sent);
        let allowed = self.is_ready(subflow) && !range.is_empty() && constraints.repairs;
        debug_assert!(allowed, "a repair of {range:?} on {subflow}");
        allowed.then_some(Choice::single(subflow, range, Kind::Repair))
    }

    /// Passes an event to the scheduler. The caller executes actions outside this component.
    pub(super) fn on_event(
        &mut self,
        event: SchedulerEvent,
        constraints: Constraints,
        sender: &Sender,
    ) -> Vec<SchedulerAction> {
        let mut actions = Vec::new();
        match self.scratch.if_used() {
            Some(SchedulerScratch { views, reasons: Some(reasons), .. }) => {
                let context = sender.context(constraints, views);
                self.scheduler.explain_event(event, &context, &mut actions, reasons);
            }
            _ => {
                let context = sender.context(constraints, &self.scratch.views);
                self.scheduler.on_event(event, &context, &mut actions);
            }
        }
        actions
    }

    /// Reason why data waits although a subflow has room; `None` if no data waits.
    pub(super) fn blocked_event(&self, sender: &Sender) -> Option<SchedulerEvent> {
        let fastest = self.scratch.views.iter().filter(|v| v.is_ready()).min_by_key(|v| v.srtt);
        let (picked, mss) = fastest.map(|v| (v.id, v.mss))?;
        let unsent = sender.written_end() > sender.sent();
        // A window smaller than a segment counts as no window (silly window).
        let beyond = sender.written_end() > sender.window_end();
        let blocked = beyond && sender.unsent().len() < u64::from(mss);
        if unsent && blocked {
            return Some(SchedulerEvent::PeerWindowBlocked { picked });
        }
        let full = !unsent && sender.is_blocked() && sender.mappings().oldest().is_some();
        full.then_some(SchedulerEvent::SendBufferBlocked)
    }
}
