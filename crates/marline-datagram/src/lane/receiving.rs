//! Reception of frames, and their effects on the lane.
use marline_policy::{DatagramContext, PathId};
use marline_time::Instant;

use super::inbox::Notice;
use super::pieces::BadPiece;
use super::{Copy, Lane};
use crate::event::Event;
use crate::frame::{self, HEADER_BYTES, Header, Item, Items, Piece, TAG_BYTES};
use crate::path::{Outcome, Path};

/// Receiving.
impl Lane {
    /// Handles a datagram with a frame of this lane that arrived on a path, from the validated address of the
    /// session's subflow with that number. Any content is safe. The frame is decrypted in place.
    pub fn handle(&mut self, now: Instant, path: PathId, datagram: &mut [u8]) {
        let header = Header::parse(datagram).filter(|header| header.lane == self.ids.ours);
        let at = self.paths.binary_search_by_key(&path, Path::id);
        let (Some(Header { packet_number, .. }), Ok(at)) = (header, at) else {
            self.stats.foreign += 1;
            return;
        };
        if self.closed {
            return;
        }
        let new = self.window.is_new(packet_number);
        if !new && self.paths[at].received().is_known(packet_number) {
            // A repeated packet costs us nothing and gets no answer.
            self.stats.replays += 1;
            return;
        }
        let (start, rest) = datagram.split_at_mut(HEADER_BYTES);
        let Some((body, tag)) = rest.split_last_chunk_mut::<TAG_BYTES>() else { return };
        if !self.keys.open.open(packet_number, start, body, tag) {
            self.on_forged();
            return;
        }
        self.window.record(packet_number, now);
        self.halves.forget_frame(packet_number);
        let body: &[u8] = body;
        let wants_ack =
            Items::new(body).any(|item| !matches!(item, Ok(Item::Ack(_)) | Err(frame::Malformed)));
        self.paths[at].received().on_frame(packet_number, wants_ack, now);
        if new {
            self.take_body(packet_number, body, now);
        } else {
            self.stats.duplicates += 1;
        }
    }

    /// Processes a frame that has arrived whole or in pieces.
    fn take_body(&mut self, number: u64, body: &[u8], now: Instant) {
        self.take_items(body, now);
        if self.repairing.is_active(now) {
            let part = frame::datagram_part(body);
            let found = self.repairing.on_frame(number, part, now);
            self.take_repaired(found, now);
        }
    }

    /// Processes a piece. Its frame is processed once all pieces have arrived.
    fn take_piece(&mut self, piece: &Piece<'_>, now: Instant) {
        if !self.window.is_new(piece.number) {
            self.stats.duplicates += 1;
            return;
        }
        let mut whole = match self.halves.add_piece(piece, now) {
            Ok(Some(whole)) => whole,
            Ok(None) => return,
            Err(BadPiece) => {
                self.stats.malformed += 1;
                return;
            }
        };
        let ours = Header { lane: self.ids.ours, packet_number: piece.number };
        let is_ours = Header::parse_whole(&whole) == Some(ours);
        let (start, rest) = whole.split_at_mut(HEADER_BYTES);
        let Some((body, tag)) = rest.split_last_chunk_mut::<TAG_BYTES>() else { return };
        let opened = is_ours && self.keys.open.open(piece.number, start, body, tag);
        let nested = Items::new(body).any(|item| matches!(item, Ok(Item::Piece(_))));
        if !opened || nested {
            self.stats.malformed += 1;
            return;
        }
        self.window.record(piece.number, now);
        self.stats.assembled_datagrams += 1;
        self.take_body(piece.number, body, now);
    }

    fn on_forged(&mut self) {
        self.stats.forged += 1;
        if self.stats.forged >= self.keys.open.forgeries_at_most() {
            self.closed = true;
            self.inbox.push_notice(Notice::Forged);
        }
    }

    /// Processes frames that were computed from repairs.
    fn take_repaired(&mut self, found: Vec<(u64, Vec<u8>)>, now: Instant) {
        for (number, part) in found {
            // The frame may have arrived before any were kept, or long ago.
            if !self.window.is_new(number) {
                continue;
            }
            self.window.record(number, now);
            for item in Items::new(&part) {
                match item {
                    Ok(Item::Datagram { flow, payload }) => {
                        self.stats.repaired_datagrams += 1;
                        self.deliver(flow, payload);
                    }
                    Ok(_) | Err(frame::Malformed) => self.stats.malformed += 1,
                }
            }
        }
    }

    fn deliver(&mut self, flow: u64, payload: &[u8]) {
        let most = self.max_received_bytes();
        if self.inbox.store(flow, payload, most) {
            self.stats.delivered_datagrams += 1;
        } else {
            self.stats.dropped_inbox += 1;
        }
    }

    fn take_items(&mut self, body: &[u8], now: Instant) {
        for item in Items::new(body) {
            match item {
                Ok(Item::Datagram { flow, payload }) => self.deliver(flow, payload),
                Ok(Item::Repair(repair)) => {
                    let found = self.repairing.on_repair(&repair, now);
                    self.take_repaired(found, now);
                }
                Ok(Item::Reads { kind }) => self.peer_repairs = frame::supports_repairs(kind),
                Ok(Item::Ack(ack)) => {
                    if let Ok(at) = self.paths.binary_search_by_key(&ack.path, Path::id) {
                        let outcome = self.paths[at].on_ack(&ack, now);
                        self.apply_outcome(at, outcome, now);
                    }
                }
                Ok(Item::Size { path, bytes }) => {
                    if let Ok(at) = self.paths.binary_search_by_key(&path, Path::id)
                        && self.paths[at].mtu().on_reported(bytes)
                    {
                        self.notice_mtu(at);
                    }
                }
                Ok(Item::Piece(piece)) => self.take_piece(&piece, now),
                Ok(Item::Ping) => {}
                Err(frame::Malformed) => self.stats.malformed += 1,
            }
        }
    }

    /// Returns true if events can be polled.
    pub fn has_events(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event<'_>> {
        self.inbox.pop()
    }

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
            // The peer is notified at once.
            self.paths[at].request_probe();
            self.notice_mtu(at);
        }
        if outcome.answers {
            self.inbox.push_notice(Notice::Answers(id));
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

    fn notice_mtu(&mut self, at: usize) {
        let path = &mut self.paths[at];
        let (id, frame_bytes) = (path.id(), path.mtu().both_ways());
        self.inbox.push_notice(Notice::Mtu(id, frame_bytes));
    }

    /// Handles a frame that is lost on a path or whose acknowledgment is overdue: it may be useful on another path.
    fn rescue(&mut self, number: u64, on: PathId, now: Instant) {
        let Some(kept) = self.kept.find(number).filter(|kept| kept.deadline > now) else { return };
        let (flow, class, bytes, deadline) =
            (kept.flow, kept.class, kept.payload_bytes as usize, kept.deadline);
        self.update_path_views(0, Some(on), now);
        if self.views.is_empty() {
            return;
        }
        let view = self.flow_view(flow, class, bytes, deadline);
        let context = DatagramContext { now, paths: &self.views, repairs: self.peer_repairs };
        if let Some(path) = self.policy.rescue(&context, &view, on) {
            self.copy(Copy { number, path, rescue: true });
        }
    }
}
