//! Receive filter of the raw sockets: a classic BPF program that accepts TCP segments to a set of
//! ports and nothing else.
//!
//! A raw socket gets a copy of every TCP segment of the machine. Without a filter, a process would receive copies of
//! all traffic of a busy web server, which is expensive and a privacy risk. The program is a decision tree over the
//! sorted port ranges, so that many ports cost few steps. With several shards, each accepts only its own packets
//! ([`home`](crate::native::home)). The filter's input begins with the IP header on IPv4 and with the TCP header on
//! IPv6.

use core::ops::RangeInclusive;
use std::io;
use std::os::fd::BorrowedFd;

use marline_core::Shard;

use super::filter::{self, Instruction};
use super::instructions::{
    A_TO_X, DROP, JUMP, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, JUMP_IF_GREATER, LOAD_HALF,
    LOAD_HALF_INDEXED, LOAD_HEADER_LEN, LOAD_WORD, LOAD_X, MULTIPLY, RETURN, SHIFT_RIGHT, STORE,
    XOR, op,
};
use crate::native::spread::{MULTIPLIER, idle_bits};

/// Offset of the destination port in a TCP header.
const DESTINATION_PORT: u32 = 2;
/// Offset of the source port in a TCP header.
const SOURCE_PORT: u32 = 0;
/// Offset of the source address in an IPv4 packet, which begins with its header.
const SOURCE_V4: u32 = 12;
/// Offsets of the source address words in an IPv6 header. The filter's input does not include this header, but the
/// kernel provides access to it.
const SOURCE_V6: [u32; 4] = {
    let header = libc::SKF_NET_OFF as u32;
    [header + 8, header + 12, header + 16, header + 20]
};

/// Maximum number of instructions.
const MAX_INSTRUCTIONS: usize = 4_096;

/// Installs the filter that passes only packets to these ports whose home is this shard.
pub(crate) fn install(
    socket: BorrowedFd<'_>,
    ipv6: bool,
    shard: Shard,
    ports: impl IntoIterator<Item = u16>,
) -> io::Result<()> {
    let mut instructions = program(ipv6, shard, &ranges(ports));
    if instructions.len() > MAX_INSTRUCTIONS {
        // The filter passes all packets; those that are not ours are dropped after reception.
        let all = core::slice::from_ref(&(0..=u16::MAX));
        instructions = program(ipv6, shard, all);
    }
    filter::attach(socket, &instructions)
}

/// Builds the program that accepts packets to these sorted, disjoint ports if this shard is their home.
fn program(ipv6: bool, shard: Shard, ports: &[RangeInclusive<u16>]) -> Vec<Instruction> {
    let mut program = shard_program(ipv6, shard);
    if ipv6 {
        program.push(op(LOAD_HALF, DESTINATION_PORT));
    } else {
        program.push(op(LOAD_HEADER_LEN, 0));
        program.push(op(LOAD_HALF_INDEXED, DESTINATION_PORT));
    }
    tree(ports, &mut program);
    program
}

/// Builds the beginning of a filter, which drops packets of other shards; empty for a single shard.
fn shard_program(ipv6: bool, shard: Shard) -> Vec<Instruction> {
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

/// Merges consecutive ports into ranges.
fn ranges(ports: impl IntoIterator<Item = u16>) -> Vec<RangeInclusive<u16>> {
    let mut sorted: Vec<u16> = ports.into_iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for port in sorted {
        match ranges.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(port) => {
                *last = *last.start()..=port;
            }
            _ => ranges.push(port..=port),
        }
    }
    ranges
}

