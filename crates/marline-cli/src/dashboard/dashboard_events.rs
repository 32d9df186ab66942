//! Events for the dashboard, derived from those of `marline monitor`: changes of paths and subflows, and delivery
//! gaps, with their cause and the policy's reaction.
//!
//! The reaction is derived from the policy's decisions, of which there may be thousands per second. They are received
//! only while there is a viewer and the program has at most [`MAX_WATCHED_CONNECTIONS`] connections.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use marline::monitor::{MonitorEvent, MonitorKind};
use marline::paths::PathEvent;
use marline::policy::SubflowId;
use marline_dashboard::{Dashboard, Pace, TimedEvent};
use marline_io::Clock;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::connection_snapshots::OpenConnections;
use crate::control::Handle;
use crate::control::path_names::PathNames;
use crate::control::protocol::Event;

/// Maximum number of connections for which decisions are received.
const MAX_WATCHED_CONNECTIONS: usize = 16;

/// Maximum number of decisions kept until a delivery gap ends.
const MAX_DECISIONS: usize = 256;

/// Interval between checks whether decisions are needed.
const DECISION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Rules that react to trouble, in display order, with a description.
const REACTIONS: [(&str, &str); 6] = [
    ("rescue", "moved data away from the unreachable path"),
    ("late", "copied late data"),
    ("end", "copied the end of a write"),
    ("unblock", "copied blocking data"),
    ("repair", "sent repairs for lost data"),
    ("last-received", "sent on the path that most recently received data"),
];

/// A decision that reacts to trouble.
struct Decision {
    at_us: u64,
    connection: u64,
    rule: &'static str,
    text: String,
}

/// Source of a dashboard's events.
pub(super) struct DashboardEvents {
    handle: Arc<dyn Handle>,
    dashboard: Dashboard,
    open: OpenConnections,
    names: RefCell<PathNames>,
    /// Time before which names are not looked up.
    look_up_at: Cell<Instant>,
    clock: Clock,
    listening: Option<broadcast::Receiver<MonitorEvent>>,
    decisions: VecDeque<Decision>,
}

impl DashboardEvents {
    pub(super) fn new(
        handle: Arc<dyn Handle>,
        dashboard: Dashboard,
        open: OpenConnections,
    ) -> Self {
        DashboardEvents {
            handle,
            dashboard,
            open,
            names: RefCell::default(),
            look_up_at: Cell::new(Instant::now()),
            clock: Clock::start(),
            listening: None,
            decisions: VecDeque::new(),
        }
    }

