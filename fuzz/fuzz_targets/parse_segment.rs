//! Fuzz target for the TCP segment parser: it never panics, and a parsed segment can be emitted again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marline_wire::{EmitError, TcpHeader, TcpOptions, TcpSegment};

fuzz_target!(|bytes: &[u8]| {
    let Ok(segment) = TcpSegment::parse(bytes) else { return };
    let header_len = usize::from(bytes[12] >> 4) * 4;
    assert_eq!(segment.payload, &bytes[header_len..]);
    // The fast path for usual options and the general parser agree.
    assert_eq!(segment.options, TcpOptions::parse(&bytes[20..header_len]));
    let TcpSegment { header, mut options, .. } = segment;
    options.mptcp.malformed = false;
    let mut out = [0; 60];
    match TcpHeader::emit(&header, &options, &mut out) {
        Ok(len) => {
            let again = TcpSegment::parse(&out[..len]).expect("an emitted segment parses");
            assert_eq!(again.header, header);
            assert_eq!(again.options, options);
        }
        // The peer may pack options more tightly than we do.
        Err(EmitError::OptionsTooLong { len }) => assert!(len > 40),
        Err(error) => panic!("{error}"),
    }
});
