//! Egress of a shard, from the core to the sockets: batches, lane frames, control frames, and send errors.

use core::net::SocketAddr;
use std::io;

use marline_core::{Ecn, FourTuple, NetworkError as CoreError, Transmit};
use marline_datagram::PathId;
use marline_time::Instant;
use marline_wire::SeqNum;

use super::carrier::{Carrier, payload_for_mtu};
use super::observers::Direction;
use super::sending::LaneBatch;
use super::sending::{Outgoing, Sender};
use super::state::State;
use crate::carrier::{FlowEnds, FramedBatch, Outer, SHORT_HEADER};
use crate::edge::network_error::NetworkError;

/// Number of bytes sent under one lock before other threads get their turn: 16 of the largest batches.
const BYTES_PER_TURN: usize = 1 << 20;
/// Minimum number of bytes that a batch counts as.
const MIN_COUNTED_BYTES: usize = BYTES_PER_TURN / 64;
/// Length of the largest batch that is copied to be sent with others, in bytes. Longer batches justify their own
/// system call.
const MAX_GATHERED_BYTES: usize = 4 << 10;
/// Maximum number of lanes served under one lock before other threads get their turn.
const LANES_PER_TURN: usize = 64;
/// Maximum number of frames of one lane per turn.
const FRAMES_PER_TURN: usize = 64;

/// Sends everything that the core and the carrier have ready. Returns true if there is more.
pub(super) fn transmit(state: &mut State, now: Instant) -> bool {
    state.sockets().retry_stalled(now);
    let (mut more, mut bytes) = (true, 0);
    while more && bytes < BYTES_PER_TURN {
        match state.poll_transmit(now) {
            Some(batch) => bytes += send_batch(state, now, &batch).max(MIN_COUNTED_BYTES),
            None => more = false,
        }
    }
    send_gathered(state, now);
    while let Carrier::Udp(carrier) = state.carrier()
        && let Some((outer, frame)) = carrier.poll_control()
    {
        let (bytes, sender) = (frame.as_bytes(), Sender::Carrier);
        send(state, now, &Outgoing { outer, ecn: Ecn::NotEct, stride: 0, bytes, sender });
    }
    more
}

/// Sends the core's batch and returns its length.
fn send_batch(state: &mut State, now: Instant, batch: &Transmit) -> usize {
    let mut out = state.sending().take_batch();
    let framed = state.frame(now, batch, out.bytes_mut());
    match framed {
        Some(FramedBatch::Ready(outer)) => {
            let (ecn, stride, bytes) = (batch.ecn, batch.stride, out.bytes());
            let sender = Sender::Subflow(batch.path, batch.local_flow);
            gather(state, now, &Outgoing { outer, ecn, stride, bytes, sender });
        }
        Some(FramedBatch::Handshake { outer, header }) => {
            send_gathered(state, now);
            for datagram in out.bytes().chunks(batch.stride.max(1)) {
                let segment = datagram.get(SHORT_HEADER..).unwrap_or_default();
                send_handshake(state, now, &outer, batch, [header.as_bytes(), segment]);
            }
        }
        None => {}
    }
    let len = out.bytes().len();
    state.sending().give_batch_back(out);
    len
}

fn send_handshake(
    state: &mut State,
    now: Instant,
    outer: &Outer,
    batch: &Transmit,
    parts: [&[u8]; 2],
) {
    let mut bytes = state.sending().take_scratch();
    bytes.clear();
    parts.into_iter().for_each(|part| bytes.extend_from_slice(part));
    let (outer, ecn) = (*outer, batch.ecn);
    let sender = Sender::Subflow(batch.path, batch.local_flow);
    send(state, now, &Outgoing { outer, ecn, stride: 0, bytes: &bytes, sender });
    state.sending().give_scratch_back(bytes);
    // An error from this machine is already queued, so there is no need to wait for the retransmission.
    drain_errors(state, now, usize::from(outer.socket));
}

/// Hands segments to the kernel: immediately, or together with following ones, at the latest in [`send_gathered`].
fn gather(state: &mut State, now: Instant, out: &Outgoing<'_>) {
    if !state.sending().segment_batch().accepts(out) {
        send_gathered(state, now);
    }
    if out.bytes.len() > MAX_GATHERED_BYTES || !state.sockets().sends_runs(&out.outer) {
        send_gathered(state, now);
        send(state, now, out);
    } else if state.routing().may_send_datagram(now, out) {
        state.sending().gather(out);
    }
}

