//! Initial sequence numbers and timestamp offsets of a subflow, from the clock and a keyed hash of its addresses
//! (RFC 6528, RFC 7323 section 7.1).
//!
//! Two successive connections between two addresses must be distinguishable: the sequence numbers and timestamps of
//! the second are beyond those of the first, so that a peer that still remembers the first (TIME-WAIT) recognizes the
//! new SYN and accepts it (RFC 9293 section 3.10.7.4, RFC 6191). For other addresses, the numbers are different and
//! cannot be predicted without the secret.

use core::fmt;
use core::net::IpAddr;

use marline_time::{Instant, Rng};
use marline_wire::SeqNum;

use crate::FourTuple;
use crate::crypto::keyed_hash;

/// Tick of the ISN clock (RFC 9293 section 3.4.1: 4 microseconds).
const TICK_US: u64 = 4;

/// Secret of an endpoint for its initial numbers. `Debug` hides it, because it makes ISNs predictable.
pub(crate) struct InitialNumbers {
    secret: [u8; 16],
}

impl fmt::Debug for InitialNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InitialNumbers(..)")
    }
}

impl InitialNumbers {
    pub(crate) fn draw(rng: &mut dyn Rng) -> Self {
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
        secret[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
        InitialNumbers { secret }
    }

    /// Initial sequence number of a subflow that opens now.
    pub(crate) fn isn(&self, now: Instant, path: FourTuple) -> SeqNum {
        let clock = now.as_micros() / TICK_US;
        SeqNum(self.hash(path).0).add(clock as u32)
    }

    /// Offset of the timestamp clock for these addresses. It is constant, so that timestamps continue after those
    /// of the previous connection.
    pub(crate) fn timestamp_offset(&self, path: FourTuple) -> u32 {
        self.hash(path).1
    }

    /// Hash of these values for a SYN cookie.
    pub(crate) fn cookie(&self, about: &[&[u8]]) -> [u8; 32] {
        let key = keyed_hash(&self.secret, &[b"SYN cookie"]);
        let mut half = [0; 16];
        half.copy_from_slice(&key[..16]);
        keyed_hash(&half, about)
    }

    fn hash(&self, path: FourTuple) -> (u32, u32) {
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let hash = keyed_hash(
            &self.secret,
            &[
                &octets(path.local.ip()),
                &path.local.port().to_be_bytes(),
                &octets(path.remote.ip()),
                &path.remote.port().to_be_bytes(),
            ],
        );
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&hash[at..at + 4]);
            u32::from_be_bytes(bytes)
        };
        (word(0), word(4))
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use marline_time::{Duration, SeedTree};

    use super::*;

    fn path(port: u16) -> FourTuple {
        let at = |host, port| SocketAddr::from(([10, 0, 0, host], port));
        FourTuple { local: at(1, port), remote: at(2, 443) }
    }

    fn numbers(seed: u64) -> InitialNumbers {
        InitialNumbers::draw(&mut SeedTree::new(seed).stream("initial"))
    }

    #[test]
    fn initial_numbers_grow_with_time_and_depend_on_path_and_secret() {
        let (ours, now) = (numbers(1), Instant::from_secs(1));
        let first = ours.isn(now, path(1_000));
        assert_eq!(first, numbers(1).isn(now, path(1_000)));
        let later = ours.isn(now + Duration::from_millis(1), path(1_000));
        assert_eq!(later.offset_from(first), 250, "a tick of 4 us");
        assert_eq!(ours.timestamp_offset(path(1_000)), numbers(1).timestamp_offset(path(1_000)));
        assert_ne!(ours.timestamp_offset(path(1_000)), first.0);
        let swapped = FourTuple { local: path(1_000).remote, remote: path(1_000).local };
        for (numbers, path) in
            [(numbers(1), path(1_001)), (numbers(2), path(1_000)), (numbers(1), swapped)]
        {
            assert_ne!(numbers.isn(now, path), first);
            assert_ne!(numbers.timestamp_offset(path), ours.timestamp_offset(self::path(1_000)));
        }
        assert_eq!(format!("{ours:?}"), "InitialNumbers(..)");
    }
}
