//! The UDP carrier as a machine without I/O: datagrams in, segments out, and the other way round.
//!
//! The problem: one socket serves many subflows, and a translator on the way may change a peer's
//! address at any time. The answer is in docs/spec/udp-carrier.md: each side names its end of a
//! subflow by a random id; a new address has to prove that it receives before anything but a
//! challenge is sent there. What differs from RFC 9000's path validation, which this follows: the
//! nonce is a keyed hash, so unproven addresses need no state, and TCP's own handshake validates
//! the first address.
//!
//! The driver asks three things: what is in this datagram ([`UdpCarrier::receive`]), where does
//! this batch go and under which headers ([`UdpCarrier::frame`]), and what does the carrier want
//! to send itself ([`UdpCarrier::poll_control`]).

mod egress;
mod flow;
mod frame;
mod timers;
mod validation;

use core::fmt;
use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};

use marline_core::{Ecn, FourTuple, PacketMeta, Shard};
use marline_time::{Duration, Instant};

pub(crate) use flow::IdHasher;
pub use flow::Outer;
use flow::{Allowance, FIRST_QUIET, Flow, FlowMap, PendingTable};
use frame::Frame;
pub use frame::{ControlFrame, HANDSHAKE_HEADER, SHORT_HEADER};

/// Largest UDP payload: an Ethernet frame's, with IPv4.
pub const LARGEST_DATAGRAM: u16 = 1_472;
/// UDP payload that passes nearly everywhere (IPv6's least MTU less its headers).
pub const BASE_DATAGRAM: u16 = 1_232;

/// The same address is challenged at most this often.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(10);
/// A SYN, and a flow whose address has proven nothing, is remembered this long.
const UNPROVEN_LIFETIME: Duration = Duration::from_secs(120);
/// SYNs remembered.
const PENDING_CAPACITY: usize = 4_096;
/// Unknown ids remembered for a RESET.
const UNKNOWN_CAPACITY: usize = 64;
/// Control frames that wait to be sent; more are dropped.
const CONTROL_CAPACITY: usize = 256;
/// How often old entries are looked for while there are unproven flows.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// How a carrier is set up.
pub struct CarrierConfig {
    /// Which ids are ours.
    pub shard: Shard,
    /// Take SYNs from anybody.
    pub accept: bool,
    /// Flows at once.
    pub max_flows: usize,
    /// Silence after which a flow we opened sends a keepalive.
    pub keepalive: Duration,
    /// Key of the challenges' nonces: unpredictable.
    pub secret: [u8; 32],
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

/// A datagram as the driver got it.
#[derive(Copy, Clone, Debug)]
pub struct Datagram<'a> {
    /// Where it came in and from whom.
    pub outer: Outer,
    /// The port of the socket.
    pub local_port: u16,
    /// Its ECN field.
    pub ecn: Ecn,
    /// Another shard handed it over: it must not be handed on.
    pub handed_over: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// What a datagram held.
#[derive(Debug)]
pub enum Received<'a> {
    /// A segment for the core.
    Segment(PacketMeta, &'a [u8]),
    /// It belongs to this shard.
    Elsewhere(u8),
    /// It belongs to a shard that cannot be told: ask all.
    Anywhere,
    /// Something for the carrier itself, or nothing worth an answer.
    Nothing,
}

/// How a batch of the core is to be sent.
#[derive(Copy, Clone, Debug)]
pub enum Framed {
    /// The headroom in front of each segment was filled; send the buffer as it is.
    Ready(Outer),
    /// Replace the headroom by this header: one datagram at a time.
    Handshake(Outer, [u8; HANDSHAKE_HEADER]),
}

/// Counts of a carrier since its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierCounters {
    /// Datagrams that were no frame of this version.
    pub malformed: u64,
    /// First SYNs.
    pub syns: u64,
    /// HANDSHAKE frames without id that held no SYN, or when none are taken.
    pub syns_refused: u64,
    /// Datagrams to ids nobody has.
    pub unknown: u64,
    /// Challenges sent.
    pub challenges: u64,
    /// Responses that did not match.
    pub bad_responses: u64,
    /// Flows that moved.
    pub moves: u64,
    /// Batches not sent because an unproven address had had enough.
    pub withheld: u64,
    /// Batches of the core that had no flow or socket.
    pub unroutable: u64,
    /// Control frames dropped because too many waited.
    pub control_dropped: u64,
    /// Flows refused or dropped because there were too many.
    pub flows_refused: u64,
    /// Keepalives sent.
    pub keepalives: u64,
    /// Native carriers: segments dropped for a wrong checksum.
    pub bad_checksums: u64,
    /// Native carriers: segments accepted whose checksum was left to hardware.
    pub unfinished_checksums: u64,
}

