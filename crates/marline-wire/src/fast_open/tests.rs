use super::*;
use crate::mptcp::{MpCapable, MpCapableForm, MptcpOption};
use crate::{TcpFlags, TcpHeader, TcpOptions, TcpSegment, Timestamps};
use proptest::prelude::*;

fn syn_options() -> TcpOptions {
    let mut options = TcpOptions {
        mss: Some(1_460),
        window_scale: Some(8),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 0x0102_0304, echo: 0 }),
        ..TcpOptions::default()
    };
    assert!(options.mptcp.push(MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: false,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form: MpCapableForm::Syn,
    })));
    options
}

/// A SYN with these options, and the option bytes in it.
fn emitted(options: &TcpOptions, fast_open: &FastOpenOption) -> Vec<u8> {
    let header = TcpHeader { flags: TcpFlags::SYN, ..TcpHeader::default() };
    let mut bytes = [0xee; 60];
    let len = header.emit_with(options, fast_open, &mut bytes).expect("fits");
    let segment = TcpSegment::parse(&bytes[..len]).expect("a segment");
    assert_eq!(segment.options, *options, "the other options are unchanged");
    assert_eq!(segment.fast_open(), Some(*fast_open));
    bytes[20..len].to_vec()
}

#[test]
fn a_request_stands_between_window_scale_and_multipath_as_linux_has_it() {
    let expected = [
        2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 8, 34, 2, 1, 1, 30, 4, 1, 1,
    ];
    assert_eq!(emitted(&syn_options(), &FastOpenOption::REQUEST), expected);
}

#[test]
fn a_cookie_is_filled_up_to_the_word_in_both_forms() {
    let cookie = FastOpenOption::cookie(&[0xab, 0xcd, 0x12, 0x34]).expect("a cookie");
    let options = TcpOptions { mss: Some(1_460), ..TcpOptions::default() };
    let bytes = emitted(&options, &cookie);
    assert_eq!(bytes, [2, 4, 0x05, 0xb4, 34, 6, 0xab, 0xcd, 0x12, 0x34, 1, 1]);
    let bytes = emitted(&options, &cookie.with_form(true));
    assert_eq!(bytes, [2, 4, 0x05, 0xb4, 254, 8, 0xf9, 0x89, 0xab, 0xcd, 0x12, 0x34]);
    let bytes = emitted(&options, &FastOpenOption::REQUEST.with_form(true));
    assert_eq!(bytes, [2, 4, 0x05, 0xb4, 254, 4, 0xf9, 0x89]);
}

#[test]
fn cookies_of_invalid_lengths_are_refused() {
    for len in 0..20 {
        let is_cookie = (4..=16).contains(&len) && len % 2 == 0;
        assert_eq!(FastOpenOption::cookie(&vec![7; len]).is_some(), is_cookie, "{len}");
        let mut option = vec![34, 2 + len as u8];
        option.resize(2 + len, 7);
        assert_eq!(FastOpenOption::find(&option).is_some(), is_cookie || len == 0, "{len}");
    }
    assert_eq!(FastOpenOption::find(&[254, 6, 0xf9, 0x88, 1, 2]), None, "another experiment");
    assert_eq!(FastOpenOption::find(&[254, 3, 0xf9]), None);
}

#[test]
fn a_cookie_that_does_not_fit_is_refused() {
    let mut options = syn_options();
    let longest = FastOpenOption::cookie(&[7; 16]).expect("a cookie");
    let header = TcpHeader::default();
    assert!(header.emit_with(&options, &longest, &mut [0; 64]).is_err());
    options.timestamps = None;
    assert!(header.emit_with(&options, &longest, &mut [0; 64]).is_ok());
    assert!(header.emit_with(&options, &longest, &mut [0; 40]).is_err(), "a short buffer");
}

proptest! {
    #[test]
    fn every_option_is_found_again(
        bytes in proptest::collection::vec(any::<u8>(), 0..=16),
        experimental: bool,
        before in 0usize..4,
    ) {
        let even = &bytes[..bytes.len() / 2 * 2];
        let option = FastOpenOption::cookie(even).unwrap_or(FastOpenOption::REQUEST);
        let option = option.with_form(experimental);
        let options = TcpOptions { mss: (before > 1).then_some(900), ..TcpOptions::default() };
        let found = emitted(&options, &option);
        prop_assert_eq!(found.len(), options.encoded_len() + option.encoded_len());
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        if let Some(found) = FastOpenOption::find(&bytes) {
            prop_assert!(found.is_request() || COOKIE_LENGTHS.contains(&found.as_bytes().len()));
        }
    }
}
