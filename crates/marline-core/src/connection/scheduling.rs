//! Scheduling step: a decision is requested from the scheduler, validated, and kept until it is
//! applied.
//!
//! The scheduler names a range and a subflow; this file makes sure that the range is data that may
//! be sent there. A wrong answer is a policy's bug: an assertion in debug builds, a `Wait` otherwise.

use marline_policy::{
    DataRange, Decision, MappingIndex as _, Reason, Reinjection, ReinjectionCause, Scheduler,
    SchedulerAction, SchedulerEvent, SchedulerFactory, SubflowId, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::choice::{Choice, Kind, Terms};
use super::reinjection::Queued;
use super::sender::Sender;
use crate::on_demand::OnDemand;
use crate::tables::desk::Desk;

/// Queued reinjections that are looked at before new data gets its turn.
const LOOK_AHEAD: usize = 8;

/// The scheduler, the views it judges by, and what it decided.
#[derive(Debug)]
pub(super) struct Scheduling {
    scheduler: Box<dyn Scheduler>,
    desk: OnDemand<Desk>,
    /// A decision made while the batch went to another subflow, or the rest of a run; and when.
    decided: Option<(Instant, Choice)>,
    /// It asked to be asked again.
    wake_at: Option<Instant>,
}

impl Scheduling {
    pub(super) fn new(factory: &dyn SchedulerFactory) -> Self {
        Scheduling {
            scheduler: factory.build(),
            desk: OnDemand::new(),
            decided: None,
            wake_at: None,
        }
    }

    /// Another scheduler takes over.
    pub(super) fn replace(&mut self, factory: &dyn SchedulerFactory) {
        self.scheduler = factory.build();
        self.decided = None;
    }

    pub(super) fn views(&self) -> &[SubflowView] {
        &self.desk.views
    }

    /// Exchanges the desk for the one that the endpoint lends: before a call, and after it. There is nothing on it
    /// then: the views were another connection's.
    pub(super) fn swap_desk(&mut self, lent: &mut OnDemand<Desk>) {
        core::mem::swap(&mut self.desk, lent);
        if let Some(desk) = self.desk.if_used() {
            desk.views.clear();
        }
    }

    /// Until they are taken, reasons are noted with what is decided.
    pub(super) fn note_reasons(&mut self) {
        self.desk.reasons = Some(Vec::new());
    }

    /// The reasons of what was decided since they were to be noted; they no longer are.
    pub(super) fn take_reasons(&mut self) -> Vec<Reason> {
        self.desk.if_used().and_then(|desk| desk.reasons.take()).unwrap_or_default()
    }

    /// Gives back memory that is not needed now.
    pub(super) fn shrink(&mut self) {
        self.desk.retire();
    }

    /// Takes new views of all subflows that carry data.
    pub(super) fn refresh(&mut self, views: impl Iterator<Item = SubflowView>) {
        self.desk.views.clear();
        self.desk.views.extend(views);
    }

    /// Takes a new view of one subflow, after it was given data.
    pub(super) fn refresh_one(&mut self, view: SubflowView) {
        if let Some(old) = self.desk.views.iter_mut().find(|old| old.id == view.id) {
            *old = view;
        }
    }

    /// How long it waits with what an unanswered probe leaves in doubt; `None`: until the RTO.
    pub(super) fn probe_patience(&self) -> Option<Duration> {
        self.scheduler.probe_patience()
    }

    /// It wants to know what is acknowledged where.
    pub(super) fn watches_acks(&self) -> bool {
        self.scheduler.watches_acks()
    }

    /// It wants to know what is found lost where.
    pub(super) fn watches_losses(&self) -> bool {
        self.scheduler.watches_losses()
    }

    /// It saves copies of what was delivered.
    pub(super) fn watches_delivery(&self) -> bool {
        self.scheduler.watches_delivery()
    }

    /// When it wants to be asked again.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.wake_at
    }

    /// The time to ask it again may have come.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.wake_at = self.wake_at.filter(|at| *at > now);
    }

    /// The subflow is silent or carries no more data: what was decided for it is void.
    pub(super) fn void(&mut self, id: SubflowId) {
        self.decided = self.decided.filter(|(_, choice)| choice.subflow != id);
    }

    /// Whatever was decided is void.
    pub(super) const fn void_all(&mut self) {
        self.decided = None;
    }

    fn is_ready(&self, id: SubflowId) -> bool {
        self.desk.views.iter().any(|view| view.id == id && view.is_ready())
    }

    /// The next data to send, if any may go now. Views must be fresh.
    pub(super) fn choose(&mut self, terms: Terms, sender: &Sender) -> Option<Choice> {
        if let Some((at, choice)) = self.decided.take()
            && (at == terms.now || !choice.run)
            && self.still_holds(&choice, terms, sender)
        {
            return Some(choice);
        }
        if !self.desk.views.iter().any(SubflowView::is_ready) {
            return None;
        }
        self.choose_reinjection(terms, sender).or_else(|| self.choose_by_scheduler(terms, sender))
    }

    /// Keeps a decision for the next batch.
    pub(super) const fn defer(&mut self, now: Instant, choice: Choice) {
        self.decided = Some((now, choice));
    }

    fn still_holds(&self, choice: &Choice, terms: Terms, sender: &Sender) -> bool {
        let fresh = match choice.kind {
            Kind::New => {
                let first = !choice.run || sender.reinjections().is_empty();
                choice.range.start == sender.sent() && first && !sender.has_most_mappings()
            }
            Kind::Repeat => choice.range.start >= sender.una(),
            Kind::Repair => choice.range.start >= sender.una() && terms.repairs,
        };
        self.is_ready(choice.subflow) && fresh && choice.range.end <= sender.written()
    }

    /// What is queued to go out again, on the subflow that the scheduler picks.
    pub(super) fn choose_reinjection(&mut self, terms: Terms, sender: &Sender) -> Option<Choice> {
        let queue = sender.reinjections();
        if queue.is_empty() {
            return None;
        }
        queue.iter().take(LOOK_AHEAD).find_map(|item| self.place(terms, sender, item))
    }

    fn place(&mut self, terms: Terms, sender: &Sender, queued: &Queued) -> Option<Choice> {
        let fit = |view: &&SubflowView| view.is_usable() && view.health.is_fine();
        let named = self.desk.views.iter().find(|view| Some(view.id) == queued.on);
        // If the one that was named cannot, it is anybody's: another one may be waiting for the data.
        if let Some(on) = named.filter(|view| view.is_ready() || fit(view)) {
            let choice = Choice::once(on.id, queued.range, Kind::Repeat);
            return on.is_ready().then_some(choice);
        }
        let part = sender.mappings().run(queued.range)?;
        let carried_by = match queued.cause {
            // Whoever carried it did not bring it home: anybody may try again.
            ReinjectionCause::DataRto => SubflowSet::EMPTY,
            _ => part.carried_by,
        };
        let item =
            Reinjection { range: part.range, carried_by, cause: queued.cause, since: queued.since };
        let decision = match self.desk.if_used() {
            Some(Desk { views, reasons: Some(reasons) }) => {
                self.scheduler.explain_reinjection(&item, &sender.context(terms, views), reasons)
            }
            _ => self.scheduler.next_reinjection(&item, &sender.context(terms, &self.desk.views)),
        };
        let Decision::Send { subflow, range } = decision else { return None };
        let range = range.intersection(&part.range);
        let allowed = self.is_ready(subflow) && !range.is_empty();
        debug_assert!(allowed, "{decision:?} for {item:?}");
        allowed.then_some(Choice::once(subflow, range, Kind::Repeat))
    }

    fn choose_by_scheduler(&mut self, terms: Terms, sender: &Sender) -> Option<Choice> {
        let decision = match self.desk.if_used() {
            Some(Desk { views, reasons: Some(reasons) }) => {
                self.scheduler.explain_send(&sender.context(terms, views), reasons)
            }
            _ => self.scheduler.next_send(&sender.context(terms, &self.desk.views)),
        };
        match decision {
            Decision::Wait => None,
            Decision::WaitUntil(at) => {
                // A time that has passed would be waited for again and again.
                self.wake_at = Some(at).filter(|at| *at > terms.now);
                None
            }
            Decision::Send { subflow, range } => self.check(subflow, range, terms, sender),
            Decision::SendRun { subflow, range } => {
                let choice = self.check(subflow, range, terms, sender)?;
                Some(Choice { run: true, ..choice })
            }
            Decision::Repair { subflow, range } => self.check_repair(subflow, range, terms, sender),
        }
    }

    fn check(
        &self,
        subflow: SubflowId,
        range: DataRange,
        terms: Terms,
        sender: &Sender,
    ) -> Option<Choice> {
        let ready = self.is_ready(subflow);
        let next = sender.sent();
        if range.start == next {
            let range = range.intersection(&sender.unsent());
            let allowed = ready && !range.is_empty();
            debug_assert!(allowed, "{subflow} {range:?}");
            return allowed.then_some(Choice::once(subflow, range, Kind::New));
        }
        let sent = DataRange::new(sender.una(), next);
        let part = sender.mappings().next_not_on(subflow, range.start)?;
        let range = range.intersection(&sent).intersection(&part.range);
        let allowed = ready && !range.is_empty() && terms.repeats;
        debug_assert!(allowed, "{subflow} {range:?}");
        allowed.then_some(Choice::once(subflow, range, Kind::Repeat))
    }

    fn check_repair(
        &self,
        subflow: SubflowId,
        range: DataRange,
        terms: Terms,
        sender: &Sender,
    ) -> Option<Choice> {
        let sent = DataRange::new(sender.una(), sender.sent());
        let range = range.intersection(&sent);
        let allowed = self.is_ready(subflow) && !range.is_empty() && terms.repairs;
        debug_assert!(allowed, "a repair of {range:?} on {subflow}");
        allowed.then_some(Choice::once(subflow, range, Kind::Repair))
    }

    /// Tells the scheduler. What it asks for and is not its own affair is for the caller to do.
    pub(super) fn on_event(
        &mut self,
        event: SchedulerEvent,
        terms: Terms,
        sender: &Sender,
    ) -> Vec<SchedulerAction> {
        let mut actions = Vec::new();
        match self.desk.if_used() {
            Some(Desk { views, reasons: Some(reasons) }) => {
                let context = sender.context(terms, views);
                self.scheduler.explain_event(event, &context, &mut actions, reasons);
            }
            _ => {
                let context = sender.context(terms, &self.desk.views);
                self.scheduler.on_event(event, &context, &mut actions);
            }
        }
        actions
    }

    /// Why data waits although a subflow has room, if it does.
    pub(super) fn blocked(&self, sender: &Sender) -> Option<SchedulerEvent> {
        let fastest = self.desk.views.iter().filter(|v| v.is_ready()).min_by_key(|v| v.srtt);
        let (picked, mss) = fastest.map(|v| (v.id, v.mss))?;
        let unsent = sender.written() > sender.sent();
        // Less than a segment of window is as good as none: nobody sends it (silly window).
        let beyond = sender.written() > sender.window_end();
        let blocked = beyond && sender.unsent().len() < u64::from(mss);
        if unsent && blocked {
            return Some(SchedulerEvent::PeerWindowBlocked { picked });
        }
        let full = !unsent && sender.is_blocked() && sender.mappings().oldest().is_some();
        full.then_some(SchedulerEvent::SendBufferBlocked)
    }
}
