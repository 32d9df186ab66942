//! Control of paths: frames without datagrams, and the effects of a path's results on the lane.

use marline_policy::PathId;
use marline_time::Instant;

use super::inbox::Notice;
use super::{Lane, Transmit};
use crate::frame::{self, HEADER_BYTES, TAG_BYTES};
use crate::path::{Outcome, Path};

/// Frames.
impl Lane {
    /// Adds optional items if there is room: a pending ACK, and the MTU if it has changed.
    pub(super) fn write_optional_items(
        &mut self,
        at: usize,
        room: usize,
        now: Instant,
        frame: &mut Vec<u8>,
    ) {
        const SIZE_BYTES: usize = 4;
        let path = &mut self.paths[at];
        let id = path.id();
        let before = frame.len();
        if path.received_mut().is_waiting() && path.received_mut().ack(id, now).write(frame, room) {
            path.received_mut().on_acked();
        }
        if frame.len() - before + SIZE_BYTES <= room
            && let Some(bytes) = path.mtu().take_unannounced_size()
        {
            frame::write_size(frame, id, bytes);
        }
    }

    /// Sends frames without datagrams: due ACKs, round-trip probes and MTU probes.
    pub(super) fn transmit_control(
        &mut self,
        now: Instant,
        frame: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let active = now < self.active_until;
        for at in 0..self.paths.len() {
            let path = &mut self.paths[at];
            let (id, silent) = (path.id(), path.health().is_unreachable());
            let most = usize::from(path.frame_bytes()) - HEADER_BYTES - TAG_BYTES - 3;
            if path.take_ping(now) {
                frame.resize(HEADER_BYTES, 0);
                self.write_optional_items(at, most, now, frame);
                frame::write_ping(frame);
                frame::write_reads(frame);
                return Some(self.send_control(at, id, Some(false), now, frame));
            }
            if path.take_train() {
                let full = usize::from(path.frame_bytes()) - TAG_BYTES;
                frame.resize(HEADER_BYTES, 0);
                frame::write_ping(frame);
                frame.resize(full, 0);
                return Some(self.send_control(at, id, Some(false), now, frame));
            }
            if path.received_mut().due_at().is_some_and(|due| due <= now) {
                frame.resize(HEADER_BYTES, 0);
                path.received_mut().ack(id, now).write(frame, most);
                path.received_mut().on_acked();
                // If the peer does not acknowledge our frames on this path, it would not receive an ACK on this path
                // either.
                let other = self.paths.iter().find(|path| !path.health().is_unreachable());
                let way = other.filter(|_| silent).map_or(id, Path::id);
                return Some(self.send_control(at, way, None, now, frame));
            }
            if active
                && !silent
                && !self.paths[at].srtt().is_zero()
                && let Some(size) = self.paths[at].mtu().probe_size(now)
            {
                frame.resize(HEADER_BYTES, 0);
                frame::write_ping(frame);
                frame.resize(usize::from(size) - TAG_BYTES, 0);
                return Some(self.send_control(at, id, Some(true), now, frame));
            }
        }
        None
    }

    /// Sends a control frame. `asks` is `Some` for an ack-eliciting frame, with true for an MTU probe.
    fn send_control(
        &mut self,
        at: usize,
        way: PathId,
        asks: Option<bool>,
        now: Instant,
        frame: &mut Vec<u8>,
    ) -> Transmit {
        let number = self.seal(frame);
        if let Some(probes_mtu) = asks {
            self.paths[at].on_sent(number, frame.len(), probes_mtu, now);
            if probes_mtu {
                self.paths[at].mtu().on_probe(number);
            }
        }
        self.stats.control_frame_bytes += frame.len() as u64;
        Transmit { path: way, bytes: frame.len() }
    }
}

/// Results.
impl Lane {
    /// Applies the results of a path to the lane.
    pub(super) fn apply_outcome(&mut self, at: usize, outcome: Outcome, now: Instant) {
        let id = self.paths[at].id();
        for number in &outcome.answered {
            self.coding.on_answered(*number);
            if let Some(sent_at) = self.kept.remove_acked(*number) {
                self.stats.delays.record(now.since(sent_at));
            }
        }
        for number in &outcome.missed {
            let (on, numbers) = self.coding.on_missed(*number, id);
            numbers.into_iter().for_each(|number| self.rescue(number, on, now));
        }
        if outcome.mtu_changed {
            // Notify the peer immediately.
            self.paths[at].request_probe();
            self.push_mtu_notice(at);
        }
        if outcome.answers {
            self.inbox.push_notice(Notice::Reachable(id));
        }
        if outcome.unreachable {
            self.inbox.push_notice(Notice::Unreachable(id));
            let mut waiting = Vec::new();
            while let Some(next) = self.paths[at].queues().take_any() {
                waiting.push(next);
            }
            for next in waiting {
                self.choose_path_again(next, now);
            }
        }
    }

    pub(super) fn push_mtu_notice(&mut self, at: usize) {
        let path = &mut self.paths[at];
        let (id, frame_bytes) = (path.id(), path.mtu().two_way_size());
        self.inbox.push_notice(Notice::Mtu(id, frame_bytes));
    }

    pub(super) fn on_forged(&mut self) {
        self.stats.forged += 1;
        if self.stats.forged >= self.keys.open.max_forgeries() {
            self.closed = true;
            self.inbox.push_notice(Notice::Forged);
        }
    }
}
