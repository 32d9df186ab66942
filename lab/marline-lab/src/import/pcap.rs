//! Captures at both ends of a path: delay and loss of each direction over time.
//!
//! Packets are matched by fields that routers and NATs keep: for TCP the sequence number, acknowledgment, flags
//! and payload, for UDP the payload. A packet that one end sent and the other never saw is lost. The delay of an
//! interval is the minimum over its packets. The rest is queueing, which the resulting link adds itself.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{bail, ensure};
use marline_wire::{IpPacket, PROTOCOL_TCP, PROTOCOL_UDP, TcpSegment, UdpDatagram};
use pcap_parser::pcapng::Block;
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, create_reader};

use super::{Measurement, PathDirection, Quantity, Sample, normalize_times};

/// Minimum share of packets that both ends captured.
const MIN_SHARED_PACKETS: f64 = 0.3;
/// At most one in this many packets may appear to arrive before it was sent.
const MAX_REVERSED_PAIRS: usize = 100;
/// Maximum time that a packet is in transit in ns.
const MAX_FLIGHT_NS: i64 = 30_000_000_000;

/// Size of the buffer for reading a capture in bytes, which limits the size of a block.
const BUFFER: usize = 1 << 20;

/// A packet of a capture.
#[derive(Copy, Clone, Debug)]
struct CapturedPacket {
    at_ns: i64,
    key: u64,
    from: IpAddr,
    to: IpAddr,
    /// True if the packet has TCP or UDP payload.
    has_payload: bool,
}

/// A capture in pcap or pcapng format.
#[derive(Copy, Clone, Debug)]
pub struct CaptureFile<'a> {
    /// Name for errors.
    pub name: &'a str,
    /// Contents.
    pub bytes: &'a [u8],
}

/// A packet with payload on a path.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PathPacket {
    /// Send time in ns since 1970, by the clock of the sending end.
    pub at_ns: i64,
    /// Time until arrival in ns. `None` if the packet was lost.
    pub took_ns: Option<i64>,
}

/// Returns the packets with payload from the client (0) and to it (1) in the captures of both ends of a path, in the
/// order of sending. The parameters are those of [`read`].
///
/// # Errors
/// The same as [`read`].
pub fn path_packets(
    client: CaptureFile<'_>,
    server: CaptureFile<'_>,
    ahead_ns: i64,
) -> anyhow::Result<[Vec<PathPacket>; 2]> {
    let mut ways = [Vec::new(), Vec::new()];
    // Acknowledgments without payload are identical and may be sent at intervals shorter than the delay.
    for SentPacket { up, at_ns, took_ns } in
        match_transfers(client, server, ahead_ns, |seen| seen.has_payload)?
    {
        ways[usize::from(!up)].push(PathPacket { at_ns, took_ns });
    }
    ways.iter_mut().for_each(|way| way.sort_by_key(|passage| passage.at_ns));
    Ok(ways)
}

/// A packet and its fate.
#[derive(Copy, Clone, Debug)]
struct SentPacket {
    up: bool,
    at_ns: i64,
    took_ns: Option<i64>,
}

/// Computes the delays and losses of a path from the captures of its two ends. `every` is the length of an interval,
/// and `ahead_ns` is the time by which the server's clock is ahead of the client's.
///
/// # Errors
/// A file is not a capture, the captures show different traffic, or the clocks differ by more than the delay.
pub fn read(
    client: CaptureFile<'_>,
    server: CaptureFile<'_>,
    every: Duration,
    ahead_ns: i64,
) -> anyhow::Result<Measurement> {
    ensure!(
        every >= Duration::from_millis(1),
        "intervals of {every:?} are too short; the minimum is 1 ms"
    );
    let sent = match_transfers(client, server, ahead_ns, |_| true)?;
    let start_ns = sent.iter().map(|sent| sent.at_ns).min().unwrap_or(0);
    let mut bins: BTreeMap<i64, [Bin; 2]> = BTreeMap::new();
    let every_ns = i64::try_from(every.as_nanos()).unwrap_or(i64::MAX);
    for SentPacket { up, at_ns, took_ns } in sent {
        let bin = &mut bins.entry((at_ns - start_ns) / every_ns).or_default()[usize::from(!up)];
        bin.sent += 1;
        bin.lost += u32::from(took_ns.is_none());
        bin.min_ns = bin.min_ns.into_iter().chain(took_ns).min();
    }
    let samples = bins.into_iter().map(|(number, ways)| sample(every, number, &ways)).collect();
    Ok(Measurement { samples: normalize_times(client.name, samples)?, ignored: Vec::new() })
}

