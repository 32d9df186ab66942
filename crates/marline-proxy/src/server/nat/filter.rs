//! Filtering of datagrams that a mapped port receives from peers without a flow (RFC 4787 section 5).
//!
//! Filtering decides which peers may use a client's mapped port, and with it the client's quota and mobile data.
//! Address-dependent filtering, the default, accepts datagrams from the addresses that the application has sent to,
//! from any port. That suffices for ICE and for servers with several ports. Endpoint-independent filtering accepts
//! every public address, for applications whose peers send first. In both cases, datagrams without a flow are rate
//! limited per source and in total. A peer that the application answers gets its own flow, which is not limited here.
//!
//! The server opens a flow for such a peer. The client confirms it, answers in it, or refuses it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_io::Source;
use tokio::time::Instant;

use super::{Nat, Peer, PeerRoute, State, address_of};
use crate::rate::{Rate, RateLimit, RateLimits};
use crate::udp::{FlowKey, Item, count};

/// Policy for peers that may send to a mapped port.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum UdpFiltering {
    /// Peers at an address that the application has sent to.
    #[default]
    AddressDependent,
    /// All peers that the rules allow.
    EndpointIndependent,
}

/// Rate of datagrams without a flow, per source.
const RATE_PER_SOURCE: Rate = Rate { burst: 64, interval: Duration::from_millis(20) };
/// Rate of datagrams without a flow, for all sources of one client.
const TOTAL_RATE: Rate = Rate { burst: 256, interval: Duration::from_millis(4) };
/// Maximum number of sources that are remembered.
const MAX_SOURCES: usize = 256;

/// Rate limits on what arrives at a client's mapped ports from peers without a flow.
#[derive(Debug)]
pub(super) struct UnsolicitedRates {
    total_limit: RateLimit,
    by_source: RateLimits<Source>,
}

impl Default for UnsolicitedRates {
    fn default() -> Self {
        let by_source = RateLimits::new(RATE_PER_SOURCE, MAX_SOURCES);
        UnsolicitedRates { total_limit: RateLimit::new(TOTAL_RATE), by_source }
    }
}

impl UnsolicitedRates {
    /// Takes one more datagram from `address`. Returns true if it is within the limits.
    pub(super) fn try_take(&mut self, address: IpAddr, now: Instant) -> bool {
        self.by_source.try_take(Source::of(address), now) && self.total_limit.try_take(now)
    }
}

/// State of a flow that the server opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct UnsolicitedFlow {
    known: UnsolicitedReaction,
    route: PeerRoute,
}

/// The client's reaction to a flow that the server opened.
#[derive(Copy, Clone, Debug)]
pub(super) enum UnsolicitedReaction {
    /// The client has not confirmed the flow.
    New,
    Known,
    /// The client refuses the flow.
    Unwanted,
}

impl Nat {
    /// Handles a datagram from a peer without a flow.
    pub(super) fn on_unsolicited(
        &self,
        state: &mut State,
        now: Instant,
        key: FlowKey,
        from: SocketAddr,
        payload: &[u8],
    ) {
        let Some(route) = self.admit_unsolicited(state, now, key.socket, from) else {
            return count(&self.shared.counters.filtered);
        };
        self.client.account.traffic.count(payload.len() as u64, 0);
        let flow = match state.unsolicited.find(&key) {
            Some(flow) => flow,
            None => {
                let new = UnsolicitedFlow { known: UnsolicitedReaction::New, route };
                let (flow, full) = state.unsolicited.open(key.clone(), new, now);
                count(&self.shared.counters.flows);
                if full {
                    count(&self.shared.counters.flows_forgotten);
                }
                flow
            }
        };
        match state.unsolicited.mark_used(flow, now).map(|(_, flow, _)| flow.known) {
            Some(UnsolicitedReaction::Known) => state.outbox.push(flow, &Item::Data(payload)),
            Some(UnsolicitedReaction::Unwanted) | None => count(&self.shared.counters.dropped),
            Some(UnsolicitedReaction::New) => {
                state.outbox.describe(flow, key.socket, &key.peer, payload)
            }
        }
    }

    /// Returns the route to a peer without a flow, or `None` if it may not send to the socket now.
    fn admit_unsolicited(
        &self,
        state: &mut State,
        now: Instant,
        socket: u32,
        from: SocketAddr,
    ) -> Option<PeerRoute> {
        let is_expected = match self.filtering {
            UdpFiltering::AddressDependent => state.flows.has_peer(socket, from.ip()),
            UdpFiltering::EndpointIndependent => true,
        };
        let may_be =
            is_expected && from.port() != 0 && state.unsolicited_rates.try_take(from.ip(), now);
        may_be.then(|| self.route_to(from).ok()).flatten()
    }

    /// Handles the client's answer to a peer that had sent first.
    pub(super) fn on_answer(&self, state: &mut State, now: Instant, flow: u64, payload: &[u8]) {
        let known = state.unsolicited.mark_used(flow, now);
        let to = known.and_then(|(key, flow, _)| {
            let peer = Peer { address: address_of(&key.peer)?, route: flow.route };
            Some((key.socket, peer))
        });
        match to {
            Some((socket, peer)) => self.forward(state, now, socket, peer, payload),
            None => {
                count(&self.shared.counters.unknown);
                state.outbox.push(flow, &Item::Unknown);
            }
        }
    }
}

pub(super) fn set_unsolicited(state: &mut State, flow: u64, to: UnsolicitedReaction) {
    if let Some((_, flow)) = state.unsolicited.get(flow) {
        flow.known = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0xc633_6400 + last).into()
    }

    /// Returns the number of datagrams that pass out of `count` that arrive evenly spread over one second.
    fn passed(rates: &mut UnsolicitedRates, from: IpAddr, start: Instant, count: u32) -> u32 {
        (0..count)
            .map(|at| u32::from(rates.try_take(from, start + Duration::from_secs(1) * at / count)))
            .sum()
    }

    #[test]
    fn a_source_gets_a_burst_and_then_fifty_a_second() {
        let (mut rates, start) = (UnsolicitedRates::default(), Instant::now());
        let first = passed(&mut rates, address(1), start, 10_000);
        assert!((110..=115).contains(&first), "64 and 50: {first}");
        let second = passed(&mut rates, address(1), start + Duration::from_secs(1), 10_000);
        assert!((48..=52).contains(&second), "{second}");
        assert_eq!(
            passed(&mut rates, address(2), start + Duration::from_secs(2), 20),
            20,
            "another source"
        );
    }

    #[test]
    fn many_sources_share_a_limit() {
        let (mut rates, start) = (UnsolicitedRates::default(), Instant::now());
        let all = (0..10_000_u32)
            .filter(|at| rates.try_take(address(*at), start + Duration::from_micros(100) * *at))
            .count();
        assert!((256..=510).contains(&all), "256 and 250 in a second: {all}");
        assert!(
            rates.try_take(address(20_000), start + Duration::from_secs(10)),
            "they are forgotten once they are silent"
        );
    }
}