/// Hands the gathered segments to the kernel.
fn send_gathered(state: &mut State, now: Instant) {
    let gathered = state.sending().take_gathered();
    match gathered.as_one_send() {
        Some((out, 1)) => hand_over(state, now, &out),
        // Sending each batch separately shows which one failed.
        Some((out, _)) if state.sockets().send(now, &out).is_err() => {
            gathered.datagrams().for_each(|out| hand_over(state, now, &out));
        }
        _ => {}
    }
    state.sending().give_gathered_back(gathered);
}

/// Serves the lanes that have work to do. Returns true if there are more.
pub(super) fn serve_lanes(state: &mut State, now: Instant) -> bool {
    let Carrier::Udp(carrier) = state.carrier() else { return false };
    let changes = carrier.changes();
    state.lanes().on_changes(changes);
    for _ in 0..LANES_PER_TURN {
        let Some(id) = state.lanes().next_ready() else { return false };
        state.prepare_lane(id, now);
        transmit_lane(state, id, now);
        state.lanes().settle(id, now);
        state.report_lane_bytes(id, now);
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
            state.lanes().on_unroutable();
            continue;
        };
        if !batch.accepts(outer, path.id, frame.len()) {
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
    if let Some(out) = batch.as_one_send(id) {
        send(state, now, &out);
    }
    batch.clear();
}

/// Sends bytes over a link or through the kernel.
fn send(state: &mut State, now: Instant, out: &Outgoing<'_>) {
    if !matches!(out.sender, Sender::Subflow(..)) {
        state.observers().frames(Direction::Sent, &out.outer, out.bytes.len(), out.stride);
    }
    if out.outer.is_link() {
        for flow in state.routing().send(out) {
            state.endpoint().set_flow_full(now, flow, true);
        }
        return;
    }
    if state.routing().may_send_datagram(now, out) {
        hand_over(state, now, out);
    }
}

/// Hands datagrams from one sender to the kernel and notifies the sender if they were not sent.
fn hand_over(state: &mut State, now: Instant, out: &Outgoing<'_>) {
    let Err(failed) = state.sockets().send(now, out) else { return };
    let mut error = failed.error;
    // A pending error may belong to an earlier datagram, but it also stopped this one.
    if drain_errors(state, now, usize::from(out.outer.socket)) {
        match state.sockets().send_rest(now, out, failed.sent) {
            Some(again) => error = again,
            None => return,
        }
    }
    match out.sender {
        Sender::Carrier => {}
        Sender::Subflow(path, flow) => on_send_error(state, now, &out.outer, &path, flow, &error),
        Sender::Lane(lane, path) => {
            on_frame_not_sent(state, now, &out.outer, lane, path, &error);
        }
    }
}

fn on_send_error(
    state: &mut State,
    now: Instant,
    outer: &Outer,
    path: &FourTuple,
    local_flow: u64,
    error: &io::Error,
) {
    let what = if error.raw_os_error() == Some(libc::EMSGSIZE) {
        let mtu = state.sockets().route_mtu(outer);
        CoreError::TooBig { max_segment: state.carrier().segment_of_mtu(mtu, path) }
    } else {
        tracing::debug!(remote = %outer.remote, %error, "datagram not sent");

        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        state.observers().contacts().record_send_refusal(now, path, errno);
        // EPERM and EACCES come from a packet filter on this machine.
        let filtered = matches!(errno, libc::EPERM | libc::EACCES);
        let ends = FlowEnds::new(outer.local, outer.remote);
        if filtered && state.routing().routes().refused(now, ends) {
            return;
        }
        CoreError::Unreachable
    };
    state.endpoint().send_failed(now, path, local_flow, what);
}

/// Handles the errors that ICMP caused on a socket. Returns true if there were any.
pub(super) fn drain_errors(state: &mut State, now: Instant, index: usize) -> bool {
    /// Maximum number of errors handled in one call: a flood of them must not hold the lock.
    const MAX_ERRORS_PER_CALL: usize = 64;
    let mut any = false;
    for _ in 0..MAX_ERRORS_PER_CALL {
        let Some(error) = state.sockets().next_error(index) else { return any };
        any = true;
        on_network_error(state, now, &error);
    }
    any
}

/// Accepts ICMP errors only if they quote the id of a flow to that address, which an off-path attacker does not know.
/// Errors of this machine are ignored here because the send call also reports them.
fn on_network_error(state: &mut State, now: Instant, error: &NetworkError) {
    let Carrier::Udp(carrier) = state.carrier() else {
        on_native_error(state, now, error);
        return;
    };
    let quoted = carrier.find_quoted_flow(error.remote, &error.quoted);
    if quoted.is_none() && on_frame_error(state, now, error) {
        return;
    }
    let Some((flow, path)) = quoted.filter(|_| !error.is_local) else { return };
    let what = match error.mtu {
        Some(mtu) => {
            CoreError::TooBig { max_segment: state.carrier().trusted_segment_len(mtu, &path) }
        }
        // Without the size, the error adds nothing that probing would not find.
        None if error.errno == libc::EMSGSIZE => return,
        None => CoreError::Unreachable,
    };
    if what == CoreError::Unreachable {
        let ends = FlowEnds::new(path.local.ip(), error.remote);
        // A late error about datagrams does not concern a server that is reached over TCP.
        if !state.routing().routes().uses_link(&ends) {
            let (local, remote) = (path.local.ip(), path.remote);
            state.observers().contacts().record_icmp_error(now, local, remote, error);
        }
        if state.routing().routes().refused(now, ends) {
            return;
        }
    }
    state.endpoint().flow_error(now, flow, what);
}

/// Handles an ICMP error about a segment, or an error of this machine. A process with a raw socket receives all ICMP
/// messages that reach the machine, and most of them do not concern it.
pub(super) fn on_native_error(state: &mut State, now: Instant, error: &NetworkError) {
    let at = |port: usize| u16::from_be_bytes([error.quoted[port], error.quoted[port + 1]]);
    let mut remote = error.remote;
    if error.is_local {
        // The send call has also reported this error.
        return;
    }
    let Some(local) = error.local else { return };
    remote.set_port(at(2));
    let path = FourTuple { local: SocketAddr::new(local, at(0)), remote };
    let [_, _, _, _, a, b, c, d, ..] = error.quoted;
    let seq = SeqNum(u32::from_be_bytes([a, b, c, d]));
    let said = match error.mtu {
        Some(_) => {
            let max_segment = state.carrier().segment_of_mtu(error.mtu, &path);
            CoreError::TooBig { max_segment }
        }
        // Without the size, the error adds nothing that probing would not find.
        None if error.errno == libc::EMSGSIZE => return,
        None => CoreError::Unreachable,
    };
    let believed = state.endpoint().network_error(now, &path, seq, said);
    if believed && said == CoreError::Unreachable {
        state.observers().contacts().record_icmp_error(now, local, path.remote, error);
    }
    tracing::debug!(local = %path.local, remote = %path.remote, ?said, believed, "ICMP");
}

/// Handles a lane frame that this machine could not send.
fn on_frame_not_sent(
    state: &mut State,
    now: Instant,
    outer: &Outer,
    id: u64,
    path: PathId,
    error: &io::Error,
) {
    match error.raw_os_error() {
        Some(libc::EMSGSIZE) => {
            let mtu = state.sockets().route_mtu(outer);
            if let Some(bytes) = mtu.and_then(|mtu| payload_for_mtu(mtu, outer.remote)) {
                state.lanes().with(id, |lane| lane.set_path_mtu(path, bytes, now));
            }
        }
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EADDRNOTAVAIL) => {
            state.lanes().with(id, |lane| lane.set_path_unreachable(path, now));
        }
        // A buffer was full or a firewall rejected the frame. Both may be temporary. The frame is lost, as any
        // datagram may be.
        _ => tracing::debug!(remote = %outer.remote, %error, "lane frame not sent"),
    }
}

/// Handles an ICMP error that quotes a lane frame. Returns false if the quoted frame is not ours.
fn on_frame_error(state: &mut State, now: Instant, error: &NetworkError) -> bool {
    let quoted = quoted_lane(&error.quoted);
    let Some(id) = quoted.and_then(|peer| state.lanes().find_by_peer(peer)) else { return false };
    let path = state.lane_path_to(id, error.remote);
    let Some(path) = path.filter(|_| !error.is_local) else { return true };
    match error.mtu {
        Some(mtu) => {
            if let Some(bytes) = payload_for_mtu(mtu, error.remote) {
                state.lanes().with(id, |lane| lane.set_path_mtu(path, bytes, now));
            }
        }
        None if error.errno == libc::EMSGSIZE => {}
        None => drop(state.lanes().with(id, |lane| lane.set_path_unreachable(path, now))),
    }
    true
}

/// Returns the peer's lane id from the beginning of a quoted datagram.
fn quoted_lane(beginning: &[u8]) -> Option<u64> {
    let (first, rest) = beginning.split_first()?;
    let id = rest.first_chunk()?;
    (*first == 0x20 | marline_datagram::FRAME_TYPE).then(|| u64::from_be_bytes(*id))
}

#[cfg(test)]
mod tests;
