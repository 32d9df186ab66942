//! Lane: one end of a session's datagrams.
//!
//! The lane contains the state of the session (keys, numbers, the replay window, flows) and the paths, and connects
//! them. A datagram gets its class from its flow and its path from the policy. It waits in the queue of the path until
//! the window allows it, gets a number, and is sealed and sent, once or twice. State of a single path (round trip,
//! losses, window, MTU) belongs to that path.

mod coding;
mod control;
mod copies;
mod inbox;
mod machine;
mod memory;
mod pieces;
mod repairing;
mod sending;
mod sent_frames;

use std::collections::VecDeque;

use marline_policy::{
    DatagramContext, DatagramPathView, DatagramPolicy, FlowClass, FlowView, PathId, Route,
};
use marline_time::{Duration, Instant};

use crate::config::{LaneConfig, LaneIds};
use crate::event::{Event, LaneStats, PathInfo};
use crate::flows::{Flow, Flows};
use crate::frame::{
    self, HEADER_BYTES, Header, Item, Items, LARGEST_DATAGRAM, LARGEST_NUMBER, LONG_SEALED_BYTES,
    TAG_BYTES, datagram_overhead,
};
use crate::path::Path;
use crate::queue::WaitingDatagram;
use crate::replay::ReplayWindow;
use crate::seal::Keys;
use coding::FrameGroups;
use inbox::{Inbox, Notice};
use pieces::{FragmentedFrames, PartialFrames};
use repairing::RepairState;
pub use sending::{FlowId, SendError, Transmit};
use sent_frames::{Copy, FrameToKeep, SentFrames};

/// Time after the last datagram during which the lane probes round trips and MTUs of paths.
const ACTIVE_TIME: Duration = Duration::from_secs(10);
/// Maximum number of payload buffers kept for reuse.
const MAX_SPARE_BUFFERS: usize = 64;

/// One end of a session's datagrams.
#[derive(Debug)]
pub struct Lane {
    config: LaneConfig,
    keys: Keys,
    ids: LaneIds,
    next_number: u64,
    window: ReplayWindow,
    /// Paths, ordered by number.
    paths: Vec<Path>,
    flows: Flows,
    policy: Box<dyn DatagramPolicy>,
    kept: SentFrames,
    copies: VecDeque<Copy>,
    fragmented: FragmentedFrames,
    halves: PartialFrames,
    coding: FrameGroups,
    /// True if the peer has announced that it understands repairs.
    peer_repairs: bool,
    repairing: RepairState,
    inbox: Inbox,
    stats: LaneStats,
    active_until: Instant,
    /// True after too many forged frames: nothing is accepted or sent.
    closed: bool,
    key_limit_reported: bool,
    /// Current limit of each queue in bytes, if lower than the configured one.
    max_queue_bytes: usize,
    /// Scratch space for one call.
    views: Vec<DatagramPathView>,
    spare: Vec<Vec<u8>>,
}

/// Creation and state.
impl Lane {
    /// Creates a lane without paths. The keys must never have sealed a packet.
    #[must_use]
    pub fn new(config: LaneConfig, ids: LaneIds, keys: Keys, now: Instant) -> Self {
        Lane {
            keys,
            ids,
            next_number: 0,
            window: ReplayWindow::new(config.limits.replay_numbers, now),
            paths: Vec::new(),
            flows: Flows::new(config.limits.flows),
            policy: config.policy.build(),
            kept: SentFrames::new(),
            copies: VecDeque::new(),
            fragmented: FragmentedFrames::default(),
            halves: PartialFrames::default(),
            coding: FrameGroups::default(),
            peer_repairs: false,
            repairing: RepairState::default(),
            inbox: Inbox::default(),
            stats: LaneStats::default(),
            active_until: now,
            closed: false,
            key_limit_reported: false,
            max_queue_bytes: usize::MAX,
            views: Vec::new(),
            spare: Vec::new(),
            config,
        }
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        LaneStats {
            flows_forgotten: self.flows.forgotten(),
            dropped_pieces: self.halves.dropped(),
            ..self.stats
        }
    }

