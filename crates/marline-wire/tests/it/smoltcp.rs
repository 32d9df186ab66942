//! Cross-check with smoltcp: each parser reads the other's output.

use super::common::{header, options};
use marline_wire::{
    IpPacket, PROTOCOL_TCP, TcpFlags, TcpSegment, emit_ip, fill_tcp_checksum, verify_tcp_checksum,
};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress, Ipv4Packet, Ipv6Packet, TcpControl, TcpOption, TcpPacket, TcpRepr, TcpSeqNumber,
    TcpTimestampRepr,
};
use std::net::IpAddr;

const V4: (IpAddr, IpAddr) = (
    IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9)),
);
const V6: (IpAddr, IpAddr) = (
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
);

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn smoltcp_reads_our_segments(
        header in header(),
        options in options().prop_filter("fits", marline_wire::TcpOptions::fits_header),
        six in any::<bool>(),
    ) {
        let ends = if six { V6 } else { V4 };
        let mut bytes = vec![0; 60];
        let len = header.emit(&options, &mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes.extend_from_slice(b"payload is not empty");
        fill_tcp_checksum(Some(ends), &mut bytes);
        let packet = TcpPacket::new_checked(&bytes[..]);
        prop_assert!(packet.is_ok());
        let Ok(packet) = packet else { return Ok(()) };
        prop_assert!(packet.verify_checksum(&IpAddress::from(ends.0), &IpAddress::from(ends.1)));
        prop_assert_eq!((packet.src_port(), packet.dst_port()), (header.src_port, header.dst_port));
        prop_assert_eq!(packet.seq_number().0 as u32, header.seq.0);
        prop_assert_eq!(packet.ack_number().0 as u32, header.ack.0);
        prop_assert_eq!(packet.window_len(), header.window);
        prop_assert_eq!(packet.syn(), header.flags.contains(TcpFlags::SYN));
        prop_assert_eq!(packet.psh(), header.flags.contains(TcpFlags::PSH));
        prop_assert_eq!(usize::from(packet.header_len()), len);
        let mut rest = packet.options();
        let (mut mptcp, mut sack) = (0, 0);
        while !rest.is_empty() {
            let parsed = TcpOption::parse(rest);
            prop_assert!(parsed.is_ok(), "{:?}", rest);
            let Ok((after, option)) = parsed else { break };
            match option {
                TcpOption::MaxSegmentSize(mss) => prop_assert_eq!(Some(mss), options.mss),
                TcpOption::WindowScale(s) => prop_assert_eq!(Some(s), options.window_scale),
                TcpOption::SackPermitted => prop_assert!(options.sack_permitted),
                TcpOption::TimeStamp { tsval, tsecr } => {
                    let ours = options.timestamps.map(|t| (t.value, t.echo));
                    prop_assert_eq!(Some((tsval, tsecr)), ours);
                }
                TcpOption::SackRange(ranges) => {
                    sack = ranges.iter().flatten().count();
                }
                TcpOption::Unknown { kind, data } => {
                    prop_assert_eq!(kind, 30);
                    mptcp += data.len() + 2;
                }
                _ => {}
            }
            rest = after;
        }
        let dss = options.dss.map_or(0, |d| d.encoded_len());
        prop_assert_eq!(mptcp, dss + options.mptcp.encoded_len());
        // smoltcp keeps three blocks.
        prop_assert_eq!(sack, options.sack.as_slice().len().min(3));
    }

    #[test]
    fn we_read_smoltcps_segments(
        ports in any::<[u16; 2]>(),
        numbers in any::<[i32; 2]>(),
        window in any::<u16>(),
        mss in proptest::option::of(any::<u16>()),
        scale in proptest::option::of(any::<u8>()),
        stamps in proptest::option::of(any::<[u32; 2]>()),
        blocks in any::<[Option<(u32, u32)>; 3]>(),
        six in any::<bool>(),
    ) {
        let ends = if six { V6 } else { V4 };
        let repr = TcpRepr {
            src_port: ports[0].max(1),
            dst_port: ports[1].max(1),
            control: TcpControl::Psh,
            seq_number: TcpSeqNumber(numbers[0]),
            ack_number: Some(TcpSeqNumber(numbers[1])),
            window_len: window,
            window_scale: scale,
            max_seg_size: mss,
            sack_permitted: false,
            sack_ranges: if stamps.is_none() { blocks } else { [None; 3] },
            timestamp: stamps.map(|[tsval, tsecr]| TcpTimestampRepr { tsval, tsecr }),
            payload: b"bytes",
        };
        let mut bytes = vec![0; repr.buffer_len()];
        let (src, dst) = (IpAddress::from(ends.0), IpAddress::from(ends.1));
        let mut packet = TcpPacket::new_unchecked(&mut bytes[..]);
        repr.emit(&mut packet, &src, &dst, &ChecksumCapabilities::default());
        prop_assert!(verify_tcp_checksum(Some(ends), &bytes));
        let segment = TcpSegment::parse(&bytes);
        prop_assert!(segment.is_ok());
        let Ok(segment) = segment else { return Ok(()) };
        prop_assert_eq!(segment.header.seq.0, numbers[0] as u32);
        prop_assert_eq!(segment.header.ack.0, numbers[1] as u32);
        prop_assert_eq!(segment.header.flags, TcpFlags::ACK.with(TcpFlags::PSH));
        prop_assert_eq!(segment.options.mss, mss);
        prop_assert_eq!(segment.options.window_scale, scale);
        prop_assert_eq!(segment.options.timestamps.map(|t| [t.value, t.echo]), stamps);
        let ours: Vec<_> =
            segment.options.sack.as_slice().iter().map(|b| (b.left.0, b.right.0)).collect();
        let theirs: Vec<_> = repr.sack_ranges.iter().flatten().copied().collect();
        prop_assert_eq!(ours, theirs);
        prop_assert_eq!(segment.payload, b"bytes");
    }

    #[test]
    fn smoltcp_reads_our_ip_headers(len in 0usize..2000, ecn in 0u8..4, six in any::<bool>()) {
        let ends = if six { V6 } else { V4 };
        let mut bytes = vec![0; 40];
        let header_len = emit_ip(ends.0, ends.1, PROTOCOL_TCP, ecn, len, &mut bytes).unwrap_or(0);
        bytes.truncate(header_len);
        bytes.resize(header_len + len, 0x5a);
        if six {
            let packet = Ipv6Packet::new_checked(&bytes[..]);
            prop_assert!(packet.is_ok());
            prop_assert_eq!(packet.map(|p| (p.payload().len(), p.traffic_class())), Ok((len, ecn)));
        } else {
            let packet = Ipv4Packet::new_checked(&bytes[..]);
            prop_assert!(packet.is_ok_and(|p| p.verify_checksum() && p.ecn() == ecn
                && p.payload().len() == len));
        }
        let ours = IpPacket::parse(&bytes);
        prop_assert!(ours.is_ok_and(|p| p.payload.len() == len && p.ecn == ecn && p.fragment.is_none()));
    }
}
