//! Distribution of native TCP among the shards that share its ports: the shard is computed from the remote address, by
//! this module and the socket filters alike (docs/decisions/upgrades-and-shards.md).
//!
//! The remote address and port of a connection's first SYN select its shard, and all later packets from there go to the
//! same shard. The words of the address and the port are folded together and multiplied, and the highest bits of the
//! product select the shard. Clients often increment ports by a fixed step; these bits still distribute them evenly.
//! The function is not secret. A client that aims all its connections at one shard only gets the performance of a
//! server with a single shard.

use core::net::{IpAddr, SocketAddr};

/// 2^32 divided by the golden ratio, rounded to an odd number: its multiples are spread as widely as possible.
pub(crate) const MULTIPLIER: u32 = 0x9e37_79b1;

/// Returns the shard among `count`, a power of two, that receives packets from this address, except for joins to a
/// connection of another shard.
pub(crate) fn home_shard(remote: SocketAddr, count: u8) -> u8 {
    let folded = match remote.ip() {
        IpAddr::V4(v4) => u32::from(v4),
        IpAddr::V6(v6) => {
            let wide = u128::from(v6);
            (0..4).fold(0, |folded, word| folded ^ (wide >> (32 * word)) as u32)
        }
    };
    let product = (folded ^ u32::from(remote.port())).wrapping_mul(MULTIPLIER);
    // With one shard, the product does not matter.
    product.checked_shr(idle_bits(count)).unwrap_or(0) as u8
}

/// Returns the number of low bits of the product that do not matter.
pub(crate) const fn idle_bits(count: u8) -> u32 {
    u32::BITS - count.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// Counts the addresses per shard.
    fn spread(ends: impl Iterator<Item = SocketAddr>, count: u8) -> Vec<usize> {
        let mut each = vec![0; usize::from(count)];
        ends.for_each(|end| each[usize::from(home_shard(end, count))] += 1);
        each
    }

    #[test]
    fn ports_in_steps_and_neighboring_addresses_are_spread_evenly() {
        let client = Ipv4Addr::new(192, 0, 2, 7);
        for count in [1, 2, 4, 16, 128] {
            let fair = 8_192 / usize::from(count);
            let even = |each: Vec<usize>, what: &str| {
                let off = each.iter().map(|n| n.abs_diff(fair)).max().unwrap_or_default();
                assert!(off <= fair / 8 + 2, "{what}, {count} shards: {each:?}");
            };
            for step in [1u16, 2, 4] {
                let ports = (0..8_192u16).map(|n| 32_768u16.wrapping_add(n.wrapping_mul(step)));
                even(spread(ports.map(|port| (client, port).into()), count), "ports");
            }
            let hosts = (0..8_192u32).map(|n| Ipv4Addr::from(0x0a00_0000 + n));
            even(spread(hosts.map(|host| (host, 40_000).into()), count), "IPv4");
            let hosts = (0..8_192u128).map(|n| Ipv6Addr::from(0x2001_0db8 << 96 | n));
            even(spread(hosts.map(|host| (host, 40_000).into()), count), "IPv6");
        }
    }

    #[test]
    fn there_is_a_shard_for_every_end() {
        for count in [1, 2, 128] {
            for end in ["0.0.0.0:0", "255.255.255.255:65535", "[::]:0", "[ffff::ffff]:65535"] {
                assert!(home_shard(end.parse().unwrap(), count) < count);
            }
        }
    }
}
