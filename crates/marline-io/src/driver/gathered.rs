//! Segments of several connections that are sent with one system call.
//!
//! They go from one socket to one peer with one ECN codepoint and have the same length, except that the last may be
//! shorter. So the kernel takes them like the segments of one connection (GSO). Their order is the core's.

use marline_core::Ecn;

use super::frame_batch::FrameBatch;
use super::outgoing::{Outgoing, Sender};
use crate::carrier::Outer;

/// Batches for one system call.
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
        self.batch.takes((out.outer, out.ecn), (out.stride, out.bytes.len()))
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
