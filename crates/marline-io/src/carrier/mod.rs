//! UDP carrier as a state machine without I/O: conversion of datagrams to segments and back.
//!
//! *Problem.* One socket serves many subflows, and a NAT may change a peer's address at any time. The solution is
//! specified in docs/spec/udp-carrier.md. Each side identifies its end of a subflow by a random id. A peer has to
//! prove that it receives at a new address before anything but a challenge is sent there. This follows RFC 9000's
//! path validation, with two differences: the nonce is a keyed hash, so unvalidated addresses need no state, and
//! TCP's own handshake validates the first address.
//!
//! The driver uses three calls: [`UdpCarrier::receive`] for an incoming datagram, [`UdpCarrier::frame`] for the
//! destination and headers of a batch, and [`UdpCarrier::poll_control`] for the carrier's control frames.

mod addressee;
mod cookies;
mod egress;
mod flow;
mod frame;
mod ingress;
mod keys;
mod links;
mod strangers;
mod timers;
mod validation;

use core::cmp::Reverse;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

use marline_core::{Ecn, PacketMeta, PendingLimits, PendingPeers, Shard};
use marline_time::{Duration, Instant};

pub use addressee::Addressee;
use cookies::Cookies;
pub use flow::Outer;
pub(crate) use flow::{FIRST_QUIET, IdHasher};
use flow::{Flow, FlowMap, PendingSyns};
pub use frame::{ControlFrame, HandshakeHeader, MAX_HANDSHAKE_HEADER, SHORT_HEADER};
use keys::Keyring;
pub use links::{CarrierChange, FIRST_LINK};

/// Maximum UDP payload, in bytes: that of an Ethernet frame with IPv4.
pub const LARGEST_DATAGRAM: u16 = 1_472;
/// UDP payload, in bytes, that passes on nearly all paths (the minimum IPv6 MTU minus its headers).
pub const BASE_DATAGRAM: u16 = 1_232;

/// Minimum interval between challenges of one address.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(10);
/// Lifetime of a SYN, and of a flow whose address is not validated.
const UNVALIDATED_LIFETIME: Duration = Duration::from_secs(120);
/// Lifetime of a validation after the flow's last packet. Then the flow may be evicted if there are too many flows.
/// Active clients send a keepalive at least every 20 s.
const PROOF_LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of SYNs stored until TCP answers them.
const PENDING_CAPACITY: usize = 4_096;
/// Maximum number of RESET frames per second.
const RESETS_PER_S: u32 = 1_000;
/// Maximum number of RETRY frames that a flow accepts.
const MAX_RETRIES: u8 = 3;
/// Maximum number of control frames that wait to be sent; more are dropped.
const CONTROL_CAPACITY: usize = 256;
/// Maximum number of queued address pairs with quiet flows.
const MAX_QUIET_PAIRS: usize = 64;
/// Interval of checks for old entries while there are unvalidated flows.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Configuration of a carrier.
pub struct CarrierConfig {
    /// Part of the id space that this shard owns.
    pub shard: Shard,
    /// True to accept SYNs from any peer.
    pub accept: bool,
    /// Maximum number of simultaneous flows.
    pub max_flows: usize,
    /// Idle time after which a flow that we opened sends a keepalive.
    pub keepalive: Duration,
    /// Secret from which keys, nonces and cookies are derived; must be unpredictable.
    pub secret: [u8; 32],
    /// Secret from which the tokens of RESET are derived; must be unpredictable. A server that restarts with the
    /// same seed can prove that it lost the state of earlier flows.
    pub reset_seed: [u8; 32],
}

impl fmt::Debug for CarrierConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarrierConfig")
            .field("shard", &self.shard)
            .field("accept", &self.accept)
            .field("max_flows", &self.max_flows)
            .field("keepalive", &self.keepalive)
            .finish_non_exhaustive()
    }
}

/// Datagram as received by the driver.
#[derive(Copy, Clone, Debug)]
pub struct Datagram<'a> {
    /// Local and remote address.
    pub outer: Outer,
    /// Port of the socket.
    pub local_port: u16,
    /// ECN field.
    pub ecn: Ecn,
    /// True if another shard handed the datagram over; it must not be handed over again.
    pub handed_over: bool,
    /// True if, because of many half-open connections, new peers must prove their address.
    pub requires_cookie: bool,
    /// Content of the datagram.
    pub bytes: &'a [u8],
}

