//! Peers that a client names by host name.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::{Flow, Nat, Peer, PeerRoute};
use crate::message::{ErrorCode, Failure};
use crate::server::dial::allowed;
use crate::udp::{FlowKey, Item, count};

/// Maximum number of concurrent name lookups for one client.
pub(super) const MAX_LOOKUPS: usize = 64;

impl Nat {
    /// Starts the lookup of a name.
    pub(super) fn look_up(&self, flow: u64, key: &FlowKey) -> Flow {
        let Ok(place) = Arc::clone(&self.lookups).try_acquire_owned() else {
            return Flow::Refused(ErrorCode::ResourceExceeded);
        };
        let (nat, key) = (Weak::clone(&self.weak_self), key.clone());
        let rules = Arc::clone(&self.rules.borrow());
        tokio::spawn(async move {
            let found = allowed(&rules, &key.peer).await;
            drop(place);
            if let Some(nat) = nat.upgrade() {
                nat.on_looked_up(flow, &key, found);
            }
        });
        Flow::LookedUp(Vec::new())
    }

    fn on_looked_up(&self, flow: u64, key: &FlowKey, found: Result<Vec<SocketAddr>, Failure>) {
        let now = Instant::now();
        let mut state = self.lock();
        let state = &mut *state;
        if state.flows.find(key) != Some(flow) {
            // Removed in the meantime.
            return;
        }
        let Some((_, entry)) = state.flows.get(flow) else { return };
        let Flow::LookedUp(waiting) = entry else { return };
        let waiting = std::mem::take(waiting);
        match found {
            Ok(addresses) => {
                let Some(address) = best_address(&addresses) else { return };
                let peer = Peer { address, route: PeerRoute::Allowed };
                *entry = Flow::Open { peer, named: true };
                state.flows.alias(flow, address.into());
                state.outbox.push(flow, &Item::Known(Some(address)));
                for payload in waiting {
                    self.forward(state, now, key.socket, peer, &payload);
                }
            }
            Err(failure) => {
                tracing::warn!(client = %self.client.name, "datagrams to {} refused: {}", key.peer, failure.text);
                *entry = Flow::Refused(failure.code);
                count(&self.shared.counters.refused);
                state.outbox.push(flow, &Item::Refused(failure.code));
            }
        }
        state.outbox.flush(&self.lane, &self.shared.counters);
    }
}

/// Returns the first address with a route, or else the first.
fn best_address(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let has_route = |to: &&SocketAddr| {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Connecting a UDP socket sends nothing and only checks the routing table.
        std::net::UdpSocket::bind(any).is_ok_and(|socket| socket.connect(**to).is_ok())
    };
    addresses.iter().find(has_route).or(addresses.first()).copied()
}
