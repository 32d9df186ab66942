use super::*;
use crate::mptcp::{MpCapable, MpCapableForm, MpFastclose, MptcpOption};
use crate::{IpPacket, PROTOCOL_UDP, TcpHeader, TcpOptions, TcpSegment};

const KEY_A: u64 = 0xa1a2_a3a4_a5a6_a7a8;
const KEY_B: u64 = 0xb1b2_b3b4_b5b6_b7b8;
const V4: [&str; 2] = ["192.0.2.1", "198.51.100.7"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

/// The blocks of a capture: type and body.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let word = |b: &[u8]| u32::from_le_bytes(b.try_into().expect("four bytes"));
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let len = word(&bytes[4..8]) as usize;
        assert_eq!(len % 4, 0);
        assert_eq!(word(&bytes[len - 4..len]) as usize, len, "both lengths agree");
        found.push((word(&bytes[..4]), bytes[8..len - 4].to_vec()));
        bytes = &bytes[len..];
    }
    found
}

/// The packet bytes of an enhanced packet block and its original length.
fn packet_of(body: &[u8]) -> (&[u8], usize) {
    let word =
        |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes")) as usize;
    (&body[20..20 + word(12)], word(16))
}

fn third_ack() -> TcpOptions {
    let mut options = TcpOptions::default();
    assert!(options.mptcp.push(MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: false,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form: MpCapableForm::Ack { initiator_key: KEY_A, listener_key: KEY_B, data: None },
    })));
    options
}

fn segment(options: &TcpOptions, scope: Option<(IpAddr, IpAddr)>) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    let len = TcpHeader::default().emit(options, &mut bytes).expect("fits");
    bytes.truncate(len);
    bytes.extend_from_slice(b"payload");
    fill_tcp_checksum(scope, &mut bytes);
    bytes
}

fn ends([src, dst]: [&str; 2]) -> (IpAddr, IpAddr) {
    (src.parse().expect("address"), dst.parse().expect("address"))
}

