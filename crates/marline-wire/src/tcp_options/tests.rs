use super::*;
use crate::mptcp::{
    AddAddr, CapableData, DataAck, MpCapable, MpCapableForm, MpExperimental, MpFail, MpFastclose,
    MpJoin, MpPrio, MpTcpRst, RemoveAddr, WireDsn, WireMapping,
};

const TS: Timestamps = Timestamps { value: 0x0102_0304, echo: 0x0506_0708 };

fn emitted(options: &TcpOptions) -> Vec<u8> {
    let mut out = [0xee; MAX_OPTIONS];
    let len = options.emit(&mut out).expect("fits");
    assert_eq!(len, options.encoded_len());
    assert_eq!(TcpOptions::parse(&out[..len]), *options);
    out[..len].to_vec()
}

fn capable(form: MpCapableForm) -> MptcpOption {
    MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: true,
        extensibility: false,
        deny_join_id0: true,
        hmac_sha256: true,
        form,
    })
}

fn with(option: MptcpOption) -> TcpOptions {
    let mut options = TcpOptions::default();
    assert!(options.mptcp.push(option));
    options
}

#[test]
fn a_syn_is_laid_out_as_linux_does() {
    let mut options = with(capable(MpCapableForm::Syn));
    options.mss = Some(1460);
    options.sack_permitted = true;
    options.window_scale = Some(7);
    options.timestamps = Some(TS);
    assert_eq!(
        emitted(&options),
        [2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 3, 7, 30, 4, 0x01, 0xa1]
    );
    options.timestamps = None;
    assert_eq!(emitted(&options), [2, 4, 0x05, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7, 30, 4, 0x01, 0xa1]);
}

#[test]
fn a_data_segment_is_laid_out_as_linux_does() {
    let options = TcpOptions {
        timestamps: Some(TS),
        dss: Some(Dss {
            data_ack: Some(DataAck::Long(0x1112_1314_1516_1718)),
            mapping: Some(WireMapping {
                dsn: WireDsn::Short(0x2122_2324),
                ssn: 0x3132_3334,
                length: 0x4142,
                checksum: None,
            }),
            data_fin: true,
        }),
        ..TcpOptions::default()
    };
    let expected = [
        1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 30, 22, 0x20, 0x17, 0x11, 0x12, 0x13, 0x14, 0x15,
        0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 1, 1,
    ];
    assert_eq!(emitted(&options), expected);
}