/// The fate of each packet in two captures of one path for which `wanted` is true.
fn match_transfers(
    client_file: CaptureFile<'_>,
    server_file: CaptureFile<'_>,
    ahead_ns: i64,
    wanted: impl Fn(&CapturedPacket) -> bool,
) -> anyhow::Result<Vec<SentPacket>> {
    let mut client = packets(client_file.name, client_file.bytes)?;
    let mut server = packets(server_file.name, server_file.bytes)?;
    let (client_name, server_name) = (client_file.name, server_file.name);
    client.retain(&wanted);
    server.retain(&wanted);
    server.iter_mut().for_each(|seen| seen.at_ns -= ahead_ns);
    let (mut pairs, alone_client, alone_server) = match_packets(&client, &server);
    let both = pairs.len() as f64 / client.len().min(server.len()).max(1) as f64;
    ensure!(
        both >= MIN_SHARED_PACKETS,
        "{client_name} and {server_name}: only {:.0} % of the packets are in both. Do they \
            contain the same traffic, with \
         whole packets (`tcpdump -s 0`), and with offloads off (`ethtool -K IF tso off gso off \
         gro off`)?",
        100.0 * both
    );
    // Addresses are on the client's side if their packets mostly appear later in the server's capture. If a packet was
    // sent again just as the previous copy arrived, the two are confused. These few are left out.
    let mut signs: BTreeMap<IpAddr, [usize; 2]> = BTreeMap::new();
    let is_up = |(at_client, at_server): &(CapturedPacket, CapturedPacket)| {
        at_server.at_ns >= at_client.at_ns
    };
    for pair in &pairs {
        signs.entry(pair.0.from).or_default()[usize::from(!is_up(pair))] += 1;
    }
    let (up, down): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
        signs.keys().partition(|from| signs[*from][0] >= signs[*from][1]);
    let count = pairs.len();
    pairs.retain(|pair| is_up(pair) == up.contains(&pair.0.from));
    let odd = count - pairs.len();
    // A packet between two addresses of one side shows that the clocks differ.
    let turned = |(at_client, at_server): &(CapturedPacket, CapturedPacket)| {
        up.contains(&at_client.from) && up.contains(&at_client.to)
            || down.contains(&at_server.from) && down.contains(&at_server.to)
    };
    ensure!(
        odd * MAX_REVERSED_PAIRS <= count && !pairs.iter().any(turned),
        "{client_name} and {server_name}: the clocks differ by more than the delay; give the \
            difference with \
         --clock-ahead"
    );
    let mut sent = Vec::new();
    for (at_client, at_server) in &pairs {
        let took = at_server.at_ns - at_client.at_ns;
        let up = took >= 0;
        let at_ns = if up { at_client.at_ns } else { at_server.at_ns };
        sent.push(SentPacket { up, at_ns, took_ns: Some(took.abs()) });
    }
    let mut lost = |all: &[CapturedPacket], from: &BTreeSet<IpAddr>, up: bool| {
        let mine = all.iter().filter(|seen| from.contains(&seen.from));
        sent.extend(mine.map(|seen| SentPacket { up, at_ns: seen.at_ns, took_ns: None }));
    };
    lost(&alone_client, &up, true);
    lost(&alone_server, &down, false);
    Ok(sent)
}

