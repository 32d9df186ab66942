//! Fuzz target for the IP parsers: any bytes as a packet, its payload, and its capture record.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marline_wire::pcapng::{Capture, CapturedSegment, Direction, PacketInfo, SegmentChecksum};
use marline_wire::{IpPacket, PROTOCOL_TCP, PROTOCOL_UDP, TcpSegment, UdpDatagram, emit_ip};

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = IpPacket::parse(bytes) else { return };
    assert!(packet.payload.len() <= bytes.len());
    match packet.protocol {
        PROTOCOL_TCP => {
            let _ = TcpSegment::parse(packet.payload);
        }
        PROTOCOL_UDP => {
            let _ = UdpDatagram::parse(packet.payload);
        }
        _ => {}
    }
    let (src, dst, ecn) = (packet.src, packet.dst, packet.ecn);
    let mut header = [0; 40];
    let len = emit_ip(src, dst, packet.protocol, ecn, packet.payload.len(), &mut header);
    let mut again = header[..len.expect("the packet can be rebuilt")].to_vec();
    again.extend_from_slice(packet.payload);
    if let Ok(again) = IpPacket::parse(&again) {
        assert_eq!((again.src, again.dst, again.ecn), (src, dst, ecn));
    }

    let mut out = Vec::new();
    let mut capture = Capture::begin(&mut out, "fuzz", &["any"], bytes.len() % 2 == 0);
    let info =
        PacketInfo { interface: 0, time_ns: 1, direction: Direction::Inbound, comment: None };
    let checksum = SegmentChecksum::WithAddresses;
    let segment = CapturedSegment { src, dst, ecn, checksum, bytes: packet.payload };
    capture
        .segment(&mut out, &info, &segment)
        .expect("the addresses have one family, and the packet fits");
    assert_eq!(out.len() % 4, 0);
});
