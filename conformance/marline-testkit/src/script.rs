//! One endpoint in virtual time, with a test instead of the network.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::{
    Capabilities, ChecksumScope, ConnectionConfig, ConnectionId, Ecn, Endpoint, EndpointConfig,
    Event, FourTuple, Limits, PacketMeta, Shard, TransmitBuf,
};
use marline_time::{Instant, SeedTree};

use crate::{Expect, Seg};

/// Maximum number of segments sent without time passing. A larger number indicates an endless loop.
const MAX_BURST: usize = 100_000;

/// Capabilities of a carrier like native TCP: checksums over addresses, no flow ids. Connections start with small
/// segments and discover that 1,480 bytes pass.
#[must_use]
pub const fn capabilities() -> Capabilities {
    Capabilities {
        base_segment: 1_240,
        max_segment: 1_480,
        checksum: ChecksumScope::WithAddresses,
        flow_ids: false,
        ecn: true,
    }
}

/// A connection with the reference policies. A script lists every segment, and copies that depend on forecasts would
/// be unpredictable.
#[must_use]
pub fn config() -> ConnectionConfig {
    ConnectionConfig::new(marline_algos::reference_policies())
}

/// Returns the configuration with maximum-size segments from the start and no path MTU probes, for scripts that list
/// every segment.
#[must_use]
pub const fn with_known_mtu(mut config: EndpointConfig) -> EndpointConfig {
    config.capabilities.base_segment = config.capabilities.max_segment;
    config
}

/// An endpoint on [`capabilities`] that accepts connections if `accept` is given.
#[must_use]
pub fn endpoint_config(accept: Option<ConnectionConfig>) -> EndpointConfig {
    EndpointConfig {
        capabilities: capabilities(),
        limits: Limits::default(),
        shard: Shard::SINGLE,
        accept,
        monitor: false,
    }
}

/// A segment that the endpoint sent.
#[derive(Clone, Debug)]
pub struct SentSegment {
    /// Time of sending.
    pub at: Instant,
    /// The endpoint's address and port, and the peer's.
    pub path: FourTuple,
    /// ECN field.
    pub ecn: Ecn,
    /// The endpoint's flow id and the peer's. Zeros on carriers without flow ids.
    pub flows: (u64, u64),
    /// The segment.
    pub seg: Seg,
}

/// An endpoint, its clock, and all segments and events that it produced.
#[derive(Debug)]
pub struct Script {
    /// The endpoint under test.
    pub endpoint: Endpoint,
    now: Instant,
    checksum: ChecksumScope,
    buf: TransmitBuf,
    sent: VecDeque<SentSegment>,
    events: VecDeque<Event>,
}

