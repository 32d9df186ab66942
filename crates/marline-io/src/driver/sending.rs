//! Bytes on their way to the kernel: senders, errors, and buffers for segments, lane frames, batches of several senders
//! for one system call, and batches for which the kernel had no room.

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};
use std::io;

use marline_core::{Ecn, Endpoint, FourTuple, Transmit, TransmitBuf};
use marline_datagram::PathId;
use marline_time::Instant;

use crate::carrier::{LARGEST_DATAGRAM, Outer};

/// Bytes for the kernel.
#[derive(Copy, Clone)]
pub(crate) struct Outgoing<'a> {
    pub(crate) outer: Outer,
    pub(crate) ecn: Ecn,
    /// Offset from one datagram to the next; 0 for a single datagram.
    pub(crate) stride: usize,
    pub(crate) bytes: &'a [u8],
    pub(crate) sender: Sender,
}

/// Sender to notify if bytes are not sent.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Sender {
    /// The carrier itself, which needs no notification.
    Carrier,
    /// Subflow: path, and our flow id.
    Subflow(FourTuple, u64),
    /// Path of a lane, with our id of the lane.
    Lane(u64, PathId),
}

/// Failure to send a batch, or part of it.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) error: io::Error,
    /// Number of bytes of the batch that were sent.
    pub(crate) sent: usize,
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        SendError { error, sent: 0 }
    }
}

impl SendError {
    /// Adds `before` bytes of the batch that had already been sent.
    pub(crate) fn with_sent_before(self, before: usize) -> SendError {
        SendError { sent: self.sent + before, ..self }
    }

    /// Returns true if the kernel has no room at the moment.
    pub(crate) fn would_block(&self) -> bool {
        self.error.kind() == io::ErrorKind::WouldBlock
    }
}

/// Maximum number of batches that wait for room in the kernel. Further batches are dropped, as in a router.
const STALLED_CAPACITY: usize = 32;

/// Maximum number of datagrams in one batch: those in a 64 KiB GSO send.
const BATCH_DATAGRAMS: usize = 44;

/// Maximum length of one batch, in bytes.
const BATCH_BYTES: usize = BATCH_DATAGRAMS * LARGEST_DATAGRAM as usize;

/// Datagrams to one destination that the kernel takes in one call. All have the same length, except that the last may
/// be shorter.
#[derive(Debug)]
struct FrameBatch<To> {
    to: Option<To>,
    stride: usize,
    closed: bool,
    bytes: Vec<u8>,
}

impl<To> Default for FrameBatch<To> {
    fn default() -> Self {
        FrameBatch { to: None, stride: 0, closed: false, bytes: Vec::new() }
    }
}

impl<To: Copy + PartialEq> FrameBatch<To> {
    /// Returns the destination of the batch; `None` if it is empty.
    const fn to(&self) -> Option<To> {
        self.to
    }

    /// Returns the offset from one datagram to the next (0 if there is only one), and the datagrams.
    fn bytes(&self) -> (usize, &[u8]) {
        let stride = if self.bytes.len() > self.stride { self.stride } else { 0 };
        (stride, &self.bytes)
    }

    /// Returns true if these datagrams fit: `len` bytes, with `stride` from one to the next (0 for a single datagram).
    fn accepts(&self, to: To, stride: usize, len: usize) -> bool {
        let Some(known) = self.to else { return true };
        let one = stride == 0 || len <= stride;
        let fits = if one { len <= self.stride } else { stride == self.stride };
        let room = self.bytes.len() + len <= BATCH_BYTES.min(BATCH_DATAGRAMS * self.stride);
        known == to && !self.closed && fits && room
    }

    /// Appends datagrams.
    fn push(&mut self, to: To, stride: usize, datagrams: &[u8]) {
        if self.to.is_none() {
            let one = stride == 0 || datagrams.len() <= stride;
            (self.to, self.stride) = (Some(to), if one { datagrams.len() } else { stride });
        }
        self.bytes.extend_from_slice(datagrams);
        self.closed = !self.bytes.len().is_multiple_of(self.stride);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        (self.to, self.closed) = (None, false);
    }
}

/// Segments of several connections for one system call, in the order of the core. They go from one socket to one peer
/// with one ECN codepoint and have the same length, except that the last may be shorter. So the kernel takes them like
/// segments of one connection (GSO).
#[derive(Debug, Default)]
pub(super) struct SegmentBatch {
    batch: FrameBatch<(Outer, Ecn)>,
    parts: Vec<Part>,
}

