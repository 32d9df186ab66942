//! Pieces: frames larger than a path allows are cut and reassembled.
//!
//! *Problem.* The maximum frame size of a path is known only after probing, and differs between paths. A datagram that
//! is rejected while the size is unknown, or because another path is narrower, is lost needlessly.
//!
//! *Solution.* A frame is sealed whole, as for a path without limits, and its bytes are sent as PIECE items in frames
//! of the path's size. Each of these frames has its own number, and is acknowledged, copied and retransmitted
//! individually. Once all have arrived, the whole frame is processed like a received one; the replay window ensures
//! that this happens only once. So a frame that was sent whole on one path can be sent again in pieces on a narrower
//! one.
//!
//! *Limits.* The sender cuts a frame only after it has sent the previous one. The receiver keeps at most
//! [`MAX_INCOMPLETE_FRAMES`] incomplete frames and [`MAX_INCOMPLETE_BYTES`]; the oldest are dropped first, and each is
//! dropped after [`MAX_INCOMPLETE_AGE`].

use std::collections::{BTreeMap, VecDeque};

use marline_policy::{FlowClass, PathId};
use marline_time::{Duration, Instant};
use marline_wire::Assembly;

use super::sent_frames::{Copy, FrameToKeep};
use super::{Lane, Transmit};
use crate::frame::{
    self, HEADER_BYTES, Header, Item, Items, MAX_WHOLE_FRAME, PIECE_OVERHEAD, Piece,
    SMALLEST_FRAME, TAG_BYTES,
};
use crate::path::Path;
use crate::queue::WaitingDatagram;

/// Maximum number of incomplete frames of a lane, and their maximum total size in bytes.
const MAX_INCOMPLETE_FRAMES: usize = 64;
const MAX_INCOMPLETE_BYTES: usize = 256 << 10;
/// Maximum age of an incomplete frame. It exceeds the maximum waiting time of a datagram at the sender plus the delay
/// difference between two paths.
const MAX_INCOMPLETE_AGE: Duration = Duration::from_secs(2);

/// Whole frame that is sent in pieces.
#[derive(Clone, Debug)]
pub(super) struct FrameInPieces {
    pub(super) number: u64,
    /// Sealed bytes of the whole frame.
    pub(super) whole: Vec<u8>,
    /// Data about the frame's datagram, and the path that it uses.
    pub(super) keeping: FrameToKeep,
    /// Path for a copy of each piece.
    pub(super) copy: Option<PathId>,
    /// True if the frame has already been sent. `rescue` is true if it is sent again because it was not acknowledged.
    pub(super) is_repeat: bool,
    pub(super) rescue: bool,
    /// Maximum length of the frames that carry the pieces, in bytes.
    pub(super) frame_bytes: usize,
    sent: usize,
}

impl FrameInPieces {
    pub(super) const fn new(
        number: u64,
        whole: Vec<u8>,
        keeping: FrameToKeep,
        frame_bytes: usize,
    ) -> Self {
        FrameInPieces {
            number,
            whole,
            keeping,
            copy: None,
            is_repeat: false,
            rescue: false,
            frame_bytes,
            sent: 0,
        }
    }

    /// Returns the next piece. All pieces have about the same length, because a short last piece costs as much as a
    /// long one.
    fn next(&mut self) -> Piece<'_> {
        let room = self.frame_bytes.saturating_sub(PIECE_OVERHEAD).max(1);
        let count = self.whole.len().div_ceil(room);
        let step = self.whole.len().div_ceil(count);
        let start = self.sent;
        self.sent = (start + step).min(self.whole.len());
        let bytes = &self.whole[start..self.sent];
        Piece { number: self.number, total: self.whole.len(), offset: start, bytes }
    }
}

/// Frames being sent in pieces.
#[derive(Debug, Default)]
pub(super) struct FragmentedFrames {
    leaving: VecDeque<FrameInPieces>,
}

impl FragmentedFrames {
    pub(super) fn push(&mut self, cut: FrameInPieces) {
        self.leaving.push_back(cut);
    }

    /// Current frame.
    pub(super) fn current(&self) -> Option<&FrameInPieces> {
        self.leaving.front()
    }

