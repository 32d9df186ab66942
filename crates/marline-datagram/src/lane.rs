//! Lane: one end of a session's datagrams.
//!
//! The lane contains the state of the session (keys, numbers, the replay window, flows) and the paths, and connects
//! them. When a datagram is sent, it gets its class from its flow and its path from the policy. It waits in that
//! path's queue until the window allows it, gets its number, and is sent sealed, once or twice. State of a single
//! path (round trip, losses, window, MTU) belongs to that path.

mod coding;
mod inbox;
mod machine;
mod memory;
mod pieces;
mod receiving;
mod repairing;
mod sending;
mod sent_frames;

use std::collections::VecDeque;

use marline_policy::{
    DatagramContext, DatagramPathView, DatagramPolicy, FlowClass, FlowView, PathId, Repairs, Route,
};
use marline_time::{Duration, Instant};

use crate::config::{LaneConfig, LaneIds};
use crate::event::{LaneStats, PathInfo};
use crate::flows::{Flow, Flows};
use crate::frame::{
    self, HEADER_BYTES, Header, LARGEST_DATAGRAM, LARGEST_NUMBER, LONG_SEALED_BYTES, TAG_BYTES,
    datagram_overhead,
};
use crate::path::Path;
use crate::queue::WaitingDatagram;
use crate::replay::ReplayWindow;
use crate::seal::Keys;
use coding::{Coded, Coding};
use inbox::{Inbox, Notice};
use pieces::{FragmentedFrames, FrameInPieces, PartialFrames};
use repairing::RepairState;
pub use sending::{FlowId, SendError, Transmit};
use sent_frames::{FrameToKeep, SentFrames};

/// Time after the last datagram during which round trips and MTUs of paths are probed.
const ACTIVE_TIME: Duration = Duration::from_secs(10);
/// Maximum number of payload buffers kept for reuse.
const MAX_SPARE_BUFFERS: usize = 64;
/// Maximum number of copies that wait to be sent; further ones are not made.
const MAX_COPIES: usize = 1_024;

/// Frame that has to be sent again.
#[derive(Copy, Clone, Debug)]
struct Copy {
    number: u64,
    path: PathId,
    rescue: bool,
}

/// One end of a session's datagrams.
#[derive(Debug)]
pub struct Lane {
    config: LaneConfig,
    keys: Keys,
    ids: LaneIds,
    next_number: u64,
    window: ReplayWindow,
    /// Ordered by number.
    paths: Vec<Path>,
    flows: Flows,
    policy: Box<dyn DatagramPolicy>,
    kept: SentFrames,
    copies: VecDeque<Copy>,
    cutting: FragmentedFrames,
    halves: PartialFrames,
    coding: Coding,
    /// True if the peer has announced that it understands repairs.
    peer_repairs: bool,
    repairing: RepairState,
    inbox: Inbox,
    stats: LaneStats,
    active_until: Instant,
    /// Set after too many forged frames: nothing is accepted or sent.
    closed: bool,
    key_limit_reported: bool,
    /// Current limit of each queue in bytes, if it is lower than the configured one.
    most_held: usize,
    /// Temporary memory of a call.
    views: Vec<DatagramPathView>,
    spare: Vec<Vec<u8>>,
}

/// Creation and state.
impl Lane {
    /// Creates a lane without paths. The keys must never have sealed a packet before.
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
            cutting: FragmentedFrames::default(),
            halves: PartialFrames::default(),
            coding: Coding::default(),
            peer_repairs: false,
            repairing: RepairState::default(),
            inbox: Inbox::default(),
            stats: LaneStats::default(),
            active_until: now,
            closed: false,
            key_limit_reported: false,
            most_held: usize::MAX,
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

    /// Number of frames that the peer has sent, as far as is known, and number of those that have arrived.
    #[must_use]
    pub const fn arrived_frames(&self) -> (u64, u64) {
        self.window.progress()
    }