/// Captures one segment and returns the packet in the capture and its original length.
fn captured(
    texts: [&str; 2],
    checksum: SegmentChecksum,
    bytes: &[u8],
    reveal_keys: bool,
) -> (Vec<u8>, usize) {
    let mut out = Vec::new();
    let mut capture = Capture::begin(&mut out, "test", &["wlan0"], reveal_keys);
    let (src, dst) = ends(texts);
    let info = PacketInfo {
        interface: 0,
        time_ns: 0x1_0000_0002,
        direction: Direction::Outbound,
        comment: Some("hello"),
    };
    let segment = CapturedSegment { src, dst, ecn: 2, checksum, bytes };
    capture.segment(&mut out, &info, &segment).expect("one family");
    let blocks = blocks(&out);
    let types: Vec<u32> = blocks.iter().map(|(t, _)| *t).collect();
    assert_eq!(types, [SECTION_HEADER_BLOCK, INTERFACE_DESCRIPTION_BLOCK, ENHANCED_PACKET_BLOCK]);
    assert_eq!(blocks[2].1[..12], [0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    let (packet, original) = packet_of(&blocks[2].1);
    (packet.to_vec(), original)
}

#[test]
fn keys_become_zeros_and_the_checksum_follows() {
    for texts in [V4, V6] {
        let (src, dst) = ends(texts);
        for (scope, checksum) in [
            (Some((src, dst)), SegmentChecksum::WithAddresses),
            (None, SegmentChecksum::WithoutAddresses),
            (None, SegmentChecksum::Unknown),
        ] {
            let bytes = segment(&third_ack(), scope);
            for reveal in [false, true] {
                let (packet, original) = captured(texts, checksum, &bytes, reveal);
                assert_eq!(packet.len(), original);
                let ip = IpPacket::parse(&packet).expect("an IP packet");
                assert_eq!((ip.src, ip.dst, ip.protocol, ip.ecn), (src, dst, PROTOCOL_TCP, 2));
                assert!(verify_tcp_checksum(Some((src, dst)), ip.payload));
                let shown = TcpSegment::parse(ip.payload).expect("a segment");
                let form = shown.options.mptcp.capable().expect("MP_CAPABLE").form;
                let keys = if reveal { (KEY_A, KEY_B) } else { (0, 0) };
                let (initiator_key, listener_key) = keys;
                assert_eq!(form, MpCapableForm::Ack { initiator_key, listener_key, data: None });
                assert_eq!(shown.payload, b"payload");
            }
        }
    }
}

#[test]
fn the_key_of_mp_fastclose_is_hidden_too() {
    let mut options = TcpOptions::default();
    options.mptcp.push(MptcpOption::Fastclose(MpFastclose { receiver_key: KEY_A }));
    let bytes = segment(&options, None);
    let (packet, _) = captured(V4, SegmentChecksum::WithoutAddresses, &bytes, false);
    let key = KEY_A.to_be_bytes();
    assert!(bytes.windows(8).any(|w| w == key));
    assert!(!packet.windows(8).any(|w| w == key));
}

#[test]
fn a_broken_segment_stays_broken() {
    let (src, dst) = ends(V4);
    for (scope, checksum) in [
        (Some((src, dst)), SegmentChecksum::WithAddresses),
        (None, SegmentChecksum::WithoutAddresses),
    ] {
        let mut bytes = segment(&third_ack(), scope);
        *bytes.last_mut().expect("payload") ^= 1;
        let (packet, _) = captured(V4, checksum, &bytes, false);
        let ip = IpPacket::parse(&packet).expect("an IP packet");
        assert!(!verify_tcp_checksum(Some((src, dst)), ip.payload));
    }
}

#[test]
fn keys_stay_hidden_in_mangled_options() {
    let mut bytes = segment(&third_ack(), None);
    let key = KEY_A.to_be_bytes();
    for len in [2u8, 5, 13, 21, 250] {
        bytes[21] = len;
        let (packet, _) = captured(V4, SegmentChecksum::Unknown, &bytes, false);
        let shown = packet.windows(8).any(|w| w == key);
        // Options of length 2 to 4 hold no key. The bytes after them are other options.
        assert_eq!(shown, len == 2, "length {len}");
    }
    for offset in [0x00, 0xf0] {
        bytes[12] = offset;
        let (packet, original) = captured(V4, SegmentChecksum::Unknown, &bytes, false);
        assert_eq!((packet.len(), original), (40, 20 + bytes.len()));
    }
}

#[test]
fn mixed_families_write_nothing() {
    let mut out = Vec::new();
    let mut capture = Capture::begin(&mut out, "test", &[], false);
    let before = out.len();
    let info =
        PacketInfo { interface: 0, time_ns: 0, direction: Direction::Inbound, comment: None };
    let (src, dst) = ends([V4[0], V6[0]]);
    let segment =
        CapturedSegment { src, dst, ecn: 0, checksum: SegmentChecksum::Unknown, bytes: &[0; 20] };
    assert_eq!(capture.segment(&mut out, &info, &segment), Err(EmitError::FamilyMismatch));
    assert_eq!(out.len(), before);
}

/// The packet with this protocol, as a capture shows it.
fn of_ip(reveal_keys: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ends(V4);
    let mut bytes = vec![0; 20];
    emit_ip(src, dst, protocol, 0, payload.len(), &mut bytes).expect("a header");
    bytes.extend_from_slice(payload);
    let mut out = Vec::new();
    let mut capture = Capture::begin(&mut out, "test", &["tun"], reveal_keys);
    let before = out.len();
    let info =
        PacketInfo { interface: 0, time_ns: 0, direction: Direction::Inbound, comment: None };
    capture.write_ip_packet(&mut out, &info, &bytes);
    let word = |at: usize| {
        u32::from_le_bytes(out[before + at..before + at + 4].try_into().expect("four bytes"))
    };
    assert_eq!(word(24) as usize, bytes.len(), "the original length");
    out[before + 28..before + 28 + word(20) as usize].to_vec()
}

#[test]
fn keys_in_whole_packets_are_hidden_unless_asked_for() {
    let (key, ends) = (KEY_A.to_be_bytes(), ends(V4));
    let shows = |packet: &[u8]| packet.windows(8).any(|window| window == key);
    let segment = segment(&third_ack(), Some(ends));
    let hidden = of_ip(false, PROTOCOL_TCP, &segment);
    assert!(!shows(&hidden) && shows(&of_ip(true, PROTOCOL_TCP, &segment)));
    let ip = IpPacket::parse(&hidden).expect("a packet");
    assert!(verify_tcp_checksum(Some(ends), ip.payload), "it is still correct");
    assert_eq!(ip.payload.len(), segment.len());
    // An incorrect checksum stays incorrect.
    let mut broken = segment.clone();
    *broken.last_mut().expect("payload") ^= 1;
    let packet = of_ip(false, PROTOCOL_TCP, &broken);
    assert!(!shows(&packet) && !verify_tcp_checksum(Some(ends), &packet[20..]));
    // An ICMP error quotes a packet with its options.
    let quoted = [&[3, 4, 0, 0, 0, 0, 5, 0][..], &of_ip(true, PROTOCOL_TCP, &segment)].concat();
    assert!(shows(&quoted));
    let packet = of_ip(false, PROTOCOL_ICMP, &quoted);
    assert!(!shows(&packet) && packet.len() == 20 + 8 + 20 + 20);
    assert_eq!(of_ip(false, PROTOCOL_UDP, b"hello")[20..], *b"hello");
}