    /// Returns the next piece of the current frame.
    pub(super) fn next_piece(&mut self) -> Option<Piece<'_>> {
        self.leaving.front_mut().map(FrameInPieces::next)
    }

    /// Returns the buffer of the current frame if all its pieces have been sent, or if `give_up` is true.
    pub(super) fn take_done(&mut self, give_up: bool) -> Option<Vec<u8>> {
        let done = |cut: &FrameInPieces| give_up || cut.sent >= cut.whole.len();
        if self.leaving.front().is_some_and(done) {
            return self.leaving.pop_front().map(|cut| cut.whole);
        }
        None
    }
}

/// Incomplete frames, of which some pieces have arrived.
#[derive(Debug, Default)]
pub(super) struct PartialFrames {
    halves: BTreeMap<u64, PartialFrame>,
    bytes: usize,
    dropped: u64,
}

#[derive(Debug)]
struct PartialFrame {
    assembly: Assembly,
    total: usize,
    began_at: Instant,
}

/// Error for a piece that violates the rules.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct BadPiece;

impl PartialFrames {
    /// Stores a piece of an incomplete frame. Returns the frame if this was the last missing piece.
    pub(super) fn add_piece(
        &mut self,
        piece: &Piece<'_>,
        now: Instant,
    ) -> Result<Option<Vec<u8>>, BadPiece> {
        let Piece { number, total, offset, bytes } = *piece;
        let end = offset.checked_add(bytes.len()).ok_or(BadPiece)?;
        if !(SMALLEST_FRAME..=MAX_WHOLE_FRAME).contains(&total) || end > total || bytes.is_empty() {
            return Err(BadPiece);
        }
        self.expire(now);
        if !self.halves.contains_key(&number) {
            while self.halves.len() >= MAX_INCOMPLETE_FRAMES
                || self.bytes + total > MAX_INCOMPLETE_BYTES
            {
                self.drop_oldest();
            }
            self.bytes += total;
            let half = PartialFrame { assembly: Assembly::default(), total, began_at: now };
            self.halves.insert(number, half);
        }
        let half = self.halves.get_mut(&number).ok_or(BadPiece)?;
        if half.total != total {
            return Err(BadPiece);
        }
        half.assembly.add_piece(offset, bytes, end == total).map_err(|_| BadPiece)?;
        if half.assembly.complete_bytes().is_none() {
            return Ok(None);
        }
        Ok(self.remove_frame(number).and_then(|half| half.assembly.into_whole()))
    }

    /// Drops the pieces of a frame that has arrived in another way.
    pub(super) fn forget_frame(&mut self, number: u64) {
        if !self.halves.is_empty() {
            self.remove_frame(number);
        }
    }

    /// Drops frames that have been incomplete for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        let old = |half: &PartialFrame| now.since(half.began_at) > MAX_INCOMPLETE_AGE;
        while self.halves.values().any(old) {
            self.drop_oldest();
        }
    }

    /// Total length of the incomplete frames in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of dropped incomplete frames.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn drop_oldest(&mut self) {
        let oldest = self.halves.iter().min_by_key(|(_, half)| half.began_at);
        if let Some(number) = oldest.map(|(number, _)| *number) {
            self.remove_frame(number);
            self.dropped += 1;
        }
    }

    fn remove_frame(&mut self, number: u64) -> Option<PartialFrame> {
        let half = self.halves.remove(&number)?;
        self.bytes -= half.total;
        Some(half)
    }
}

impl Lane {
    /// Seals a datagram that does not fit into one frame of the path, to be sent in pieces.
    pub(super) fn cut_datagram(&mut self, at: usize, datagram: WaitingDatagram, now: Instant) {
        let WaitingDatagram { flow, class, deadline, copy, payload, .. } = datagram;
        let mut whole = self.spare.pop().unwrap_or_default();
        whole.clear();
        whole.resize(HEADER_BYTES, 0);
        frame::write_datagram(&mut whole, flow, &payload, true);
        let number = self.seal(&mut whole);
        let (id, most) = (self.paths[at].id(), self.paths[at].frame_bytes());
        let narrower = |path: PathId| self.paths.iter().find(|other| other.id() == path);
        let of_copy = copy.and_then(narrower).map_or(most, Path::frame_bytes);
        let payload_bytes = payload.len() as u32;
        let keeping =
            FrameToKeep { flow, class, payload_bytes, deadline: deadline.max(now), path: id };
        let mut cut = FrameInPieces::new(number, whole, keeping, most.min(of_copy).into());
        cut.copy = copy;
        self.fragmented.push(cut);
        self.stats.cut_datagrams += 1;
        self.reuse(payload);
    }

