//! Segments of several connections that leave in one system call.
//!
//! They go from one socket to one peer, with one ECN codepoint, and are of one length but for the last: then the kernel
//! takes them as it takes the segments of one connection (GSO). Their order stays as the core gave it.

use marline_core::Ecn;
use marline_time::Instant;

use super::egress::{Outgoing, Sender};
use super::frame_batch::FrameBatch;
use super::state::State;
use crate::carrier::Outer;

/// Bytes of the largest batch that is copied to be with others: more is worth a system call of its own.
const LARGEST: usize = 4 << 10;

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

impl State {
    /// Hands segments to the kernel: at once, or with those that follow, at the latest with
    /// [`send_gathered`](Self::send_gathered).
    pub(super) fn gather(&mut self, now: Instant, out: &Outgoing<'_>) {
        let (to, size) = ((out.outer, out.ecn), (out.stride, out.bytes.len()));
        if !self.gathered.batch.takes(to, size) {
            self.send_gathered(now);
        }
        if size.1 > LARGEST || !self.sends_runs(&out.outer) {
            self.send_gathered(now);
            self.send(now, out);
            return;
        }
        if self.may_send_datagram(now, out) {
            self.gathered.batch.push(to, out.stride, out.bytes);
            let (sender, stride, len) = (out.sender, out.stride, out.bytes.len());
            self.gathered.parts.push(Part { sender, stride, len });
        }
    }

    /// Whether it is a UDP socket from which the kernel takes several datagrams in one call.
    fn sends_runs(&self, outer: &Outer) -> bool {
        let entry = self.sockets.get(usize::from(outer.socket)).and_then(Option::as_ref);
        !outer.is_link() && entry.is_some_and(|entry| entry.socket.sends_runs())
    }

    /// Hands what was gathered to the kernel.
    pub(super) fn send_gathered(&mut self, now: Instant) {
        let Some((outer, ecn)) = self.gathered.batch.to() else { return };
        let mut gathered = core::mem::take(&mut self.gathered);
        let (stride, bytes) = gathered.batch.bytes();
        let together = Outgoing { outer, ecn, stride, bytes, sender: Sender::Carrier };
        match gathered.parts.as_slice() {
            [Part { sender, .. }] => {
                self.hand_over(now, &Outgoing { outer, ecn, stride, bytes, sender: *sender });
            }
            // Who is to know of an error is found by sending each alone.
            parts if self.try_send(now, &together).is_err() => {
                let mut rest = bytes;
                for Part { sender, stride, len } in parts {
                    let (bytes, others) = rest.split_at(*len);
                    let (stride, sender) = (*stride, *sender);
                    self.hand_over(now, &Outgoing { outer, ecn, stride, bytes, sender });
                    rest = others;
                }
            }
            _ => {}
        }
        gathered.batch.clear();
        gathered.parts.clear();
        self.gathered = gathered;
    }
}

#[cfg(test)]
mod tests;
