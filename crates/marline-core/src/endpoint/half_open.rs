//! Half-open connections of an endpoint: those whose peer has not acknowledged the SYN/ACK.

use core::net::IpAddr;
use std::collections::BTreeMap;

use crate::{ConnectionId, PendingId, PendingLimits, PendingPeers, Source};

/// No limits: the endpoint limits the number itself, because a connection opened by a SYN cookie must not evict
/// another.
const NO_LIMITS: PendingLimits = PendingLimits { total: usize::MAX, per_source: usize::MAX };

/// Half-open connections by source.
#[derive(Debug)]
pub(super) struct HalfOpen {
    peers: PendingPeers<ConnectionId>,
    by_slot: BTreeMap<u32, (Source, PendingId)>,
}

impl Default for HalfOpen {
    fn default() -> Self {
        HalfOpen { peers: PendingPeers::new(NO_LIMITS), by_slot: BTreeMap::new() }
    }
}

impl HalfOpen {
    /// Number of half-open connections.
    pub(super) const fn count(&self) -> usize {
        self.peers.len()
    }

    /// Adds the connection in a slot.
    pub(super) fn add(&mut self, slot: u32, id: ConnectionId, peer: IpAddr) {
        let source = Source::of(peer);
        let (pending, _) = self.peers.admit(source, id);
        self.by_slot.insert(slot, (source, pending));
    }

    /// Removes the connection in a slot, because it is no longer half-open.
    pub(super) fn remove(&mut self, slot: u32) {
        if let Some((source, pending)) = self.by_slot.remove(&slot) {
            self.peers.remove(source, pending);
        }
    }

    /// Removes and returns the connection to evict for a newcomer; `None` if there is none.
    pub(super) fn make_room(&mut self, newcomer: IpAddr) -> Option<ConnectionId> {
        self.peers.make_room(Source::of(newcomer))
    }
}
