//! Observer interfaces: notification of passing segments and of the paths they use, and of what connections tell.

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

/// Segments of one path that pass together: an outgoing batch, or an incoming one.
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
    /// Bytes of the carrier's headers between the IP header and the segment.
    carrier_header: usize,
}

impl<'a> ObservedSegments<'a> {
    /// A batch of the core, with so much room for the carrier's header before each segment.
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

    /// A segment that came in, below so many bytes of the carrier's headers.
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

    /// Each TCP segment, from its header on.
    pub fn segments(&self) -> impl Iterator<Item = &'a [u8]> {
        let headroom = self.headroom;
        let datagrams = self.datagrams.chunks(self.stride.max(1));
        datagrams.map(move |datagram| datagram.get(headroom..).unwrap_or_default())
    }

    /// Our address.
    #[must_use]
    pub const fn local_ip(&self) -> IpAddr {
        self.path.local.ip()
    }

    /// Bytes of all segments as IP packets, with the carrier's headers.
    #[must_use]
    pub fn packet_bytes(&self) -> u64 {
        let ip = if self.path.local.is_ipv4() { 20 } else { 40 };
        let header = ip + self.carrier_header;
        let bytes: usize = self.segments().map(|segment| segment.len() + header).sum();
        bytes as u64
    }
}

/// A path of a client, as reported to observers.
#[derive(Copy, Clone, Debug)]
pub struct ObservedPath<'a> {
    /// Its number among the client's paths, from 0 on.
    pub number: usize,
    /// Its spec, as configured or discovered.
    pub spec: &'a PathSpec,
    /// The interface it goes over now, if known.
    pub interface: Option<&'a str>,
    /// Its current addresses; empty if it cannot be used.
    pub addresses: &'a [IpAddr],
}

/// Observer of every segment of a driver: outgoing ones before the carrier's header is written,
/// incoming ones after it was removed. It can neither change nor delay them.
///
/// The driver is locked during the call: an observer must be quick, and must not call anything that
/// sends.
pub trait PacketObserver: fmt::Debug + Send {
    /// These segments pass.
    fn observe(&mut self, observed: &ObservedSegments<'_>);

    /// Frames that are no segments pass: of lanes for datagrams, and the carrier's own. `bytes` are those of the IP
    /// packets, about.
    fn frames(&mut self, _direction: Direction, _local: IpAddr, _remote: SocketAddr, _bytes: u64) {}

    /// From `at` on this is how a client's path is. Said of each path whenever one of them may have
    /// changed.
    fn path(&mut self, _at: Instant, _path: &ObservedPath<'_>) {}
}

/// An observer that its owner can also query.
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

/// Observer of everything that the connections of a driver tell: monitor events, and the traffic of all of them
/// ([`MonitorKind::Traffic`](marline_core::MonitorKind::Traffic)); decisions only while somebody listens to them.
///
/// The driver is locked during the call: an observer must be quick. It misses nothing, unlike receivers of
/// monitor events, and costs time with each segment.
pub trait EventObserver: fmt::Debug + Send {
    /// This happened. Ids of connections are those that applications know.
    fn event(&mut self, event: &MonitorEvent);

    /// Whether it wants to be told of more. Asked after each event; no is for good.
    fn is_open(&self) -> bool {
        true
    }
}

/// An event observer that several drivers can tell.
pub type SharedEventObserver = Arc<Mutex<dyn EventObserver>>;
