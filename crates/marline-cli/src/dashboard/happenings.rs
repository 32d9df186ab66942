//! Happenings for the dashboard, out of the events that `marline monitor` shows: what became of paths and subflows, and
//! holes in delivery, with their cause and what the policy did.

use std::cell::RefCell;
use std::sync::Arc;

use marline::policy::SubflowId;
use marline::{ConnectionId, MonitorEvent, MonitorKind, PathEvent};
use marline_dashboard::{Dashboard, Happening};
use tokio::sync::broadcast;

use crate::control::Handle;
use crate::control::path_names::PathNames;
use crate::control::protocol::Event;

/// Tells a dashboard what happens.
pub(super) struct Happenings {
    handle: Arc<dyn Handle>,
    dashboard: Dashboard,
    names: RefCell<PathNames>,
}

impl Happenings {
    pub(super) fn new(handle: Arc<dyn Handle>, dashboard: Dashboard) -> Self {
        Happenings { handle, dashboard, names: RefCell::default() }
    }

    /// Until the program ends.
    pub(super) async fn tell(self) {
        let mut events = self.handle.events();
        let mut path_events = self.handle.path_events();
        loop {
            let happening = tokio::select! {
                event = events.recv() => match event {
                    Ok(event) => self.of_connection(&event),
                    Err(broadcast::error::RecvError::Lagged(missed)) => Some(left_out(missed)),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                event = next(&mut path_events) => match event {
                    Some(event) => Some(of_path(&event)),
                    None => return,
                },
            };
            if let Some(happening) = happening {
                self.dashboard.tell(&happening);
            }
        }
    }

    fn of_connection(&self, event: &MonitorEvent) -> Option<Happening> {
        self.names.borrow_mut().on_event(event);
        let of_interest = matches!(
            event.kind,
            MonitorKind::Hole { .. }
                | MonitorKind::SubflowSuspected { .. }
                | MonitorKind::SubflowClosed { .. }
                | MonitorKind::Fallback(_)
        );
        // Names cost a look at all connections: only where they will be read.
        if !of_interest || !self.dashboard.wants_more() {
            return None;
        }
        let said = Event::from(event);
        let named = |slot: Option<u64>| Some(self.name(event.connection, slot?));
        let base = Happening {
            event: said.event.clone(),
            at_us: said.at_us,
            connection: said.connection,
            paths: named(said.subflow).into_iter().collect(),
            cause: said.reason.clone(),
            ..Happening::default()
        };
        if !matches!(event.kind, MonitorKind::Hole { .. }) {
            return Some(base);
        }
        let cause = match named(said.silent) {
            Some(path) => format!("{path} was silent ({})", said.reason.unwrap_or_default()),
            None if said.direction.as_deref() == Some("received") => {
                "what came before was missing".to_owned()
            }
            None => "no acknowledgement came".to_owned(),
        };
        let on = base.paths.first().map_or("another path", String::as_str);
        let policy = Some(format!("went on over {on}"));
        let Event { since_us, direction, .. } = said;
        Some(Happening { since_us, direction, cause: Some(cause), policy, ..base })
    }

    fn name(&self, connection: ConnectionId, slot: u64) -> String {
        let id = SubflowId(u8::try_from(slot).unwrap_or(u8::MAX));
        self.names.borrow_mut().name(connection, id, &*self.handle)
    }
}

/// The next one; none ever comes where there are none.
async fn next(events: &mut Option<broadcast::Receiver<PathEvent>>) -> Option<PathEvent> {
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

fn of_path(event: &PathEvent) -> Happening {
    let said = Event::from(event);
    Happening {
        event: said.event,
        at_us: said.at_us,
        paths: said.paths.unwrap_or_default(),
        cause: said.reason,
        ..Happening::default()
    }
}

fn left_out(more: u64) -> Happening {
    Happening { event: "LEFT_OUT".into(), more, ..Happening::default() }
}
