//! Dispatch of the core's events to wakers, the accept queue and the carrier.

use core::net::SocketAddr;

use marline_core::{ConnectionId, Event, MonitorKind};
use marline_time::Instant;

use super::shard::Shard;
use super::state::State;
use super::streams::Incoming;

/// Dispatches all pending events of the core. Returns true if a task was woken.
pub(super) fn dispatch_events(shard: &Shard, state: &mut State, now: Instant) -> bool {
    let mut woken = false;
    while let Some(event) = state.endpoint().poll_event() {
        woken |= on_event(shard, state, now, event);
    }
    woken
}

fn on_event(shard: &Shard, state: &mut State, now: Instant, event: Event) -> bool {
    match event {
        Event::Readable(id) => state.streams().on_readable(id),
        Event::Writable(id) => state.streams().on_writable(id),
        Event::Connected { connection, fallback } => {
            state.streams().on_connected(connection, fallback)
        }
        Event::Closed { connection, reason } => state.streams().on_closed(connection, reason),
        Event::Requested(path) => {
            if !state.streams().request(path) {
                state.endpoint().refuse(now, &path);
            }
            false
        }
        Event::Incoming(id) => {
            on_incoming(shard, state, now, id);
            true
        }
        Event::FlowEnded { local_flow } => {
            state.carrier().retire(local_flow);
            state.lanes().on_flow_ended(local_flow);
            false
        }
        Event::FlowGone { local_flow, .. } => {
            state.carrier().forget(local_flow);
            state.routing().forget_flow(local_flow);
            state.lanes().on_flow_ended(local_flow);
            false
        }
        Event::Monitor(mut event) => {
            let id = event.connection;
            event.connection = shard.public_id(id);
            let filter = state.observers().show(&event);
            let filter = match event.kind {
                MonitorKind::Decided { .. } => {
                    if !state.observers().pass_decision(event) {
                        state.endpoint().tell_decisions(false);
                    }
                    filter
                }
                MonitorKind::Traffic { .. } => state.observers().pass_traffic(id, event).or(filter),
                _ => {
                    state.observers().pass_event(event);
                    filter
                }
            };
            if let Some(filter) = filter {
                state.endpoint().tell_traffic(filter);
            }
            false
        }
    }
}

fn on_incoming(shard: &Shard, state: &mut State, now: Instant, id: ConnectionId) {
    // A gateway has admitted it.
    if state.streams().on_connected(id, None) {
        return;
    }
    let peer = state.endpoint().info(id).and_then(|info| info.subflows.first().map(|s| s.path));
    let unknown = SocketAddr::new(core::net::Ipv4Addr::UNSPECIFIED.into(), 0);
    let peer = peer.map_or(unknown, |path| path.remote);
    let incoming = Incoming { id: shard.public_id(id), peer };
    if !state.streams().accept(id, incoming) {
        state.endpoint().abort(now, id);
        state.endpoint().release(now, id);
    }
}
