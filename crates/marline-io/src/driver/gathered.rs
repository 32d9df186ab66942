//! Segments of several connections that leave in one system call.
//!
//! They go from one socket to one peer, with one ECN codepoint, and are of one length but for the last: then the kernel
//! takes them as it takes the segments of one connection (GSO). Their order stays as the core gave it.

use marline_core::Ecn;

use super::frame_batch::FrameBatch;
use super::outgoing::{Outgoing, Sender};
use crate::carrier::Outer;

/// Batches for one call.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    batch: FrameBatch<(Outer, Ecn)>,
    parts: Vec<Part>,
}

/// One of them.
#[derive(Debug)]
struct Part {
    sender: Sender,
    stride: usize,
    len: usize,
}

impl Gathered {
    /// Whether a batch may follow those that are in it.
    pub(super) fn takes(&self, out: &Outgoing<'_>) -> bool {
        self.batch.takes((out.outer, out.ecn), (out.stride, out.bytes.len()))
    }

    pub(super) fn push(&mut self, out: &Outgoing<'_>) {
        self.batch.push((out.outer, out.ecn), out.stride, out.bytes);
        let (sender, stride, len) = (out.sender, out.stride, out.bytes.len());
        self.parts.push(Part { sender, stride, len });
    }

    /// All of them as one, in the name of the first sender, and how many they are; `None`: nothing is in it.
    pub(super) fn together(&self) -> Option<(Outgoing<'_>, usize)> {
        let (outer, ecn) = self.batch.to()?;
        let sender = self.parts.first()?.sender;
        let (stride, bytes) = self.batch.bytes();
        Some((Outgoing { outer, ecn, stride, bytes, sender }, self.parts.len()))
    }

    /// Each of them.
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
