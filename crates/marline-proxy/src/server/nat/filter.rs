//! Filtering of datagrams that a mapped port receives from peers without a flow (RFC 4787 section 5).
//!
//! Filtering decides which peers may use a client's mapped port, and with it the client's quota and mobile data.
//! Address-dependent filtering, the default, accepts datagrams from the addresses that the application has sent to,
//! from any port. That suffices for ICE and for servers with several ports. Endpoint-independent filtering accepts
//! every public address, for applications whose peers send first. In both cases, datagrams without a flow are rate
//! limited per source and in total. A peer that the application answers gets a flow of its own, which is not
//! limited here.

use std::net::IpAddr;
use std::time::Duration;

use marline_io::Source;
use tokio::time::Instant;

use crate::rate::{Rate, RateLimit, RateLimits};

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
const PER_SOURCE: Rate = Rate { burst: 64, interval: Duration::from_millis(20) };
/// Rate of datagrams without a flow, for all sources of one client.
const TOTAL_RATE: Rate = Rate { burst: 256, interval: Duration::from_millis(4) };
/// Largest number of sources that are remembered.
const SOURCES: usize = 256;

/// Rate limits on what arrives at a client's mapped ports from peers without a flow.
#[derive(Debug)]
pub(super) struct UnsolicitedRates {
    in_all: RateLimit,
    by_source: RateLimits<Source>,
}

impl Default for UnsolicitedRates {
    fn default() -> Self {
        let by_source = RateLimits::new(PER_SOURCE, SOURCES);
        UnsolicitedRates { in_all: RateLimit::new(TOTAL_RATE), by_source }
    }
}

impl UnsolicitedRates {
    /// Takes one more datagram from `address`. True if it is within the limits.
    pub(super) fn take(&mut self, address: IpAddr, now: Instant) -> bool {
        self.by_source.take(Source::of(address), now) && self.in_all.take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0xc633_6400 + last).into()
    }

    /// How many of `count` datagrams pass that arrive evenly spread over one second.
    fn passed(rates: &mut UnsolicitedRates, from: IpAddr, start: Instant, count: u32) -> u32 {
        (0..count)
            .map(|at| u32::from(rates.take(from, start + Duration::from_secs(1) * at / count)))
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
            .filter(|at| rates.take(address(*at), start + Duration::from_micros(100) * *at))
            .count();
        assert!((256..=510).contains(&all), "256 and 250 in a second: {all}");
        assert!(
            rates.take(address(20_000), start + Duration::from_secs(10)),
            "they are forgotten once they are silent"
        );
    }
}
