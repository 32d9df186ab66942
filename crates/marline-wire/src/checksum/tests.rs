use super::*;
use core::net::{Ipv4Addr, Ipv6Addr};

/// Direct implementation of RFC 1071: 16-bit words, with the carry added after each one.
fn slow(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    (0..len)
        .map(|_| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        })
        .collect()
}

#[test]
fn the_example_of_rfc_1071_section_3() {
    let sum = Checksum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(sum.sum16(), 0xddf2);
}

#[test]
fn wide_sums_equal_the_slow_one_at_every_length_and_offset() {
    let bytes = noise(600, 7);
    for start in 0..9 {
        for end in start..bytes.len() {
            assert_eq!(Checksum::of(&bytes[start..end]).sum16(), slow(&bytes[start..end]));
        }
    }
    let ones = vec![0xff; 70_000];
    assert_eq!(Checksum::of(&ones).sum16(), slow(&ones));
}

#[test]
fn parts_of_odd_length_combine() {
    let bytes = noise(301, 3);
    for first in 0..bytes.len() {
        for second in [first, first + (bytes.len() - first) / 2, bytes.len()] {
            let mut sum = Checksum::new();
            sum.add_bytes(&bytes[..first]);
            let mut later = Checksum::of(&bytes[first..second]);
            later.add_bytes(&bytes[second..]);
            sum.append(later);
            assert_eq!(sum.sum16(), slow(&bytes), "cut at {first} and {second}");
        }
    }
}

#[test]
fn copying_sums_and_copies() {
    for len in [0, 1, 2, 63, 64, 65, 127, 1399, 1400] {
        let src = noise(len, 11);
        let mut dst = vec![0; len + 3];
        let mut sum = Checksum::new();
        sum.add_bytes(&[0xab]);
        assert_eq!(sum.copy_and_add(&mut dst, &src), len);
        assert_eq!(&dst[..len], &src[..]);
        assert_eq!(&dst[len..], &[0; 3]);
        let whole: Vec<u8> = [&[0xab], &src[..]].concat();
        assert_eq!(sum.sum16(), slow(&whole));
    }
    let mut short = [0; 4];
    assert_eq!(Checksum::new().copy_and_add(&mut short, &[1; 10]), 4);
}

#[test]
fn tcp_checksum_ignores_the_old_field_and_verifies() {
    let v4 =
        Some((IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2))));
    let v6 = Some((
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
    ));
    for scope in [v4, v6, None] {
        for len in [20, 21, 52, 1423] {
            let mut segment = noise(len, 5);
            fill_tcp_checksum(scope, &mut segment);
            assert!(verify_tcp_checksum(scope, &segment));
            assert_eq!(
                tcp_checksum(scope, &segment),
                u16::from_be_bytes([segment[16], segment[17]])
            );
            segment[len - 1] ^= 1;
            assert!(!verify_tcp_checksum(scope, &segment));
        }
    }
}

#[test]
fn the_pseudo_headers_are_those_of_the_rfcs() {
    let mut v4 = Checksum::new();
    v4.add_pseudo_header([192, 0, 2, 1].into(), [198, 51, 100, 2].into(), 6, 20);
    assert_eq!(v4.sum16(), slow(&[192, 0, 2, 1, 198, 51, 100, 2, 0, 6, 0, 20]));
    let (a, b) = ([1u8; 16], [2u8; 16]);
    let mut v6 = Checksum::new();
    v6.add_pseudo_header(a.into(), b.into(), 17, 0x1_0203);
    let bytes = [&a[..], &b[..], &[0, 1, 2, 3, 0, 0, 0, 17]].concat();
    assert_eq!(v6.sum16(), slow(&bytes));
}

#[test]
fn dss_checksum_covers_pseudo_header_and_payload() {
    let payload = noise(33, 9);
    let (dsn, ssn, length) = (0x1122_3344_5566_7788u64, 0x0a0b_0c0du32, 34u16);
    let bytes =
        [&dsn.to_be_bytes()[..], &ssn.to_be_bytes(), &length.to_be_bytes(), &[0, 0], &payload]
            .concat();
    let checksum = dss_checksum(dsn, ssn, length, Checksum::of(&payload));
    assert_eq!(checksum, !slow(&bytes));
    assert_ne!(checksum, dss_checksum(dsn, ssn + 1, length, Checksum::of(&payload)));
}

#[test]
fn an_all_zero_mapping_has_checksum_ffff() {
    assert_eq!(dss_checksum(0, 0, 0, Checksum::new()), 0xffff);
}
