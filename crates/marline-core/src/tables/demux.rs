//! Demultiplexing of packets to connections.
//!
//! Native TCP subflows are identified by four-tuple, and subflows on the UDP carrier by the id that this side chose.
//! A SYN has no such id yet and is identified by its addresses and its sender's id, because two clients behind one
//! NAT may use equal inner ports.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use marline_policy::{SubflowId, Token};

use crate::FourTuple;
use crate::compact_path::Ipv4Tuple;

/// A subflow of a connection in the endpoint's slab.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowRef {
    pub(crate) slot: u32,
    pub(crate) subflow: SubflowId,
}

/// State of a keyed hash. Peers choose four-tuples, so they must not know the key. No code iterates over the tables,
/// so their order does not matter.
#[derive(Clone, Debug)]
pub(crate) struct KeyedState(u64);

impl BuildHasher for KeyedState {
    type Hasher = FoldedHasher;
    fn build_hasher(&self) -> FoldedHasher {
        FoldedHasher { key: self.0 | 1, state: self.0.rotate_left(32) }
    }
}

/// Mixes in each word with a 64-by-64-bit multiplication whose halves are folded together. The key is secret and odd,
/// so that an attacker cannot choose words that collide. A lookup takes a few nanoseconds; SipHash would take several
/// times as long for every packet.
#[derive(Debug)]
pub(crate) struct FoldedHasher {
    key: u64,
    state: u64,
}

impl FoldedHasher {
    const fn mix(&mut self, word: u64) {
        let wide = (self.state ^ word) as u128 * self.key as u128;
        self.state = (wide as u64) ^ ((wide >> 64) as u64) ^ self.key.rotate_left(17);
    }
}

impl Hasher for FoldedHasher {
    fn finish(&self) -> u64 {
        let wide = u128::from(self.state) * 0x9e37_79b9_7f4a_7c15_u128;
        (wide as u64) ^ ((wide >> 64) as u64)
    }
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut buffer = [0; 8];
            buffer[..word.len()].copy_from_slice(word);
            self.mix(u64::from_le_bytes(buffer));
        }
    }
    fn write_u16(&mut self, value: u16) {
        self.mix(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

/// Ids and tokens are already random; their low bits index the table directly.
#[derive(Clone, Debug, Default)]
pub(crate) struct BuildIdentityHasher;

/// See [`BuildIdentityHasher`].
#[derive(Debug, Default)]
pub(crate) struct Identity(u64);

impl BuildHasher for BuildIdentityHasher {
    type Hasher = Identity;
    fn build_hasher(&self) -> Identity {
        Identity(0)
    }
}

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        // The table's control bytes come from the top bits, which are equal within a shard, so the hash bits are mixed.
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) | u64::from(byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
    fn write_u32(&mut self, value: u32) {
        self.0 = u64::from(value);
    }
}

/// Lookup tables of an endpoint.
#[derive(Debug)]
pub(crate) struct Demux {
    by_ipv4: HashMap<Ipv4Tuple, FlowRef, KeyedState>,
    /// Four-tuples other than IPv4.
    by_tuple: HashMap<FourTuple, FlowRef, KeyedState>,
    by_flow: HashMap<u64, FlowRef, BuildIdentityHasher>,
    by_ipv4_syn: HashMap<(Ipv4Tuple, u64), FlowRef, KeyedState>,
    by_syn: HashMap<(FourTuple, u64), FlowRef, KeyedState>,
    by_token: HashMap<u32, u32, BuildIdentityHasher>,
}

/// Lookup key of a subflow.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FlowKey {
    pub(crate) path: FourTuple,
    /// Our id; 0 if the four-tuple is sufficient.
    pub(crate) local_flow: u64,
    /// The peer's id; 0 until it is known.
    pub(crate) peer_flow: u64,
}

impl Demux {
    pub(crate) fn new(key: u64) -> Self {
        Demux {
            by_ipv4: HashMap::with_hasher(KeyedState(key)),
            by_tuple: HashMap::with_hasher(KeyedState(key)),
            by_flow: HashMap::with_hasher(BuildIdentityHasher),
            by_ipv4_syn: HashMap::with_hasher(KeyedState(key)),
            by_syn: HashMap::with_hasher(KeyedState(key)),
            by_token: HashMap::with_hasher(BuildIdentityHasher),
        }
    }

    /// Subflow of a packet. A repeated SYN finds the subflow that it opened.
    pub(crate) fn find(&self, path: &FourTuple, flow: u64, peer_flow: u64) -> Option<FlowRef> {
        match (flow, peer_flow, Ipv4Tuple::from_path(path)) {
            (0, 0, Some(tuple)) => self.by_ipv4.get(&tuple),
            (0, 0, None) => self.by_tuple.get(path),
            (0, peer, Some(tuple)) => self.by_ipv4_syn.get(&(tuple, peer)),
            (0, peer, None) => self.by_syn.get(&(*path, peer)),
            (flow, ..) => self.by_flow.get(&flow),
        }
        .copied()
    }

    /// Subflow with this local id.
    pub(crate) fn find_flow(&self, flow: u64) -> Option<FlowRef> {
        self.by_flow.get(&flow).copied()
    }

    pub(crate) fn has_flow(&self, flow: u64) -> bool {
        self.by_flow.contains_key(&flow)
    }

    pub(crate) fn has_tuple(&self, path: &FourTuple) -> bool {
        self.find(path, 0, 0).is_some()
    }

    pub(crate) fn insert(&mut self, key: FlowKey, flow: FlowRef) {
        let ipv4 = Ipv4Tuple::from_path(&key.path);
        if key.local_flow == 0 {
            match ipv4 {
                Some(tuple) => self.by_ipv4.insert(tuple, flow),
                None => self.by_tuple.insert(key.path, flow),
            };
            return;
        }
        self.by_flow.insert(key.local_flow, flow);
        if key.peer_flow != 0 {
            match ipv4 {
                Some(tuple) => self.by_ipv4_syn.insert((tuple, key.peer_flow), flow),
                None => self.by_syn.insert((key.path, key.peer_flow), flow),
            };
        }
    }

    pub(crate) fn remove(&mut self, key: &FlowKey) {
        let ipv4 = Ipv4Tuple::from_path(&key.path);
        if key.local_flow == 0 {
            match ipv4 {
                Some(tuple) => self.by_ipv4.remove(&tuple),
                None => self.by_tuple.remove(&key.path),
            };
            return;
        }
        self.by_flow.remove(&key.local_flow);
        match ipv4 {
            Some(tuple) => self.by_ipv4_syn.remove(&(tuple, key.peer_flow)),
            None => self.by_syn.remove(&(key.path, key.peer_flow)),
        };
    }

    /// Connection with this token.
    pub(crate) fn token(&self, token: Token) -> Option<u32> {
        self.by_token.get(&token.0).copied()
    }

    pub(crate) fn insert_token(&mut self, token: Token, slot: u32) {
        self.by_token.insert(token.0, slot);
    }

    pub(crate) fn remove_token(&mut self, token: Token) {
        self.by_token.remove(&token.0);
    }
}