    /// Sends the next piece of a frame that is too large for its path.
    pub(super) fn transmit_piece(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<Transmit> {
        loop {
            let cut = self.fragmented.current()?;
            let (keeping, copy, again, rescue) = (cut.keeping, cut.copy, cut.is_repeat, cut.rescue);
            let at = self.paths.iter().position(|path| path.id() == keeping.path);
            let useless = keeping.deadline < now || self.next_number >= self.max_packets();
            let Some(at) = at.filter(|_| !useless) else {
                self.fragmented.take_done(true).into_iter().for_each(|memory| self.reuse(memory));
                continue;
            };
            frame.resize(HEADER_BYTES, 0);
            self.fragmented.next_piece()?.write(frame);
            let number = self.seal(frame);
            let bytes = frame.len();
            self.paths[at].on_sent(number, bytes, false, now);
            if keeping.class != FlowClass::Bulk || copy.is_some() {
                self.kept.store(number, frame, &keeping, self.kept_limits(), now);
            }
            if let Some(path) = copy {
                self.copy(Copy { number, path, rescue: false });
            }
            if let Some(memory) = self.fragmented.take_done(false) {
                self.reuse(memory);
            }
            let counted = bytes as u64;
            self.stats.first_frame_bytes += if again { 0 } else { counted };
            self.stats.copied_frame_bytes += if again { counted } else { 0 };
            self.stats.rescued_frame_bytes += if rescue { counted } else { 0 };
            self.policy.on_sent(now, counted, again);
            return Some(Transmit { path: keeping.path, bytes });
        }
    }

    /// Processes a piece. Its frame is processed once all pieces have arrived.
    pub(super) fn process_piece(&mut self, piece: &Piece<'_>, now: Instant) {
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
        let ours = Header { lane: self.ids.local, packet_number: piece.number };
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
        self.process_body(piece.number, body, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(number: u64, total: usize, offset: usize, bytes: &[u8]) -> Piece<'_> {
        Piece { number, total, offset, bytes }
    }

    #[test]
    fn incomplete_frames_are_bounded_in_number_bytes_and_time() {
        let mut halves = PartialFrames::default();
        for number in 0..1_000 {
            assert_eq!(halves.add_piece(&piece(number, 100, 0, &[1; 50]), Instant::ZERO), Ok(None));
        }
        assert_eq!(
            (halves.halves.len(), halves.dropped()),
            (MAX_INCOMPLETE_FRAMES, 1_000 - MAX_INCOMPLETE_FRAMES as u64)
        );
        for number in 1_000..2_000 {
            assert_eq!(
                halves.add_piece(&piece(number, MAX_WHOLE_FRAME, 0, &[1; 9]), Instant::ZERO),
                Ok(None)
            );
            assert!(halves.bytes <= MAX_INCOMPLETE_BYTES);
        }
        halves.expire(Instant::ZERO + MAX_INCOMPLETE_AGE);
        assert!(!halves.halves.is_empty());
        halves.expire(Instant::ZERO + MAX_INCOMPLETE_AGE + Duration::from_millis(1));
        assert_eq!((halves.halves.len(), halves.bytes), (0, 0));
    }

    #[test]
    fn pieces_that_break_the_rules_are_refused() {
        let mut halves = PartialFrames::default();
        let take =
            |halves: &mut PartialFrames, piece: Piece<'_>| halves.add_piece(&piece, Instant::ZERO);
        assert_eq!(take(&mut halves, piece(1, 20, 0, &[1; 9])), Err(BadPiece));
        assert_eq!(take(&mut halves, piece(1, MAX_WHOLE_FRAME + 1, 0, &[1; 9])), Err(BadPiece));
        assert_eq!(take(&mut halves, piece(1, 100, 95, &[1; 9])), Err(BadPiece));
        assert_eq!(take(&mut halves, piece(1, 100, usize::MAX, &[1; 9])), Err(BadPiece));
        assert_eq!(take(&mut halves, piece(1, 100, 0, &[])), Err(BadPiece));
        assert_eq!(take(&mut halves, piece(1, 100, 0, &[1; 60])), Ok(None));
        assert_eq!(take(&mut halves, piece(1, 101, 60, &[1; 41])), Err(BadPiece));
        assert_eq!(
            take(&mut halves, piece(1, 100, 60, &[2; 40])).map(|whole| whole.map(|w| w.len())),
            Ok(Some(100))
        );
        assert_eq!(halves.bytes, 0);
    }
}