/// Batch of one sender.
#[derive(Debug)]
struct Part {
    sender: Sender,
    stride: usize,
    len: usize,
}

impl SegmentBatch {
    /// Returns true if `out` may be appended.
    pub(super) fn accepts(&self, out: &Outgoing<'_>) -> bool {
        self.batch.accepts((out.outer, out.ecn), out.stride, out.bytes.len())
    }

    fn push(&mut self, out: &Outgoing<'_>) {
        self.batch.push((out.outer, out.ecn), out.stride, out.bytes);
        let (sender, stride, len) = (out.sender, out.stride, out.bytes.len());
        self.parts.push(Part { sender, stride, len });
    }

    /// Returns everything as one batch, with the first sender and the number of batches; `None` if it is empty.
    pub(super) fn as_one_send(&self) -> Option<(Outgoing<'_>, usize)> {
        let (outer, ecn) = self.batch.to()?;
        let sender = self.parts.first()?.sender;
        let (stride, bytes) = self.batch.bytes();
        Some((Outgoing { outer, ecn, stride, bytes, sender }, self.parts.len()))
    }

    /// Iterates over the batches.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Outgoing<'_>> {
        let (_, mut rest) = self.batch.bytes();
        let to = self.batch.to();
        self.parts.iter().filter_map(move |Part { sender, stride, len }| {
            let ((outer, ecn), (bytes, others)) = (to?, rest.split_at_checked(*len)?);
            rest = others;
            Some(Outgoing { outer, ecn, stride: *stride, bytes, sender: *sender })
        })
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.parts.clear();
    }
}

/// Frames of one lane for one system call.
#[derive(Debug, Default)]
pub(super) struct LaneBatch(FrameBatch<(Outer, PathId)>);

impl LaneBatch {
    /// Returns true if a frame of this length may be appended.
    pub(super) fn accepts(&self, outer: Outer, path: PathId, len: usize) -> bool {
        self.0.accepts((outer, path), 0, len)
    }

    pub(super) fn push(&mut self, outer: Outer, path: PathId, frame: &[u8]) {
        self.0.push((outer, path), 0, frame);
    }

    /// Returns the frames of lane `id` as one batch; `None` if it is empty.
    pub(super) fn as_one_send(&self, id: u64) -> Option<Outgoing<'_>> {
        let (outer, path) = self.0.to()?;
        let (stride, bytes) = self.0.bytes();
        Some(Outgoing { outer, ecn: Ecn::NotEct, stride, bytes, sender: Sender::Lane(id, path) })
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Batch for which the kernel had no room.
#[derive(Debug)]
pub(super) struct StalledBatch {
    pub(crate) outer: Outer,
    pub(crate) ecn: Ecn,
    pub(crate) stride: usize,
    pub(crate) bytes: Vec<u8>,
}

/// Batches that wait for room, in order, by source address, so that a slow network does not delay the others.
#[derive(Debug, Default)]
pub(super) struct StalledQueue {
    batches: BTreeMap<IpAddr, VecDeque<StalledBatch>>,
}

impl StalledQueue {
    /// Returns true if a batch from this address is already waiting.
    pub(super) fn contains_address(&self, local: IpAddr) -> bool {
        self.batches.contains_key(&local)
    }

    pub(super) fn push(&mut self, batch: StalledBatch) {
        let queue = self.batches.entry(batch.outer.local).or_default();
        // If the queue is full, the batch is lost, as in a router.
        if queue.len() < STALLED_CAPACITY {
            queue.push_back(batch);
        }
    }

    /// Tries all batches again. Returns true if some still wait.
    pub(super) fn retry(&mut self, send: impl Fn(&StalledBatch) -> Result<(), SendError>) -> bool {
        self.batches.retain(|_, queue| {
            while let Some(batch) = queue.front_mut() {
                match send(batch) {
                    Err(failed) if failed.would_block() => {
                        batch.bytes.drain(..failed.sent.min(batch.bytes.len()));
                        return true;
                    }
                    // On any other error the batch is lost, like any datagram.
                    _ => queue.pop_front(),
                };
            }
            false
        });
        !self.batches.is_empty()
    }
}

/// Buffers of a shard for sending. A buffer in use is taken out and given back, so that nothing is allocated per batch.
pub(super) struct Sending {
    /// Batch that the core fills, and a second one for use while the first is being sent.
    out: TransmitBuf,
    spare: Option<TransmitBuf>,
    headroom: usize,
    /// True if segments may be combined into one packet.
    combines_segments: bool,
    /// Segments for one system call.
    gathered: SegmentBatch,
    /// Lane frames that are being sent.
    frames: LaneBatch,
    scratch: Vec<u8>,
}

impl Sending {
    pub(super) fn new(headroom: usize) -> Sending {
        Sending {
            out: transmit_buffer(headroom, false),
            spare: None,
            headroom,
            combines_segments: false,
            gathered: SegmentBatch::default(),
            frames: LaneBatch::default(),
            scratch: Vec::new(),
        }
    }

