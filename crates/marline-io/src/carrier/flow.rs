//! State of the UDP carrier per flow, per SYN that TCP has not yet answered, and per address.

use core::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;
use std::hash::RandomState;

use marline_core::{FourTuple, PendingId, PendingLimits, PendingPeers, Source};
use marline_time::{Duration, Instant};

use super::frame::{Cookie, SenderInfo};
use super::keys::BoundKeys;

/// Number of bytes that may be sent to an unvalidated address for each byte received from it.
const AMPLIFICATION: u64 = 3;

/// Outer addresses of a datagram, and the socket that receives or sends it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outer {
    /// Index of the socket within its shard.
    pub socket: u16,
    /// Local IP address (a socket may be bound to all of them).
    pub local: IpAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
}

/// Bytes exchanged with an address that is not validated.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Allowance {
    received: u64,
    sent: u64,
}

impl Allowance {
    /// Counts bytes received from the address.
    pub(super) fn on_received(&mut self, bytes: usize) {
        self.received = self.received.saturating_add(bytes as u64);
    }

    /// Counts bytes to be sent to the address and returns true, or returns false if they exceed the limit.
    pub(super) fn try_take(&mut self, bytes: usize) -> bool {
        let after = self.sent.saturating_add(bytes as u64);
        let fits = after <= self.received.saturating_mul(AMPLIFICATION);
        if fits {
            self.sent = after;
        }
        fits
    }
}

/// State of a subflow in the carrier.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// Ends of the subflow for the core; they never change.
    pub(super) path: FourTuple,
    /// Keys that authenticate the flow. They are stored inline: a separate heap block per flow, which lasts through
    /// TIME-WAIT, would keep the surrounding page of a closed connection (about 25 kB) allocated.
    pub(super) bond: BoundKeys,
    /// State while our SYN has not been answered.
    pub(super) opening: Option<Box<OpeningState>>,
    /// Id of the peer; 0 until known.
    pub(super) peer_flow: u64,
    /// Current outer addresses.
    pub(super) outer: Outer,
    /// True once the peer has proven that it receives at the current address.
    pub(super) validated: bool,
    /// Byte counts until the address is validated.
    pub(super) allowance: Allowance,
    /// Entry in the table of evictable peers; `None` if we opened the flow.
    pub(super) pending: Option<PendingId>,
    /// True while the flow counts as evictable.
    pub(super) is_evictable: bool,
    /// True once its subflow has ended.
    pub(super) has_ended: bool,
    /// Number of address changes so far.
    pub(super) moves: u32,
    /// Address that was challenged last, and the time of the challenge.
    pub(super) challenged: Option<(Outer, Instant)>,
    /// True if we sent the SYN. This side then decides which socket or link the flow uses.
    pub(super) is_opener: bool,
    /// True if a link carries the flow, or carried it at its previous address.
    pub(super) by_link: bool,
    /// True if the flow gets keepalives because we sent its SYN and its subflow has not ended.
    pub(super) kept_open: bool,
    /// Time of the last send.
    pub(super) sent_at: Instant,
    /// Time of the last packet from the peer.
    pub(super) heard_at: Instant,
    /// Number of idle checks ([`Flow::idle_check_at`]) since then.
    pub(super) idle_checks: u8,
    /// Time of creation.
    pub(super) created_at: Instant,
    /// Time of the next keepalive check: the valid entry in the queue of alarms.
    pub(super) alarm_at: Instant,
}

/// State of a flow whose SYN has not been answered.
#[derive(Clone, Debug, Default)]
pub(super) struct OpeningState {
    /// Cookie from the server.
    pub(super) cookie: Option<Cookie>,
    /// Number of cookies received.
    pub(super) retries: u8,
    /// Id and sender information of the server, from its HANDSHAKE.
    pub(super) answer: Option<(u64, SenderInfo)>,
}

/// Silence after which a recently busy flow is probed for the first time. The interval then doubles.
pub(crate) const FIRST_QUIET: Duration = Duration::from_secs(1);
/// Maximum number of these probes.
const MAX_IDLE_PROBES: u8 = 4;

impl Flow {
    /// Creates a flow opened by the peer, with an unvalidated address.
    pub(super) fn new(now: Instant, path: FourTuple, outer: Outer, bond: BoundKeys) -> Self {
        Flow {
            path,
            bond,
            opening: None,
            peer_flow: 0,
            outer,
            validated: false,
            allowance: Allowance::default(),
            pending: None,
            is_evictable: false,
            has_ended: false,
            moves: 0,
            challenged: None,
            is_opener: false,
            by_link: false,
            kept_open: false,
            sent_at: now,
            heard_at: now,
            idle_checks: u8::MAX,
            created_at: now,
            alarm_at: Instant::FAR_FUTURE,
        }
    }

    /// Returns the source to which the flow counts while it is evictable.
    pub(super) fn source(&self) -> Source {
        Source::of(self.outer.remote.ip())
    }