/// Packets of an interval in one direction.
#[derive(Copy, Clone, Debug, Default)]
struct Bin {
    sent: u32,
    lost: u32,
    min_ns: Option<i64>,
}

fn sample(every: Duration, number: i64, ways: &[Bin; 2]) -> Sample {
    let mut values = Vec::new();
    for (way, bin) in [PathDirection::Up, PathDirection::Down]
        .into_iter()
        .zip(ways)
        .filter(|(_, bin)| bin.sent > 0)
    {
        // Rounded to 0.1 ms, so that clock noise does not become an event.
        let ms = |ns: i64| (ns as f64 / 1e5).round() / 10.0;
        values.extend(bin.min_ns.map(|ns| (way, Quantity::Delay, ms(ns))));
        values.push((way, Quantity::Loss, f64::from(bin.lost) / f64::from(bin.sent)));
    }
    Sample { at: every * u32::try_from(number).unwrap_or(u32::MAX), values }
}

/// Packets that both ends captured, each with both records, and packets that only one end captured. Identical packets
/// are matched by time.
type MatchedPackets =
    (Vec<(CapturedPacket, CapturedPacket)>, Vec<CapturedPacket>, Vec<CapturedPacket>);

fn match_packets(client: &[CapturedPacket], server: &[CapturedPacket]) -> MatchedPackets {
    let mut waiting: BTreeMap<u64, Vec<CapturedPacket>> = BTreeMap::new();
    for seen in server {
        waiting.entry(seen.key).or_default().push(*seen);
    }
    let (mut pairs, mut alone) = (Vec::new(), Vec::new());
    for seen in client {
        let others = waiting.entry(seen.key).or_default();
        let apart = |other: &CapturedPacket| (other.at_ns - seen.at_ns).abs();
        let nearest = others.iter().enumerate().min_by_key(|(_, other)| apart(other));
        match nearest.filter(|(_, other)| apart(other) <= MAX_FLIGHT_NS).map(|(at, _)| at) {
            Some(at) => pairs.push((*seen, others.remove(at))),
            None => alone.push(*seen),
        }
    }
    let mut rest: Vec<CapturedPacket> = waiting.into_values().flatten().collect();
    rest.sort_by_key(|seen| seen.at_ns);
    (pairs, alone, rest)
}

/// Finds the IP packet in a frame of this link type.
pub(super) fn find_ip_packet(link: Linktype, frame: &[u8]) -> Option<&[u8]> {
    let behind = |head: usize, kind: usize| {
        let kind = frame.get(kind..kind + 2)?;
        matches!(kind, [0x08, 0x00] | [0x86, 0xdd]).then(|| frame.get(head..)).flatten()
    };
    match link {
        Linktype::ETHERNET if frame.get(12..14) == Some(&[0x81, 0x00]) => behind(18, 16),
        Linktype::ETHERNET => behind(14, 12),
        Linktype::LINUX_SLL => behind(16, 14),
        Linktype(276) => behind(20, 0),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => Some(frame),
        _ => None,
    }
}

fn parse_frame(at_ns: i64, link: Linktype, frame: &[u8]) -> Option<CapturedPacket> {
    let packet = IpPacket::parse(find_ip_packet(link, frame)?).ok()?;
    // This hasher has fixed keys, so the numbers are always the same.
    let mut hash = DefaultHasher::new();
    packet.protocol.hash(&mut hash);
    let has_payload = match packet.protocol {
        PROTOCOL_TCP if packet.fragment.is_none() => {
            let tcp = TcpSegment::parse(packet.payload).ok()?;
            (tcp.header.seq.0, tcp.header.ack.0, tcp.header.flags.0).hash(&mut hash);
            tcp.payload.hash(&mut hash);
            !tcp.payload.is_empty()
        }
        PROTOCOL_UDP if packet.fragment.is_none() => {
            let payload = UdpDatagram::parse(packet.payload).ok()?.payload;
            payload.hash(&mut hash);
            !payload.is_empty()
        }
        _ => return None,
    };
    Some(CapturedPacket {
        at_ns,
        key: hash.finish(),
        from: packet.src,
        to: packet.dst,
        has_payload,
    })
}

