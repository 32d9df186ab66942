//! Tests with packets that a Linux 6.18 kernel sent to another over two links, DSS checksums on: both keys, a join,
//! an announced address and its echo, first data, DATA_FIN. The parser must decode them correctly, and the emitter
//! must reproduce the bytes. (The TCP checksums were left to offloading.)

use marline_wire::mptcp::{
    AddAddr, DataAck, Dss, MpCapable, MpCapableForm, MpJoin, MptcpOption, WireDsn, WireMapping,
};
use marline_wire::{Checksum, IpPacket, PROTOCOL_TCP, TcpFlags, TcpSegment, dss_checksum};

const SYN: &str = "\
    450000404f2140004006d5820a0901010a090102b00c13880d72dbef00000000b002faf016470000\
    020405b40402080a4e2fc14d000000000103030a1e040181";
const SYN_ACK: &str = "\
    45000048000040004006249c0a0901020a0901011388b00c538bbb640d72dbf0d012fe88164f0000\
    020405b40402080adcf8d4c74e2fc14d0103030a1e0c01812f7633d0c21d7564";
const ACK: &str = "\
    450000484f2240004006d5790a0901010a090102b00c13880d72dbf0538bbb65d010003f164f0000\
    0101080a4e2fc14ddcf8d4c71e14018166f7460addff8a362f7633d0c21d7564";
const ADD_ADDR: &str = "\
    4500004493aa4000400690f50a0901020a0901011388b00c538bbb650d72dbf0c010003f164b0000\
    0101080adcf8d4c74e2fc14d1e1030010a090202f371b3d6fd81a555";
const ECHO: &str = "\
    4500003c4f2340004006d5840a0901010a090102b00c13880d72dbf0538bbb65a010003f16430000\
    0101080a4e2fc14ddcf8d4c71e0831010a090202";
const DATA: &str = "\
    4500005193ab4000400690e70a0901020a0901011388b00c538bbb650d72dbf0e018003f16580000\
    0101080adcf8d4c84e2fc14d1e18200deea2dc778abbd64e8daa172e000000010005b64468656c6c\
    6f";
const DATA_ACK: &str = "\
    450000404f2440004006d57f0a0901010a090102b00c13880d72dbf0538bbb6ab010003f16470000\
    0101080a4e2fc14edcf8d4c81e0c20038abbd64e8daa1733";
const JOIN_SYN: &str = "\
    45000048498e40004006d90d0a0902010a090202eb4b13886395368700000000d002faf0184f0000\
    020405b40402080aef02ab24000000000103030a1e0c1001d9003b280e471f4d";
const JOIN_SYN_ACK: &str = "\
    4500004c00004000400622980a0902020a0902011388eb4b20890af363953688e012fe8818530000\
    020405b40402080a218ed821ef02ab240103030a1e101001c964002456c6ab25e8901671";
const JOIN_ACK: &str = "\
    4500004c498f40004006d9080a0902010a090202eb4b13886395368820890af4e010003f18530000\
    0101080aef02ab24218ed8211e181000d061a04d543034a9ce74463aa909ca2d1775d942";
const SHORT_ACK: &str = "\
    4500003c42a340004006e0040a0902020a0902011388eb4b20890af463953688a010003f18430000\
    0101080a218ed822ef02ab241e082001eea2dc77";
const DATA_FIN: &str = "\
    4500005050e840004006d3ab0a0901010a090102b00c13880d7c0414538bbb6af010003f16570000\
    0101080a4e2fc3a5dcf8d71f1e1c201f8abbd64e8daa1733314c3814eeac049b000000000001a356";
const FIN: &str = "\
    4500004050e940004006d3ba0a0901010a090102b00c13880d7c0414538bbf52b011004016470000\
    0101080a4e2fc3b3dcf8d7291e0c20038abbd64e8daa1b1c";

const KEY_A: u64 = 0x66f7_460a_ddff_8a36;
const KEY_B: u64 = 0x2f76_33d0_c21d_7564;

fn unhex(hex: &str) -> Vec<u8> {
    let digit = |b: u8| char::from(b).to_digit(16).expect("a hex digit") as u8;
    hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Parses a packet, checks that our emitter writes the same header, and passes the segment to `check`.
fn with_segment(hex: &str, check: impl FnOnce(TcpSegment<'_>)) {
    let bytes = unhex(hex);
    let ip = IpPacket::parse(&bytes).expect("an IP packet");
    assert_eq!((ip.protocol, ip.fragment.is_some()), (PROTOCOL_TCP, false));
    let segment = TcpSegment::parse(ip.payload).expect("a segment");
    let mut ours = [0; 60];
    let len = segment.header.emit(&segment.options, &mut ours).expect("fits");
    ours[16..18].copy_from_slice(&ip.payload[16..18]);
    assert_eq!(ours[..len], ip.payload[..ip.payload.len() - segment.payload.len()]);
    check(segment);
}

fn capable(form: MpCapableForm) -> MptcpOption {
    MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: true,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form,
    })
}

