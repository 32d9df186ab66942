//! Batch of frames of a lane for the kernel, as the core makes one of segments.

use marline_datagram::PathId;

use crate::carrier::{LARGEST_DATAGRAM, Outer};

/// Frames, and bytes, of one batch: what fits the 64 KiB of a GSO send.
const BATCH_FRAMES: usize = 44;
const BATCH_BYTES: usize = BATCH_FRAMES * LARGEST_DATAGRAM as usize;

/// Frames for one path that the kernel takes in one call: all of one length, but for the last, which may be shorter.
#[derive(Debug, Default)]
pub(super) struct FrameBatch {
    to: Option<(Outer, PathId)>,
    stride: usize,
    closed: bool,
    bytes: Vec<u8>,
}

impl FrameBatch {
    /// Where it goes; `None`: nothing is in it.
    pub(super) const fn to(&self) -> Option<(Outer, PathId)> {
        self.to
    }

    /// Bytes from one frame to the next, 0 if there is one, and the frames.
    pub(super) fn bytes(&self) -> (usize, &[u8]) {
        let stride = if self.bytes.len() > self.stride { self.stride } else { 0 };
        (stride, &self.bytes)
    }

    /// Whether a frame may follow those that are in it.
    pub(super) fn takes(&self, to: (Outer, PathId), len: usize) -> bool {
        match self.to {
            None => true,
            Some(known) => {
                let room = self.bytes.len() + len <= BATCH_BYTES
                    && self.bytes.len() < BATCH_FRAMES * self.stride;
                known == to && room && !self.closed && len <= self.stride
            }
        }
    }

    pub(super) fn push(&mut self, to: (Outer, PathId), frame: &[u8]) {
        if self.to.is_none() {
            (self.to, self.stride) = (Some(to), frame.len());
        }
        self.closed = frame.len() < self.stride;
        self.bytes.extend_from_slice(frame);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.to, self.closed) = (None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(path: u8) -> (Outer, PathId) {
        let remote = core::net::SocketAddr::from(([192, 0, 2, 1], 7));
        (Outer { socket: 0, local: [192, 0, 2, 9].into(), remote }, PathId(path))
    }

    #[test]
    fn a_batch_is_of_one_path_and_one_length_but_for_its_last() {
        let mut batch = FrameBatch::default();
        for len in [1_200, 1_200, 700] {
            assert!(batch.takes(to(0), len));
            batch.push(to(0), &vec![0; len]);
        }
        assert!(!batch.takes(to(0), 700), "after a shorter one nothing follows");
        batch.clear();
        batch.push(to(0), &[0; 700]);
        assert!(!batch.takes(to(0), 701) && !batch.takes(to(1), 700) && batch.takes(to(0), 700));
    }

    #[test]
    fn a_batch_is_no_longer_than_the_kernel_takes() {
        for len in [34, 1_472] {
            let mut batch = FrameBatch::default();
            while batch.takes(to(0), len) {
                batch.push(to(0), &vec![0; len]);
            }
            assert_eq!(batch.bytes.len(), BATCH_FRAMES * len);
        }
    }
}
