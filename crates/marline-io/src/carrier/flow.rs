//! State of the UDP carrier per flow, per SYN that TCP has not answered yet, and per address.

use core::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;
use std::hash::RandomState;

use marline_core::{FourTuple, PendingId, PendingLimits, PendingPeers, Source};
use marline_time::{Duration, Instant};

use super::frame::{Cookie, Introduction};
use super::keys::Bond;

/// Bytes that may go to an unproven address for each byte received from it.
const AMPLIFICATION: u64 = 3;

/// The outer addresses of a datagram: which socket, which of its addresses, and the peer's.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outer {
    /// The socket's index within its shard.
    pub socket: u16,
    /// The local IP address (a socket may be bound to all of them).
    pub local: IpAddr,
    /// The peer's address.
    pub remote: SocketAddr,
}

/// Bytes exchanged with an address that has not proven that it receives.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Allowance {
    received: u64,
    sent: u64,
}

impl Allowance {
    /// Counts bytes that came from the address.
    pub(super) fn received(&mut self, bytes: usize) {
        self.received = self.received.saturating_add(bytes as u64);
    }

    /// Counts bytes to be sent there, if they may.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let after = self.sent.saturating_add(bytes as u64);
        let fits = after <= self.received.saturating_mul(AMPLIFICATION);
        if fits {
            self.sent = after;
        }
        fits
    }
}

/// A subflow as the carrier sees it.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// The ends as the core knows them; never change.
    pub(super) path: FourTuple,
    /// What ties it to its peer. In place: a piece of heap for each flow, which stays for all of TIME-WAIT,
    /// would hold the page that a connection of some 25 kB left around it.
    pub(super) bond: Bond,
    /// While our SYN waits for its answer.
    pub(super) opening: Option<Box<Opening>>,
    /// The peer's id; 0 until known.
    pub(super) peer_flow: u64,
    /// Where it is.
    pub(super) outer: Outer,
    /// That address has proven that it receives.
    pub(super) validated: bool,
    /// Counts while it has not.
    pub(super) allowance: Allowance,
    /// Its number among the strangers, which it keeps. `None`: we opened it.
    pub(super) pending: Option<PendingId>,
    /// It is among them now.
    pub(super) is_stranger: bool,
    /// Its subflow has ended.
    pub(super) has_ended: bool,
    /// Moves so far.
    pub(super) moves: u32,
    /// The address challenged last, and when.
    pub(super) challenged: Option<(Outer, Instant)>,
    /// We sent its SYN: where it goes is for us to say.
    pub(super) opened_here: bool,
    /// A link carries it, or did until its last place.
    pub(super) by_link: bool,
    /// It gets keepalives: we sent its SYN, and its subflow has not ended.
    pub(super) kept_open: bool,
    /// When we last sent on it.
    pub(super) sent_at: Instant,
    /// When something last came in on it.
    pub(super) heard_at: Instant,
    /// Steps of [`Flow::quiet_due`] taken since then.
    pub(super) quiet_steps: u8,
    /// When it came to be.
    pub(super) created_at: Instant,
    /// When its keepalive is to be looked at: the entry in the queue of alarms that counts.
    pub(super) alarm_at: Instant,
}

/// A flow whose SYN has not been answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Opening {
    /// What the server gave us to come back with.
    pub(super) cookie: Option<Cookie>,
    /// Cookies got.
    pub(super) retries: u8,
    /// The server's id and what it said of itself.
    pub(super) answer: Option<(u64, Introduction)>,
}

/// Silence after which a flow that was busy is asked about, the first time; then twice as long.
pub(crate) const FIRST_QUIET: Duration = Duration::from_secs(1);
/// How often.
const QUIET_STEPS: u8 = 4;

impl Flow {
    /// A flow whose address has proven nothing, opened by the peer.
    pub(super) fn new(now: Instant, path: FourTuple, outer: Outer, bond: Bond) -> Self {
        Flow {
            path,
            bond,
            opening: None,
            peer_flow: 0,
            outer,
            validated: false,
            allowance: Allowance::default(),
            pending: None,
            is_stranger: false,
            has_ended: false,
            moves: 0,
            challenged: None,
            opened_here: false,
            by_link: false,
            kept_open: false,
            sent_at: now,
            heard_at: now,
            quiet_steps: u8::MAX,
            created_at: now,
            alarm_at: Instant::FAR_FUTURE,
        }
    }