    /// State of the paths.
    pub fn paths(&self, now: Instant) -> impl Iterator<Item = PathInfo> {
        self.paths.iter().map(move |path| path.info(now))
    }

    /// Number of frames that the peer is known to have sent, and the number of those that have arrived.
    #[must_use]
    pub const fn arrived_frames(&self) -> (u64, u64) {
        self.window.progress()
    }

    /// Number of remembered flows.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Maximum length of a datagram that is accepted now, in bytes; 0 without a path. Datagrams larger than a path's
    /// maximum are sent in pieces.
    #[must_use]
    pub const fn largest_datagram(&self) -> usize {
        if self.paths.is_empty() { 0 } else { LARGEST_DATAGRAM }
    }

    fn path_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.paths.iter_mut().find(|path| path.id() == id)
    }
}

/// Sending.
impl Lane {
    /// Accepts a datagram from the application. The next [`poll_transmit`](Self::poll_transmit) calls send it, unless
    /// it has to wait for its path.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&mut self, now: Instant, flow: FlowId, payload: &[u8]) -> Result<(), SendError> {
        if self.paths.is_empty() {
            return Err(SendError::NoPath);
        }
        if flow.0 > LARGEST_NUMBER {
            return Err(SendError::BadFlow);
        }
        if self.closed || self.next_number >= self.max_packets() {
            return Err(SendError::KeyLimitReached);
        }
        let most_bytes = self.largest_datagram();
        if payload.len() > most_bytes {
            return Err(SendError::TooBig { most_bytes });
        }
        self.active_until = now + ACTIVE_TIME;
        let known = self.flows.on_datagram(now, flow.0, payload.len());
        let (class, deadline) =
            (known.class, now + self.config.patience(known.class, known.is_sparse));
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(payload);
        self.stats.sent_datagrams += 1;
        self.stats.sent_bytes += payload.len() as u64;
        let waiting = WaitingDatagram {
            flow: flow.0,
            class,
            payload: bytes,
            queued_at: now,
            deadline,
            copy: None,
            grouped: false,
        };
        let taken = self.route(waiting, now);
        if class == FlowClass::Bulk {
            self.explore_rates(flow, now);
        }
        if taken { Ok(()) } else { Err(SendError::QueueFull) }
    }

    /// Probes the rate of other paths while a flow is bulk.
    fn explore_rates(&mut self, flow: FlowId, now: Instant) {
        let Some(every) = self.policy.rate_exploration_interval() else { return };
        let on = self.flows.find_known(flow.0).and_then(|flow| flow.last).map(|(path, _)| path);
        let others = self.paths.iter_mut().filter(|path| Some(path.id()) != on);
        others.for_each(|path| path.explore_rate(every, now));
    }

    fn max_packets(&self) -> u64 {
        self.keys.seal.max_packets().min(u64::MAX - 1)
    }

    /// Requests a path from the policy and puts the datagram into that path's queue.
    fn route(&mut self, mut waiting: WaitingDatagram, now: Instant) -> bool {
        self.update_path_views(0, None, now);
        let Some(first) = self.views.first().map(|view| view.id) else {
            self.drop_datagram(waiting, true);
            return false;
        };
        let view =
            self.flow_view(waiting.flow, waiting.class, waiting.payload.len(), waiting.deadline);
        let context = DatagramContext { now, paths: &self.views, repairs: self.peer_repairs };
        let Route { path, copy, grouped } = self.policy.route(&context, &view);
        let path = context.path(path).map_or(first, |path| path.id);
        waiting.copy = copy.filter(|copy| *copy != path && context.path(*copy).is_some());
        waiting.grouped = grouped && waiting.copy.is_none() && self.peer_repairs;
        if let Some(flow) = self.flows.find_known(waiting.flow) {
            flow.record_path(now, path);
        }
        let most = self.max_queued_bytes();
        let Some(chosen) = self.path_mut(path) else { return false };
        match chosen.queues().push(waiting, most) {
            Ok(()) => true,
            Err(waiting) => {
                self.drop_datagram(waiting, true);
                false
            }
        }
    }

    fn choose_path_again(&mut self, waiting: WaitingDatagram, now: Instant) {
        if waiting.deadline > now {
            self.route(waiting, now);
        } else {
            self.drop_datagram(waiting, false);
        }
    }

    /// Updates the views: all paths, except `without`, on which a datagram of this size fits into one frame.
    fn update_path_views(&mut self, bytes: usize, without: Option<PathId>, now: Instant) {
        self.views.clear();
        let fits = |path: &&Path| path.largest_datagram() >= bytes && Some(path.id()) != without;
        self.views.extend(self.paths.iter().filter(fits).map(|path| path.view(now)));
    }

    fn flow_view(
        &mut self,
        id: u64,
        class: FlowClass,
        bytes: usize,
        deadline: Instant,
    ) -> FlowView {
        let flow = self.flows.find_known(id);
        let of = |flow: &mut Flow| (flow.rate(), flow.mean_bytes(), flow.mean_burst(), flow.last);
        let (rate, mean_bytes, burst, last) = flow.map_or_else(Default::default, of);
        FlowView { id, class, rate, mean_bytes, burst, bytes: bytes as u32, deadline, last }
    }

    fn drop_datagram(&mut self, waiting: WaitingDatagram, full: bool) {
        if let Some(flow) = self.flows.find_known(waiting.flow) {
            flow.record_wait(None);
        }
        if full {
            self.stats.dropped_full += 1;
        } else {
            self.stats.dropped_late += 1;
        }
        self.reuse(waiting.payload);
    }

    fn reuse(&mut self, memory: Vec<u8>) {
        if self.spare.len() < MAX_SPARE_BUFFERS {
            self.spare.push(memory);
        }
    }
}

