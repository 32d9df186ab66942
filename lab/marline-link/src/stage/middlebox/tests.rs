use marline_time::{Duration, Instant, SeedTree};

use super::super::tcp::{self, checksum};
use super::*;
use crate::{DuplexSpec, Link, LinkConfig, find_tcp, replace_tcp};

/// An IPv4 packet as in the emulator between namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ip(Vec<u8>);

impl Packet for Ip {
    fn wire_len(&self) -> usize {
        self.0.len()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn tcp_mut(&mut self) -> Option<&mut [u8]> {
        find_tcp(&mut self.0)
    }

    fn with_tcp(&self, segment: &[u8]) -> Option<Self> {
        replace_tcp(&self.0, segment, false).map(Ip)
    }

    fn answer(&self, segment: &[u8]) -> Option<Self> {
        replace_tcp(&self.0, segment, true).map(Ip)
    }
}

const MPTCP_DSS: [u8; 8] = [30, 8, 0x20, 1, 1, 2, 3, 4];
const TIMES: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 77, 0, 0, 0, 88];

struct Made<'a> {
    ports: (u16, u16),
    sequence: u32,
    acknowledgment: u32,
    flags: u8,
    options: &'a [u8],
    payload: &'a [u8],
}

impl Default for Made<'_> {
    fn default() -> Self {
        Made {
            ports: (50_000, 443),
            sequence: 1_000,
            acknowledgment: 5_000,
            flags: ACK,
            options: &[],
            payload: &[],
        }
    }
}

