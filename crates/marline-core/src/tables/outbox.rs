//! Outbox of an endpoint: events for the application, counters, and segments without a connection.

use std::collections::VecDeque;
use std::sync::Arc;

use marline_policy::Reason;
use marline_time::{DelayHistogram, Instant};

use super::stateless_reply::StatelessReply;
use crate::{ConnectionId, Counters, Event, MonitorEvent, MonitorKind, Traffic, TrafficFilter};

/// Limit on unread scheduler decisions.
const MAX_DECISIONS: usize = 4_096;
/// Limit on unread traffic events.
const MAX_TRAFFIC_EVENTS: usize = 16_384;

/// Effects of calls, in the order in which they happened.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) counters: Counters,
    /// Delays from a write to its DATA_ACK.
    pub(crate) delays: DelayHistogram,
    events: VecDeque<Event>,
    replies: VecDeque<StatelessReply>,
    /// Monitor events are enabled.
    monitored: bool,
    /// Decision events are enabled.
    reports_decisions: bool,
    /// Number of decisions among the events.
    decisions: usize,
    /// Number of decisions dropped after the last decision among the events.
    missed: u64,
    /// Connections whose traffic is reported.
    traffic_of: TrafficFilter,
    /// Number of traffic events among the events.
    traffic: usize,
    /// Number of traffic events dropped after the last traffic event among the events.
    traffic_missed: u64,
}

impl Outbox {
    pub(crate) fn new(monitored: bool) -> Self {
        Outbox { monitored, ..Outbox::default() }
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Reports an event to monitors, if there are any.
    pub(crate) fn monitor(&mut self, at: Instant, connection: ConnectionId, kind: MonitorKind) {
        if self.monitored {
            self.event(Event::Monitor(MonitorEvent { at, connection, kind }));
        }
    }

    pub(crate) const fn report_decisions(&mut self, tell: bool) {
        self.reports_decisions = tell;
    }

    pub(crate) const fn reports_decisions(&self) -> bool {
        self.reports_decisions
    }

    /// Reports a scheduler decision. Beyond the limit on unread decisions, they are only counted.
    pub(crate) fn push_decision(&mut self, at: Instant, connection: ConnectionId, reason: Reason) {
        if self.decisions >= MAX_DECISIONS {
            self.missed += 1;
            return;
        }
        self.decisions += 1;
        let missed = core::mem::take(&mut self.missed);
        let kind = MonitorKind::Decided { reason: Arc::new(reason), missed };
        self.event(Event::Monitor(MonitorEvent { at, connection, kind }));
    }

    pub(crate) const fn report_traffic(&mut self, of: TrafficFilter) {
        self.traffic_of = of;
    }

    /// True if the traffic of this connection must be reported.
    pub(crate) fn traces_traffic(&self, of: ConnectionId) -> bool {
        match self.traffic_of {
            TrafficFilter::None => false,
            TrafficFilter::One(one) => one == of,
            TrafficFilter::All => true,
        }
    }

    /// Reports a traffic event that is enabled. Beyond the limit on unread events, they are only counted.
    #[cold]
    pub(crate) fn traffic(&mut self, at: Instant, connection: ConnectionId, what: Traffic) {
        if self.traffic >= MAX_TRAFFIC_EVENTS {
            self.traffic_missed += 1;
            return;
        }
        self.traffic += 1;
        let missed = core::mem::take(&mut self.traffic_missed);
        let kind = MonitorKind::Traffic { what: Box::new(what), missed };
        self.event(Event::Monitor(MonitorEvent { at, connection, kind }));
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Monitor(MonitorEvent { kind, .. }) = &event {
            match kind {
                MonitorKind::Decided { .. } => self.decisions -= 1,
                MonitorKind::Traffic { .. } => self.traffic -= 1,
                _ => {}
            }
        }
        Some(event)
    }

    /// Queues a segment without a connection; it is sent before all others.
    pub(crate) fn reply(&mut self, reply: StatelessReply) {
        self.replies.push_back(reply);
    }

    pub(crate) fn next_reply(&mut self) -> Option<StatelessReply> {
        self.replies.pop_front()
    }

    /// Number of segments without a connection that wait to be sent.
    pub(crate) fn replies(&self) -> usize {
        self.replies.len()
    }
}

#[cfg(test)]
mod tests {
    use marline_policy::{BudgetState, Decision, Dsn, Grounds, Inputs, Question, Rule};
    use marline_policy::{DataRange, Mapping, MappingIndex, SchedulerContext, SubflowId};

    use super::*;

    /// An empty index.
    struct EmptyIndex;

    impl MappingIndex for EmptyIndex {
        fn oldest(&self) -> Option<Mapping> {
            None
        }
        fn mapping_at(&self, _at: Dsn) -> Option<Mapping> {
            None
        }
        fn next_not_on(&self, _subflow: SubflowId, _from: Dsn) -> Option<Mapping> {
            None
        }
        fn last_not_on(&self, _subflow: SubflowId, _before: Dsn) -> Option<Mapping> {
            None
        }
        fn newest(&self) -> Option<Mapping> {
            None
        }
    }

    fn reason() -> Reason {
        let cx = SchedulerContext {
            now: Instant::ZERO,
            subflows: &[],
            unsent: DataRange::default(),
            written: Dsn(0),
            data_una: Dsn(0),
            window_end: Dsn(0),
            send_limit: 0,
            repeated: 0,
            repairs: false,
            mappings: &EmptyIndex,
        };
        let ((), inputs) = Inputs::record(&cx, &BudgetState::default(), |_| ());
        let (question, grounds) = (Question::Next, Grounds::without_times(Rule::NoPath));
        Reason { question, decision: Decision::Wait, more_ranges: Vec::new(), grounds, inputs }
    }

    #[test]
    fn unread_decisions_are_counted_but_not_kept() {
        let mut out = Outbox::new(false);
        let told = 5_000;
        for _ in 0..told {
            out.push_decision(Instant::ZERO, ConnectionId(1), reason());
        }
        assert_eq!(out.events.len(), MAX_DECISIONS);
        let missed = |event: Option<Event>| match event {
            Some(Event::Monitor(MonitorEvent {
                kind: MonitorKind::Decided { missed, .. },
                ..
            })) => missed,
            other => panic!("{other:?}"),
        };
        assert_eq!(missed(out.next_event()), 0);
        out.push_decision(Instant::ZERO, ConnectionId(1), reason());
        out.push_decision(Instant::ZERO, ConnectionId(1), reason());
        let read: Vec<u64> =
            core::iter::from_fn(|| Some(missed(Some(out.next_event()?)))).collect();
        // The next event contains the number of dropped events, once.
        assert_eq!((read.len(), read.last()), (MAX_DECISIONS, Some(&(told - 4_096))));
    }
}