/// Addresses of a flow.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowEnds {
    /// Local address.
    pub local: IpAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
}

impl FlowEnds {
    pub(crate) const fn new(local: IpAddr, remote: SocketAddr) -> FlowEnds {
        FlowEnds { local, remote }
    }
}

/// Result of receiving a datagram.
#[derive(Debug)]
pub enum ReceivedDatagram<'a> {
    /// Segment for the core.
    Segment(PacketMeta, &'a [u8]),
    /// The datagram belongs to the shard with this index.
    OtherShard(u8),
    /// The shard of the datagram is unknown, so all shards must be asked.
    UnknownShard,
    /// The peer has lost the state of this flow, and has proven it.
    Reset(u64),
    /// The peer moved this flow.
    Moved {
        /// Our flow id.
        flow: u64,
        /// True if the IP address changed, not just the port.
        new_host: bool,
    },
    /// The SYN of this flow must be repeated now.
    Repeat(u64),
    /// The peer does not know this id. The id is unknown here too, so this answers a probe ([`UdpCarrier::probe`]).
    UnknownFlow(u64),
    /// Frame for the lane with this id, if there is one.
    Lane(u64),
    /// The frame was for the carrier itself, or needs no answer.
    Nothing,
}

/// Framing of a batch from the core.
#[derive(Copy, Clone, Debug)]
pub enum FramedBatch {
    /// The headroom in front of each segment is filled; the buffer can be sent as it is.
    Ready(Outer),
    /// The header replaces the headroom, so each datagram is sent individually.
    Handshake {
        /// Destination.
        outer: Outer,
        /// Header.
        header: HandshakeHeader,
    },
}

/// Counters of a carrier since its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CarrierCounters {
    /// Datagrams received that were not valid frames of this version.
    pub malformed: u64,
    /// First SYNs received.
    pub syns: u64,
    /// HANDSHAKE frames without an id that contained no SYN, or that arrived while none are accepted.
    pub syns_refused: u64,
    /// Datagrams to unknown ids.
    pub unknown: u64,
    /// Challenges sent.
    pub challenges: u64,
    /// Responses that did not match.
    pub bad_responses: u64,
    /// Address changes of flows.
    pub moves: u64,
    /// Batches withheld because an unvalidated address had reached its limit.
    pub withheld: u64,
    /// Batches from the core that had no flow or socket.
    pub unroutable: u64,
    /// RESET frames sent for unknown ids.
    pub resets: u64,
    /// RESET frames whose token was wrong.
    pub bad_resets: u64,
    /// RETRY frames sent.
    pub retries: u64,
    /// Shared secrets computed for flows that were challenged.
    pub agreements: u64,
    /// Control frames dropped because too many were queued.
    pub control_dropped: u64,
    /// Flows refused or dropped because of the limit on flows.
    pub flows_refused: u64,
    /// Keepalives sent.
    pub keepalives: u64,
    /// Native carriers: segments dropped for a wrong checksum.
    pub bad_checksums: u64,
    /// Native carriers: segments accepted whose checksum was left to hardware.
    pub unfinished_checksums: u64,
    /// Native carriers: joins to this shard that another shard received.
    pub foreign_joins: u64,
    /// Native carriers: segments of this shard that another shard received, including joins.
    pub foreign_segments: u64,
    /// Links: TCP connections accepted.
    pub links: u64,
    /// Links refused because all of them were in use.
    pub links_refused: u64,
    /// Idle links closed to make room for new ones.
    pub links_evicted: u64,
    /// Links closed because they carried invalid frames.
    pub links_malformed: u64,
    /// Links closed because no flow was validated on them in time, or nothing arrived for too long.
    pub links_silent: u64,
    /// Links closed because the peer accepted no data for too long.
    pub links_stalled: u64,
    /// Frames dropped because the queue of their link was full.
    pub link_frames_dropped: u64,
}