/// Frames.
impl Lane {
    /// Builds the next frame in `frame`, replacing its content. Returns `None` if there is nothing to send now.
    pub fn poll_transmit(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<Transmit> {
        frame.clear();
        if self.closed {
            return None;
        }
        let copied = self.transmit_piece(now, frame).or_else(|| self.transmit_copy(now, frame));
        if copied.is_some() || self.next_number >= self.max_packets() {
            return copied;
        }
        self.transmit_repair(now, frame)
            .or_else(|| self.transmit_datagram(now, frame))
            .or_else(|| self.transmit_control(now, frame))
    }

    fn transmit_datagram(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<Transmit> {
        for at in 0..self.paths.len() {
            let path = &mut self.paths[at];
            let Some(room) = path.room(now) else { continue };
            let srtt = path.srtt();
            let next = path.queues().pop(now, room, srtt);
            while let Some(dropped) = self.paths[at].queues().take_dropped() {
                self.drop_datagram(dropped, false);
            }
            if let Some(next) = next {
                if let Some(flow) = self.flows.find_known(next.flow) {
                    flow.record_wait(Some(now.since(next.queued_at)));
                }
                return self.send_datagrams(at, next, now, frame);
            }
        }
        None
    }

    /// Builds a frame from a datagram and the following datagrams that fit and use the same path.
    fn send_datagrams(
        &mut self,
        at: usize,
        first: WaitingDatagram,
        now: Instant,
        frame: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let (id, most) = (self.paths[at].id(), usize::from(self.paths[at].frame_bytes()));
        let whole =
            HEADER_BYTES + datagram_overhead(first.flow, None) + first.payload.len() + TAG_BYTES;
        if whole > most {
            self.cut_datagram(at, first, now);
            return self.transmit_piece(now, frame);
        }
        frame.resize(HEADER_BYTES, 0);
        let after = datagram_overhead(first.flow, None) + first.payload.len() + TAG_BYTES;
        self.write_optional_items(at, most.saturating_sub(HEADER_BYTES + after), now, frame);
        let start = frame.len();
        let (flow, class, copy, grouped) = (first.flow, first.class, first.copy, first.grouped);
        let (mut deadline, mut payload_bytes) = (first.deadline, first.payload.len());
        let mut current = first;
        loop {
            let len = current.payload.len();
            let so_far = frame.len() + datagram_overhead(current.flow, Some(len)) + len + TAG_BYTES;
            let fits = |next: &WaitingDatagram| {
                let more = datagram_overhead(next.flow, None) + next.payload.len();
                let alike = next.copy == copy && next.grouped == grouped;
                class != FlowClass::Bulk && alike && so_far + more <= most
            };
            let Some(next) = self.paths[at].queues().pop_urgent_if(now, fits) else { break };
            frame::write_datagram(frame, current.flow, &current.payload, false);
            deadline = deadline.max(next.deadline);
            payload_bytes += next.payload.len();
            let done = core::mem::replace(&mut current, next);
            self.reuse(done.payload);
        }
        frame::write_datagram(frame, current.flow, &current.payload, true);
        self.reuse(current.payload);
        let payload_bytes = payload_bytes as u32;
        let keeping = FrameToKeep { flow, class, payload_bytes, deadline, path: id };
        if grouped {
            let part = &frame[start..];
            self.coding.on_sent(self.next_number, part, &keeping, now);
        }
        let number = self.seal(frame);
        self.paths[at].on_sent(number, frame.len(), false, now);
        if class != FlowClass::Bulk || copy.is_some() {
            self.kept.store(number, frame, &keeping, self.kept_limits(), now);
        }
        if let Some(path) = copy {
            self.copy(Copy { number, path, rescue: false });
        }
        self.stats.first_frame_bytes += frame.len() as u64;
        self.policy.on_sent(now, frame.len() as u64, false);
        Some(Transmit { path: id, bytes: frame.len() })
    }

    /// Assigns a number to a frame and seals it. `frame` contains space for the header, followed by the body.
    fn seal(&mut self, frame: &mut Vec<u8>) -> u64 {
        let number = self.next_number;
        // A long frame counts as several packets.
        self.next_number += 1 + (frame.len() / LONG_SEALED_BYTES) as u64;
        let header = Header { lane: self.ids.peers, packet_number: number }.bytes();
        let (start, body) = frame.split_at_mut(HEADER_BYTES);
        start.copy_from_slice(&header);
        let tag = self.keys.seal.seal(number, &header, body);
        frame.extend_from_slice(&tag);
        let most = self.max_packets();
        if self.next_number >= most - most / 8 && !self.key_limit_reported {
            self.key_limit_reported = true;
            self.inbox.push_notice(Notice::KeyLimitNear);
        }
        number
    }
}

/// Receiving.
impl Lane {
    /// Handles a datagram that contains a frame of this lane. It arrived on a path, from the validated address of the
    /// subflow with that number. Any content is safe. The frame is decrypted in place.
    pub fn handle(&mut self, now: Instant, path: PathId, datagram: &mut [u8]) {
        let header = Header::parse(datagram).filter(|header| header.lane == self.ids.local);
        let at = self.paths.binary_search_by_key(&path, Path::id);
        let (Some(Header { packet_number, .. }), Ok(at)) = (header, at) else {
            self.stats.foreign += 1;
            return;
        };
        if self.closed {
            return;
        }
        let new = self.window.is_new(packet_number);
        if !new && self.paths[at].received_mut().is_known(packet_number) {
            // A replayed packet causes no work and gets no answer.
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
        let wants_ack = Items::new(body)
            .any(|item| !matches!(item, Ok(Item::Ack(_)) | Err(frame::MalformedBody)));
        self.paths[at].received_mut().on_frame(packet_number, wants_ack, now);
        if new {
            self.process_body(packet_number, body, now);
        } else {
            self.stats.duplicates += 1;
        }
    }

    /// Processes a frame that has arrived whole or in pieces.
    fn process_body(&mut self, number: u64, body: &[u8], now: Instant) {
        self.take_items(body, now);
        if self.repairing.is_active(now) {
            let part = frame::datagram_part(body);
            let found = self.repairing.on_frame(number, part, now);
            self.process_repaired(found, now);
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
                    self.process_repaired(found, now);
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
                        self.push_mtu_notice(at);
                    }
                }
                Ok(Item::Piece(piece)) => self.process_piece(&piece, now),
                Ok(Item::Ping) => {}
                Err(frame::MalformedBody) => self.stats.malformed += 1,
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
}

#[cfg(test)]
mod tests;
