//! Fuzz target for TCP options with arbitrary values: they fit and survive the round trip, or are rejected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marline_wire::mptcp::{DataAck, Dss, ExperimentalMessage, MpExperimental, MptcpOption};
use marline_wire::mptcp::{WireDsn, WireMapping};
use marline_wire::{SackBlock, SeqNum, TcpHeader, TcpOptions, TcpSegment, Timestamps};

/// Takes numbers from the front of the input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn number(&mut self, bytes: usize) -> u64 {
        let (head, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        head.iter().fold(0, |n, &b| n << 8 | u64::from(b))
    }

    fn bit(&mut self) -> bool {
        self.number(1) & 1 != 0
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.bit() { Some(make(self)) } else { None }
    }
}

fn dss(i: &mut Input<'_>) -> Dss {
    let data_ack = i.maybe(|i| {
        if i.bit() { DataAck::Long(i.number(8)) } else { DataAck::Short(i.number(4) as u32) }
    });
    let mapping = i.maybe(|i| WireMapping {
        dsn: if i.bit() { WireDsn::Long(i.number(8)) } else { WireDsn::Short(i.number(4) as u32) },
        ssn: i.number(4) as u32,
        length: i.number(2) as u16,
        checksum: i.maybe(|i| i.number(2) as u16),
    });
    Dss { data_ack, mapping, data_fin: i.bit() }
}

/// A parsed option of the private subtype keeps its meaning when it is emitted again.
fn message(option: &MpExperimental) {
    if let Some(message) = ExperimentalMessage::parse(option) {
        assert_eq!(ExperimentalMessage::parse(&message.option()), Some(message));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let i = &mut Input(bytes);
    let mut options = TcpOptions {
        mss: i.maybe(|i| i.number(2) as u16),
        window_scale: i.maybe(|i| i.number(1) as u8),
        sack_permitted: i.bit(),
        timestamps: i.maybe(|i| Timestamps { value: i.number(4) as u32, echo: i.number(4) as u32 }),
        dss: i.maybe(dss),
        ..TcpOptions::default()
    };
    for _ in 0..i.number(1) % 5 {
        let (left, right) = (SeqNum(i.number(4) as u32), SeqNum(i.number(4) as u32));
        options.sack.push(SackBlock { left, right });
    }
    // Arbitrary MPTCP options from the rest of the input, in order.
    let wild: Vec<MptcpOption> = TcpOptions::parse(i.0).mptcp.iter().collect();
    for option in wild {
        if let MptcpOption::Experimental(experimental) = &option {
            message(experimental);
        }
        options.mptcp.push(option);
    }
    // The nibble and bytes of an option of the private subtype.
    let nibble = bytes.first().copied().unwrap_or(0);
    if let Some(option) = bytes.get(1..).and_then(|rest| MpExperimental::new(nibble, rest)) {
        message(&option);
    }
    let mut out = [0; 60];
    match TcpHeader::default().emit(&options, &mut out) {
        Ok(len) => {
            assert_eq!(len, 20 + options.encoded_len());
            let again = TcpSegment::parse(&out[..len]).expect("an emitted segment parses");
            assert_eq!(again.options, options);
        }
        Err(_) => assert!(!options.fits_header()),
    }
});