    /// Sets whether segments may be combined into one packet.
    pub(super) fn combine_segments(&mut self, combines_segments: bool) {
        self.out.combine_segments(combines_segments);
        self.combines_segments = combines_segments;
        self.spare = None;
    }

    /// Lets the core write its next batch.
    pub(super) fn fill(&mut self, endpoint: &mut Endpoint, now: Instant) -> Option<Transmit> {
        endpoint.poll_transmit(now, &mut self.out)
    }

    /// Takes the batch; meanwhile, the core can fill the other buffer.
    pub(super) fn take_batch(&mut self) -> TransmitBuf {
        let (headroom, combines_segments) = (self.headroom, self.combines_segments);
        let spare = self.spare.take();
        let spare = spare.unwrap_or_else(|| transmit_buffer(headroom, combines_segments));
        core::mem::replace(&mut self.out, spare)
    }

    /// Gives the buffer of a batch back.
    pub(super) fn give_batch_back(&mut self, batch: TransmitBuf) {
        self.spare = Some(core::mem::replace(&mut self.out, batch));
    }

    pub(super) fn segment_batch(&self) -> &SegmentBatch {
        &self.gathered
    }

    /// Adds a batch to those for one system call.
    pub(super) fn gather(&mut self, out: &Outgoing<'_>) {
        self.gathered.push(out);
    }

    /// Takes the batches for one system call.
    pub(super) fn take_gathered(&mut self) -> SegmentBatch {
        core::mem::take(&mut self.gathered)
    }

    pub(super) fn give_gathered_back(&mut self, mut gathered: SegmentBatch) {
        gathered.clear();
        self.gathered = gathered;
    }

    pub(super) fn take_frames(&mut self) -> LaneBatch {
        core::mem::take(&mut self.frames)
    }

    pub(super) fn give_frames_back(&mut self, frames: LaneBatch) {
        self.frames = frames;
    }

    pub(super) fn take_scratch(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.scratch)
    }

    pub(super) fn give_scratch_back(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
    }
}

/// Creates an empty buffer for one batch. With `combines_segments`, its segments may be combined into one packet.
fn transmit_buffer(headroom: usize, combines_segments: bool) -> TransmitBuf {
    let mut buffer = TransmitBuf::new(headroom, BATCH_DATAGRAMS);
    buffer.combine_segments(combines_segments);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_one_destination_and_equal_lengths_except_the_last() {
        let mut batch = FrameBatch::default();
        for len in [1_200, 1_200, 700] {
            assert!(batch.accepts('a', 0, len));
            batch.push('a', 0, &vec![0; len]);
        }
        assert_eq!(batch.bytes(), (1_200, &[0; 3_100][..]));
        assert!(!batch.accepts('a', 0, 700), "a shorter datagram ends the batch");
        batch.clear();
        batch.push('a', 0, &[0; 700]);
        assert_eq!(batch.bytes(), (0, &[0; 700][..]));
        assert!(!batch.accepts('a', 0, 701) && !batch.accepts('b', 0, 700));
        assert!(batch.accepts('a', 0, 700));
    }

    #[test]
    fn batches_of_equal_length_are_appended() {
        let mut batch = FrameBatch::default();
        batch.push('a', 700, &[0; 1_400]);
        assert!(batch.accepts('a', 700, 2_000) && batch.accepts('a', 0, 600));
        assert!(!batch.accepts('a', 600, 1_200) && !batch.accepts('a', 800, 1_600));
        assert!(batch.accepts('a', 800, 700), "a single datagram");
        batch.push('a', 700, &[0; 1_000]);
        assert_eq!(batch.bytes(), (700, &[0; 2_400][..]));
        assert!(!batch.accepts('a', 0, 300), "the last datagram was shorter");
    }

    #[test]
    fn a_batch_is_no_longer_than_the_kernel_takes() {
        for len in [34, 1_472] {
            let mut batch = FrameBatch::default();
            while batch.accepts('a', 0, len) {
                batch.push('a', 0, &vec![0; len]);
            }
            assert_eq!(batch.bytes.len(), BATCH_DATAGRAMS * len);
        }
    }
}