    /// What its number of entries among the strangers is counted by.
    pub(super) fn source(&self) -> Source {
        Source::of(self.outer.remote.ip())
    }

    /// It may go when others need the room: its peer has not proven that it receives, or not lately.
    pub(super) fn makes_room(&self, now: Instant) -> bool {
        let is_old = self.heard_at + super::PROOF_LIFETIME <= now;
        self.pending.is_some() && (!self.validated || self.has_ended || is_old)
    }

    /// When to look whether a flow that was busy has gone quiet because a translator forgot it:
    /// whoever only receives would otherwise wait for a peer that sends to the old address.
    pub(super) fn quiet_due(&self) -> Option<Instant> {
        let step = self.quiet_steps;
        (step < QUIET_STEPS).then(|| self.heard_at + FIRST_QUIET * (1 << step))
    }

    /// At [`Flow::quiet_due`]: nothing was sent for a while either, so a keepalive is useful.
    pub(super) fn is_quiet(&self) -> bool {
        let since = FIRST_QUIET * (1 << self.quiet_steps);
        self.sent_at <= self.heard_at + since * 3 / 4
    }
}

/// Hashes an id that is ours: drawn at random, with the same top byte for all of a shard, or counted, in which case the
/// low half says most. Ids of others are only looked up.
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
        // The table takes its index from the low bits and a tag from the top ones. Times 2^64 by the golden ratio low
        // bits stay a permutation of the id's, and all bits reach the top.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Tables of up to so many entries stay as they are.
pub(super) const SMALL_TABLE: usize = 1_024;

/// Gives back what a flood made a table grow to, once seven eighths of it are empty; entries then have room for as
/// many again, so that one is moved for several that went.
pub(super) fn trim<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    if table.capacity() > 2 * SMALL_TABLE && table.len() < table.capacity() / 8 {
        table.shrink_to(SMALL_TABLE.max(2 * table.len()));
    }
}

/// A table by our own flow ids.
pub(super) type FlowMap<T> = HashMap<u64, T, BuildHasherDefault<IdHasher>>;

/// A SYN that came in: by the peer's id and IP address.
#[derive(Copy, Clone, Debug)]
pub(super) struct Pending {
    /// Where it came from.
    pub(super) outer: Outer,
    /// The ends the core was told.
    pub(super) path: FourTuple,
    /// Counts of bytes.
    pub(super) allowance: Allowance,
    /// What the client said of itself.
    pub(super) introduction: Introduction,
    /// The flow TCP made of it.
    pub(super) flow: Option<u64>,
    at: Instant,
    id: PendingId,
}

/// SYNs that wait for TCP's answer. When there are too many, the oldest of the source that has most of them goes.
#[derive(Debug)]
pub(super) struct PendingSyns {
    entries: HashMap<SynKey, Pending, RandomState>,
    order: PendingPeers<SynKey>,
    lifetime: Duration,
}

/// The peer's id, and the IP address that it came from.
type SynKey = (u64, IpAddr);

impl PendingSyns {
    /// An empty table.
    pub(super) fn new(capacity: usize, lifetime: Duration) -> Self {
        let limits = PendingLimits { total: capacity, per_source: capacity };
        PendingSyns { entries: HashMap::default(), order: PendingPeers::new(limits), lifetime }
    }

    /// The SYN with the peer's id `sender` from this IP address.
    pub(super) fn get_mut(&mut self, sender: u64, ip: IpAddr) -> Option<&mut Pending> {
        self.entries.get_mut(&(sender, ip))
    }

    /// Remembers a SYN, or its repetition, which may come from another port.
    pub(super) fn saw(
        &mut self,
        now: Instant,
        sender: u64,
        (outer, path): (Outer, FourTuple),
        introduction: Introduction,
    ) -> &mut Pending {
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
        let fresh = Pending { outer, path, allowance, introduction, flow: None, at: now, id };
        let entry = entries.entry(key).or_insert(fresh);
        if entry.outer != outer {
            entry.outer = outer;
            entry.allowance = Allowance::default();
        }
        entry
    }

    /// Whether this SYN has been seen.
    pub(super) fn knows(&self, sender: u64, ip: IpAddr) -> bool {
        self.entries.contains_key(&(sender, ip))
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Drops those that are too old.
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
