//! Service of a shard's lanes: batches of outgoing frames.

use marline_time::Instant;

use super::carrier::Carrier;
use super::egress::send;
use super::sending::LaneBatch;
use super::state::State;

/// Lanes served under one lock before others get their turn.
const LANES_PER_TURN: usize = 64;
/// Frames of one lane per turn.
const FRAMES_PER_TURN: usize = 64;

/// Serves the lanes that have something to do. Returns true if there are more.
pub(super) fn serve_lanes(state: &mut State, now: Instant) -> bool {
    let Carrier::Udp(carrier) = state.carrier() else { return false };
    let changes = carrier.changes();
    state.lanes().on_changes(changes);
    for _ in 0..LANES_PER_TURN {
        let Some(id) = state.lanes().next_ready() else { return false };
        state.prepare_lane(id, now);
        transmit_lane(state, id, now);
        state.lanes().settle(id, now);
        state.compare_lane(id, now);
    }
    true
}

fn transmit_lane(state: &mut State, id: u64, now: Instant) {
    let mut batch = state.sending().take_frames();
    let mut frame = state.sending().take_scratch();
    let mut is_drained = false;
    for _ in 0..FRAMES_PER_TURN {
        let Some(path) = state.lanes().transmit(id, now, &mut frame) else {
            is_drained = true;
            break;
        };
        let Carrier::Udp(carrier) = state.carrier() else { break };
        let Some(outer) = carrier.place(path.flow) else {
            state.lanes().unroutable();
            continue;
        };
        if !batch.takes(outer, path.id, frame.len()) {
            send_frames(state, id, now, &mut batch);
        }
        batch.push(outer, path.id, &frame);
    }
    send_frames(state, id, now, &mut batch);
    state.sending().give_frames_back(batch);
    state.sending().give_scratch_back(frame);
    if !is_drained {
        // The lane may have more frames.
        state.lanes().touch(id);
    }
}

fn send_frames(state: &mut State, id: u64, now: Instant, batch: &mut LaneBatch) {
    if let Some(out) = batch.together(id) {
        send(state, now, &out);
    }
    batch.clear();
}
