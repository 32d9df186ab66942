//! Packets of a small world, each stored once.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use marline_core::{ChecksumScope, FourTuple, PacketMeta};

use crate::{Seg, Side};

/// Index of a packet in a [`Packets`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PacketId(u32);

/// A packet sent by an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: Side,
    pub(super) path: usize,
    pub(super) meta: PacketMeta,
    pub(super) bytes: Vec<u8>,
    pub(super) has_mptcp: bool,
}

impl Packet {
    pub(super) fn new(to: Side, path: usize, meta: PacketMeta, bytes: Vec<u8>) -> Packet {
        let mut packet = Packet { to, path, meta, bytes, has_mptcp: false };
        let seg = packet.seg();
        packet.has_mptcp = seg.options.dss.is_some() || seg.options.mptcp.iter().next().is_some();
        packet
    }

    pub(super) fn seg(&self) -> Seg {
        Seg::parse(&self.bytes).expect("a packet sent by an endpoint")
    }

    fn without_options(&self, scope: ChecksumScope) -> Packet {
        let mut seg = self.seg();
        seg.options.dss = None;
        seg.options.mptcp = Default::default();
        let FourTuple { local, remote } = self.meta.path;
        let addresses = (scope == ChecksumScope::WithAddresses).then(|| (remote.ip(), local.ip()));
        Packet::new(self.to, self.path, self.meta, seg.bytes(addresses))
    }

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.to as u8, self.path, self.meta.flow, self.meta.peer_flow).hash(&mut hasher);
        self.bytes.hash(&mut hasher);
        hasher.finish()
    }
}

/// All packets that were sent. Equal packets are stored once.
#[derive(Debug, Default)]
pub(super) struct Packets {
    all: Vec<Packet>,
    ids: HashMap<u64, PacketId>,
    stripped: HashMap<PacketId, PacketId>,
}

impl Packets {
    pub(super) fn add(&mut self, packet: Packet) -> PacketId {
        let next = PacketId(self.all.len() as u32);
        let id = *self.ids.entry(packet.hash()).or_insert(next);
        if id == next {
            self.all.push(packet);
        }
        id
    }

    pub(super) fn get(&self, id: PacketId) -> &Packet {
        &self.all[id.0 as usize]
    }

    /// A copy of the packet without its MPTCP options.
    pub(super) fn strip_options(&mut self, id: PacketId, scope: ChecksumScope) -> PacketId {
        if let Some(known) = self.stripped.get(&id) {
            return *known;
        }
        let stripped = self.get(id).without_options(scope);
        let stripped = self.add(stripped);
        self.stripped.insert(id, stripped);
        stripped
    }
}
