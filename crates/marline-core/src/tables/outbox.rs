//! Outbox of an endpoint: events for the application, counters, and segments without a connection.

use std::collections::VecDeque;

use marline_time::Instant;

use super::stateless_reply::StatelessReply;
use crate::{ConnectionId, Counters, Event, MonitorEvent, MonitorKind};

/// Effects of calls, in the order in which they happened.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) counters: Counters,
    events: VecDeque<Event>,
    replies: VecDeque<StatelessReply>,
    /// Whether monitor events are wanted.
    monitored: bool,
}

impl Outbox {
    pub(crate) fn new(monitored: bool) -> Self {
        Outbox { monitored, ..Outbox::default() }
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Tells the observers, if there are any.
    pub(crate) fn monitor(&mut self, at: Instant, connection: ConnectionId, kind: MonitorKind) {
        if self.monitored {
            self.event(Event::Monitor(MonitorEvent { at, connection, kind }));
        }
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Queues a segment without a connection; it goes before all else.
    pub(crate) fn reply(&mut self, reply: StatelessReply) {
        self.replies.push_back(reply);
    }

    pub(crate) fn next_reply(&mut self) -> Option<StatelessReply> {
        self.replies.pop_front()
    }

    /// Segments without a connection that wait to be sent.
    pub(crate) fn replies(&self) -> usize {
        self.replies.len()
    }
}