    /// Returns true if the flow may be evicted: its peer's address is not validated, or was validated too long ago,
    /// or its subflow has ended.
    pub(super) fn is_evictable(&self, now: Instant) -> bool {
        let is_old = self.heard_at + super::PROOF_LIFETIME <= now;
        self.pending.is_some() && (!self.validated || self.has_ended || is_old)
    }

    /// Returns the time at which to check whether a busy flow has become quiet because a NAT lost its mapping: a side
    /// that only receives would otherwise wait for a peer that sends to the old address.
    pub(super) fn idle_check_at(&self) -> Option<Instant> {
        let step = self.idle_checks;
        (step < MAX_IDLE_PROBES).then(|| self.heard_at + FIRST_QUIET * (1 << step))
    }

    /// Returns true at [`Flow::idle_check_at`] if nothing was sent for some time either, so that a keepalive is useful.
    pub(super) fn is_quiet(&self) -> bool {
        let since = FIRST_QUIET * (1 << self.idle_checks);
        self.sent_at <= self.heard_at + since * 3 / 4
    }
}

/// Hashes one of our own ids. Such an id is either random, with the same top byte for a whole shard, or sequential, so
/// that the low half differs most. Other ids are only looked up.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, id: u64) {
        // The table takes its index from the low bits and a tag from the top ones. Multiplying by 2^64 divided by
        // the golden ratio permutes the low bits, and all bits affect the top.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Tables with at most this capacity are never shrunk.
pub(super) const SMALL_TABLE: usize = 1_024;

/// Shrinks a table that a flood has enlarged, once seven eighths of it are empty. It keeps room for twice as many
/// entries, so the table is rarely shrunk or enlarged again.
pub(super) fn shrink_table<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    if table.capacity() > 2 * SMALL_TABLE && table.len() < table.capacity() / 8 {
        table.shrink_to(SMALL_TABLE.max(2 * table.len()));
    }
}

/// Table by our own flow ids.
pub(super) type FlowMap<T> = HashMap<u64, T, BuildHasherDefault<IdHasher>>;

/// Incoming SYN, stored by the peer's id and IP address.
#[derive(Copy, Clone, Debug)]
pub(super) struct PendingSyn {
    /// Outer addresses of the SYN.
    pub(super) outer: Outer,
    /// Ends of the subflow for the core.
    pub(super) path: FourTuple,
    /// Bytes exchanged with the sender.
    pub(super) allowance: Allowance,
    /// Sender information from the client's SYN.
    pub(super) introduction: SenderInfo,
    /// Flow that TCP created from the SYN.
    pub(super) flow: Option<u64>,
    at: Instant,
    id: PendingId,
}

/// SYNs that TCP has not yet answered. Beyond the limit, the oldest SYN of the source with the most SYNs is dropped.
#[derive(Debug)]
pub(super) struct PendingSyns {
    entries: HashMap<SynKey, PendingSyn, RandomState>,
    order: PendingPeers<SynKey>,
    lifetime: Duration,
}

/// The peer's id and IP address.
type SynKey = (u64, IpAddr);

impl PendingSyns {
    /// Creates an empty table.
    pub(super) fn new(capacity: usize, lifetime: Duration) -> Self {
        let limits = PendingLimits { total: capacity, per_source: capacity };
        PendingSyns { entries: HashMap::default(), order: PendingPeers::new(limits), lifetime }
    }

    /// Finds the SYN with the peer's id `sender` from this IP address.
    pub(super) fn get_mut(&mut self, sender: u64, ip: IpAddr) -> Option<&mut PendingSyn> {
        self.entries.get_mut(&(sender, ip))
    }

    /// Stores a SYN or its retransmission, which may come from another port.
    pub(super) fn record_syn(
        &mut self,
        now: Instant,
        sender: u64,
        outer: Outer,
        path: FourTuple,
        introduction: SenderInfo,
    ) -> &mut PendingSyn {
        let key = (sender, outer.remote.ip());
        let PendingSyns { entries, order, .. } = self;
        let id = match entries.get(&key) {
            Some(known) => known.id,
            None => {
                let (id, evicted) = order.admit(Source::of(key.1), key);
                if let Some(evicted) = evicted {
                    entries.remove(&evicted);
                }
                id
            }
        };
        let allowance = Allowance::default();
        let fresh = PendingSyn { outer, path, allowance, introduction, flow: None, at: now, id };
        let entry = entries.entry(key).or_insert(fresh);
        if entry.outer != outer {
            entry.outer = outer;
            entry.allowance = Allowance::default();
        }
        entry
    }

    /// Returns true if this SYN is in the table.
    pub(super) fn contains(&self, sender: u64, ip: IpAddr) -> bool {
        self.entries.contains_key(&(sender, ip))
    }

    /// Returns the number of waiting SYNs.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Drops SYNs that are too old.
    pub(super) fn expire(&mut self, now: Instant) {
        let PendingSyns { entries, order, lifetime } = self;
        entries.retain(|(_, ip), entry| {
            let lives = now < entry.at + *lifetime;
            if !lives {
                order.remove(Source::of(*ip), entry.id);
            }
            lives
        });
    }
}
