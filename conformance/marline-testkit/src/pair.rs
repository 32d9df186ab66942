//! Two endpoints and the packets between them, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use marline_core::{
    ChecksumScope, Endpoint, EndpointConfig, Event, FourTuple, PacketMeta, Transmit, TransmitBuf,
};
use marline_time::{Instant, SeedTree};

/// Maximum number of batches sent without time passing. A larger number indicates an endless loop.
const MAX_BURST: usize = 100_000;

/// Identifies one of the two endpoints.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first one.
    A,
    /// The second one.
    B,
}

impl Side {
    /// The other side.
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// A segment in flight.
#[derive(Clone, Debug)]
pub struct InFlightSegment {
    /// Receiver.
    pub to: Side,
    /// Metadata that the receiver's carrier will report.
    pub meta: PacketMeta,
    /// Bytes of the segment.
    pub bytes: Vec<u8>,
}

/// Treatment of a segment by the network.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SegmentOutcome {
    /// It arrives after this time.
    Arrive(Duration),
    /// It is lost.
    Drop,
    /// It arrives after the first time, and again after the second.
    Twice(Duration, Duration),
}

/// Two endpoints.
#[derive(Debug)]
pub struct Pair {
    a: Endpoint,
    b: Endpoint,
    now: Instant,
    buf: TransmitBuf,
    /// Segments by arrival time. The number keeps segments with equal times in order.
    flights: BTreeMap<(Instant, u64), InFlightSegment>,
    sent: u64,
    scope: ChecksumScope,
}

impl Pair {
    /// Two endpoints on carriers of the same kind. Equal seeds give equal runs.
    #[must_use]
    pub fn new(a: EndpointConfig, b: EndpointConfig, seed: u64) -> Self {
        let seeds = SeedTree::new(seed);
        let scope = a.capabilities.checksum;
        Pair {
            a: Endpoint::new(a, Box::new(seeds.stream("a"))),
            b: Endpoint::new(b, Box::new(seeds.stream("b"))),
            now: Instant::from_secs(1),
            buf: TransmitBuf::new(0, 16),
            flights: BTreeMap::new(),
            sent: 0,
            scope,
        }
    }

    /// The current time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// One of the endpoints.
    pub const fn endpoint(&mut self, side: Side) -> &mut Endpoint {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    /// Checksum scope of both carriers.
    #[must_use]
    pub const fn scope(&self) -> ChecksumScope {
        self.scope
    }

    /// Number of segments in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Puts a segment in flight.
    pub fn launch(&mut self, flight: InFlightSegment, after: Duration) {
        self.flights.insert((self.now + after, self.sent), flight);
        self.sent += 1;
    }

    /// Corrects the checksum of a segment in flight after a change of its bytes.
    pub fn repair(&self, flight: &mut InFlightSegment) {
        let path = flight.meta.path;
        let addresses = match self.scope {
            ChecksumScope::WithAddresses => Some((path.remote.ip(), path.local.ip())),
            ChecksumScope::WithoutAddresses => None,
        };
        marline_wire::fill_tcp_checksum(addresses, &mut flight.bytes);
    }

    /// Collects all segments that both endpoints want to send. `judge` may change each segment and decides its
    /// outcome. Returns the endpoints' events.
    ///
    /// # Panics
    /// If an endpoint never stops sending.
    pub fn gather(
        &mut self,
        judge: &mut dyn FnMut(&mut InFlightSegment) -> SegmentOutcome,
    ) -> Vec<(Side, Event)> {
        let mut events = Vec::new();
        for side in [Side::A, Side::B] {
            for burst in 0.. {
                assert!(
                    burst < MAX_BURST,
                    "{side:?} sent {burst} bursts without pausing at {:?}",
                    self.now
                );
                let Some(flights) = self.transmit(side) else { break };
                for flight in flights {
                    self.dispatch(flight, judge);
                }
            }
            while let Some(event) = self.endpoint(side).poll_event() {
                events.push((side, event));
            }
        }
        events
    }

    fn transmit(&mut self, side: Side) -> Option<Vec<InFlightSegment>> {
        let endpoint = match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        };
        let transmit = endpoint.poll_transmit(self.now, &mut self.buf)?;
        let meta = arrival_meta(&transmit);
        let datagrams = self.buf.bytes().chunks(transmit.stride.max(1));
        let flight =
            |bytes: &[u8]| InFlightSegment { to: side.other(), meta, bytes: bytes.to_vec() };
        Some(datagrams.map(flight).collect())
    }

    fn dispatch(
        &mut self,
        mut flight: InFlightSegment,
        judge: &mut dyn FnMut(&mut InFlightSegment) -> SegmentOutcome,
    ) {
        match judge(&mut flight) {
            SegmentOutcome::Drop => {}
            SegmentOutcome::Arrive(after) => self.launch(flight, after),
            SegmentOutcome::Twice(first, second) => {
                self.launch(flight.clone(), first);
                self.launch(flight, second);
            }
        }
    }

    /// Advances to the next arrival or timer, but not beyond `end`, and handles it. If there is none, stops at `end`
    /// and returns `false`.
    pub fn step(&mut self, end: Instant) -> bool {
        let arrival = self.flights.first_key_value().map(|(&(at, _), _)| at);
        let timers = [self.a.poll_timeout(), self.b.poll_timeout()];
        let next = timers.into_iter().chain([arrival]).flatten().min();
        let Some(at) = next.filter(|&at| at <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(at);
        if arrival.is_some_and(|arrival| arrival <= at)
            && let Some((_, flight)) = self.flights.pop_first()
        {
            let now = self.now;
            self.endpoint(flight.to).handle_packet(now, &flight.meta, &flight.bytes);
            return true;
        }
        for endpoint in [&mut self.a, &mut self.b] {
            if endpoint.poll_timeout().is_some_and(|due| due <= self.now) {
                endpoint.handle_timeout(self.now);
            }
        }
        true
    }
}

/// Metadata that the receiver's carrier reports for a transmitted segment.
pub(crate) fn arrival_meta(transmit: &Transmit) -> PacketMeta {
    let FourTuple { local, remote } = transmit.path;
    PacketMeta {
        path: FourTuple { local: remote, remote: local },
        ecn: transmit.ecn,
        flow: transmit.peer_flow,
        peer_flow: if transmit.handshake { transmit.local_flow } else { 0 },
        checksum_verified: false,
    }
}
