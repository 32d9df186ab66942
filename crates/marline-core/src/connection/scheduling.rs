//! Asking the scheduler, checking its answer, and remembering it until it is applied.
//!
//! The scheduler names a range and a subflow; this file makes sure that the range is data that may
//! be sent there. A wrong answer is a policy's bug: an assertion in debug builds, a `Wait` otherwise.

use marline_policy::{
    DataRange, Decision, MappingIndex, Reinjection, ReinjectionCause, SchedulerAction,
    SchedulerContext, SchedulerEvent, SubflowId, SubflowSet, SubflowView,
};
use marline_time::Instant;

use super::Connection;
use super::reinjection::Queued;

/// Queued reinjections that are looked at before new data gets its turn.
const LOOK_AHEAD: usize = 8;

/// A checked decision: this data goes on this subflow next.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) subflow: SubflowId,
    pub(super) range: DataRange,
    pub(super) kind: Kind,
}

/// What a decision puts on the wire.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Data for the first time.
    New,
    /// Data that was sent before.
    Repeat,
    /// A repair of data that was sent before.
    Repair,
}

impl Connection {
    /// The next data to send, if any may go now. Views must be fresh.
    pub(super) fn choose(&mut self, now: Instant) -> Option<Choice> {
        if let Some(choice) = self.decided.take()
            && self.still_holds(&choice)
        {
            return Some(choice);
        }
        if self.closing.closed.is_some() || !self.views.iter().any(|v| v.is_ready()) {
            return None;
        }
        self.choose_reinjection(now).or_else(|| self.choose_by_scheduler(now))
    }

    /// Keeps a decision for the next batch.
    pub(super) fn defer(&mut self, choice: Choice) {
        self.decided = Some(choice);
    }

    fn still_holds(&self, choice: &Choice) -> bool {
        let ready = self.views.iter().any(|v| v.id == choice.subflow && v.is_ready());
        let fresh = match choice.kind {
            Kind::New => choice.range.start == self.mappings.end(),
            Kind::Repeat => choice.range.start >= self.send.una(),
            Kind::Repair => choice.range.start >= self.send.una() && self.may_repair(),
        };
        ready && fresh && choice.range.end <= self.send.end()
    }

    /// New data as far as the peer's window allows.
    pub(super) fn unsent(&self) -> DataRange {
        let sent = self.mappings.end();
        DataRange::new(sent, self.send.end().min(self.window_end).max(sent))
    }