/// Interfaces of a capture so far: link type, timestamp units per second, and offset in seconds.
#[derive(Debug, Default)]
struct Interfaces(Vec<(Linktype, u64, i64)>);

impl Interfaces {
    /// Reads a block. If it has a frame, returns the frame's time, link type and bytes.
    fn frame<'a>(&mut self, block: &PcapBlockOwned<'a>) -> Option<(i64, Linktype, &'a [u8])> {
        const SECOND_NS: i64 = 1_000_000_000;
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let units = if header.is_nanosecond_precision() { SECOND_NS } else { 1_000_000 };
                self.0 = vec![(header.network, units as u64, 0)];
                None
            }
            PcapBlockOwned::Legacy(packet) => {
                let (link, units, _) = self.0.first().copied()?;
                let part = i64::from(packet.ts_usec) * (SECOND_NS / units as i64);
                Some((i64::from(packet.ts_sec) * SECOND_NS + part, link, packet.data))
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => {
                self.0.clear();
                None
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                let units = interface.ts_resolution().unwrap_or(1_000_000).max(1);
                self.0.push((interface.linktype, units, interface.ts_offset()));
                None
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let (link, units, offset_s) = self.0.get(packet.if_id as usize).copied()?;
                let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let ns = u128::from(ticks) * SECOND_NS as u128 / u128::from(units);
                let at_ns = i64::try_from(ns).ok()?;
                let at_ns = at_ns.saturating_add(offset_s.saturating_mul(SECOND_NS));
                Some((at_ns, link, packet.data.get(..packet.caplen as usize)?))
            }
            PcapBlockOwned::NG(_) => None,
        }
    }
}

/// The TCP and UDP packets of a capture, in order.
fn packets(file: &str, bytes: &[u8]) -> anyhow::Result<Vec<CapturedPacket>> {
    let mut found = Vec::new();
    let frames = for_each_frame(file, bytes, |at_ns, link, frame| {
        found.extend(parse_frame(at_ns, link, frame))
    })?;
    ensure!(
        !found.is_empty(),
        "{file}: its {frames} frames contain no whole TCP or UDP packet over IP"
    );
    Ok(found)
}

/// Calls `look` for each frame of a capture in order, with its time in ns since 1970, link type and bytes. Returns the
/// number of frames.
pub(super) fn for_each_frame(
    file: &str,
    bytes: &[u8],
    mut look: impl FnMut(i64, Linktype, &[u8]),
) -> anyhow::Result<usize> {
    const BAD_CAPTURE: &str = "not a valid pcap or pcapng file";
    let mut reader =
        create_reader(BUFFER, bytes).map_err(|_| anyhow::anyhow!("{file}: {BAD_CAPTURE}"))?;
    let mut interfaces = Interfaces::default();
    let (mut frames, mut waits) = (0, false);
    loop {
        match reader.next() {
            Ok((length, block)) => {
                waits = false;
                if let Some((at_ns, link, frame)) = interfaces.frame(&block) {
                    frames += 1;
                    look(at_ns, link, frame);
                }
                reader.consume(length);
            }
            Err(PcapError::Eof) => break,
            // More data was needed, and the file ended.
            Err(PcapError::Incomplete(_)) if waits => bail!("{file}: the file is truncated"),
            Err(PcapError::Incomplete(_)) => {
                waits = true;
                ensure!(reader.refill().is_ok(), "{file}: a block has more than {BUFFER} bytes");
            }
            Err(PcapError::UnexpectedEof) => bail!("{file}: the file is truncated"),
            Err(_) => bail!("{file}: {BAD_CAPTURE}"),
        }
    }
    Ok(frames)
}
