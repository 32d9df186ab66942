//! Tests of IP and UDP headers: bytes written by hand from the RFCs, broken lengths, extension
//! headers.

use std::net::IpAddr;

use marline_wire::{
    EmitError, ErrorKind, IpPacket, Ipv4Header, Ipv4Packet, Ipv6Header, Ipv6Packet, PROTOCOL_TCP,
    PROTOCOL_UDP, UdpDatagram, emit_ip, emit_udp, fill_udp_checksum, verify_udp_checksum,
};

/// A packet whose header checksum (0xb861) is a common textbook example.
const IPV4_UDP: [u8; 28] = [
    0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01,
    0xc0, 0xa8, 0x00, 0xc7, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn an_ipv4_header_from_the_textbook() {
    let mut bytes = IPV4_UDP.to_vec();
    bytes.resize(0x73 + 5, 0xee);
    let packet = Ipv4Packet::parse(&bytes).expect("parses");
    let expected = Ipv4Header::new([192, 168, 0, 1].into(), [192, 168, 0, 199].into(), 17);
    assert_eq!(packet.header, expected);
    assert_eq!(packet.payload.len(), 0x73 - 20, "padding is excluded");
    let mut out = [0xaa; 20];
    assert_eq!(packet.header.emit(0x73 - 20, &mut out), Ok(20));
    assert_eq!(out, IPV4_UDP[..20]);
}

#[test]
fn broken_ipv4_headers_have_precise_errors() {
    let whole = {
        let mut bytes = IPV4_UDP.to_vec();
        bytes.resize(0x73, 0);
        bytes
    };
    let broken = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        let error = Ipv4Packet::parse(&bytes).expect_err("broken");
        (error.field, error.kind)
    };
    assert_eq!(broken(0, 0x65), ("version", ErrorKind::Version));
    assert_eq!(broken(0, 0x44), ("header length", ErrorKind::Value));
    assert_eq!(broken(3, 19), ("total length", ErrorKind::Length));
    assert_eq!(broken(3, 0x74), ("total length", ErrorKind::Truncated));
    assert_eq!(broken(8, 63), ("header checksum", ErrorKind::Checksum));
    assert!(Ipv4Packet::parse(&whole[..19]).is_err());
    assert!(IpPacket::parse(&[]).is_err());
    assert!(IpPacket::parse(&[0x50; 60]).is_err());
}

#[test]
fn ipv4_options_and_fragments() {
    let mut header = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), PROTOCOL_TCP);
    header.dont_fragment = false;
    header.more_fragments = true;
    header.fragment_offset = 0x0123;
    (header.dscp, header.ecn, header.identification, header.ttl) = (46, 3, 0xbeef, 7);
    let mut bytes = [0; 24];
    header.emit(4, &mut bytes).expect("fits");
    let packet = Ipv4Packet::parse(&bytes).expect("parses");
    assert_eq!(packet.header, header);
    assert!(packet.header.is_fragment());
    let seen = IpPacket::parse(&bytes).expect("parses");
    assert!(seen.fragment.is_some() && seen.ecn == 3);

    // The packet with one word of options: header length 6, and the checksum adapted by their sum.
    let mut with_options = bytes.to_vec();
    with_options[0] = 0x46;
    let old = u16::from_be_bytes([bytes[10], bytes[11]]);
    let new = old.checked_sub(0x0100).expect("the subtraction does not borrow");
    with_options[10..12].copy_from_slice(&new.to_be_bytes());
    let packet = Ipv4Packet::parse(&with_options).expect("parses");
    assert_eq!((packet.options, packet.payload), (&[0u8; 4][..], &[][..]));
}

fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ("2001:db8::1".parse(), "2001:db8::2".parse());
    let (src, dst) = (src.expect("address"), dst.expect("address"));
    let header = Ipv6Header {
        dscp: 10,
        ecn: 1,
        flow_label: 0xabcde,
        ..Ipv6Header::new(src, dst, next_header)
    };
    let mut bytes = vec![0; 40];
    header.emit(payload.len(), &mut bytes).expect("fits");
    assert_eq!(bytes[..8], [0x62, 0x9a, 0xbc, 0xde, 0, payload.len() as u8, next_header, 64]);
    bytes.extend_from_slice(payload);
    let parsed = Ipv6Packet::parse(&bytes);
    assert!(parsed.is_err() || parsed.is_ok_and(|p| p.header == header));
    bytes
}

#[test]
fn ipv6_extension_headers_are_skipped() {
    let plain = ipv6(PROTOCOL_TCP, b"segment!");
    let p = Ipv6Packet::parse(&plain).expect("parses");
    assert_eq!(
        (p.protocol, p.payload, p.fragment.is_some()),
        (PROTOCOL_TCP, &b"segment!"[..], false)
    );

    // Hop-by-hop (8 bytes), destination options (16), routing (8), authentication (12 + 4), fragment
    // header of a whole packet, then TCP.
    let mut chain = vec![60, 0, 1, 4, 0, 0, 0, 0];
    chain.extend([43, 1]);
    chain.extend([0; 14]);
    chain.extend([51, 0, 0, 0, 0, 0, 0, 0]);
    chain.extend([44, 2]);
    chain.extend([0; 14]);
    chain.extend([PROTOCOL_TCP, 0, 0, 0, 1, 2, 3, 4]);
    chain.extend(b"segment!");
    let bytes = ipv6(0, &chain);
    let p = IpPacket::parse(&bytes).expect("parses");
    assert_eq!(
        (p.protocol, p.payload, p.fragment.is_some()),
        (PROTOCOL_TCP, &b"segment!"[..], false)
    );
    for cut in 41..bytes.len() - 8 {
        let mut short = bytes[..cut].to_vec();
        short[5] = (cut - 40) as u8;
        let p = Ipv6Packet::parse(&short);
        let error = p.expect_err("ends within an extension header");
        assert_eq!((error.field, error.kind), ("extension header", ErrorKind::Truncated));
    }
}

