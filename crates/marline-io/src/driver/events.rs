//! Dispatch of the core's events to wakers, the accept queue and the carrier.

use core::net::SocketAddr;
use std::sync::PoisonError;

use marline_core::{ConnectionId, Event, MonitorEvent, MonitorKind};
use marline_time::Instant;

use super::shard::Shard;
use super::state::State;
use super::streams::Incoming;
use super::streams::{Slot, wake};

impl Shard {
    /// Dispatches all pending events of the core. Returns true if a task was woken.
    pub(super) fn tell(&self, state: &mut State, now: Instant) -> bool {
        let mut woken = false;
        while let Some(event) = state.endpoint.poll_event() {
            woken |= self.on_event(state, now, event);
        }
        woken
    }

    fn on_event(&self, state: &mut State, now: Instant, event: Event) -> bool {
        match event {
            Event::Readable(id) => {
                state.slots.get_mut(&id).is_some_and(|slot| wake(slot.reader.take()))
            }
            Event::Writable(id) => {
                state.slots.get_mut(&id).is_some_and(|slot| wake(slot.writer.take()))
            }
            Event::Connected { connection, fallback } => {
                let Some(slot) = state.slots.get_mut(&connection) else { return false };
                slot.connected = Some(fallback);
                slot.wake_all();
                true
            }
            Event::Closed { connection, reason } => {
                let Some(slot) = state.slots.get_mut(&connection) else { return false };
                slot.closed = Some(reason);
                slot.wake_all();
                true
            }
            Event::Requested(path) => {
                state.on_connection_request(now, path);
                false
            }
            Event::Incoming(id) => {
                self.on_incoming(state, now, id);
                true
            }
            Event::FlowEnded { local_flow } => {
                state.carrier.retire(local_flow);
                state.lanes.on_flow_ended(local_flow);
                false
            }
            Event::FlowGone { local_flow, .. } => {
                state.carrier.forget(local_flow);
                state.forget_link_flow(local_flow);
                state.lanes.on_flow_ended(local_flow);
                false
            }
            Event::Monitor(mut event) => {
                let id = event.connection;
                event.connection = self.public_id(id);
                show(state, &event);
                match event.kind {
                    MonitorKind::Decided { .. } => pass_decision(state, event),
                    MonitorKind::Traffic { .. } => pass_traffic(state, id, event),
                    _ => {
                        if let Some(monitor) = &state.monitor {
                            // Having no subscriber is not an error.
                            let _ = monitor.send(event);
                        }
                    }
                }
                false
            }
        }
    }

    fn on_incoming(&self, state: &mut State, now: Instant, id: ConnectionId) {
        if let Some(admitted) = state.slots.get_mut(&id) {
            admitted.connected = Some(None);
            admitted.wake_all();
            return;
        }
        let peer = state.endpoint.info(id).and_then(|info| info.subflows.first().map(|s| s.path));
        let unknown = SocketAddr::new(core::net::Ipv4Addr::UNSPECIFIED.into(), 0);
        let peer = peer.map_or(unknown, |path| path.remote);
        let incoming = Incoming { id: self.public_id(id), peer };
        if state.queue.as_ref().is_some_and(|queue| queue.push(incoming)) {
            state.slots.insert(id, Slot { connected: Some(None), ..Slot::default() });
        } else {
            state.endpoint.abort(now, id);
            state.endpoint.release(now, id);
        }
    }
}

/// Passes an event to the observer of all events, if there is one, and removes the observer once it is closed.
fn show(state: &mut State, event: &MonitorEvent) {
    let Some(events) = &state.events else { return };
    let mut observer = events.lock().unwrap_or_else(PoisonError::into_inner);
    observer.event(event);
    let open = observer.is_open();
    drop(observer);
    if !open {
        state.events = None;
        state.update_traffic_filter();
    }
}

/// Sends a traffic event to the subscribers of this connection. The first failed send ends these events.
fn pass_traffic(state: &mut State, id: ConnectionId, event: MonitorEvent) {
    let Some((of, listeners)) = &state.traffic else { return };
    if *of == id && listeners.send(event).is_err() {
        state.traffic = None;
        state.update_traffic_filter();
    }
}

/// Sends a decision event to the subscribers. The first failed send ends these events.
fn pass_decision(state: &mut State, event: MonitorEvent) {
    let unheard = state.decisions.as_ref().is_none_or(|listeners| listeners.send(event).is_err());
    if unheard {
        state.decisions = None;
        state.endpoint.tell_decisions(false);
    }
}