impl Made<'_> {
    fn packet(&self) -> Ip {
        let mut segment = vec![0; 20];
        segment[..2].copy_from_slice(&self.ports.0.to_be_bytes());
        segment[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
        segment[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        segment[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        segment[12] = ((20 + self.options.len()) as u8 / 4) << 4;
        segment[FLAGS_AT] = self.flags;
        segment.extend_from_slice(self.options);
        segment.extend_from_slice(self.payload);
        let header = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 1, 2, 10, 0, 1, 1];
        let mut packet = Ip(replace_tcp(&header, &segment, false).expect("IPv4"));
        let pseudo = pseudo(&packet);
        let segment = packet.tcp_mut().expect("TCP");
        let checksum = !fold(u32::from(pseudo) + u32::from(checksum(segment)));
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        assert!(is_sound(&packet));
        packet
    }
}

fn fold(total: u32) -> u16 {
    checksum(&total.to_be_bytes())
}

fn pseudo(packet: &Ip) -> u16 {
    let length = packet.0.len() as u32 - 20;
    fold(u32::from(checksum(&packet.0[12..20])) + 6 + length)
}

/// Asserts that both checksums and the length are correct.
fn is_sound(packet: &Ip) -> bool {
    let length = usize::from(u16::from_be_bytes([packet.0[2], packet.0[3]]));
    let tcp = fold(u32::from(pseudo(packet)) + u32::from(checksum(&packet.0[20..])));
    checksum(&packet.0[..20]) == 0xffff && tcp == 0xffff && length == packet.0.len()
}

fn links(text: &str) -> (Link<Ip>, Link<Ip>) {
    let spec: DuplexSpec = text.parse().expect("a description");
    let config = spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no traces");
    let link = |config: LinkConfig| Link::new(config, &SeedTree::new(1), Instant::ZERO);
    (link(config.up), link(config.down))
}

fn pass(link: &mut Link<Ip>, at: Instant, packet: Ip) -> Vec<Ip> {
    link.offer(at, packet);
    let passed: Vec<Ip> = std::iter::from_fn(|| link.poll(at)).collect();
    assert!(passed.iter().all(is_sound), "{passed:x?}");
    passed
}

fn tcp_of(packet: &Ip) -> &[u8] {
    &packet.0[20..]
}

fn payload(packet: &Ip) -> &[u8] {
    &tcp_of(packet)[options_end(tcp_of(packet)).expect("TCP")..]
}

#[test]
fn renumbering_is_undone_on_the_way_back() {
    let (mut up, mut down) = links("renumber=yes");
    let there = pass(&mut up, Instant::ZERO, Made { payload: b"x", ..Made::default() }.packet());
    let sequence = tcp::sequence(tcp_of(&there[0]));
    assert_ne!(sequence, 1_000);
    let sack = [1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut sack = sack.to_vec();
    sack[4..8].copy_from_slice(&(sequence + 10).to_be_bytes());
    sack[8..12].copy_from_slice(&(sequence + 20).to_be_bytes());
    let answer = Made {
        ports: (443, 50_000),
        sequence: tcp::acknowledgment(tcp_of(&there[0])),
        acknowledgment: sequence + 1,
        options: &sack,
        ..Made::default()
    };
    let back = pass(&mut down, Instant::ZERO, answer.packet());
    let segment = tcp_of(&back[0]);
    assert_eq!((tcp::sequence(segment), tcp::acknowledgment(segment)), (5_000, 1_001));
    assert_eq!((tcp::u32_at(segment, 24), tcp::u32_at(segment, 28)), (1_010, 1_020));
    let (_, mut forgets) = links("renumber=not-sack");
    let back = pass(&mut forgets, Instant::ZERO, answer.packet());
    assert_eq!(tcp::u32_at(tcp_of(&back[0]), 24), sequence + 10);
}

#[test]
fn a_cut_segment_has_all_its_bytes_and_options_where_they_are_asked_for() {
    let data: Vec<u8> = (0..=250).collect();
    let options = [&TIMES[..], &MPTCP_DSS].concat();
    let flags = ACK | tcp::PSH | FIN;
    for (text, mptcp) in [("split=100B", [true; 3]), ("split=100B:first", [true, false, false])] {
        let made = Made { options: &options, payload: &data, flags, ..Made::default() };
        let pieces = pass(&mut links(text).0, Instant::ZERO, made.packet());
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| payload(piece).to_vec()).collect();
        assert_eq!(bytes, data);
        let numbers: Vec<u32> = pieces.iter().map(|piece| tcp::sequence(tcp_of(piece))).collect();
        assert_eq!(numbers, [1_000, 1_100, 1_200]);
        let ends = pieces.iter().map(|piece| tcp_of(piece)[FLAGS_AT]).collect::<Vec<u8>>();
        assert_eq!(ends, [ACK, ACK, flags]);
        let has = |kind, piece: &Ip| tcp::option(tcp_of(piece), kind).is_some();
        assert_eq!(pieces.iter().map(|piece| has(30, piece)).collect::<Vec<bool>>(), mptcp);
        assert!(pieces.iter().all(|piece| has(8, piece)));
    }
}

#[test]
fn a_middlebox_coalesces_segments_and_keeps_the_first_options() {
    let (mut up, _) = links("coalesce=2ms");
    let first = Made { options: &MPTCP_DSS, payload: b"odd", ..Made::default() };
    let second =
        Made { sequence: 1_003, acknowledgment: 6_000, payload: b"bytes", ..Made::default() };
    let gap = Made { sequence: 1_009, payload: b"later", ..Made::default() };
    assert!(pass(&mut up, Instant::ZERO, first.packet()).is_empty());
    assert_eq!(up.next_event(), Some(Instant::from_millis(2)));
    assert!(pass(&mut up, Instant::from_millis(1), second.packet()).is_empty());
    let passed = pass(&mut up, Instant::from_micros(1_500), gap.packet());
    assert_eq!(passed.len(), 1);
    assert_eq!(payload(&passed[0]), b"oddbytes");
    assert_eq!(tcp::acknowledgment(tcp_of(&passed[0])), 6_000);
    assert!(tcp::option(tcp_of(&passed[0]), 30).is_some());
    let late = up.poll(Instant::from_millis(4)).expect("after its timeout");
    assert_eq!(payload(&late), b"later");
    assert_eq!((up.stats().coalesced, up.next_event()), (1, None));
}

#[test]
fn thinning_passes_the_latest_ack_without_a_long_wait() {
    let (mut up, _) = links("thin=4");
    let ack = |number| Made { acknowledgment: number, ..Made::default() }.packet();
    let passed = |packets: Vec<Ip>| {
        packets.iter().map(|packet| tcp::acknowledgment(tcp_of(packet))).collect::<Vec<u32>>()
    };
    for number in 1..=3 {
        assert!(pass(&mut up, Instant::ZERO, ack(number)).is_empty());
    }
    assert_eq!(passed(pass(&mut up, Instant::ZERO, ack(4))), [4]);
    assert!(pass(&mut up, Instant::ZERO, ack(5)).is_empty());
    let data = Made { acknowledgment: 5, payload: b"data", ..Made::default() };
    assert_eq!(passed(pass(&mut up, Instant::ZERO, data.packet())), [5, 5]);
    assert!(pass(&mut up, Instant::from_millis(1), ack(6)).is_empty());
    let late = up.poll(Instant::from_millis(11)).expect("the penalty has expired");
    assert_eq!(tcp::acknowledgment(tcp_of(&late)), 6);
    assert_eq!(up.stats().dropped_thinned, 3);
}

#[test]
fn a_box_answers_for_the_receiver() {
    let (mut up, _) = links("swallow=100%");
    let data = Made { options: &TIMES, payload: b"four", ..Made::default() };
    assert!(pass(&mut up, Instant::ZERO, data.packet()).is_empty());
    let answer = up.take_answer().expect("an answer");
    assert!(is_sound(&answer));
    assert_eq!(answer.0[12..20], [10, 0, 1, 1, 10, 0, 1, 2], "from the receiver");
    let segment = tcp_of(&answer);
    assert_eq!(tcp::ports(segment), (443, 50_000));
    assert_eq!((tcp::sequence(segment), tcp::acknowledgment(segment)), (5_000, 1_004));
    assert_eq!(segment[20..], [1, 1, 8, 10, 0, 0, 0, 88, 0, 0, 0, 77]);
    assert_eq!(pass(&mut up, Instant::ZERO, Made::default().packet()).len(), 1, "no data");
    assert_eq!((up.stats().dropped_swallowed, up.take_answer()), (1, None));
}

#[test]
fn a_nat_rebinding_happens_at_its_configured_time() {
    let (mut up, mut down) = links("rebind=5s");
    let (before, after) = (Instant::from_secs(1), Instant::from_secs(6));
    let ports = |packets: Vec<Ip>| packets.first().map(|packet| tcp::ports(tcp_of(packet)));
    let to = |port| Made { ports: (443, port), ..Made::default() }.packet();
    assert_eq!(ports(pass(&mut up, before, Made::default().packet())), Some((50_000, 443)));
    assert_eq!(ports(pass(&mut down, before, to(50_000))), Some((443, 50_000)));
    assert_eq!(ports(pass(&mut up, after, Made::default().packet())), Some((17_232, 443)));
    assert_eq!(ports(pass(&mut down, after, to(50_000))), None, "forgotten");
    assert_eq!(ports(pass(&mut down, after, to(17_232))), Some((443, 50_000)));
    assert_eq!(down.stats().dropped_forgotten, 1);
}

#[test]
fn rules_begin_at_their_time() {
    let (mut up, _) = links("strip=mptcp:rest@2s");
    let data = Made { options: &MPTCP_DSS, payload: b"x", ..Made::default() };
    let has = |packets: Vec<Ip>| tcp::option(tcp_of(&packets[0]), 30).is_some();
    assert!(has(pass(&mut up, Instant::from_millis(1_999), data.packet())));
    assert!(!has(pass(&mut up, Instant::from_secs(2), data.packet())));
}

#[test]
fn a_damaged_segment_stays_damaged_in_pieces_and_no_bytes_are_too_strange() {
    let (mut up, _) = links("split=3B,coalesce=1ms,renumber=yes,thin=3,swallow=10%,rebind=0s");
    let data = Made { options: &TIMES, payload: b"some payload", ..Made::default() };
    let mut damaged = data.packet();
    damaged.0[60] ^= 0x10;
    let (mut splits, _) = links("split=5B");
    splits.offer(Instant::ZERO, damaged);
    while let Some(piece) = splits.poll(Instant::ZERO) {
        assert!(!is_sound(&piece));
    }
    use marline_time::{PcgRng, Rng};
    let mut rng = PcgRng::new(3, 4);
    for number in 0..20_000_u64 {
        let mut packet = data.packet();
        for _ in 0..rng.below(4) {
            let at = rng.below(packet.0.len() as u64) as usize;
            packet.0[at] = rng.below(256) as u8;
        }
        packet.0.truncate(rng.below(packet.0.len() as u64 + 20) as usize);
        let now = Instant::ZERO + Duration::from_micros(100 * number);
        up.offer(now, packet);
        while up.poll(now).is_some() {}
        while up.take_answer().is_some() {}
    }
    assert!(up.stats().delivered_packets > 1_000);
}