/// The machine.
pub struct UdpCarrier {
    config: CarrierConfig,
    flows: FlowMap<Flow>,
    by_peer: HashMap<u64, u64>,
    pending: PendingTable,
    unknown: VecDeque<(u64, Outer)>,
    control: VecDeque<(Outer, ControlFrame)>,
    sockets: Vec<Option<SocketAddr>>,
    initiated: usize,
    unproven: usize,
    next_keepalive: Option<Instant>,
    next_sweep: Option<Instant>,
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
        UdpCarrier {
            config,
            flows: FlowMap::default(),
            by_peer: HashMap::new(),
            pending: PendingTable::new(PENDING_CAPACITY, UNPROVEN_LIFETIME),
            unknown: VecDeque::new(),
            control: VecDeque::new(),
            sockets: Vec::new(),
            initiated: 0,
            unproven: 0,
            next_keepalive: None,
            next_sweep: None,
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

    /// Counts since the start.
    pub fn counters(&self) -> CarrierCounters {
        self.counters
    }

    /// Flows and SYNs held.
    pub fn table_sizes(&self) -> (usize, usize) {
        (self.flows.len(), self.pending.len())
    }

    // ---- in

    /// Looks into a datagram.
    pub fn receive<'a>(&mut self, now: Instant, datagram: &Datagram<'a>) -> Received<'a> {
        match Frame::parse(datagram.bytes) {
            Some(Frame::Data { flow, segment }) => {
                self.receive_segment(now, datagram, (flow, 0), segment)
            }
            Some(Frame::Handshake { flow: 0, sender, segment }) => {
                self.receive_syn(now, datagram, sender, segment)
            }
            Some(Frame::Handshake { flow, sender, segment }) => {
                self.receive_segment(now, datagram, (flow, sender), segment)
            }
            Some(Frame::Challenge { flow, nonce }) => self.on_challenge(datagram, flow, &nonce),
            Some(Frame::Response { flow, nonce }) => self.on_response(now, datagram, flow, &nonce),
            Some(Frame::Keepalive { flow }) => {
                if self.flows.contains_key(&flow) {
                    self.check_address(now, flow, datagram);
                    return Received::Nothing;
                }
                self.foreign(datagram, flow).unwrap_or(Received::Nothing)
            }
            Some(Frame::Reset { unknown, segment }) => {
                self.receive_reset(datagram, unknown, segment)
            }
            None => {
                self.counters.malformed += 1;
                Received::Nothing
            }
        }
    }

    fn receive_segment<'a>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'a>,
        (flow, peer_flow): (u64, u64),
        segment: &'a [u8],
    ) -> Received<'a> {
        if let Some(known) = self.flows.get_mut(&flow) {
            let path = known.path;
            if known.initiated {
                (known.heard_at, known.quiet_steps) = (now, 0);
                let due = now + FIRST_QUIET;
                self.next_keepalive = Some(self.next_keepalive.map_or(due, |at| at.min(due)));
            }
            if known.outer != datagram.outer || !known.validated {
                self.check_address(now, flow, datagram);
            }
            let meta = meta(datagram, path, flow, peer_flow);
            return Received::Segment(meta, segment);
        }
        if let Some(elsewhere) = self.foreign(datagram, flow) {
            return elsewhere;
        }
        self.counters.unknown += 1;
        if flow == 0 {
            return Received::Nothing;
        }
        if self.unknown.len() >= UNKNOWN_CAPACITY {
            self.unknown.pop_front();
        }
        self.unknown.push_back((flow, datagram.outer));
        Received::Segment(meta(datagram, path_of(datagram, segment), flow, peer_flow), segment)
    }

    /// A flow id that this shard did not give out, but another may have.
    fn foreign(&self, datagram: &Datagram<'_>, flow: u64) -> Option<Received<'static>> {
        let owner = Shard::of_flow(flow, self.config.shard.count);
        let foreign = flow != 0 && owner != self.config.shard.index && !datagram.handed_over;
        foreign.then_some(Received::Elsewhere(owner))
    }

    fn receive_syn<'a>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'a>,
        sender: u64,
        segment: &'a [u8],
    ) -> Received<'a> {
        if !self.config.accept || sender == 0 || !is_first_syn(segment) {
            self.counters.syns_refused += 1;
            return Received::Nothing;
        }
        if let Some(owner) = join_owner(segment, self.config.shard.count)
            && owner != self.config.shard.index
        {
            if !datagram.handed_over {
                return Received::Elsewhere(owner);
            }
            self.counters.syns_refused += 1;
            return Received::Nothing;
        }
        self.counters.syns += 1;
        let path = path_of(datagram, segment);
        let entry = self.pending.saw(now, sender, datagram.outer, path);
        entry.allowance.received(datagram.bytes.len());
        let (path, flow) = (entry.path, entry.flow);
        if let Some(flow) = flow.and_then(|id| self.flows.get_mut(&id))
            && !flow.validated
        {
            if flow.outer != datagram.outer {
                flow.outer = datagram.outer;
                flow.allowance = Allowance::default();
            }
            flow.allowance.received(datagram.bytes.len());
        }
        Received::Segment(meta(datagram, path, 0, sender), segment)
    }

    fn receive_reset<'a>(
        &mut self,
        datagram: &Datagram<'a>,
        unknown: u64,
        segment: &'a [u8],
    ) -> Received<'a> {
        let Some(&id) = self.by_peer.get(&unknown) else {
            let many = self.config.shard.count > 1 && !datagram.handed_over;
            return if many { Received::Anywhere } else { Received::Nothing };
        };
        match self.flows.get(&id) {
            Some(flow) if flow.outer.remote == datagram.outer.remote => {
                Received::Segment(meta(datagram, flow.path, id, 0), segment)
            }
            _ => Received::Nothing,
        }
    }
}