/// State machine of the UDP carrier.
pub struct UdpCarrier {
    config: CarrierConfig,
    flows: FlowMap<Flow>,
    by_peer: HashMap<u64, u64>,
    pending: PendingSyns,
    control: VecDeque<(Outer, ControlFrame)>,
    sockets: Vec<Option<SocketAddr>>,
    kept_open: usize,
    /// Flows whose address is not validated.
    unproven: usize,
    /// Flows of peers that may be evicted: unvalidated ones, and those whose validation is too old.
    unvalidated: PendingPeers<u64>,
    /// Time of the next check for aged validations, if there are too many flows.
    proofs_checked_next: Instant,
    /// Evicted flows of connections that still exist in the core.
    evicted: VecDeque<u64>,
    /// Times at which flows that we opened may need a keepalive; entries may be outdated.
    alarms: BinaryHeap<Reverse<(Instant, u64)>>,
    next_sweep: Option<Instant>,
    keys: Keyring,
    cookies: Cookies,
    /// RESETs left in the current second, and the start of this second.
    resets: (u32, Instant),
    /// True once another process receives new flows and answers unknown ids.
    has_successor: bool,
    /// Number of times that a flow was created, validated, ended or removed.
    changes: u64,
    /// Links for new flows.
    preferred: BTreeMap<FlowEnds, u16>,
    carried: VecDeque<CarrierChange>,
    quiet: VecDeque<FlowEnds>,
    counters: CarrierCounters,
}

impl fmt::Debug for UdpCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpCarrier")
            .field("flows", &self.flows.len())
            .field("pending", &self.pending.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl UdpCarrier {
    /// Creates a carrier without sockets.
    pub fn new(config: CarrierConfig) -> Self {
        let keys = Keyring::new(config.secret, config.reset_seed);
        let strangers = PendingLimits { total: config.max_flows, per_source: config.max_flows };
        UdpCarrier {
            config,
            flows: FlowMap::default(),
            by_peer: HashMap::new(),
            pending: PendingSyns::new(PENDING_CAPACITY, UNVALIDATED_LIFETIME),
            control: VecDeque::new(),
            sockets: Vec::new(),
            kept_open: 0,
            unproven: 0,
            unvalidated: PendingPeers::new(strangers),
            proofs_checked_next: Instant::ZERO,
            evicted: VecDeque::new(),
            alarms: BinaryHeap::new(),
            next_sweep: None,
            keys,
            cookies: Cookies::default(),
            resets: (RESETS_PER_S, Instant::ZERO),
            has_successor: false,
            changes: 0,
            preferred: BTreeMap::new(),
            carried: VecDeque::new(),
            quiet: VecDeque::new(),
            counters: CarrierCounters::default(),
        }
    }

    /// Sets the local address of the socket with this index, or removes it.
    pub fn set_socket(&mut self, index: u16, local: Option<SocketAddr>) {
        let index = usize::from(index);
        if self.sockets.len() <= index {
            self.sockets.resize(index + 1, None);
        }
        self.sockets[index] = local;
    }

    /// Stops answering unknown ids of other processes, because another process now does so.
    pub const fn ignore_foreign_ids(&mut self) {
        self.has_successor = true;
    }

    /// Returns true for an unknown id that may belong to another process.
    pub(super) fn may_be_other_process(&self, flow: u64) -> bool {
        let own = self.config.shard.generation;
        self.has_successor && own.is_some_and(|own| Shard::generation_of_flow(flow) != own)
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> CarrierCounters {
        CarrierCounters { agreements: self.keys.agreements(), ..self.counters }
    }

    /// Returns the current addresses of a flow, or `None` if it is unknown or not validated there.
    pub fn place(&self, flow: u64) -> Option<Outer> {
        self.flows.get(&flow).filter(|flow| flow.validated).map(|flow| flow.outer)
    }

    /// Returns the number of times that a flow was created, validated, ended or removed. While it is unchanged,
    /// [`Self::place`] knows the same flows, although a flow may have moved.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Sends a keepalive on a flow now: if a NAT has assigned a new address, the peer learns it from this frame.
    pub fn keep_open(&mut self, now: Instant, flow: u64) {
        let Some(known) = self.flows.get_mut(&flow).filter(|flow| flow.peer_flow != 0) else {
            return;
        };
        known.sent_at = now;
        let frame = ControlFrame::keepalive(known.peer_flow);
        let outer = known.outer;
        self.counters.keepalives += 1;
        self.push_control(outer, frame);
    }

    /// Returns the number of flows and of stored SYNs.
    pub fn table_sizes(&self) -> (usize, usize) {
        (self.flows.len(), self.pending.len())
    }
}

#[cfg(test)]
mod tests;