    /// Reports events until the program ends.
    pub(super) async fn report_events(mut self) {
        let mut events = self.handle.events();
        let mut path_events = self.handle.path_events();
        let mut rethink = tokio::time::interval(DECISION_CHECK_INTERVAL);
        loop {
            let happening = tokio::select! {
                event = events.recv() => match event {
                    Ok(event) => self.connection_event(&event),
                    Err(broadcast::error::RecvError::Lagged(missed)) => Some(TimedEvent {
                        event: "LEFT_OUT".into(),
                        at_us: self.clock.now().as_micros(),
                        more: missed,
                        ..TimedEvent::default()
                    }),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                event = next(&mut path_events) => match event {
                    Some(event) => Some(path_event(&event)),
                    None => return,
                },
                event = next(&mut self.listening) => {
                    match event {
                        Some(event) => self.record_decision(&event),
                        None => return,
                    }
                    continue;
                }
                _ = rethink.tick() => {
                    self.update_subscription();
                    continue;
                }
            };
            if let Some(happening) = happening {
                self.dashboard.report(&happening);
            }
        }
    }

    /// Starts or stops receiving decisions.
    fn update_subscription(&mut self) {
        let wanted = self.dashboard.viewers() > 0 && self.open.count() <= MAX_WATCHED_CONNECTIONS;
        if !wanted {
            self.listening = None;
            self.decisions.clear();
        } else if self.listening.is_none() {
            self.listening = self.handle.decisions();
        }
    }

    /// Records a decision that reacts to trouble.
    fn record_decision(&mut self, event: &MonitorEvent) {
        let MonitorKind::Decided { reason, .. } = &event.kind else { return };
        let of = reason.grounds.rule.name();
        let Some(rule) = REACTIONS.into_iter().map(|(rule, _)| rule).find(|rule| *rule == of)
        else {
            return;
        };
        let connection = self.handle.number(event.connection);
        let name = |id: SubflowId| self.name(connection, id.0.into());
        let text = reason.text(&name);
        if self.decisions.len() == MAX_DECISIONS {
            self.decisions.pop_front();
        }
        let at_us = event.at.as_micros();
        self.decisions.push_back(Decision { at_us, connection, rule, text });
    }

    /// Returns the decisions for a connection in this period: how often each rule was used, and its last decision as
    /// text.
    fn answers(&mut self, connection: u64, since_us: u64, until_us: u64) -> Vec<String> {
        // Decisions made before the gap's end may not have been received yet.
        while let Some(Ok(event)) = self.listening.as_mut().map(broadcast::Receiver::try_recv) {
            self.record_decision(&event);
        }
        let within = |decision: &&Decision| {
            decision.connection == connection && (since_us..=until_us).contains(&decision.at_us)
        };
        let mut told = Vec::new();
        for (rule, words) in REACTIONS {
            let count = self.decisions.iter().filter(within).filter(|d| d.rule == rule).count();
            match count {
                0 => {}
                1 => told.push(words.to_owned()),
                _ => told.push(format!("{words} ({count} times)")),
            }
        }
        if let Some(last) = self.decisions.iter().rfind(within) {
            told.push(format!("last: {}", last.text));
        }
        told
    }

    fn connection_event(&mut self, event: &MonitorEvent) -> Option<TimedEvent> {
        let number = self.handle.number(event.connection);
        self.names.borrow_mut().on_event(number, event);
        let of_interest = matches!(
            event.kind,
            MonitorKind::Hole { .. }
                | MonitorKind::SubflowReachability { .. }
                | MonitorKind::Fallback(_)
        );
        // A name may need a snapshot of all connections, so it is looked up only for an event that will be shown.
        if !of_interest || !self.dashboard.accepts_event() {
            return None;
        }
        let said = Event::from_monitor_event(event, number);
        let named = |slot: Option<u64>| Some(self.name(number, slot?));
        let base = TimedEvent {
            event: said.event.clone(),
            at_us: said.at_us,
            connection: said.connection,
            paths: named(said.subflow).into_iter().collect(),
            cause: said.reason.clone(),
            ..TimedEvent::default()
        };
        if !matches!(event.kind, MonitorKind::Hole { .. }) {
            return Some(base);
        }
        let cause = match named(said.unreachable) {
            Some(path) => format!("{path} was unreachable ({})", said.reason.unwrap_or_default()),
            None if said.direction.as_deref() == Some("received") => {
                "earlier data was missing".to_owned()
            }
            None => "no acknowledgment arrived".to_owned(),
        };
        let on = base.paths.first().map_or("another path", String::as_str);
        let Event { since_us, direction, at_us, .. } = said;
        let mut policy = vec![format!("continued over {on}")];
        policy.extend(self.answers(number, since_us.unwrap_or(at_us), at_us));
        let policy = Some(policy.join("; "));
        Some(TimedEvent { since_us, direction, cause: Some(cause), policy, ..base })
    }

    /// Returns the name of a subflow's path. Lookups in all connections may take the same share of time as other
    /// snapshots.
    fn name(&self, connection: u64, slot: u64) -> String {
        let id = SubflowId(u8::try_from(slot).unwrap_or(u8::MAX));
        let mut names = self.names.borrow_mut();
        if let Some(known) = names.known_name(connection, id) {
            return known.to_owned();
        }
        let begin = Instant::now();
        if begin < self.look_up_at.get() {
            return format!("subflow {slot}");
        }
        let name = names.name(connection, id, &*self.handle);
        self.look_up_at.set(begin + begin.elapsed() * Pace::SHARE);
        name
    }
}

/// Returns the next event. Pends forever if there is no receiver.
async fn next<T: Clone>(events: &mut Option<broadcast::Receiver<T>>) -> Option<T> {
    match events {
        Some(events) => loop {
            match events.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        },
        None => std::future::pending().await,
    }
}

fn path_event(event: &PathEvent) -> TimedEvent {
    let said = Event::from(event);
    TimedEvent {
        event: said.event,
        at_us: said.at_us,
        paths: said.paths.unwrap_or_default(),
        cause: said.reason,
        ..TimedEvent::default()
    }
}
