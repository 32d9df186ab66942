//! Distribution of native TCP over the shards that share its ports: computation of a remote address's shard, which
//! the program and the socket filters do in the same way (docs/decisions/upgrades-and-shards.md).
//!
//! The remote address and port of a connection's first SYN select its shard, and all later packets from there go to
//! the same shard. The words of the address and the port are folded together and multiplied, and the highest bits of
//! the product count. Clients choose their ports in steps, and those bits distribute steps evenly. The function is
//! not secret: a client that sends all its connections to one shard gets what a server with one shard would provide.

use core::net::{IpAddr, SocketAddr};

use marline_core::Shard;

use super::instructions::{
    A_TO_X, DROP, JUMP_IF_EQUAL, LOAD_HALF, LOAD_HALF_INDEXED, LOAD_HEADER_LEN, LOAD_WORD, LOAD_X,
    MULTIPLY, RETURN, SHIFT_RIGHT, STORE, XOR, op,
};
use crate::sys::filter::Instruction;

/// 2^32 divided by the golden ratio, odd: its multiples are as far apart as possible.
const MULTIPLIER: u32 = 0x9e37_79b1;

/// Offset of the source port in a TCP header.
const SOURCE_PORT: u32 = 0;
/// Offset of the source address in an IPv4 packet, which begins with its header.
const SOURCE_V4: u32 = 12;
/// Offsets of the source address words in an IPv6 header. It is not part of the filter's packet, but the kernel
/// provides access to it.
const SOURCE_V6: [u32; 4] = {
    let header = libc::SKF_NET_OFF as u32;
    [header + 8, header + 12, header + 16, header + 20]
};

/// Returns the shard among `count`, a power of two, that receives packets from this address, except for joins to a
/// connection of another shard.
pub(crate) fn home(remote: SocketAddr, count: u8) -> u8 {
    let folded = match remote.ip() {
        IpAddr::V4(v4) => u32::from(v4),
        IpAddr::V6(v6) => {
            let wide = u128::from(v6);
            (0..4).fold(0, |folded, word| folded ^ (wide >> (32 * word)) as u32)
        }
    };
    let product = (folded ^ u32::from(remote.port())).wrapping_mul(MULTIPLIER);
    // With one shard, no bit counts.
    product.checked_shr(idle_bits(count)).unwrap_or(0) as u8
}

/// Low bits of the product that do not count.
const fn idle_bits(count: u8) -> u32 {
    u32::BITS - count.trailing_zeros()
}

/// Builds the beginning of a filter, which drops packets of other shards. Empty for a single shard.
pub(super) fn program(ipv6: bool, shard: Shard) -> Vec<Instruction> {
    if shard.count <= 1 {
        return Vec::new();
    }
    let mut program = Vec::new();
    if ipv6 {
        program.push(op(LOAD_WORD, SOURCE_V6[0]));
        for word in &SOURCE_V6[1..] {
            program.extend([op(A_TO_X, 0), op(LOAD_WORD, *word), op(XOR, 0)]);
        }
        program.extend([op(STORE, 0), op(LOAD_HALF, SOURCE_PORT)]);
    } else {
        program.extend([op(LOAD_WORD, SOURCE_V4), op(STORE, 0)]);
        program.extend([op(LOAD_HEADER_LEN, 0), op(LOAD_HALF_INDEXED, SOURCE_PORT)]);
    }
    program.extend([op(LOAD_X, 0), op(XOR, 0), op(MULTIPLY, MULTIPLIER)]);
    program.push(op(SHIFT_RIGHT, idle_bits(shard.count)));
    program.push(Instruction { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: u32::from(shard.index) });
    program.push(op(RETURN, DROP));
    program
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// Counts the addresses per shard.
    fn spread(ends: impl Iterator<Item = SocketAddr>, count: u8) -> Vec<usize> {
        let mut each = vec![0; usize::from(count)];
        ends.for_each(|end| each[usize::from(home(end, count))] += 1);
        each
    }

    #[test]
    fn ports_in_steps_and_neighbouring_addresses_are_spread_evenly() {
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
                assert!(home(end.parse().unwrap(), count) < count);
            }
        }
    }
}