#[test]
fn a_later_ipv6_fragment_has_no_header_to_find() {
    // Offset 1 (8 bytes). The bytes that look like a hop-by-hop header are data.
    let bytes = ipv6(44, &[0, 0, 0, 0x08, 1, 2, 3, 4, 9, 9, 9]);
    let p = Ipv6Packet::parse(&bytes).expect("parses");
    assert_eq!((p.protocol, p.fragment.is_some(), p.payload), (0, true, &[9u8, 9, 9][..]));
    let first = ipv6(44, &[PROTOCOL_UDP, 0, 0, 0x01, 1, 2, 3, 4, 9, 9, 9]);
    let p = Ipv6Packet::parse(&first).expect("parses");
    assert_eq!((p.protocol, p.fragment.is_some()), (PROTOCOL_UDP, true));
}

#[test]
fn broken_ipv6_headers_have_precise_errors() {
    let bytes = ipv6(PROTOCOL_TCP, b"segment!");
    let error = Ipv6Packet::parse(&bytes[..39]).expect_err("short");
    assert_eq!((error.field, error.kind), ("header", ErrorKind::Truncated));
    let error = Ipv6Packet::parse(&bytes[..47]).expect_err("short");
    assert_eq!((error.field, error.kind), ("payload length", ErrorKind::Truncated));
    assert!(Ipv6Packet::parse(&IPV4_UDP).is_err());
}

#[test]
fn udp_there_and_back() {
    for (src, dst) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        let ends: (IpAddr, IpAddr) = (src.parse().expect("ip"), dst.parse().expect("ip"));
        let mut bytes = vec![0xff; 8];
        assert_eq!(emit_udp(53, 0xabcd, 5, &mut bytes), Ok(8));
        assert_eq!(bytes, [0, 53, 0xab, 0xcd, 0, 13, 0, 0]);
        bytes.extend_from_slice(b"hello");
        assert_eq!(verify_udp_checksum(ends.0, ends.1, &bytes), ends.0.is_ipv4());
        fill_udp_checksum(ends.0, ends.1, &mut bytes);
        assert!(verify_udp_checksum(ends.0, ends.1, &bytes));
        bytes[9] ^= 4;
        assert!(!verify_udp_checksum(ends.0, ends.1, &bytes));
        let datagram = UdpDatagram::parse(&bytes).expect("parses");
        assert_eq!((datagram.src_port, datagram.dst_port), (53, 0xabcd));
        assert_eq!(datagram.payload.len(), 5);
    }
    assert!(UdpDatagram::parse(&[0; 7]).is_err());
    assert!(UdpDatagram::parse(&[0, 1, 0, 2, 0, 7, 0, 0]).is_err());
    assert!(UdpDatagram::parse(&[0, 1, 0, 2, 0, 9, 0, 0]).is_err());
    assert!(matches!(emit_udp(1, 2, 65_528, &mut [0; 8]), Err(EmitError::PayloadTooLong { .. })));
    let short = emit_udp(1, 2, 3, &mut [0; 7]);
    assert_eq!(short, Err(EmitError::BufferTooShort { needed: 8, available: 7 }));
}

/// A computed checksum of zero is sent as all ones, because zero means that there is no checksum.
#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    let ends: (IpAddr, IpAddr) = ([0, 0, 0, 0].into(), [0, 0, 0, 0].into());
    // Sum of pseudo-header (17 + 10), length (10) and the payload word must be 0xffff.
    let word = 0xffffu16 - 17 - 10 - 10;
    let mut bytes = vec![0, 0, 0, 0, 0, 10, 0, 0];
    bytes.extend_from_slice(&word.to_be_bytes());
    fill_udp_checksum(ends.0, ends.1, &mut bytes);
    assert_eq!(bytes[6..8], [0xff, 0xff]);
    assert!(verify_udp_checksum(ends.0, ends.1, &bytes));
}

#[test]
fn emit_ip_refuses_mixed_families_and_bad_lengths() {
    let (v4, v6): (IpAddr, IpAddr) = ([1, 2, 3, 4].into(), [1; 16].into());
    let mut out = [0; 40];
    assert_eq!(emit_ip(v4, v6, 6, 0, 1, &mut out), Err(EmitError::FamilyMismatch));
    for ends in [(v4, v4), (v6, v6)] {
        let long = emit_ip(ends.0, ends.1, 6, 0, 65_536, &mut out);
        assert!(matches!(long, Err(EmitError::PayloadTooLong { len: 65_536 })));
        let short = emit_ip(ends.0, ends.1, 6, 0, 1, &mut out[..19]);
        assert!(matches!(short, Err(EmitError::BufferTooShort { available: 19, .. })));
    }
}