#[test]
fn sack_blocks_up_to_four() {
    for n in 1..=4u32 {
        let mut options = TcpOptions::default();
        for i in 0..n {
            assert!(options.sack.push(SackBlock { left: SeqNum(i), right: SeqNum(i + 9) }));
        }
        let bytes = emitted(&options);
        assert_eq!(&bytes[..4], &[1, 1, 5, 2 + 8 * n as u8]);
        assert_eq!(&bytes[4..12], &[0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(bytes.len(), 4 + 8 * n as usize);
    }
    let mut options = TcpOptions { timestamps: Some(TS), ..TcpOptions::default() };
    assert_eq!(SackBlocks::fitting_block_count(options.room()), 3);
    options.timestamps = None;
    assert_eq!(SackBlocks::fitting_block_count(options.room()), 4);
    assert_eq!(SackBlocks::fitting_block_count(11), 0);
}

const KEY_A: u64 = 0xa1a2_a3a4_a5a6_a7a8;
const KEY_B: u64 = 0xb1b2_b3b4_b5b6_b7b8;
const HEX_A: &str = "a1a2a3a4a5a6a7a8";
const HEX_B: &str = "b1b2b3b4b5b6b7b8";

/// Checks that an option is encoded as these bytes, followed by NOPs, and is parsed from them.
fn assert_bytes(option: MptcpOption, hex: &str) {
    let mut bytes = unhex(hex);
    assert_eq!(usize::from(bytes[1]), bytes.len(), "invalid test case: {hex}");
    assert_eq!(option.encoded_len(), bytes.len());
    assert_eq!(MptcpOption::parse(&bytes), Some(option), "{hex}");
    bytes.resize(bytes.len().next_multiple_of(4), 1);
    assert_eq!(emitted(&with(option)), bytes, "{option:?}");
}

#[test]
fn mp_capable_stands_as_rfc_8684_draws_it() {
    let ack =
        |data| capable(MpCapableForm::Ack { initiator_key: KEY_A, listener_key: KEY_B, data });
    let data = |checksum| Some(CapableData { length: 0x0102, checksum });
    assert_bytes(capable(MpCapableForm::Syn), "1e0401a1");
    let syn_ack = capable(MpCapableForm::SynAck { listener_key: KEY_B });
    assert_bytes(syn_ack, &format!("1e0c01a1{HEX_B}"));
    assert_bytes(ack(None), &format!("1e1401a1{HEX_A}{HEX_B}"));
    assert_bytes(ack(data(None)), &format!("1e1601a1{HEX_A}{HEX_B}0102"));
    assert_bytes(ack(data(Some(0xc1c2))), &format!("1e1801a1{HEX_A}{HEX_B}0102c1c2"));
}

#[test]
fn mp_join_stands_as_rfc_8684_draws_it() {
    let (token, nonce) = (0x0102_0304, 0x0506_0708);
    let syn = MpJoin::Syn { backup: true, address_id: 3, token, nonce };
    assert_bytes(MptcpOption::Join(syn), "1e0c11030102030405060708");
    let syn_ack = MpJoin::SynAck { backup: false, address_id: 4, hmac: KEY_A, nonce };
    assert_bytes(MptcpOption::Join(syn_ack), &format!("1e101004{HEX_A}05060708"));
    let ack = MpJoin::Ack { hmac: [0x55; 20] };
    assert_bytes(MptcpOption::Join(ack), &format!("1e181000{}", "55".repeat(20)));
}

#[test]
fn add_addr_stands_as_rfc_8684_draws_it() {
    let check = |address: &str, port, hmac, hex: &str| {
        let address = address.parse().expect("an address");
        let option = AddAddr { address_id: 9, address, port, hmac };
        assert_bytes(MptcpOption::AddAddr(option), hex);
    };
    let (v4, v6) = ("192.0.2.1", "2001:db8::1");
    let v6_hex = "20010db8000000000000000000000001";
    check(v4, None, None, "1e083109c0000201");
    check(v4, Some(443), None, "1e0a3109c000020101bb");
    check(v4, None, Some(KEY_A), &format!("1e103009c0000201{HEX_A}"));
    check(v4, Some(443), Some(KEY_A), &format!("1e123009c000020101bb{HEX_A}"));
    check(v6, None, None, &format!("1e143109{v6_hex}"));
    check(v6, Some(443), None, &format!("1e163109{v6_hex}01bb"));
    check(v6, None, Some(KEY_A), &format!("1e1c3009{v6_hex}{HEX_A}"));
    check(v6, Some(443), Some(KEY_A), &format!("1e1e3009{v6_hex}01bb{HEX_A}"));
}

#[test]
fn the_short_options_stand_as_rfc_8684_draws_them() {
    let ids = RemoveAddr::new(&[1, 2, 250]).expect("ids");
    assert_bytes(MptcpOption::RemoveAddr(ids), "1e06400102fa");
    assert_bytes(MptcpOption::Prio(MpPrio { backup: true }), "1e0351");
    assert_bytes(MptcpOption::Prio(MpPrio { backup: false }), "1e0350");
    assert_bytes(MptcpOption::Fail(MpFail { dsn: KEY_A }), &format!("1e0c6000{HEX_A}"));
    let close = MpFastclose { receiver_key: KEY_B };
    assert_bytes(MptcpOption::Fastclose(close), &format!("1e0c7000{HEX_B}"));
    assert_bytes(MptcpOption::TcpRst(MpTcpRst { transient: true, reason: 5 }), "1e048105");
    let experimental = MpExperimental::new(0xa, &[1, 2, 3]).expect("fits");
    assert_bytes(MptcpOption::Experimental(experimental), "1e06fa010203");
    let empty = MpExperimental::new(0, &[]).expect("fits");
    assert_bytes(MptcpOption::Experimental(empty), "1e03f0");
}

/// Tests every combination of DSS flags, with and without checksum.
#[test]
fn dss_in_all_its_lengths() {
    let acks = [None, Some(DataAck::Short(1)), Some(DataAck::Long(2))];
    let dsns = [None, Some(WireDsn::Short(3)), Some(WireDsn::Long(4))];
    for (data_ack, dsn) in acks.into_iter().flat_map(|a| dsns.map(|d| (a, d))) {
        for (checksum, data_fin) in [(None, false), (None, true), (Some(6), false), (Some(6), true)]
        {
            let mapping = dsn.map(|dsn| WireMapping { dsn, ssn: 5, length: 7, checksum });
            let options = TcpOptions {
                dss: Some(Dss { data_ack, mapping, data_fin }),
                ..TcpOptions::default()
            };
            let bytes = emitted(&options);
            assert_eq!(usize::from(bytes[1]), options.dss.map_or(0, |d| d.encoded_len()));
            assert_eq!(bytes[3] & 0x10 != 0, data_fin);
        }
    }
}

#[test]
fn wrong_lengths_of_mptcp_options_are_malformed_and_only_that() {
    for len in 2..=40u8 {
        for subtype in 0..16u8 {
            let mut bytes = vec![0; usize::from(len)];
            (bytes[0], bytes[1]) = (30, len);
            if len > 2 {
                bytes[2] = subtype << 4;
            }
            let options = TcpOptions::parse(&bytes);
            let good = len > 2
                && match subtype {
                    subtype::CAPABLE => [4, 12, 20, 22, 24].contains(&len),
                    subtype::JOIN => [12, 16, 24].contains(&len),
                    subtype::DSS => len == 4,
                    subtype::ADD_ADDR => [16, 18, 28, 30].contains(&len),
                    subtype::REMOVE_ADDR => len >= 4,
                    subtype::PRIO => len == 3,
                    subtype::FAIL | subtype::FASTCLOSE => len == 12,
                    subtype::TCPRST => len == 4,
                    subtype::EXPERIMENTAL => true,
                    _ => false,
                };
            assert_eq!(options.mptcp.malformed, !good, "subtype {subtype} length {len}");
            assert!(options.has_mptcp());
            assert_eq!(options.mptcp.is_empty(), !good || subtype == subtype::DSS);
        }
    }
}

#[test]
fn illegal_lengths_end_the_options_and_known_kinds_of_wrong_length_are_skipped() {
    let mss = |bytes: &[u8]| TcpOptions::parse(bytes).mss;
    assert_eq!(mss(&[2, 4, 5, 0xb4, 3, 0, 2, 4, 1, 1]), Some(0x05b4));
    assert_eq!(mss(&[3, 1, 2, 4, 1, 1]), None);
    assert_eq!(mss(&[3, 200, 2, 4, 1, 1]), None);
    assert_eq!(mss(&[0, 2, 4, 1, 1]), None);
    assert_eq!(mss(&[3, 4, 9, 9, 2, 4, 1, 1]), Some(0x0101));
    assert_eq!(mss(&[254, 3, 9, 2, 4, 1, 1]), Some(0x0101));
    assert_eq!(mss(&[2, 4, 1]), None);
    let cut = TcpOptions::parse(&[30, 12, 0x01, 0x81]);
    assert!(cut.mptcp.malformed && cut.has_mptcp());
    assert!(TcpOptions::parse(&[30, 0, 0x01, 0x81]).mptcp.malformed);
    assert_eq!(TcpOptions::parse(&[30]), TcpOptions::default());
}

#[test]
fn the_first_of_repeated_options_counts() {
    let options = TcpOptions::parse(&[
        2, 4, 0, 1, 2, 4, 0, 2, 3, 3, 5, 3, 3, 6, 30, 3, 0x51, 30, 3, 0x50, 30, 4, 0x20, 0x10, 30,
        4, 0x20, 0x00,
    ]);
    assert_eq!((options.mss, options.window_scale), (Some(1), Some(5)));
    assert!(options.mptcp.iter().eq([MptcpOption::Prio(MpPrio { backup: true })]));
    assert_eq!(options.dss.map(|d| d.data_fin), Some(true));
    let two = unhex("1e083101c00002011e083102c0000202");
    assert_eq!(TcpOptions::parse(&two).mptcp.iter().count(), 2);
}

#[test]
fn a_malformed_option_does_not_hide_a_good_one_of_its_subtype() {
    let options = TcpOptions::parse(&[30, 4, 0x51, 0, 30, 3, 0x51, 1]);
    assert!(options.mptcp.malformed);
    assert_eq!(options.mptcp.iter().count(), 1);
}

#[test]
fn pushing_is_bounded_by_the_bytes_of_a_header() {
    let mut options = TcpOptions::default();
    for _ in 0..13 {
        assert!(options.mptcp.push(MptcpOption::Prio(MpPrio { backup: true })));
    }
    assert!(!options.mptcp.push(MptcpOption::Prio(MpPrio { backup: true })));
    assert_eq!(options.mptcp.encoded_len(), 39);
    assert!(options.fits_header() && options.room() == 1);
    let mut none = TcpOptions::default();
    assert!(!none.mptcp.push(MptcpOption::RemoveAddr(RemoveAddr { ids: [0; 37], len: 0 })));
    assert!(!none.mptcp.push(MptcpOption::RemoveAddr(RemoveAddr { ids: [0; 37], len: 38 })));
    assert!(none.mptcp.is_empty());
}

#[test]
fn debug_output_hides_keys() {
    let keys = capable(MpCapableForm::Ack {
        initiator_key: 0xa1a2_a3a4_a5a6_a7a8,
        listener_key: 0xb1b2_b3b4_b5b6_b7b8,
        data: None,
    });
    let close = MptcpOption::Fastclose(MpFastclose { receiver_key: 0xb1b2_b3b4_b5b6_b7b8 });
    for option in [keys, close] {
        let options = with(option);
        let shown = format!("{options:?}");
        for key in [0xa1a2_a3a4_a5a6_a7a8u64, 0xb1b2_b3b4_b5b6_b7b8] {
            assert!(!shown.contains(&key.to_string()) && !shown.contains(&format!("{key:x}")));
        }
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| {
            let digits = core::str::from_utf8(pair).expect("ascii");
            u8::from_str_radix(digits, 16).expect("hex")
        })
        .collect()
}
