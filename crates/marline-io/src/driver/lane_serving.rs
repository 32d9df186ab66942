//! Service of a shard's lanes: incoming frames, batches of outgoing frames, and network errors.

use std::io;

use marline_core::Ecn;
use marline_datagram::PathId;
use marline_time::Instant;

use super::carrier::Carrier;
use super::outgoing::{Outgoing, Sender};
use super::sending::FrameBatch;
use super::socket::payload_of_mtu;
use super::state::State;
use crate::carrier::{Datagram, Outer};
use crate::sys::error_queue::NetworkError;

/// Lanes served under one lock before others get their turn.
const LANES_PER_TURN: usize = 64;
/// Frames of one lane per turn.
const FRAMES_PER_TURN: usize = 64;

impl State {
    /// Serves the lanes that have something to do. Returns true if there are more.
    pub(super) fn serve_lanes(&mut self, now: Instant) -> bool {
        let Carrier::Udp(carrier) = &self.carrier else { return false };
        self.lanes.on_changes(carrier.changes());
        for _ in 0..LANES_PER_TURN {
            let Some(id) = self.lanes.next_ready() else { return false };
            self.check_subflows(id, now);
            let endpoint = &self.endpoint;
            self.lanes.note_probed(id, |local, remote| endpoint.is_path_probed(local, remote));
            self.transmit_lane(id, now);
            self.lanes.settle(id, now);
            self.compare_lane(id, now);
        }
        true
    }

    /// Reports the bytes that a lane carried to the client's routes.
    fn compare_lane(&mut self, id: u64, now: Instant) {
        if !self.rerouting.routes.compares() {
            return;
        }
        for (flow, heading, bytes) in self.lanes.take_carried(id, now) {
            let Carrier::Udp(carrier) = &self.carrier else { return };
            if let Some(Outer { local, remote, .. }) = carrier.place(flow) {
                self.rerouting.routes.on_lane(now, (local, remote), heading, bytes);
            }
        }
    }

    /// Notifies lanes of silent paths on which connections were answered.
    pub(super) fn wake_lanes(&mut self) {
        for addresses in self.endpoint.take_answered_paths() {
            self.lanes.on_path_answer(addresses);
        }
    }

    /// Notifies connections of silent paths on which lanes were answered.
    pub(super) fn wake_connections(&mut self, now: Instant) {
        for (local, remote) in self.lanes.take_answered() {
            self.endpoint.on_path_answer(now, local, remote);
        }
    }

    fn check_subflows(&mut self, id: u64, now: Instant) {
        let Carrier::Udp(carrier) = &self.carrier else { return };
        if let Some(connection) = self.lanes.looks_at(id, now) {
            let subflows = self.endpoint.subflow_places(connection);
            self.lanes.look(id, now, &subflows, |flow| carrier.place(flow));
            if let Some(account) = self.endpoint.memory_account(connection) {
                self.lanes.charge_to(id, account);
            }
            self.endpoint.note_in_use(now, connection);
        }
    }

    fn transmit_lane(&mut self, id: u64, now: Instant) {
        let mut batch = core::mem::take(&mut self.frames);
        let mut frame = core::mem::take(&mut self.scratch);
        for _ in 0..FRAMES_PER_TURN {
            let Some(path) = self.lanes.transmit(id, now, &mut frame) else {
                self.send_frames(id, now, &mut batch);
                (self.frames, self.scratch) = (batch, frame);
                return;
            };
            let Carrier::Udp(carrier) = &self.carrier else { break };
            let Some(outer) = carrier.place(path.flow) else {
                self.lanes.unroutable();
                continue;
            };
            let to = (outer, path.id);
            if !batch.takes(to, 0, frame.len()) {
                self.send_frames(id, now, &mut batch);
            }
            batch.push(to, 0, &frame);
        }
        self.send_frames(id, now, &mut batch);
        (self.frames, self.scratch) = (batch, frame);
        // The lane may have more frames.
        self.lanes.touch(id);
    }

    fn send_frames(&mut self, id: u64, now: Instant, batch: &mut FrameBatch<(Outer, PathId)>) {
        if let Some((outer, path)) = batch.to() {
            let (stride, bytes) = batch.bytes();
            let sender = Sender::Lane(id, path);
            self.send(now, &Outgoing { outer, ecn: Ecn::NotEct, stride, bytes, sender });
        }
        batch.clear();
    }

    /// Gives a frame to its lane.
    pub(super) fn on_lane_frame(&mut self, id: u64, now: Instant, datagram: &Datagram<'_>) {
        let Carrier::Udp(carrier) = &self.carrier else { return };
        let from = |flow| carrier.place(flow) == Some(datagram.outer);
        self.lanes.arrive(id, now, datagram.bytes, from);
    }

    /// Handles a lane's frame that this machine did not send.
    pub(super) fn on_frame_not_sent(
        &mut self,
        now: Instant,
        outer: &Outer,
        (id, path): (u64, PathId),
        error: &io::Error,
    ) {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => {
                let entry = self.sockets.get(usize::from(outer.socket));
                let socket = entry.and_then(Option::as_ref).map(|entry| &entry.socket);
                let mtu = socket.and_then(|socket| socket.route_mtu(outer.remote, outer.local));
                if let Some(bytes) = mtu.and_then(|mtu| payload_of_mtu(mtu, outer.remote)) {
                    self.lanes.with(id, |lane| lane.set_path_mtu(path, bytes, now));
                }
            }
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EADDRNOTAVAIL) => {
                self.lanes.with(id, |lane| lane.set_path_unreachable(path, now));
            }
            // There was no room, or a firewall rejected it, which may be temporary: the frame is lost, like any
            // datagram.
            _ => tracing::debug!(remote = %outer.remote, %error, "frame of a lane not sent"),
        }
    }

    /// Handles an ICMP error that quotes a lane's frame. Returns false if no frame of ours is quoted.
    pub(super) fn on_frame_error(&mut self, now: Instant, error: &NetworkError) -> bool {
        let Carrier::Udp(carrier) = &self.carrier else { return false };
        let Some(id) = quoted_lane(&error.quoted).and_then(|peer| self.lanes.of_peer(peer)) else {
            return false;
        };
        let goes_there = |flow| carrier.place(flow).is_some_and(|o| o.remote == error.remote);
        let path = self.lanes.paths(id).iter().find(|path| goes_there(path.flow));
        let Some(path) = path.map(|path| path.id).filter(|_| !error.ours) else { return true };
        match error.mtu {
            Some(mtu) => {
                if let Some(bytes) = payload_of_mtu(mtu, error.remote) {
                    self.lanes.with(id, |lane| lane.set_path_mtu(path, bytes, now));
                }
            }
            None if error.errno == libc::EMSGSIZE => {}
            None => drop(self.lanes.with(id, |lane| lane.set_path_unreachable(path, now))),
        }
        true
    }
}

/// Returns the peer's lane id in a datagram that starts with these bytes.
fn quoted_lane(beginning: &[u8]) -> Option<u64> {
    let (first, rest) = beginning.split_first()?;
    let id = rest.first_chunk()?;
    (*first == 0x20 | marline_datagram::FRAME_TYPE).then(|| u64::from_be_bytes(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_icmp_quote_names_a_lane_only_in_a_lane_frame() {
        let frame = [0x28, 0, 0, 0, 0, 0, 0, 0, 9, 1];
        assert_eq!(quoted_lane(&frame), Some(9));
        assert_eq!(quoted_lane(&frame[..8]), None);
        assert_eq!(quoted_lane(&[0x20, 0, 0, 0, 0, 0, 0, 0, 9]), None);
    }
}