impl Script {
    /// Starts at one second of virtual time. Equal seeds give equal runs.
    #[must_use]
    pub fn new(config: EndpointConfig, seed: u64) -> Self {
        let checksum = config.capabilities.checksum;
        let rng = Box::new(SeedTree::new(seed).stream("endpoint"));
        Script {
            endpoint: Endpoint::new(config, rng),
            now: Instant::from_secs(1),
            checksum,
            buf: TransmitBuf::new(0, 16),
            sent: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Makes the carrier combine segments into batches.
    pub const fn combine_segments(&mut self) {
        self.buf.combine_segments(true);
    }

    /// The current time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Runs a command on the endpoint and collects its results.
    pub fn run<R>(&mut self, command: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        let result = command(&mut self.endpoint, self.now);
        self.gather();
        result
    }

    /// Opens a connection from the endpoint.
    ///
    /// # Panics
    /// If the endpoint returns an error.
    pub fn connect(
        &mut self,
        config: ConnectionConfig,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> ConnectionId {
        match self.run(|e, now| e.connect(now, config, local, remote)) {
            Ok(id) => id,
            Err(error) => panic!("connect: {error}"),
        }
    }

    /// Delivers a segment that arrives on `path` (local is the endpoint's side). Fills in ports and the checksum.
    pub fn inject(&mut self, path: FourTuple, seg: Seg) {
        self.inject_to(path, 0, 0, seg);
    }

    /// Delivers a segment with the endpoint's flow id and the peer's, 0 for none.
    pub fn inject_to(&mut self, path: FourTuple, flow: u64, peer_flow: u64, seg: Seg) {
        let seg = seg.ports(path.remote.port(), path.local.port());
        let bytes = seg.bytes(self.scope(path.remote.ip(), path.local.ip()));
        let ecn = Ecn::NotEct;
        let meta = PacketMeta { path, ecn, flow, peer_flow, checksum_verified: false };
        self.endpoint.handle_packet(self.now, &meta, &bytes);
        self.gather();
    }

    /// Lets time pass. The endpoint's timers fire when they are due.
    ///
    /// # Panics
    /// If the endpoint wakes up endlessly without time passing.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        let mut at_once = 0;
        while let Some(at) = self.endpoint.poll_timeout().filter(|&at| at <= end) {
            at_once = if at > self.now { 0 } else { at_once + 1 };
            assert!(at_once < 1_000, "timers fire endlessly at {:?}", self.now);
            self.now = self.now.max(at);
            self.endpoint.handle_timeout(self.now);
            self.gather();
        }
        self.now = end;
    }

    /// Lets time pass until something is sent, at most `within`. Returns true if something was sent.
    pub fn advance_to_send(&mut self, within: Duration) -> bool {
        let end = self.now + within;
        while self.sent.is_empty() {
            let next = self.endpoint.poll_timeout().filter(|&at| at <= end);
            let Some(at) = next else {
                self.now = end;
                return false;
            };
            let step = if at > self.now { at - self.now } else { Duration::ZERO };
            self.advance(step);
        }
        true
    }

    /// Takes all segments that were sent since the last call.
    pub fn take_sent(&mut self) -> Vec<SentSegment> {
        self.sent.drain(..).collect()
    }

    /// Reads all available data of a connection.
    pub fn read_all(&mut self, id: ConnectionId) -> Vec<u8> {
        let (mut bytes, mut out) = (Vec::new(), [0; 16_384]);
        while let Ok(len @ 1..) = self.run(|e, now| e.read(now, id, &mut out)) {
            bytes.extend_from_slice(&out[..len]);
        }
        bytes
    }

    /// The connection that arrived since events were last taken.
    pub fn take_incoming(&mut self) -> Option<ConnectionId> {
        self.take_events().into_iter().find_map(|event| match event {
            Event::Incoming(id) => Some(id),
            _ => None,
        })
    }

    /// Takes the next segment sent, if any.
    pub fn next_sent(&mut self) -> Option<SentSegment> {
        self.sent.pop_front()
    }

    /// Takes the next segment sent, which must meet the expectations.
    ///
    /// # Panics
    /// If there is none or it does not meet them.
    #[track_caller]
    pub fn expect(&mut self, expected: &Expect) -> SentSegment {
        let Some(sent) = self.sent.pop_front() else {
            panic!("nothing was sent; expected {expected:?}");
        };
        if let Some(missing) = expected.missing(&sent.seg) {
            panic!("expected {missing}, but the endpoint sent {:#?}", sent.seg);
        }
        sent
    }

    /// Checks that no more segments were sent.
    ///
    /// # Panics
    /// If any were.
    #[track_caller]
    pub fn expect_nothing(&mut self) {
        if let Some(sent) = self.sent.front() {
            panic!("expected nothing, but the endpoint sent {:#?}", sent.seg);
        }
    }

    /// Takes all events.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    /// The addresses that a checksum covers on this carrier.
    #[must_use]
    pub const fn scope(&self, src: IpAddr, dst: IpAddr) -> Option<(IpAddr, IpAddr)> {
        match self.checksum {
            ChecksumScope::WithAddresses => Some((src, dst)),
            ChecksumScope::WithoutAddresses => None,
        }
    }

    /// Collects transmits and events, as every driver does after each call. Each segment must parse and have a correct
    /// checksum.
    fn gather(&mut self) {
        for burst in 0.. {
            assert!(
                burst < MAX_BURST,
                "the endpoint sent {burst} bursts without pausing at {:?}",
                self.now
            );
            let Some(t) = self.endpoint.poll_transmit(self.now, &mut self.buf) else { break };
            assert!(t.datagrams > 0, "the endpoint sent an empty batch: {t:?}");
            for bytes in self.buf.bytes().chunks(t.stride.max(1)) {
                let scope = self.scope(t.path.local.ip(), t.path.remote.ip());
                assert!(
                    marline_wire::verify_tcp_checksum(scope, bytes),
                    "the endpoint sent a wrong checksum"
                );
                let seg = match Seg::parse(bytes) {
                    Ok(seg) => seg,
                    Err(error) => panic!("the endpoint sent a broken segment: {error}"),
                };
                assert!(!seg.options.mptcp.malformed, "the endpoint sent a malformed option");
                let flows = (t.local_flow, t.peer_flow);
                self.sent.push_back(SentSegment {
                    at: self.now,
                    path: t.path,
                    ecn: t.ecn,
                    flows,
                    seg,
                });
            }
        }
        while let Some(event) = self.endpoint.poll_event() {
            self.events.push_back(event);
        }
    }
}