    fn context(&self, now: Instant) -> SchedulerContext<'_> {
        SchedulerContext {
            now,
            subflows: &self.views,
            unsent: self.unsent(),
            written: self.send.end(),
            data_una: self.send.una(),
            window_end: self.window_end,
            send_limit: self.send.max_space(),
            repairs: self.may_repair(),
            mappings: &self.mappings,
        }
    }

    pub(super) fn choose_reinjection(&mut self, now: Instant) -> Option<Choice> {
        if self.reinjections.is_empty() {
            return None;
        }
        let items: [Option<Queued>; LOOK_AHEAD] = {
            let mut iter = self.reinjections.iter().copied();
            core::array::from_fn(|_| iter.next())
        };
        items.into_iter().flatten().find_map(|item| self.place(now, item))
    }

    fn place(&mut self, now: Instant, queued: Queued) -> Option<Choice> {
        let fit = |view: &&SubflowView| view.is_usable() && !view.is_suspect();
        let named = self.views.iter().find(|view| Some(view.id) == queued.on);
        // If the one that was named cannot, it is anybody's: another one may be waiting for the data.
        if let Some(on) = named.filter(|view| view.is_ready() || fit(view)) {
            let choice = Choice { subflow: on.id, range: queued.range, kind: Kind::Repeat };
            return on.is_ready().then_some(choice);
        }
        let part = self.mappings.run(queued.range)?;
        let carried_by = match queued.cause {
            // Whoever carried it did not bring it home: anybody may try again.
            ReinjectionCause::DataRto => SubflowSet::EMPTY,
            _ => part.carried_by,
        };
        let item =
            Reinjection { range: part.range, carried_by, cause: queued.cause, since: queued.since };
        let mut scheduler = core::mem::replace(&mut self.scheduler, Box::new(Nobody));
        let decision = scheduler.next_reinjection(&item, &self.context(now));
        self.scheduler = scheduler;
        let Decision::Send { subflow, range } = decision else { return None };
        let range = range.intersection(&part.range);
        let ready = self.views.iter().any(|v| v.id == subflow && v.is_ready());
        debug_assert!(ready && !range.is_empty(), "{decision:?} for {item:?}");
        (ready && !range.is_empty()).then_some(Choice { subflow, range, kind: Kind::Repeat })
    }

    fn choose_by_scheduler(&mut self, now: Instant) -> Option<Choice> {
        let mut scheduler = core::mem::replace(&mut self.scheduler, Box::new(Nobody));
        let decision = scheduler.next_send(&self.context(now));
        self.scheduler = scheduler;
        match decision {
            Decision::Wait => None,
            Decision::WaitUntil(at) => {
                // A time that has passed would be waited for again and again.
                self.timers.scheduler_at = Some(at).filter(|at| *at > now);
                None
            }
            Decision::Send { subflow, range } => self.check(subflow, range),
            Decision::Repair { subflow, range } => self.check_repair(subflow, range),
        }
    }

    fn check(&self, subflow: SubflowId, range: DataRange) -> Option<Choice> {
        let ready = self.views.iter().any(|v| v.id == subflow && v.is_ready());
        let next = self.mappings.end();
        if range.start == next {
            let range = range.intersection(&self.unsent());
            debug_assert!(ready && !range.is_empty(), "{subflow} {range:?}");
            return (ready && !range.is_empty()).then_some(Choice {
                subflow,
                range,
                kind: Kind::New,
            });
        }
        let sent = DataRange::new(self.send.una(), next);
        let part = self.mappings.next_not_on(subflow, range.start)?;
        let range = range.intersection(&sent).intersection(&part.range);
        let allowed = ready && !range.is_empty() && !self.session.is_plain();
        debug_assert!(allowed, "{subflow} {range:?}");
        allowed.then_some(Choice { subflow, range, kind: Kind::Repeat })
    }

    fn check_repair(&self, subflow: SubflowId, range: DataRange) -> Option<Choice> {
        let ready = self.views.iter().any(|v| v.id == subflow && v.is_ready());
        let sent = DataRange::new(self.send.una(), self.mappings.end());
        let range = range.intersection(&sent);
        let allowed = ready && !range.is_empty() && self.may_repair();
        debug_assert!(allowed, "a repair of {range:?} on {subflow}");
        allowed.then_some(Choice { subflow, range, kind: Kind::Repair })
    }

    /// Tells the scheduler, and does what it asks for.
    pub(super) fn scheduler_event(&mut self, now: Instant, event: SchedulerEvent) {
        self.refresh_views(now);
        let mut actions = Vec::new();
        let mut scheduler = core::mem::replace(&mut self.scheduler, Box::new(Nobody));
        scheduler.on_event(event, &self.context(now), &mut actions);
        self.scheduler = scheduler;
        for action in actions {
            self.apply(now, action);
        }
    }

    fn apply(&mut self, now: Instant, action: SchedulerAction) {
        match action {
            SchedulerAction::Penalise { subflow, penalty } => {
                if let Some(leg) = self.leg_mut(subflow) {
                    leg.tcp.penalise(now, penalty);
                }
            }
            SchedulerAction::Suspect(id) => self.accused.insert(id),
            SchedulerAction::Reinject { range, on } => {
                let sent = DataRange::new(self.send.una(), self.mappings.end());
                let range = range.intersection(&sent);
                if !range.is_empty() && self.leg(on).is_some_and(super::Leg::is_usable) {
                    let cause = ReinjectionCause::Policy;
                    let item = Queued { range, cause, since: now, from: Some(on), on: Some(on) };
                    self.reinjections.push(item);
                }
            }
        }
    }

    /// Tells the scheduler why data waits although a subflow has room. Called when nothing went out.
    pub(super) fn tell_blocked(&mut self, now: Instant) {
        let fastest = self.views.iter().filter(|v| v.is_ready()).min_by_key(|v| v.srtt);
        let Some((picked, mss)) = fastest.map(|v| (v.id, v.mss)) else { return };
        let unsent = self.send.end() > self.mappings.end();
        // Less than a segment of window is as good as none: nobody sends it (silly window).
        let blocked = self.send.end() > self.window_end && self.unsent().len() < u64::from(mss);
        if unsent && blocked {
            self.scheduler_event(now, SchedulerEvent::PeerWindowBlocked { picked });
        } else if !unsent && self.send.is_blocked() && self.mappings.oldest().is_some() {
            self.scheduler_event(now, SchedulerEvent::SendBufferBlocked);
        }
    }
}

/// Holds the scheduler's place while it is out judging.
#[derive(Debug)]
struct Nobody;

impl marline_policy::Scheduler for Nobody {
    fn next_send(&mut self, _: &SchedulerContext<'_>) -> Decision {
        Decision::Wait
    }
    fn next_reinjection(&mut self, _: &Reinjection, _: &SchedulerContext<'_>) -> Decision {
        Decision::Wait
    }
}
