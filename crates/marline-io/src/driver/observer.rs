//! Observer interfaces for segments, for the paths that they use, and for events of connections.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use marline_core::{Ecn, FourTuple, MonitorEvent, PacketMeta, Transmit};
use marline_time::Instant;

use super::carrier::Carrier;
use crate::path_spec::PathSpec;

/// Direction in which segments pass.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the peer.
    Out,
    /// From the peer.
    In,
}

/// Segments of one path that are sent or received together.
#[derive(Debug)]
pub struct ObservedSegments<'a> {
    /// Time by the clock of the drivers ([`Clock`](crate::Clock)).
    pub at: Instant,
    /// Direction.
    pub direction: Direction,
    /// Local and remote address.
    pub path: &'a FourTuple,
    pub(super) ecn: Ecn,
    datagrams: &'a [u8],
    stride: usize,
    /// Bytes before each segment.
    headroom: usize,
    /// Length of the carrier's headers between the IP header and the segment.
    carrier_header: usize,
}

impl<'a> ObservedSegments<'a> {
    /// Batch of the core, with headroom for the carrier's header before each segment.
    pub(super) fn out(
        now: Instant,
        batch: &'a Transmit,
        bytes: &'a [u8],
        carrier: &Carrier,
    ) -> Self {
        ObservedSegments {
            at: now,
            direction: Direction::Out,
            path: &batch.path,
            ecn: batch.ecn,
            datagrams: bytes,
            stride: batch.stride,
            headroom: carrier.headroom(),
            carrier_header: carrier.header(),
        }
    }

    /// Incoming segment, with the length of the carrier's headers.
    pub(super) fn came(
        now: Instant,
        meta: &'a PacketMeta,
        segment: &'a [u8],
        carrier_header: usize,
    ) -> Self {
        ObservedSegments {
            at: now,
            direction: Direction::In,
            path: &meta.path,
            ecn: meta.ecn,
            datagrams: segment,
            stride: segment.len(),
            headroom: 0,
            carrier_header,
        }
    }

    /// TCP segments, each from its header on.
    pub fn segments(&self) -> impl Iterator<Item = &'a [u8]> {
        let headroom = self.headroom;
        let datagrams = self.datagrams.chunks(self.stride.max(1));
        datagrams.map(move |datagram| datagram.get(headroom..).unwrap_or_default())
    }

    /// Local address.
    #[must_use]
    pub const fn local_ip(&self) -> IpAddr {
        self.path.local.ip()
    }

    /// Total length of the IP packets of all segments, including the carrier's headers.
    #[must_use]
    pub fn packet_bytes(&self) -> u64 {
        let ip = if self.path.local.is_ipv4() { 20 } else { 40 };
        let header = ip + self.carrier_header;
        let bytes: usize = self.segments().map(|segment| segment.len() + header).sum();
        bytes as u64
    }
}

/// State of a client's path, as reported to observers.
#[derive(Copy, Clone, Debug)]
pub struct ObservedPath<'a> {
    /// Number among the client's paths, starting at 0.
    pub number: usize,
    /// Spec of the path, as configured or discovered.
    pub spec: &'a PathSpec,
    /// Interface that the path uses now, if known.
    pub interface: Option<&'a str>,
    /// Current addresses; empty if the path cannot be used.
    pub addresses: &'a [IpAddr],
}

/// Observer of every segment of a driver: outgoing ones before the carrier's header is written, incoming ones after
/// it was removed. An observer can neither change nor delay them.
///
/// The driver is locked during the call: an observer must return quickly and must not call anything that sends.
pub trait PacketObserver: fmt::Debug + Send {
    /// Called for segments that are sent or received.
    fn observe(&mut self, observed: &ObservedSegments<'_>);

    /// Called for frames without segments: those of lanes, and the carrier's own. `bytes` is the approximate length
    /// of the IP packets.
    fn frames(&mut self, _direction: Direction, _local: IpAddr, _remote: SocketAddr, _bytes: u64) {}

    /// Called with the state of a client's path from `at` on. All paths are reported whenever one of them may have
    /// changed.
    fn path(&mut self, _at: Instant, _path: &ObservedPath<'_>) {}
}

/// Observer that its owner can also query.
pub type SharedObserver = Arc<Mutex<dyn PacketObserver>>;

impl PacketObserver for SharedObserver {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        self.lock().unwrap_or_else(PoisonError::into_inner).observe(observed);
    }

    fn frames(&mut self, direction: Direction, local: IpAddr, remote: SocketAddr, bytes: u64) {
        let mut observer = self.lock().unwrap_or_else(PoisonError::into_inner);
        observer.frames(direction, local, remote, bytes);
    }

    fn path(&mut self, at: Instant, path: &ObservedPath<'_>) {
        self.lock().unwrap_or_else(PoisonError::into_inner).path(at, path);
    }
}

/// Observer of all events of a driver's connections: monitor events, and the traffic of all connections
/// ([`MonitorKind::Traffic`](marline_core::MonitorKind::Traffic)). Decisions are included only while they have a
/// subscriber.
///
/// The driver is locked during the call, so an observer must return quickly. Unlike receivers of monitor events, it
/// misses nothing, and it costs time for each segment.
pub trait EventObserver: fmt::Debug + Send {
    /// Called for each event. Connection ids are those that applications use.
    fn event(&mut self, event: &MonitorEvent);

    /// Returns true if more events are wanted. Called after each event; after false, no more events follow.
    fn is_open(&self) -> bool {
        true
    }
}

/// Event observer that several drivers can share.
pub type SharedEventObserver = Arc<Mutex<dyn EventObserver>>;
