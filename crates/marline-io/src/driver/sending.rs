//! Buffers of what a shard sends: segments, frames of lanes, and batches of several senders for one system call.

use marline_core::Ecn;

use super::outgoing::{Outgoing, Sender};
use crate::carrier::{LARGEST_DATAGRAM, Outer};

/// Datagrams and bytes of one batch: the content of a 64 KiB GSO send.
const BATCH_FRAMES: usize = 44;
const BATCH_BYTES: usize = BATCH_FRAMES * LARGEST_DATAGRAM as usize;

/// Datagrams to one destination that the kernel takes in one call. All have the same length, but the last may be
/// shorter.
#[derive(Debug)]
pub(super) struct FrameBatch<To> {
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
    /// Destination of the batch; `None` if it is empty.
    pub(super) const fn to(&self) -> Option<To> {
        self.to
    }

    /// Offset from one datagram to the next (0 if there is only one), and the datagrams.
    pub(super) fn bytes(&self) -> (usize, &[u8]) {
        let stride = if self.bytes.len() > self.stride { self.stride } else { 0 };
        (stride, &self.bytes)
    }

    /// Returns true if datagrams may be appended: `len` bytes, with `stride` from one to the next (0 for a single
    /// datagram).
    pub(super) fn takes(&self, to: To, stride: usize, len: usize) -> bool {
        let Some(known) = self.to else { return true };
        let one = stride == 0 || len <= stride;
        let fits = if one { len <= self.stride } else { stride == self.stride };
        let room = self.bytes.len() + len <= BATCH_BYTES.min(BATCH_FRAMES * self.stride);
        known == to && !self.closed && fits && room
    }

    /// Appends datagrams.
    pub(super) fn push(&mut self, to: To, stride: usize, datagrams: &[u8]) {
        if self.to.is_none() {
            let one = stride == 0 || datagrams.len() <= stride;
            (self.to, self.stride) = (Some(to), if one { datagrams.len() } else { stride });
        }
        self.bytes.extend_from_slice(datagrams);
        self.closed = !self.bytes.len().is_multiple_of(self.stride);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.to, self.closed) = (None, false);
    }
}

/// Segments of several connections for one system call. They go from one socket to one peer with one ECN codepoint
/// and have the same length, except that the last may be shorter. So the kernel takes them like the segments of one
/// connection (GSO). Their order is the core's.
#[derive(Debug, Default)]
pub(super) struct Gathered {
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

impl Gathered {
    /// Returns true if `out` may be appended.
    pub(super) fn takes(&self, out: &Outgoing<'_>) -> bool {
        self.batch.takes((out.outer, out.ecn), out.stride, out.bytes.len())
    }

    pub(super) fn push(&mut self, out: &Outgoing<'_>) {
        self.batch.push((out.outer, out.ecn), out.stride, out.bytes);
        let (sender, stride, len) = (out.sender, out.stride, out.bytes.len());
        self.parts.push(Part { sender, stride, len });
    }

    /// Returns everything as one batch, with the first sender, and the number of batches in it; `None` if it is
    /// empty.
    pub(super) fn together(&self) -> Option<(Outgoing<'_>, usize)> {
        let (outer, ecn) = self.batch.to()?;
        let sender = self.parts.first()?.sender;
        let (stride, bytes) = self.batch.bytes();
        Some((Outgoing { outer, ecn, stride, bytes, sender }, self.parts.len()))
    }

    /// Iterates over the batches.
    pub(super) fn each(&self) -> impl Iterator<Item = Outgoing<'_>> {
        let (_, mut rest) = self.batch.bytes();
        let to = self.batch.to();
        self.parts.iter().filter_map(move |Part { sender, stride, len }| {
            let ((outer, ecn), (bytes, others)) = (to?, rest.split_at_checked(*len)?);
            rest = others;
            Some(Outgoing { outer, ecn, stride: *stride, bytes, sender: *sender })
        })
    }

    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.parts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_to_one_place_and_of_one_length_but_for_its_last() {
        let mut batch = FrameBatch::default();
        for len in [1_200, 1_200, 700] {
            assert!(batch.takes('a', 0, len));
            batch.push('a', 0, &vec![0; len]);
        }
        assert_eq!(batch.bytes(), (1_200, &[0; 3_100][..]));
        assert!(!batch.takes('a', 0, 700), "after a shorter one nothing follows");
        batch.clear();
        batch.push('a', 0, &[0; 700]);
        assert_eq!(batch.bytes(), (0, &[0; 700][..]));
        assert!(!batch.takes('a', 0, 701) && !batch.takes('b', 0, 700));
        assert!(batch.takes('a', 0, 700));
    }

    #[test]
    fn several_datagrams_follow_those_of_their_length() {
        let mut batch = FrameBatch::default();
        batch.push('a', 700, &[0; 1_400]);
        assert!(batch.takes('a', 700, 2_000) && batch.takes('a', 0, 600));
        assert!(!batch.takes('a', 600, 1_200) && !batch.takes('a', 800, 1_600));
        assert!(batch.takes('a', 800, 700), "it is one datagram");
        batch.push('a', 700, &[0; 1_000]);
        assert_eq!(batch.bytes(), (700, &[0; 2_400][..]));
        assert!(!batch.takes('a', 0, 300), "the last one was shorter");
    }

    #[test]
    fn a_batch_is_no_longer_than_the_kernel_takes() {
        for len in [34, 1_472] {
            let mut batch = FrameBatch::default();
            while batch.takes('a', 0, len) {
                batch.push('a', 0, &vec![0; len]);
            }
            assert_eq!(batch.bytes.len(), BATCH_FRAMES * len);
        }
    }
}
