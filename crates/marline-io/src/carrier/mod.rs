//! UDP carrier as a state machine without I/O: datagrams in, segments out, and the reverse.
//!
//! *Problem.* One socket serves many subflows, and a NAT may change a peer's address at any time.
//! The solution is specified in docs/spec/udp-carrier.md: each side names its end of a subflow by a
//! random id; a new address has to prove that it receives before anything but a challenge is sent
//! there. This follows RFC 9000's path validation, with two differences: the nonce is a keyed hash,
//! so unvalidated addresses need no state, and TCP's own handshake validates the first address.
//!
//! The driver uses three calls: [`UdpCarrier::receive`] for an incoming datagram,
//! [`UdpCarrier::frame`] for the destination and headers of a batch, and
//! [`UdpCarrier::poll_control`] for the carrier's own datagrams.

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
pub use frame::{ControlFrame, HandshakeHeader, LONGEST_HANDSHAKE_HEADER, SHORT_HEADER};
use keys::Keyring;
pub use links::{Carried, FIRST_LINK};

/// Largest UDP payload: an Ethernet frame's, with IPv4.
pub const LARGEST_DATAGRAM: u16 = 1_472;
/// UDP payload that passes nearly everywhere (IPv6's least MTU less its headers).
pub const BASE_DATAGRAM: u16 = 1_232;

/// The same address is challenged at most this often.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(10);
/// A SYN, and a flow whose address has proven nothing, is remembered this long.
const UNPROVEN_LIFETIME: Duration = Duration::from_secs(120);
/// A proof lasts this long after something was last received on the flow. After that, the flow makes room for others
/// when there are too many. Clients that are there send a keepalive every 20 s or more often.
const PROOF_LIFETIME: Duration = Duration::from_secs(600);
/// SYNs remembered.
const PENDING_CAPACITY: usize = 4_096;
/// RESET frames per second.
const RESETS_PER_S: u32 = 1_000;
/// RETRY frames that a flow believes.
const MAX_RETRIES: u8 = 3;
/// Control frames that wait to be sent; more are dropped.
const CONTROL_CAPACITY: usize = 256;
/// Addresses that are told of as quiet at once.
const QUIET_CAPACITY: usize = 64;
/// How often old entries are looked for while there are unproven flows.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Configuration of a carrier.
pub struct CarrierConfig {
    /// Part of the id space that is ours.
    pub shard: Shard,
    /// Accept SYNs from any peer.
    pub accept: bool,
    /// Maximum number of simultaneous flows.
    pub max_flows: usize,
    /// Silence after which a flow we opened sends a keepalive.
    pub keepalive: Duration,
    /// Secret from which keys, nonces and cookies are derived; must be unpredictable.
    pub secret: [u8; 32],
    /// Secret from which the tokens of RESET are derived; must be unpredictable. A server that
    /// restarts with the same seed can prove that it lost the state of earlier flows.
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

/// A datagram as the driver received it.
#[derive(Copy, Clone, Debug)]
pub struct Datagram<'a> {
    /// Its local and remote address.
    pub outer: Outer,
    /// The port of the socket.
    pub local_port: u16,
    /// Its ECN field.
    pub ecn: Ecn,
    /// Another shard handed it over; it must not be handed on again.
    pub handed_over: bool,
    /// The core has so many half-open connections that new peers must prove their address.
    pub pressed: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// The addresses of a flow: ours, and the peer's with its port.
pub type FlowEnds = (IpAddr, SocketAddr);

/// Result of receiving a datagram.
#[derive(Debug)]
pub enum Received<'a> {
    /// A segment for the core.
    Segment(PacketMeta, &'a [u8]),
    /// It belongs to this shard.
    Elsewhere(u8),
    /// It belongs to an unknown shard: ask all.
    Anywhere,
    /// The peer has lost the state of this flow, and proved it.
    Reset(u64),
    /// The peer moved this flow.
    Moved {
        /// Our id of it.
        flow: u64,
        /// To another IP address, not only to another port.
        new_host: bool,
    },
    /// The SYN of this flow is to be repeated now.
    Repeat(u64),
    /// The peer has nothing by this id, of which nothing is known here, either: it answers a probe
    /// ([`UdpCarrier::probe`]).
    Disowned(u64),
    /// A frame for the lane for datagrams with this id, if there is one.
    Lane(u64),
    /// A frame for the carrier itself, or one that needs no answer.
    Nothing,
}

/// Framing of a batch of the core.
#[derive(Copy, Clone, Debug)]
pub enum Framed {
    /// The headroom in front of each segment was filled; send the buffer as it is.
    Ready(Outer),
    /// Replace the headroom by this header: one datagram at a time.
    Handshake {
        /// Its destination.
        outer: Outer,
        /// The header.
        header: HandshakeHeader,
    },
}

/// Counters of a carrier since its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CarrierCounters {
    /// Datagrams that were not valid frames of this version.
    pub malformed: u64,
    /// First SYNs.
    pub syns: u64,
    /// HANDSHAKE frames without id that held no SYN, or that arrived when none are accepted.
    pub syns_refused: u64,
    /// Datagrams to unknown ids.
    pub unknown: u64,
    /// Challenges sent.
    pub challenges: u64,
    /// Responses that did not match.
    pub bad_responses: u64,
    /// Flows that moved.
    pub moves: u64,
    /// Batches withheld because an unvalidated address had reached its limit.
    pub withheld: u64,
    /// Batches of the core that had no flow or socket.
    pub unroutable: u64,
    /// RESET frames sent for unknown ids.
    pub resets: u64,
    /// RESET frames whose token was wrong.
    pub bad_resets: u64,
    /// RETRY frames sent.
    pub retries: u64,
    /// Secrets agreed on, for flows that were challenged.
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
    /// Native carriers: joins that another shard received, and that were this one's.
    pub foreign_joins: u64,
    /// Native carriers: segments that another shard received, and that were this one's; joins too.
    pub foreign_segments: u64,
    /// Links: TCP connections accepted.
    pub links: u64,
    /// Links refused because all of them were in use.
    pub links_refused: u64,
    /// Idle links closed for others that arrived.
    pub links_evicted: u64,
    /// Links closed because what came was no frames.
    pub links_malformed: u64,
    /// Links closed because no flow proved itself there in time, or nothing came for long.
    pub links_silent: u64,
    /// Links closed because the peer took nothing for long.
    pub links_stuck: u64,
    /// Frames that no link had room for.
    pub link_frames_dropped: u64,
}