/// Checks that this is the segment's only MPTCP option except DSS.
fn assert_option(hex: &str, option: MptcpOption) {
    with_segment(hex, |segment| {
        assert!(segment.options.mptcp.iter().eq([option]));
        assert!(!segment.options.mptcp.malformed && segment.options.dss.is_none());
    });
}

fn assert_dss(hex: &str, dss: Dss) {
    with_segment(hex, |segment| {
        assert_eq!(segment.options.dss, Some(dss));
        assert!(!segment.options.mptcp.malformed && segment.options.mptcp.is_empty());
    });
}

#[test]
fn the_kernels_handshake() {
    assert_option(SYN, capable(MpCapableForm::Syn));
    assert_option(SYN_ACK, capable(MpCapableForm::SynAck { listener_key: KEY_B }));
    let (initiator_key, listener_key) = (KEY_A, KEY_B);
    assert_option(ACK, capable(MpCapableForm::Ack { initiator_key, listener_key, data: None }));
    with_segment(SYN, |segment| {
        assert_eq!(segment.header.flags, TcpFlags::SYN);
        assert_eq!((segment.header.src_port, segment.header.dst_port), (45_068, 5_000));
        let options = &segment.options;
        assert_eq!((options.mss, options.window_scale), (Some(1460), Some(10)));
        assert!(options.sack_permitted);
        assert_eq!(options.timestamps.map(|t| (t.value, t.echo)), Some((0x4e2f_c14d, 0)));
    });
}

#[test]
fn the_kernels_announcement_and_echo() {
    let address = [10, 9, 2, 2].into();
    let hmac = Some(0xf371_b3d6_fd81_a555);
    let add = AddAddr { address_id: 1, address, port: None, hmac };
    assert_option(ADD_ADDR, MptcpOption::AddAddr(add));
    assert_option(ECHO, MptcpOption::AddAddr(AddAddr { hmac: None, ..add }));
}

#[test]
fn the_kernels_join() {
    let (backup, address_id) = (false, 1);
    let (token, nonce) = (0xd900_3b28, 0x0e47_1f4d);
    let syn = MpJoin::Syn { backup, address_id, token, nonce };
    assert_option(JOIN_SYN, MptcpOption::Join(syn));
    let (hmac, nonce) = (0xc964_0024_56c6_ab25, 0xe890_1671);
    let syn_ack = MpJoin::SynAck { backup, address_id, hmac, nonce };
    assert_option(JOIN_SYN_ACK, MptcpOption::Join(syn_ack));
    let hmac = unhex("d061a04d543034a9ce74463aa909ca2d1775d942");
    let hmac = hmac.try_into().expect("20 bytes");
    assert_option(JOIN_ACK, MptcpOption::Join(MpJoin::Ack { hmac }));
}

#[test]
fn the_kernels_data_and_its_checksum() {
    let (dsn, ssn, length, checksum) = (0x8abb_d64e_8daa_172e, 1, 5, 0xb644);
    let wire = WireMapping { dsn: WireDsn::Long(dsn), ssn, length, checksum: Some(checksum) };
    let data_ack = Some(DataAck::Short(0xeea2_dc77));
    assert_dss(DATA, Dss { data_ack, mapping: Some(wire), data_fin: false });
    with_segment(DATA, |segment| {
        assert_eq!(segment.payload, b"hello");
        let sum = Checksum::of(segment.payload);
        assert_eq!(dss_checksum(dsn, ssn, length, sum), checksum);
        assert_ne!(dss_checksum(dsn + 1, ssn, length, sum), checksum);
    });
    let data_ack = Some(DataAck::Long(dsn + 5));
    assert_dss(DATA_ACK, Dss { data_ack, ..Dss::default() });
    let data_ack = Some(DataAck::Short(0xeea2_dc77));
    assert_dss(SHORT_ACK, Dss { data_ack, ..Dss::default() });
}

#[test]
fn the_kernels_data_fin_and_fin() {
    let (dsn, ssn, length, checksum) = (0x314c_3814_eeac_049b, 0, 1, 0xa356);
    let wire = WireMapping { dsn: WireDsn::Long(dsn), ssn, length, checksum: Some(checksum) };
    let data_ack = Some(DataAck::Long(0x8abb_d64e_8daa_1733));
    assert_dss(DATA_FIN, Dss { data_ack, mapping: Some(wire), data_fin: true });
    assert_eq!(dss_checksum(dsn, ssn, length, Checksum::new()), checksum);
    let data_ack = Some(DataAck::Long(0x8abb_d64e_8daa_1b1c));
    assert_dss(FIN, Dss { data_ack, ..Dss::default() });
    with_segment(FIN, |s| assert_eq!(s.header.flags, TcpFlags::FIN.with(TcpFlags::ACK)));
}