/// Appends the decision tree. Each branch ends with a return, so branches need not join.
fn tree(ports: &[RangeInclusive<u16>], program: &mut Vec<Instruction>) {
    const WHOLE_PACKET: u32 = u32::MAX;
    match ports {
        [] => program.push(op(RETURN, DROP)),
        [range] if range.start() == range.end() => {
            let port = u32::from(*range.start());
            program.push(Instruction { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: port });
            program.push(op(RETURN, DROP));
            program.push(op(RETURN, WHOLE_PACKET));
        }
        [range] => {
            let (first, last) = (u32::from(*range.start()), u32::from(*range.end()));
            program.push(Instruction { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: first });
            program.push(Instruction { code: JUMP_IF_GREATER, jt: 0, jf: 1, k: last });
            program.push(op(RETURN, DROP));
            program.push(op(RETURN, WHOLE_PACKET));
        }
        _ => {
            let (low, high) = ports.split_at(ports.len() / 2);
            let first = high.first().map_or(0, |range| u32::from(*range.start()));
            program.push(Instruction { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: first });
            let jump = program.len();
            program.push(op(JUMP, 0));
            tree(low, program);
            program[jump].k = (program.len() - jump - 1) as u32;
            tree(high, program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{instructions, raw};
    use super::*;
    use crate::native::home_shard as home_of;

    /// Interprets a program like the kernel, with the few instructions used here.
    fn run(program: &[Instruction], ip: &[u8], packet: &[u8]) -> u32 {
        let (mut at, mut a, mut x, mut stored) = (0, 0u32, 0u32, 0u32);
        let half = |offset: u32| {
            let bytes = packet.get(offset as usize..offset as usize + 2)?;
            Some(u32::from(u16::from_be_bytes([bytes[0], bytes[1]])))
        };
        let word = |offset: u32| {
            let at_ip = offset.wrapping_sub(libc::SKF_NET_OFF as u32);
            let (from, offset) = if at_ip < offset { (ip, at_ip) } else { (packet, offset) };
            let bytes = from.get(offset as usize..offset as usize + 4)?;
            Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        loop {
            let i = program[at];
            at += 1;
            let jump = |condition: bool| usize::from(if condition { i.jt } else { i.jf });
            match i.code {
                LOAD_HEADER_LEN => match packet.first() {
                    Some(first) => x = u32::from(first & 15) * 4,
                    None => return 0,
                },
                LOAD_HALF | LOAD_HALF_INDEXED => {
                    let base = if i.code == LOAD_HALF { 0 } else { x };
                    match half(base + i.k) {
                        Some(value) => a = value,
                        None => return 0,
                    }
                }
                instructions::LOAD_WORD => match word(i.k) {
                    Some(value) => a = value,
                    None => return 0,
                },
                instructions::STORE => stored = a,
                instructions::LOAD_X => x = stored,
                instructions::A_TO_X => x = a,
                instructions::XOR => a ^= x,
                instructions::MULTIPLY => a = a.wrapping_mul(i.k),
                instructions::SHIFT_RIGHT => a >>= i.k,
                JUMP_IF_GREATER => at += jump(a > i.k),
                JUMP_IF_AT_LEAST => at += jump(a >= i.k),
                JUMP_IF_EQUAL => at += jump(a == i.k),
                JUMP => at += i.k as usize,
                RETURN => return i.k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    /// Builds the program for a single shard.
    fn single_shard_program(ipv6: bool, ports: &[RangeInclusive<u16>]) -> Vec<Instruction> {
        program(ipv6, Shard::SINGLE, ports)
    }

    fn segment(port: u16) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes
    }

    #[test]
    fn exactly_the_ports_of_the_set_pass() {
        let scattered = (0..800u32).map(|i| (i * 79 % 65_521) as u16).collect();
        for set in [vec![], vec![80], vec![443, 80, 81, 82, 65_535, 0], scattered] {
            let ports = ranges(set);
            let wanted = |port: u16| ports.iter().any(|range| range.contains(&port));
            let v6 = single_shard_program(true, &ports);
            assert!(v6.len() < MAX_INSTRUCTIONS);
            let v4 = single_shard_program(false, &ports);
            for port in 0..=u16::MAX {
                let segment = segment(port);
                assert_eq!(run(&v6, &[], &segment) != 0, wanted(port), "IPv6, port {port}");
                let mut packet = vec![0; 24];
                packet[0] = 0x46;
                packet.extend(segment);
                assert_eq!(
                    run(&v4, &packet, &packet) != 0,
                    wanted(port),
                    "IPv4 with options, {port}"
                );
            }
        }
    }

    #[test]
    fn each_packet_passes_only_the_filter_of_its_home_shard() {
        let ports = ranges([80, 443]);
        let mut random = marline_time::SeedTree::new(7).stream("ends");
        let mut draw = || marline_time::Rng::next_u64(&mut random);
        for count in [2u8, 8, 128] {
            for _ in 0..500 {
                let (wide, port) = (u128::from(draw()) << 64 | u128::from(draw()), draw() as u16);
                let v4 = core::net::Ipv4Addr::from(wide as u32);
                let v6 = core::net::Ipv6Addr::from(wide);
                let mut segment = segment(443);
                segment[..2].copy_from_slice(&port.to_be_bytes());
                // Options of 0 to 40 bytes.
                let header = 20 + 4 * (draw() as usize % 11);
                let mut packet = vec![0; header];
                packet[0] = 0x40 | (header / 4) as u8;
                packet[12..16].copy_from_slice(&v4.octets());
                packet.extend(&segment);
                let mut ip = vec![0; 40];
                ip[8..24].copy_from_slice(&v6.octets());
                let passes = |ipv6: bool, index: u8| {
                    let program = program(ipv6, Shard { index, count, generation: None }, &ports);
                    let (ip, packet) = if ipv6 { (&ip, &segment) } else { (&packet, &packet) };
                    run(&program, ip, packet) != 0
                };
                let home = [(v4, port).into(), (v6, port).into()].map(|end| home_of(end, count));
                for index in (0..count).filter(|n| count < 128 || *n < 4 || home.contains(n)) {
                    assert_eq!(passes(false, index), index == home[0], "{v4} {port} {count}");
                    assert_eq!(passes(true, index), index == home[1], "{v6} {port} {count}");
                }
            }
        }
    }

    #[test]
    fn short_packets_are_dropped() {
        let ports = ranges([0, 80]);
        for shard in [Shard::SINGLE, Shard { index: 0, count: 2, generation: None }] {
            let (v4, v6) = (program(false, shard, &ports), program(true, shard, &ports));
            assert_eq!(run(&v6, &[0x60; 40], &[0, 1, 0]), 0);
            for packet in [&[0x45; 0][..], &[0x45, 0, 0, 0], &[0x45; 21]] {
                assert_eq!(run(&v4, packet, packet), 0);
            }
        }
    }

    #[test]
    fn consecutive_ports_are_one_range() {
        assert_eq!(ranges([5, 3, 4, 9, 4, 65_535]), [3..=5, 9..=9, 65_535..=65_535]);
        let block = single_shard_program(true, &ranges(32_768..32_768 + 512));
        assert!(block.len() < 10);
    }

    /// Tests real packets and the kernel's filters: each connecting client reaches exactly its shard.
    #[test]
    fn the_kernel_delivers_packets_to_their_home_shard() {
        use std::os::fd::AsFd;

        use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

        const COUNT: u8 = 4;
        if !marline_testkit::need::root() {
            return;
        }
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let ipv6 = address.is_ipv6();
            let listener = std::net::TcpListener::bind((address, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let shards: Vec<_> = (0..COUNT)
                .map(|index| {
                    let socket = raw::open(ipv6).unwrap();
                    let shard = Shard { index, count: COUNT, generation: None };
                    let program = program(ipv6, shard, &[port..=port]);
                    filter::attach(socket.as_fd(), &program).unwrap();
                    socket
                })
                .collect();
            let clients: Vec<_> = (0..64)
                .map(|_| std::net::TcpStream::connect((address, port)).unwrap())
                .map(|client| client.local_addr().unwrap())
                .collect();
            let mut buffer = raw::RawBuffer::new();
            let mut heard = 0;
            // Offset of the segment in the data from a socket.
            let start = |bytes: &[u8]| match ipv6 {
                true => 0,
                false => usize::from(bytes[0] & 15) * 4,
            };
            for (index, socket) in shards.iter().enumerate() {
                while buffer.receive(socket.as_fd()).is_ok_and(|count| count > 0) {
                    for (meta, bytes) in buffer.packets() {
                        let segment = &bytes[start(bytes)..];
                        let port = u16::from_be_bytes([segment[0], segment[1]]);
                        let from = SocketAddr::new(meta.source.ip(), port);
                        assert!(clients.contains(&from), "{from}");
                        assert_eq!(usize::from(home_of(from, COUNT)), index, "{from}");
                        // The first packet of each connection is a SYN without ACK.
                        heard += usize::from(segment[13] & 0x12 == 0x02);
                    }
                }
            }
            assert_eq!(heard, clients.len(), "each SYN is received once");
        }
    }
}
