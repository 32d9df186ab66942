//! Property tests for arbitrary segments and arbitrary bytes.

use super::common::{header, message, mptcp_option, options};
use marline_wire::mptcp::{ExperimentalMessage, MpExperimental, MptcpOption, MptcpOptions};
use marline_wire::{
    Checksum, EmitError, IpPacket, Ipv4Packet, Ipv6Packet, MAX_OPTIONS, TcpOptions, TcpSegment,
    UdpDatagram, fill_tcp_checksum, verify_tcp_checksum,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Bytes that begin like options, so that random bytes pass the first length check.
fn option_like() -> impl Strategy<Value = Vec<u8>> {
    let option = prop_oneof![
        Just(vec![1]),
        (prop_oneof![Just(30u8), 0u8..9, any::<u8>()], vec(any::<u8>(), 0..30)).prop_map(
            |(kind, body)| {
                let mut bytes = vec![kind, body.len() as u8 + 2];
                bytes.extend(body);
                bytes
            }
        ),
        vec(any::<u8>(), 0..5),
    ];
    vec(option, 0..6).prop_map(|parts| {
        let mut bytes = parts.concat();
        bytes.truncate(MAX_OPTIONS);
        bytes
    })
}

/// Checks that parsed options are unchanged after encoding and parsing again.
fn assert_stable(options: &TcpOptions) -> Result<(), TestCaseError> {
    let mut canonical = options.clone();
    canonical.mptcp.malformed = false;
    let mut out = [0; MAX_OPTIONS + 20];
    match marline_wire::TcpHeader::default().emit(&canonical, &mut out) {
        // Received options may be packed more tightly than the emitter's layout.
        Err(EmitError::OptionsTooLong { len }) => prop_assert!(len > MAX_OPTIONS),
        Err(other) => prop_assert!(false, "{other}"),
        Ok(len) => prop_assert_eq!(TcpOptions::parse(&out[20..len]), canonical),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn segments_survive_the_round_trip(
        header in header(),
        options in options(),
        payload in vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = vec![0xaa; 60];
        match header.emit(&options, &mut bytes) {
            Ok(len) => {
                prop_assert!(options.fits_header());
                prop_assert!(len <= 60 && len == 20 + options.encoded_len());
                bytes.truncate(len);
                bytes.extend_from_slice(&payload);
                fill_tcp_checksum(None, &mut bytes);
                prop_assert!(verify_tcp_checksum(None, &bytes));
                let segment = TcpSegment::parse(&bytes);
                prop_assert!(segment.is_ok());
                if let Ok(segment) = segment {
                    prop_assert_eq!(segment.header, header);
                    prop_assert_eq!(&segment.options, &options);
                    prop_assert_eq!(segment.payload, &payload[..]);
                    // The fast path for common options and the general parser agree.
                    prop_assert_eq!(TcpOptions::parse(&bytes[20..len]), segment.options);
                }
            }
            Err(error) => {
                prop_assert!(!options.fits_header(), "{}", error);
                let too_long = matches!(error, EmitError::OptionsTooLong { len } if len > 40);
                prop_assert!(too_long);
            }
        }
    }

    #[test]
    fn every_option_survives_the_round_trip(option in mptcp_option()) {
        let mut options = TcpOptions::default();
        prop_assert!(options.mptcp.push(option));
        prop_assert!(options.mptcp.iter().eq([option]));
        prop_assert_eq!(options.mptcp.encoded_len(), option.encoded_len());
        let mut bytes = [0; 60];
        let len = marline_wire::TcpHeader::default().emit(&options, &mut bytes);
        prop_assert_eq!(len, Ok(20 + option.encoded_len().next_multiple_of(4)));
        prop_assert_eq!(TcpOptions::parse(&bytes[20..len.unwrap_or(20)]), options);
    }

    #[test]
    fn every_message_survives_the_round_trip(message in message()) {
        prop_assert_eq!(ExperimentalMessage::parse(&message.option()), Some(message));
        let mut options = MptcpOptions::default();
        prop_assert!(options.push(MptcpOption::Experimental(message.option())));
        prop_assert!(options.experimental().eq([message]));
    }

    /// The bytes of a private subtype are kept unchanged. A message parsed from them is unchanged after encoding and
    /// parsing again.
    #[test]
    fn an_option_of_others_is_kept(nibble in 0u8..16, bytes in vec(any::<u8>(), 0..=37)) {
        let option = MpExperimental::new(nibble, &bytes).expect("at most 37 bytes");
        let mut options = TcpOptions::default();
        prop_assert!(options.mptcp.push(MptcpOption::Experimental(option)));
        let mut out = [0; 60];
        let len = marline_wire::TcpHeader::default().emit(&options, &mut out).expect("fits");
        let parsed = TcpOptions::parse(&out[20..len]);
        prop_assert!(!parsed.mptcp.malformed);
        prop_assert!(parsed.mptcp.iter().eq([MptcpOption::Experimental(option)]));
        if let Some(message) = ExperimentalMessage::parse(&option) {
            prop_assert_eq!(ExperimentalMessage::parse(&message.option()), Some(message));
        }
    }

    #[test]
    fn pushing_options_keeps_those_before_or_refuses(
        sequence in vec(mptcp_option(), 0..20),
    ) {
        let mut options = MptcpOptions::default();
        let mut kept = Vec::new();
        for option in sequence {
            let before = options;
            if options.push(option) {
                kept.push(option);
            } else {
                prop_assert_eq!(&options, &before);
                prop_assert!(before.encoded_len() + option.encoded_len() > MAX_OPTIONS);
            }
            prop_assert!(options.iter().eq(kept.iter().copied()));
        }
    }

    #[test]
    fn parsing_never_panics(bytes in vec(any::<u8>(), 0..120)) {
        let _ = TcpSegment::parse(&bytes);
        let _ = IpPacket::parse(&bytes);
        let _ = Ipv4Packet::parse(&bytes);
        let _ = Ipv6Packet::parse(&bytes);
        let _ = UdpDatagram::parse(&bytes);
        assert_stable(&TcpOptions::parse(&bytes))?;
    }

    #[test]
    fn option_like_bytes_parse_to_a_stable_meaning(bytes in option_like()) {
        let options = TcpOptions::parse(&bytes);
        assert_stable(&options)?;
        // Parsing a whole segment gives the same result, possibly on the fast path.
        let mut segment = [0u8; 60];
        let len = 20 + bytes.len().next_multiple_of(4);
        segment[12] = (len as u8 / 4) << 4;
        segment[20..20 + bytes.len()].copy_from_slice(&bytes);
        segment[20 + bytes.len()..].fill(1);
        let parsed = TcpSegment::parse(&segment).map(|s| s.options);
        prop_assert_eq!(parsed, Ok(TcpOptions::parse(&segment[20..len])));
    }

    #[test]
    fn mutated_segments_parse_or_fail_but_stay_within_their_bytes(
        header in header(),
        options in options().prop_filter("fits", TcpOptions::fits_header),
        payload in vec(any::<u8>(), 0..30),
        mutations in vec((any::<Index>(), any::<u8>()), 1..6),
        cut in any::<Index>(),
    ) {
        let mut bytes = vec![0; 60];
        let len = header.emit(&options, &mut bytes).unwrap_or(20);
        bytes.truncate(len);
        bytes.extend_from_slice(&payload);
        for (at, value) in mutations {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        if let Ok(segment) = TcpSegment::parse(&bytes) {
            let header_len = usize::from(bytes[12] >> 4) * 4;
            prop_assert_eq!(segment.payload, &bytes[header_len..]);
            prop_assert_eq!(&segment.options, &TcpOptions::parse(&bytes[20..header_len]));
            assert_stable(&segment.options)?;
        }
    }

    #[test]
    fn sums_do_not_depend_on_how_they_are_cut(
        bytes in vec(any::<u8>(), 0..400),
        cuts in vec(any::<Index>(), 0..5),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut sum, mut copied, mut start) = (Checksum::new(), Vec::new(), 0);
        for end in cuts.into_iter().chain([bytes.len()]) {
            let mut part = vec![0; end - start];
            let mut later = Checksum::new();
            later.copy_and_add(&mut part, &bytes[start..end]);
            sum.append(later);
            copied.extend(part);
            start = end;
        }
        prop_assert_eq!(sum.sum16(), Checksum::of(&bytes).sum16());
        prop_assert_eq!(copied, bytes);
    }
}