/// The state machine of the UDP carrier.
pub struct UdpCarrier {
    config: CarrierConfig,
    flows: FlowMap<Flow>,
    by_peer: HashMap<u64, u64>,
    pending: PendingSyns,
    control: VecDeque<(Outer, ControlFrame)>,
    sockets: Vec<Option<SocketAddr>>,
    kept_open: usize,
    /// Flows whose address has not proven that it receives.
    unproven: usize,
    /// Flows of peers that make room for others: unproven ones, and those whose proof is too old.
    strangers: PendingPeers<u64>,
    /// When the age of proofs is checked next, if there are too many flows by then.
    proofs_checked_next: Instant,
    /// Flows of connections that the core still has, which made room for others.
    evicted: VecDeque<u64>,
    /// When flows that we opened may want a keepalive, and entries that count no more.
    alarms: BinaryHeap<Reverse<(Instant, u64)>>,
    next_sweep: Option<Instant>,
    keys: Keyring,
    cookies: Cookies,
    /// RESETs that may go out in the second that began then.
    resets: (u32, Instant),
    /// Another process receives what is new, and says of ids that nobody has them.
    has_successor: bool,
    /// Changes of the flows: one came about, was proven, has ended or is gone.
    changes: u64,
    /// The links that flows to be opened go by.
    preferred: BTreeMap<FlowEnds, u16>,
    carried: VecDeque<Carried>,
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
    /// A carrier without sockets.
    pub fn new(config: CarrierConfig) -> Self {
        let keys = Keyring::new(config.secret, config.reset_seed);
        let strangers = PendingLimits { total: config.max_flows, per_source: config.max_flows };
        UdpCarrier {
            config,
            flows: FlowMap::default(),
            by_peer: HashMap::new(),
            pending: PendingSyns::new(PENDING_CAPACITY, UNPROVEN_LIFETIME),
            control: VecDeque::new(),
            sockets: Vec::new(),
            kept_open: 0,
            unproven: 0,
            strangers: PendingPeers::new(strangers),
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

    /// The socket with this index is bound to `local`, or gone.
    pub fn set_socket(&mut self, index: u16, local: Option<SocketAddr>) {
        let index = usize::from(index);
        if self.sockets.len() <= index {
            self.sockets.resize(index + 1, None);
        }
        self.sockets[index] = local;
    }

    /// From now on another process says of ids of other processes that nobody has them: this one does not know.
    pub const fn leave_others_ids(&mut self) {
        self.has_successor = true;
    }

    /// An id that nobody here has, and of which this process cannot say more.
    pub(super) fn is_others(&self, flow: u64) -> bool {
        let own = self.config.shard.generation;
        self.has_successor && own.is_some_and(|own| Shard::generation_of_flow(flow) != own)
    }

    /// Counters since the start.
    pub fn counters(&self) -> CarrierCounters {
        CarrierCounters { agreements: self.keys.agreements(), ..self.counters }
    }

    /// Where a flow is, if that address has proven that it receives; `None`: there is no such flow, or it has not.
    pub fn place(&self, flow: u64) -> Option<Outer> {
        self.flows.get(&flow).filter(|flow| flow.validated).map(|flow| flow.outer)
    }

    /// How often flows came about, were proven, or ended. While it stays, [`place`](Self::place) knows the same
    /// flows, though a flow may have moved.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Sends a keepalive on a flow now: a translator may have given our datagrams another address, and the peer
    /// learns it from a frame of the flow.
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

    /// Flows and SYNs held.
    pub fn table_sizes(&self) -> (usize, usize) {
        (self.flows.len(), self.pending.len())
    }
}

#[cfg(test)]
mod tests;