fn meta(datagram: &Datagram<'_>, path: FourTuple, flow: u64, peer_flow: u64) -> PacketMeta {
    PacketMeta { path, ecn: datagram.ecn, flow, peer_flow, checksum_verified: false }
}

/// The ends as the core is to know them: outer IP addresses, the peer's inner port, our UDP port.
fn path_of(datagram: &Datagram<'_>, segment: &[u8]) -> FourTuple {
    let source_port = u16::from_be_bytes([segment[0], segment[1]]);
    FourTuple {
        local: SocketAddr::new(datagram.outer.local, datagram.local_port),
        remote: SocketAddr::new(datagram.outer.remote.ip(), source_port),
    }
}

/// SYN without ACK (RFC 9293 section 3.1: the control bits are in byte 13).
fn is_first_syn(segment: &[u8]) -> bool {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    segment[13] & (SYN | ACK) == SYN
}

/// The shard that the token of a SYN with MP_JOIN names (RFC 8684 section 3.2: kind 30, length 12,
/// subtype 1, token in bytes 4..8 of the option), or of one with Fast JOIN (docs/spec/experimental.md:
/// length 20, subtype 0xf, messages 4 to 7, the token at the same place).
fn join_owner(segment: &[u8], shards: u8) -> Option<u8> {
    const MP_JOIN_SYN_LEN: usize = 12;
    const FAST_JOIN_SYN_LEN: usize = 20;
    let header_len = usize::from(segment[12] >> 4) * 4;
    let mut options = segment.get(20..header_len)?;
    while let [kind, rest @ ..] = options {
        match kind {
            0 => return None,
            1 => options = rest,
            _ => {
                let len = usize::from(*rest.first()?);
                let option = options.get(..len).filter(|_| len >= 2)?;
                let joins = len == MP_JOIN_SYN_LEN && option[2] >> 4 == 1;
                let joins_fast = len == FAST_JOIN_SYN_LEN && option[2] & 0xfc == 0xf4;
                if *kind == 30 && (joins || joins_fast) {
                    let token = u32::from_be_bytes(option[4..8].try_into().ok()?);
                    return Some(Shard::of_token(token, shards));
                }
                options = &options[len..];
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
