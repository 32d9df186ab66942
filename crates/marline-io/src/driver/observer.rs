//! The interface of an observer: what it is shown of the segments that pass.

use core::net::IpAddr;

use marline_core::{Ecn, FourTuple, PacketMeta, Transmit};
use marline_link::Direction;
use marline_time::Instant;

/// Segments of one path that pass together: a batch on its way out, or one that came in.
pub(super) struct Passing<'a> {
    pub(super) at: Instant,
    pub(super) direction: Direction,
    pub(super) path: &'a FourTuple,
    pub(super) ecn: Ecn,
    datagrams: &'a [u8],
    stride: usize,
    /// Bytes before each segment.
    headroom: usize,
}

impl<'a> Passing<'a> {
    /// A batch of the core, with so much room for the carrier's header before each segment.
    pub(super) fn out(now: Instant, batch: &'a Transmit, bytes: &'a [u8], headroom: usize) -> Self {
        Passing {
            at: now,
            direction: Direction::Up,
            path: &batch.path,
            ecn: batch.ecn,
            datagrams: bytes,
            stride: batch.stride,
            headroom,
        }
    }

    /// A segment that came in.
    pub(super) fn came(now: Instant, meta: &'a PacketMeta, segment: &'a [u8]) -> Self {
        Passing {
            at: now,
            direction: Direction::Down,
            path: &meta.path,
            ecn: meta.ecn,
            datagrams: segment,
            stride: segment.len(),
            headroom: 0,
        }
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = &'a [u8]> {
        let headroom = self.headroom;
        let datagrams = self.datagrams.chunks(self.stride.max(1));
        datagrams.map(move |datagram| datagram.get(headroom..).unwrap_or_default())
    }

    /// Our address.
    pub(super) const fn local_ip(&self) -> IpAddr {
        self.path.local.ip()
    }
}

/// Something that sees every segment.
pub(super) trait PacketObserver {
    fn observe(&mut self, passing: &Passing<'_>);
}
