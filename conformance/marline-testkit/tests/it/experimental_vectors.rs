//! Test vectors of docs/spec/experimental.md, read from that document: each must be decoded to the documented values
//! and encoded to the same bytes, and each HMAC, token, checksum and sum must match. They were computed independently,
//! so document and program check each other.

use std::collections::BTreeMap;

use marline_testkit::keys::{self, FastJoinSyn};
use marline_wire::mptcp::{
    ExperimentalMessage as Message, Extensions, FastJoinForm, MpExperimental, MpRepair,
    MptcpOption, repair_checksum,
};
use marline_wire::{Checksum, TcpOptions};

const DOCUMENT: &str = include_str!("../../../../docs/spec/experimental.md");

/// `name = hex # comment` lines of the document; each may be requested once.
struct Vectors(BTreeMap<&'static str, Vec<u8>>);

impl Vectors {
    fn read() -> Vectors {
        let block = DOCUMENT.split("```vectors\n").nth(1).expect("vectors");
        let block = block.split("```").next().unwrap_or_default();
        let lines = block.lines().map(|line| line.split('#').next().unwrap_or_default());
        let pairs = lines.filter_map(|line| line.split_once('='));
        let all: Vec<_> = pairs.map(|(name, hex)| (name.trim(), bytes(hex))).collect();
        let map: BTreeMap<_, _> = all.iter().cloned().collect();
        assert_eq!(map.len(), all.len(), "a duplicate name");
        Vectors(map)
    }

    fn take(&mut self, name: &str) -> Vec<u8> {
        self.0.remove(name).unwrap_or_else(|| panic!("the document has no `{name}`"))
    }

    fn take_u64(&mut self, name: &str) -> u64 {
        u64::from_be_bytes(self.take(name).try_into().expect("eight bytes"))
    }

    /// The message of the only option of a segment.
    fn take_message(&mut self, name: &str) -> Message {
        let bytes = self.take(name);
        let options = TcpOptions::parse(&bytes);
        let found: Vec<MptcpOption> = options.mptcp.iter().collect();
        let [MptcpOption::Experimental(option)] = found[..] else {
            panic!("{name}: {found:?}");
        };
        let message = Message::parse(&option).unwrap_or_else(|| panic!("{name}: {option:?}"));
        if name != "hello longer" {
            assert_eq!(on_the_wire(&message.option()), bytes, "{name}, encoded");
        }
        message
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> =
        hex.chars().filter(|c| *c != ' ').map(|c| c.to_digit(16).expect("hex")).collect();
    assert!(digits.len().is_multiple_of(2), "{hex}");
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn on_the_wire(option: &MpExperimental) -> Vec<u8> {
    let head = [30, option.encoded_len() as u8, option.subtype_byte()];
    [&head, option.as_slice()].concat()
}

/// The two ends, identified by their keys.
struct Ends {
    a: u64,
    b: u64,
    token: u32,
}

impl Ends {
    fn read(v: &mut Vectors) -> Ends {
        let (a, b) = (v.take_u64("key A"), v.take_u64("key B"));
        let token = v.take("token of B");
        assert_eq!(keys::token(b).to_be_bytes()[..], token);
        assert_eq!(
            (keys::idsn(a), keys::idsn(b)),
            (v.take_u64("IDSN of A"), v.take_u64("IDSN of B"))
        );
        Ends { a, b, token: keys::token(b) }
    }

    /// A Fast JOIN of A from its address with ID 2.
    const fn fast_join_syn<'a>(&self, message: u8, point: u64, data: &'a [u8]) -> FastJoinSyn<'a> {
        let Ends { a: own_key, b: other_key, token } = *self;
        FastJoinSyn { own_key, other_key, message, address_id: 2, token, point, data }
    }
}

/// A Fast JOIN and its answer, both plain and with the backup flag.
fn check_fast_join(
    v: &mut Vectors,
    ends: &Ends,
    form: FastJoinForm,
    syn_point: u64,
    answer_point: u64,
) {
    let (name, data, third) = match form {
        FastJoinForm::Out => ("out", v.take("out data"), [0xf6, 0xf9]),
        FastJoinForm::In => ("in", Vec::new(), [0xf4, 0xf8]),
    };
    for (backup, suffix) in [(false, ""), (true, " backup")] {
        let flag = u8::from(backup);
        let hmac = ends.fast_join_syn(third[0] | flag, syn_point, &data).hmac();
        let (address_id, token, point) = (2, ends.token, syn_point as u32);
        let expected = Message::FastJoinSyn { form, backup, address_id, token, point, hmac };
        assert_eq!(v.take_message(&format!("{name}{suffix}")), expected);
        let answer = keys::fast_ack_hmac(ends.b, ends.a, third[1], flag, answer_point, hmac);
        let point = answer_point as u32;
        let expected = Message::FastJoinSynAck { form, backup, hmac: answer, point };
        assert_eq!(v.take_message(&format!("{name}{suffix} answer")), expected);
    }
}

#[test]
fn counted_fast_joins() {
    let mut v = Vectors::read();
    let ends = Ends::read(&mut v);
    let (data, point) = (v.take("out data"), v.take_u64("out point"));
    for (name, count) in [("out 3rd", 3), ("out 259th", 259)] {
        let hmac = ends.fast_join_syn(0xf6, point, &data).counted_hmac(count);
        let (form, token, point) = (FastJoinForm::Out, ends.token, point as u32);
        let expected =
            Message::FastJoinSyn { form, backup: false, address_id: 2, token, point, hmac };
        assert_eq!(v.take_message(name), expected, "{hmac:016x}");
    }
}

/// x times y in the field of 256 elements modulo 0x11d, bit by bit.
fn multiply(mut x: u16, y: u16) -> u16 {
    let mut product = 0;
    for bit in 0..8 {
        product ^= if y >> bit & 1 == 1 { x } else { 0 };
        x = x << 1 ^ if x & 0x80 == 0 { 0 } else { 0x11d };
    }
    product
}

fn coefficient(row: u16, cell: u64) -> u16 {
    let (x, y) = (row % 64, 64 + (cell % 192) as u16);
    let inverse = (1..256).find(|n| multiply(*n, x ^ y) == 1).expect("a field");
    multiply(y, inverse)
}

fn sum(row: u16, start: u64, data: &[u8], symbol: u64) -> Vec<u8> {
    let mut sum = vec![0u8; symbol as usize];
    for (at, byte) in (start..).zip(data) {
        sum[(at % symbol) as usize] ^=
            multiply(u16::from(*byte), coefficient(row, at / symbol)) as u8;
    }
    sum
}

#[test]
fn greetings_marks_and_timeouts() {
    let mut v = Vectors::read();
    assert_eq!(v.take_message("hello"), Message::Hello(Extensions::ALL));
    let granted = Extensions::FAST_JOIN.union(Extensions::IDLE).union(Extensions::FOLLOW_CLIENT);
    for name in ["hello answer", "hello longer"] {
        assert_eq!(v.take_message(name), Message::Hello(granted), "{name}");
    }
    assert_eq!(v.take_message("idle"), Message::Idle);
    assert_eq!(v.take_message("rto request"), Message::RtoRequest);
    assert_eq!(v.take_message("rto info"), Message::RtoInfo { rto_us: 234_567 });
    let cost = Message::PathCost { metered: true, fading: false, limited: false, tail_ms: 11_655 };
    assert_eq!(v.take_message("path cost"), cost);
    let cost = Message::PathCost { metered: false, fading: true, limited: false, tail_ms: 0 };
    assert_eq!(v.take_message("path fades"), cost);
}

#[test]
fn fast_join_in_both_forms() {
    let mut v = Vectors::read();
    let ends = Ends::read(&mut v);
    let out = v.take_u64("out point");
    assert_eq!(out, keys::idsn(ends.a).wrapping_add(1_001));
    check_fast_join(&mut v, &ends, FastJoinForm::Out, out, out + 5);
    let (point, next) = (v.take_u64("in point"), v.take_u64("in next"));
    let idsn = keys::idsn(ends.b);
    assert_eq!((point, next), (idsn.wrapping_add(2_001), idsn.wrapping_add(5_001)));
    check_fast_join(&mut v, &ends, FastJoinForm::In, point, next);
}

#[test]
fn a_repair_and_its_sums() {
    let mut v = Vectors::read();
    let ends = Ends::read(&mut v);
    let (dsn, data) = (v.take_u64("repair DSN"), v.take("repair data"));
    assert_eq!(dsn, keys::idsn(ends.a).wrapping_add(1 + 1_002));
    for row in [0, 1, 5] {
        assert_eq!(sum(row, 1_002, &data, 4), v.take(&format!("repair row {row}")), "row {row}");
    }
    assert_eq!([250, 251, 252].map(|cell| coefficient(1, cell)), [0xba, 0x07, 0xcc]);
    assert_eq!([250, 251, 252].map(|cell| coefficient(5, cell)), [0x2a, 0x20, 0xb7]);
    let plain = MpRepair {
        ssn: 301,
        length: 4,
        dsn: dsn as u32,
        span: data.len() as u16,
        row: 1,
        data_ack: v.take_u64("in point") as u32,
        checksum: None,
    };
    assert_eq!(v.take_message("repair"), Message::Repair(plain));
    let sum = Checksum::of(&sum(1, 1_002, &data, 4));
    let checksum = Some(repair_checksum(&plain, dsn, 301, sum));
    assert_eq!(v.take_message("repair checked"), Message::Repair(MpRepair { checksum, ..plain }));
}

/// Every vector must be used by a test.
#[test]
fn a_test_uses_every_vector_of_the_document() {
    let mut v = Vectors::read();
    let ends = ["key A", "key B", "token of B", "IDSN of A", "IDSN of B"];
    let short = ["hello", "hello answer", "hello longer", "idle", "rto request", "rto info"];
    let out = ["out point", "out data", "out", "out answer", "out backup", "out backup answer"];
    let back = ["in point", "in next", "in", "in answer", "in backup", "in backup answer"];
    let repair = ["DSN", "data", "row 0", "row 1", "row 5"].map(|name| format!("repair {name}"));
    let rest = ["path cost", "path fades", "out 3rd", "out 259th", "repair", "repair checked"];
    for name in [&ends[..], &short, &out, &back, &rest].concat() {
        v.take(name);
    }
    repair.iter().for_each(|name| drop(v.take(name)));
    assert_eq!(v.0, BTreeMap::new());
}