    /// Number of remembered flows.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Maximum length of a datagram that is accepted now, in bytes; 0 without a path. Larger ones than a path allows
    /// are sent in pieces.
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
    /// Accepts a datagram of the application. It is sent by the next [`poll_transmit`](Self::poll_transmit) calls,
    /// unless it has to wait for its path.
    ///
    /// # Errors
    /// The datagram is not accepted: see [`SendError`].
    pub fn send(&mut self, now: Instant, flow: FlowId, payload: &[u8]) -> Result<(), SendError> {
        if self.paths.is_empty() {
            return Err(SendError::NoPath);
        }
        if flow.0 > LARGEST_NUMBER {
            return Err(SendError::BadFlow);
        }
        if self.closed || self.next_number >= self.packets_at_most() {
            return Err(SendError::KeysSpent);
        }
        let most_bytes = self.largest_datagram();
        if payload.len() > most_bytes {
            return Err(SendError::TooBig { most_bytes });
        }
        self.active_until = now + ACTIVE_TIME;
        let known = self.flows.on_datagram(now, flow.0, payload.len());
        let (class, deadline) = (known.class, now + self.config.patience(known.class, known.alone));
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
        let Some(every) = self.policy.explores_rate_every() else { return };
        let on = self.flows.known(flow.0).and_then(|flow| flow.last).map(|(path, _)| path);
        let others = self.paths.iter_mut().filter(|path| Some(path.id()) != on);
        others.for_each(|path| path.explore_rate(every, now));
    }

    fn packets_at_most(&self) -> u64 {
        self.keys.seal.packets_at_most().min(u64::MAX - 1)
    }

    /// Asks the policy and puts the datagram into the queue of its path.
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
        if let Some(flow) = self.flows.known(waiting.flow) {
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

    /// Updates the views: all paths that take a datagram of this size in one frame, except `without`.
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
        let flow = self.flows.known(id);
        let of = |flow: &mut Flow| (flow.rate(), flow.mean_bytes(), flow.mean_burst(), flow.last);
        let (rate, mean_bytes, burst, last) = flow.map_or_else(Default::default, of);
        FlowView { id, class, rate, mean_bytes, burst, bytes: bytes as u32, deadline, last }
    }

