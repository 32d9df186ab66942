use super::*;
use crate::mptcp::{DataAck, Dss, WireDsn, WireMapping};
use crate::{SackBlock, Timestamps};

fn header() -> TcpHeader {
    TcpHeader {
        src_port: 0x1234,
        dst_port: 443,
        seq: SeqNum(0xdead_beef),
        ack: SeqNum(0x0102_0304),
        flags: TcpFlags::ACK.with(TcpFlags::PSH),
        window: 0xfffe,
        urgent: 7,
    }
}

#[test]
fn a_header_stands_as_rfc_9293_draws_it() {
    let mut out = [0xaa; 24];
    let len = header().emit(&TcpOptions::default(), &mut out).expect("fits");
    let expected = [
        0x12, 0x34, 0x01, 0xbb, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 0x50, 0x18, 0xff, 0xfe, 0, 0,
        0, 7,
    ];
    assert_eq!(&out[..len], &expected);
    let segment = TcpSegment::parse(&out).expect("parses");
    assert_eq!(segment.header, header());
    assert_eq!(segment.options, TcpOptions::default());
    assert_eq!(segment.payload, &[0xaa; 4]);
}

#[test]
fn broken_tcp_headers_have_precise_errors() {
    let mut out = [0; 20];
    header().emit(&TcpOptions::default(), &mut out).expect("fits");
    let error = TcpSegment::parse(&out[..19]).expect_err("short");
    assert_eq!(error.to_string(), "Tcp: header is cut short");
    out[12] = 0x40;
    let error = TcpSegment::parse(&out).expect_err("offset 4");
    assert_eq!((error.field, error.kind), ("data offset", ErrorKind::Value));
    out[12] = 0x60;
    let error = TcpSegment::parse(&out).expect_err("offset 6");
    assert_eq!((error.field, error.kind), ("data offset", ErrorKind::Truncated));
}

#[test]
fn emitting_refuses_options_that_do_not_fit() {
    let mut options = TcpOptions {
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        dss: Some(Dss {
            data_ack: Some(DataAck::Long(1)),
            mapping: Some(WireMapping {
                dsn: WireDsn::Long(2),
                ssn: 3,
                length: 4,
                checksum: Some(5),
            }),
            data_fin: false,
        }),
        ..TcpOptions::default()
    };
    assert_eq!(options.encoded_len(), 40);
    assert!(options.fits_header());
    let mut out = [0; 60];
    assert_eq!(header().emit(&options, &mut out), Ok(60));
    assert_eq!(
        header().emit(&options, &mut out[..59]),
        Err(EmitError::BufferTooShort { needed: 40, available: 39 })
    );
    assert_eq!(
        header().emit(&options, &mut out[..3]),
        Err(EmitError::BufferTooShort { needed: 60, available: 3 })
    );
    options.sack.push(SackBlock { left: SeqNum(1), right: SeqNum(2) });
    assert!(!options.fits_header());
    assert_eq!(options.room(), 0);
    let error = header().emit(&options, &mut out).expect_err("52 bytes of options");
    assert_eq!(error, EmitError::OptionsTooLong { len: 52 });
}
