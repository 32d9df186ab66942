//! Sealed frames kept to be sent again on another path: immediately, or if they are not acknowledged.

use std::collections::BTreeMap;

use marline_policy::{FlowClass, PathId};
use marline_time::Instant;

/// Frame to send again.
#[derive(Copy, Clone, Debug)]
pub(super) struct Copy {
    pub(super) number: u64,
    pub(super) path: PathId,
    pub(super) rescue: bool,
}

/// Frame that has been sent.
#[derive(Clone, Debug)]
pub(super) struct SentFrame {
    pub(super) bytes: Vec<u8>,
    /// Flow of the first datagram in the frame.
    pub(super) flow: u64,
    pub(super) class: FlowClass,
    pub(super) payload_bytes: u32,
    /// Time until which the frame is useful.
    pub(super) deadline: Instant,
    sent_at: Instant,
    /// Paths on which the frame was sent (bit set).
    on: u32,
}

impl SentFrame {
    pub(super) const fn was_sent_on(&self, path: PathId) -> bool {
        self.on & 1 << (path.0 & 31) != 0
    }

    /// Returns the data with which the frame was stored, except for its first path, which is no longer known.
    pub(super) const fn frame_to_keep(&self) -> FrameToKeep {
        let SentFrame { flow, class, payload_bytes, deadline, .. } = *self;
        FrameToKeep { flow, class, payload_bytes, deadline, path: PathId(0) }
    }

    pub(super) const fn record_path(&mut self, path: PathId) {
        self.on |= 1 << (path.0 & 31);
    }
}

/// Frames by number. The newest frames replace the oldest.
#[derive(Debug)]
pub(super) struct SentFrames {
    frames: BTreeMap<u64, SentFrame>,
    spare: Vec<Vec<u8>>,
    bytes: usize,
}

/// Data about a frame to keep.
#[derive(Copy, Clone, Debug)]
pub(super) struct FrameToKeep {
    pub(super) flow: u64,
    pub(super) class: FlowClass,
    pub(super) payload_bytes: u32,
    pub(super) deadline: Instant,
    pub(super) path: PathId,
}

/// Limits on kept frames.
#[derive(Copy, Clone, Debug)]
pub(super) struct KeptLimits {
    /// Maximum number of frames.
    pub(super) frames: usize,
    /// Maximum number of bytes in total.
    pub(super) bytes: usize,
}

impl SentFrames {
    pub(super) const fn new() -> Self {
        SentFrames { frames: BTreeMap::new(), spare: Vec::new(), bytes: 0 }
    }

    /// Total size of the frames in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Stores a frame within these limits.
    pub(super) fn store(
        &mut self,
        number: u64,
        frame: &[u8],
        keeping: &FrameToKeep,
        limits: KeptLimits,
        now: Instant,
    ) {
        while let Some((oldest, kept)) = self.frames.first_key_value()
            && (self.frames.len() >= limits.frames
                || self.bytes + frame.len() > limits.bytes
                || kept.deadline <= now)
        {
            let oldest = *oldest;
            self.remove_acked(oldest);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        let FrameToKeep { flow, class, payload_bytes, deadline, path } = *keeping;
        let mut kept =
            SentFrame { bytes, flow, class, payload_bytes, deadline, sent_at: now, on: 0 };
        kept.record_path(path);
        self.bytes += frame.len();
        self.frames.insert(number, kept);
    }

    pub(super) fn find(&mut self, number: u64) -> Option<&mut SentFrame> {
        self.frames.get_mut(&number)
    }

    /// Removes an acknowledged frame. Returns the time at which it was first sent.
    pub(super) fn remove_acked(&mut self, number: u64) -> Option<Instant> {
        let kept = self.frames.remove(&number)?;
        self.bytes -= kept.bytes.len();
        if self.spare.len() < 64 {
            self.spare.push(kept.bytes);
        }
        Some(kept.sent_at)
    }
}