    fn drop_datagram(&mut self, waiting: WaitingDatagram, full: bool) {
        if let Some(flow) = self.flows.known(waiting.flow) {
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
    /// Builds the next frame in `frame`, whose content is replaced. Returns `None` if nothing has to be sent now.
    pub fn poll_transmit(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<Transmit> {
        frame.clear();
        if self.closed {
            return None;
        }
        let copied = self.transmit_piece(now, frame).or_else(|| self.transmit_copy(now, frame));
        if copied.is_some() || self.next_number >= self.packets_at_most() {
            return copied;
        }
        self.transmit_repair(now, frame)
            .or_else(|| self.transmit_datagram(now, frame))
            .or_else(|| self.transmit_control(now, frame))
    }

    /// Sends a frame again on another path as it was sealed, with the same number and bytes.
    fn transmit_copy(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<Transmit> {
        while let Some(Copy { number, path: id, rescue }) = self.copies.pop_front() {
            let Some(kept) = self.kept.find(number) else { continue };
            let Some(path) = self.paths.iter_mut().find(|path| path.id() == id) else { continue };
            let bytes = kept.bytes.len();
            let useless = kept.deadline <= now || kept.went_on(id);
            if useless || !path.has_room_for_copy(bytes) {
                continue;
            }
            kept.goes_on(id);
            if bytes > path.frame_bytes().into() {
                let keeping = FrameToKeep { path: id, ..kept.frame_to_keep() };
                let mut cut = FrameInPieces::new(
                    number,
                    kept.bytes.clone(),
                    keeping,
                    path.frame_bytes().into(),
                );
                (cut.again, cut.rescue) = (true, rescue);
                self.cutting.push(cut);
                return self.transmit_piece(now, frame);
            }
            frame.extend_from_slice(&kept.bytes);
            path.on_sent(number, bytes, false, now);
            self.stats.copied_frame_bytes += bytes as u64;
            self.stats.rescued_frame_bytes += if rescue { bytes as u64 } else { 0 };
            self.policy.on_sent(now, bytes as u64, true);
            return Some(Transmit { path: id, bytes });
        }
        None
    }

    /// Sends a repair of a group that has ended, or the copy of its only frame.
    fn transmit_repair(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<Transmit> {
        while self.coding.next_repair().is_none() {
            let group = self.coding.take_ended(now)?;
            match (self.repairs_of(&group, now), group.only_frame()) {
                (None, _) => self.coding.let_go(group),
                (Some(repairs), None) => self.coding.start_repairs(group, repairs),
                (Some(Repairs { path, .. }), Some(number)) => {
                    self.coding.let_go(group);
                    self.copy(Copy { number, path, rescue: false });
                    if let Some(transmit) = self.transmit_copy(now, frame) {
                        return Some(transmit);
                    }
                }
            }
        }
        let (group, id, row) = self.coding.next_repair()?;
        frame.resize(HEADER_BYTES, 0);
        group.write(row, frame);
        let bytes = frame.len() + TAG_BYTES;
        let fits = |path: &&mut Path| {
            path.id() == id && bytes <= path.frame_bytes().into() && path.has_room_for_copy(bytes)
        };
        let Some(at) = self.paths.iter_mut().position(|path| fits(&path)) else {
            self.coding.on_repair(None);
            frame.clear();
            return None;
        };
        let number = self.seal(frame);
        self.coding.on_repair(Some(number));
        self.paths[at].on_sent(number, bytes, false, now);
        self.stats.copied_frame_bytes += bytes as u64;
        self.stats.repair_frame_bytes += bytes as u64;
        self.policy.on_sent(now, bytes as u64, true);
        Some(Transmit { path: id, bytes })
    }

    fn repairs_of(&mut self, group: &Coded, now: Instant) -> Option<Repairs> {
        if group.deadline <= now {
            return None;
        }
        let bytes = group.repair_bytes().saturating_sub(datagram_overhead(u64::MAX, None));
        self.update_path_views(bytes, None, now);
        let class = self.flows.known(group.flow).map_or(FlowClass::Steady, |flow| flow.class);
        let flow = self.flow_view(group.flow, class, bytes, group.deadline);
        let context = DatagramContext { now, paths: &self.views, repairs: self.peer_repairs };
        let frames = group.view().frames;
        let repairs = self.policy.repairs(&context, &flow, group.view())?;
        let count = repairs.count.clamp(1, frames);
        context.path(repairs.path).map(|path| Repairs { path: path.id, count })
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
                if let Some(flow) = self.flows.known(next.flow) {
                    flow.record_wait(Some(now.since(next.queued_at)));
                }
                return self.send_datagrams(at, next, now, frame);
            }
        }
        None
    }

    /// Builds a frame of a datagram and of following ones that fit and have the same path.
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

    fn copy(&mut self, copy: Copy) {
        if self.copies.len() < MAX_COPIES {
            self.copies.push_back(copy);
        }
    }

    /// Adds optional items if there is room: a pending ACK, and the MTU if it has changed.
    fn write_optional_items(&mut self, at: usize, room: usize, now: Instant, frame: &mut Vec<u8>) {
        const SIZE_BYTES: usize = 4;
        let path = &mut self.paths[at];
        let id = path.id();
        let before = frame.len();
        if path.received().is_waiting() && path.received().ack(id, now).write(frame, room) {
            path.received().on_acked();
        }
        if frame.len() - before + SIZE_BYTES <= room
            && let Some(bytes) = path.mtu().take_unannounced_size()
        {
            frame::write_size(frame, id, bytes);
        }
    }

    /// Sends frames without datagrams: due ACKs, round-trip probes and MTU probes.
    fn transmit_control(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<Transmit> {
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
            if path.received().due_at().is_some_and(|due| due <= now) {
                frame.resize(HEADER_BYTES, 0);
                path.received().ack(id, now).write(frame, most);
                path.received().on_acked();
                // If the peer does not acknowledge our frames on this path, it does not receive the ACK there
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

    /// `asks`: `Some` for an ack-eliciting frame; true for an MTU probe.
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

    /// Assigns a number to a frame and seals it. `frame` contains room for the header, and the body.
    fn seal(&mut self, frame: &mut Vec<u8>) -> u64 {
        let number = self.next_number;
        // A long frame counts as several packets.
        self.next_number += 1 + (frame.len() / LONG_SEALED_BYTES) as u64;
        let header = Header { lane: self.ids.peers, packet_number: number }.bytes();
        let (start, body) = frame.split_at_mut(HEADER_BYTES);
        start.copy_from_slice(&header);
        let tag = self.keys.seal.seal(number, &header, body);
        frame.extend_from_slice(&tag);
        let most = self.packets_at_most();
        if self.next_number >= most - most / 8 && !self.key_limit_reported {
            self.key_limit_reported = true;
            self.inbox.push_notice(Notice::KeysSpent);
        }
        number
    }
}

#[cfg(test)]
mod tests;
