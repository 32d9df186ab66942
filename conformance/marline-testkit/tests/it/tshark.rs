//! Cross-check with Wireshark: a capture with every option must contain no malformed frame, and each option must be
//! decoded with the given values.

use std::path::PathBuf;
use std::process::Command;

use marline_testkit::need;
use marline_wire::mptcp::{
    AddAddr, CapableData, DataAck, Dss, MpCapable, MpCapableForm, MpFail, MpFastclose, MpJoin,
    MpPrio, MpTcpRst, MptcpOption, RemoveAddr, WireDsn, WireMapping,
};
use marline_wire::pcapng::{Capture, CapturedSegment, Direction, PacketInfo, SegmentChecksum};
use marline_wire::{
    SackBlock, SeqNum, TcpFlags, TcpHeader, TcpOptions, Timestamps, fill_tcp_checksum,
};

const KEY_A: u64 = 0xa1a2_a3a4_a5a6_a7a8;
const KEY_B: u64 = 0xb1b2_b3b4_b5b6_b7b8;

/// A segment to capture, with the expected values of tshark fields.
struct Case {
    flags: TcpFlags,
    options: TcpOptions,
    payload: &'static [u8],
    expected: Vec<(&'static str, String)>,
}

fn case(flags: TcpFlags, option: Option<MptcpOption>, expected: &[(&'static str, String)]) -> Case {
    let timestamps = Some(Timestamps { value: 7, echo: 8 });
    let mut options = TcpOptions { timestamps, ..TcpOptions::default() };
    if let Some(option) = option {
        assert!(options.mptcp.push(option));
    }
    Case { flags, options, payload: b"", expected: expected.to_vec() }
}

fn capable(form: MpCapableForm) -> Option<MptcpOption> {
    Some(MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: true,
        extensibility: false,
        deny_join_id0: true,
        hmac_sha256: true,
        form,
    }))
}

fn subtype(n: u8) -> (&'static str, String) {
    ("tcp.options.mptcp.subtype", n.to_string())
}

const fn key_fields() -> (&'static str, &'static str) {
    ("tcp.options.mptcp.sendkey", "tcp.options.mptcp.recvkey")
}

fn handshakes(cases: &mut Vec<Case>) {
    let (sent, received) = key_fields();
    let (syn, syn_ack) = (TcpFlags::SYN, TcpFlags::SYN.with(TcpFlags::ACK));
    let mut first = case(
        syn,
        capable(MpCapableForm::Syn),
        &[
            subtype(0),
            ("tcp.options.mptcp.version", "1".into()),
            ("tcp.options.mptcp.checksumreq.flags", "1".into()),
            ("tcp.options.mptcp.nomoresubflows.flag", "1".into()),
            ("tcp.options.mss_val", "1400".into()),
            ("tcp.options.wscale.shift", "9".into()),
        ],
    );
    first.options.mss = Some(1400);
    first.options.window_scale = Some(9);
    first.options.sack_permitted = true;
    cases.push(first);
    cases.push(case(
        syn_ack,
        capable(MpCapableForm::SynAck { listener_key: KEY_B }),
        &[subtype(0), (sent, KEY_B.to_string())],
    ));
    for data in [
        None,
        Some(CapableData { length: 4, checksum: None }),
        Some(CapableData { length: 4, checksum: Some(0x1234) }),
    ] {
        let form = MpCapableForm::Ack { initiator_key: KEY_A, listener_key: KEY_B, data };
        let keys = [subtype(0), (sent, KEY_A.to_string()), (received, KEY_B.to_string())];
        let mut ack = case(TcpFlags::ACK, capable(form), &keys);
        if let Some(data) = data {
            ack.payload = b"data";
            ack.expected.push(("tcp.options.mptcp.datalvllen", data.length.to_string()));
        }
        cases.push(ack);
    }
    let (backup, address_id, nonce) = (true, 3, 0x0506_0708);
    let join = MpJoin::Syn { backup, address_id, token: 0x0102_0304, nonce };
    cases.push(case(
        syn,
        Some(MptcpOption::Join(join)),
        &[
            subtype(1),
            ("tcp.options.mptcp.recvtok", 0x0102_0304.to_string()),
            ("tcp.options.mptcp.sendrand", nonce.to_string()),
            ("tcp.options.mptcp.addrid", "3".into()),
            ("tcp.options.mptcp.backup.flag", "1".into()),
        ],
    ));
    let join = MpJoin::SynAck { backup, address_id, hmac: KEY_A, nonce };
    let hmac = ("tcp.options.mptcp.sendtrunchmac", KEY_A.to_string());
    cases.push(case(syn_ack, Some(MptcpOption::Join(join)), &[subtype(1), hmac]));
    let join = MpJoin::Ack { hmac: [0x5a; 20] };
    let hmac = ("tcp.options.mptcp.sendhmac", "5a".repeat(20));
    cases.push(case(TcpFlags::ACK, Some(MptcpOption::Join(join)), &[subtype(1), hmac]));
}

fn data(cases: &mut Vec<Case>) {
    let acks = [None, Some(DataAck::Short(0x1111_2222)), Some(DataAck::Long(0x3333_4444_5555))];
    let dsns = [None, Some(WireDsn::Short(0x6666_7777)), Some(WireDsn::Long(0x8888_9999_aaaa))];
    for (data_ack, dsn) in acks.into_iter().flat_map(|a| dsns.map(|d| (a, d))) {
        for (checksum, data_fin) in [(None, false), (None, true), (Some(0xbeef), false)] {
            let length = 4 + u16::from(data_fin);
            let mapping = dsn.map(|dsn| WireMapping { dsn, ssn: 77, length, checksum });
            let mut segment = case(TcpFlags::ACK, None, &[subtype(2)]);
            segment.options.dss = Some(Dss { data_ack, mapping, data_fin });
            let fin = ("tcp.options.mptcp.datafin.flag", u8::from(data_fin).to_string());
            segment.expected.push(fin);
            if let Some(ack) = data_ack.and_then(|a| a.unwrap_near(0x1111_0000)) {
                segment.expected.push(("tcp.options.mptcp.rawdataack", ack.to_string()));
            }
            if let Some(dsn) = dsn.and_then(|d| d.unwrap_near(0x6666_0000)) {
                segment.payload = b"data";
                let fields = [
                    ("tcp.options.mptcp.rawdataseqno", dsn.to_string()),
                    ("tcp.options.mptcp.subflowseqno", "77".into()),
                    ("tcp.options.mptcp.datalvllen", length.to_string()),
                ];
                segment.expected.extend(fields);
            }
            cases.push(segment);
        }
    }
    let mut sack = case(TcpFlags::ACK, None, &[("tcp.options.sack.count", "3".into())]);
    for left in [1_000u32, 3_000, 5_000] {
        let (left, right) = (SeqNum(left), SeqNum(left + 500));
        assert!(sack.options.sack.push(SackBlock { left, right }));
    }
    cases.push(sack);
}

fn addresses(cases: &mut Vec<Case>) {
    for (address, port, hmac) in
        [("192.0.2.77", None), ("2001:db8::77", Some(4_430))].into_iter().flat_map(|(a, p)| {
            [
                (a, None, None),
                (a, p.or(Some(80)), None),
                (a, None, Some(KEY_A)),
                (a, Some(81), Some(KEY_A)),
            ]
        })
    {
        let field =
            if address.contains(':') { "tcp.options.mptcp.ipv6" } else { "tcp.options.mptcp.ipv4" };
        let mut expected = vec![
            subtype(3),
            (field, address.to_owned()),
            ("tcp.options.mptcp.addrid", "9".into()),
            ("tcp.options.mptcp.echo", u8::from(hmac.is_none()).to_string()),
        ];
        expected.extend(port.map(|p: u16| ("tcp.options.mptcp.port", p.to_string())));
        expected.extend(hmac.map(|h: u64| ("tcp.options.mptcp.addaddrtrunchmac", h.to_string())));
        // The longest option (30 bytes) leaves no room for timestamps, so all are sent without them.
        let address = address.parse().expect("an address");
        let option = MptcpOption::AddAddr(AddAddr { address_id: 9, address, port, hmac });
        let mut announced = case(TcpFlags::ACK, Some(option), &expected);
        announced.options.timestamps = None;
        cases.push(announced);
    }
    let ids = RemoveAddr::new(&[5]).expect("one id");
    let id = ("tcp.options.mptcp.addrid", "5".into());
    cases.push(case(TcpFlags::ACK, Some(MptcpOption::RemoveAddr(ids)), &[subtype(4), id]));
}

fn signals(cases: &mut Vec<Case>) {
    let (_, received) = key_fields();
    let prio = MptcpOption::Prio(MpPrio { backup: true });
    let backup = ("tcp.options.mptcp.backup.flag", "1".into());
    cases.push(case(TcpFlags::ACK, Some(prio), &[subtype(5), backup]));
    let fail = MptcpOption::Fail(MpFail { dsn: 0x1234_5678_9abc });
    let dsn = ("tcp.options.mptcp.rawdataseqno", 0x1234_5678_9abc_u64.to_string());
    cases.push(case(TcpFlags::ACK, Some(fail), &[subtype(6), dsn]));
    let close = MptcpOption::Fastclose(MpFastclose { receiver_key: KEY_B });
    let key = (received, KEY_B.to_string());
    cases.push(case(TcpFlags::ACK, Some(close), &[subtype(7), key]));
    let reset = MptcpOption::TcpRst(MpTcpRst { transient: true, reason: 4 });
    let reason = ("tcp.options.mptcp.rst_reason", "4".into());
    cases.push(case(TcpFlags::RST, Some(reset), &[subtype(8), reason]));
}

/// Writes the cases as one capture, each from its own port so that none looks like a retransmission of another.
fn write_capture(cases: &[Case], reveal_keys: bool, six: bool) -> PathBuf {
    let (src, dst) = if six { ("2001:db8::1", "2001:db8::2") } else { ("192.0.2.1", "192.0.2.2") };
    let (src, dst) = (src.parse().expect("address"), dst.parse().expect("address"));
    let mut out = Vec::new();
    let mut capture = Capture::begin(&mut out, "marline-wire tests", &["any"], reveal_keys);
    for (i, case) in cases.iter().enumerate() {
        let header = TcpHeader {
            src_port: 10_000 + i as u16,
            dst_port: 5_000,
            seq: SeqNum(1_000_000),
            ack: SeqNum(if case.flags.contains(TcpFlags::ACK) { 2_000_000 } else { 0 }),
            flags: case.flags,
            window: 1_000,
            urgent: 0,
        };
        let mut bytes = vec![0; 60];
        let len = header.emit(&case.options, &mut bytes).expect("fits");
        bytes.truncate(len);
        bytes.extend_from_slice(case.payload);
        fill_tcp_checksum(None, &mut bytes);
        let info = PacketInfo {
            interface: 0,
            time_ns: 1_700_000_000_123_456_789 + i as u64,
            direction: Direction::Outbound,
            comment: Some("seen by a test"),
        };
        let checksum = SegmentChecksum::WithoutAddresses;
        let segment = CapturedSegment { src, dst, ecn: 0, checksum, bytes: &bytes };
        capture.segment(&mut out, &info, &segment).expect("one family");
    }
    let name = format!("marline-wire-{}-{reveal_keys}-{six}.pcapng", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, out).expect("a writable temporary directory");
    path
}

/// Runs tshark on a capture: one line of tab-separated values for each frame.
fn tshark(program: &PathBuf, capture: &PathBuf, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new(program);
    command.args(["-n", "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    command.arg("-r").arg(capture).args(["-T", "fields", "-E", "occurrence=a"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark failed: {errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn all_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    handshakes(&mut cases);
    data(&mut cases);
    addresses(&mut cases);
    signals(&mut cases);
    cases
}

#[test]
fn tshark_recognizes_every_option() {
    let Some(program) = need::program("tshark") else { return };
    let cases = all_cases();
    let mut fields: Vec<&str> = cases.iter().flat_map(|c| c.expected.iter().map(|e| e.0)).collect();
    fields.sort_unstable();
    fields.dedup();
    let fixed = ["_ws.malformed", "tcp.checksum.status", "frame.time_epoch", "frame.comment"];
    let columns: Vec<&str> = fixed.iter().chain(&fields).copied().collect();
    for six in [false, true] {
        let path = write_capture(&cases, true, six);
        let frames = tshark(&program, &path, &columns);
        std::fs::remove_file(&path).expect("the capture exists");
        assert_eq!(frames.len(), cases.len());
        for (i, (case, frame)) in cases.iter().zip(&frames).enumerate() {
            let options = &case.options;
            assert_eq!(frame[0], "", "frame {i} is malformed: {options:?}");
            assert_eq!(frame[1], "1", "frame {i} has a bad checksum: {options:?}");
            assert!(frame[2].ends_with(&format!(".{}", 123_456_789 + i)), "{}", frame[2]);
            assert_eq!(frame[3], "seen by a test");
            for (field, value) in &case.expected {
                let column = columns.iter().position(|c| c == field).expect("requested");
                let found = normal(&frame[column]);
                assert_eq!(found, *value, "{field} of frame {i}: {options:?}");
            }
        }
    }
}

/// Converts numbers of any base to decimal; other text stays unchanged.
fn normal(text: &str) -> String {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).map_or(text.to_owned(), |n| n.to_string()),
        None => text.to_owned(),
    }
}

#[test]
fn tshark_sees_no_key_unless_asked() {
    let Some(program) = need::program("tshark") else { return };
    let cases = all_cases();
    let path = write_capture(&cases, false, false);
    let (sent, received) = key_fields();
    let frames = tshark(&program, &path, &["_ws.malformed", "tcp.checksum.status", sent, received]);
    std::fs::remove_file(&path).expect("the capture exists");
    let mut keys = 0;
    for (frame, case) in frames.iter().zip(&cases) {
        assert_eq!((frame[0].as_str(), frame[1].as_str()), ("", "1"), "{:?}", case.options);
        for key in frame[2..].iter().filter(|key| !key.is_empty()) {
            assert_eq!(normal(key), "0");
            keys += 1;
        }
    }
    assert_eq!(keys, 1 + 3 * 2 + 1, "SYN/ACK, three third ACKs, MP_FASTCLOSE");
}
