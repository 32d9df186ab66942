//! Tests of Fast JOIN at the client: the contents of the SYN, the authentication of the answer, and the ordinary
//! join that follows any failure within one retry.

use std::time::Duration;

use crate::two_hosts::{MiddleboxAction, Packet, TwoHosts, bytes, second_unused};
use marline_core::{
    ConnectionConfig, ConnectionId, Extensions, FourTuple, NetworkError, SubflowState,
};
use marline_policy::{AddressId, PathAction};
use marline_testkit::fixtures::calling;
use marline_testkit::{
    Expect, Peer, Script, Seg, SentSegment, Side, config, endpoint_config, keys,
};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{ExperimentalMessage, FastJoinForm, MpJoin, MptcpOption};

const MS: fn(u64) -> Duration = Duration::from_millis;
const OPEN: PathAction = PathAction::OpenSubflow {
    local: AddressId(2),
    remote: AddressId(0),
    backup: false,
    fast: true,
};

/// A client that joins only on command.
fn by_hand() -> ConnectionConfig {
    ConnectionConfig { extensions: Extensions::FAST_JOIN, ..second_unused(config()) }
}

/// The endpoint's connection and its scripted server, which supports Fast JOIN.
fn agreed() -> (Script, Peer, ConnectionId) {
    let (mut script, mut first, id) = calling(endpoint_config(None), by_hand());
    first.acknowledge(&mut script);
    let hello = ExperimentalMessage::Hello(Extensions::FAST_JOIN).option();
    let seg = Seg::ack().data_ack(first.expected_dsn).mptcp(MptcpOption::Experimental(hello));
    first.send(&mut script, seg);
    script.take_sent();
    assert_eq!(script.endpoint.info(id).map(|i| i.extensions), Some(Extensions::FAST_JOIN));
    (script, first, id)
}

/// A Fast JOIN's SYN as it was sent.
struct Asked {
    form: FastJoinForm,
    point: u32,
    hmac: u64,
    data: Vec<u8>,
}

/// Takes the SYN and checks its HMAC against the expected full 64-bit position.
#[track_caller]
fn take_syn(script: &mut Script, first: &Peer, point: u64) -> (Asked, Peer) {
    let sent = script.expect(&Expect::any().flags(TcpFlags::SYN));
    let message = sent.seg.options.mptcp.experimental().next();
    let Some(ExperimentalMessage::FastJoinSyn {
        form,
        backup,
        address_id,
        token,
        point: low,
        hmac,
    }) = message
    else {
        panic!("no Fast JOIN: {:#?}", sent.seg);
    };
    assert_eq!((backup, address_id, token), (false, 2, keys::token(first.key)));
    assert_eq!(low, point as u32);
    let byte = if form == FastJoinForm::In { 0xf4 } else { 0xf6 };
    let data = sent.seg.payload.clone();
    let covered = keys::FastJoinSyn {
        own_key: first.their_key,
        other_key: first.key,
        message: byte,
        address_id: 2,
        token,
        point,
        data: &data,
    };
    assert_eq!(hmac, covered.hmac());
    // In addition to all ordinary options of a SYN.
    let options = &sent.seg.options;
    assert!(options.mss.is_some() && options.timestamps.is_some() && options.sack_permitted);
    assert!(options.window_scale.is_some() && options.encoded_len() == 40);
    let mut second = Peer { timestamps: Some((1, 0)), ..Peer::new(sent.path, first.key) };
    (second.their_key, second.next_dsn, second.expected_dsn) =
        (first.their_key, first.next_dsn, first.expected_dsn);
    second.record_received(&sent);
    (Asked { form, point: low, hmac, data }, second)
}

/// A valid answer that acknowledges the SYN, and its data if `takes`.
fn answer(asked: &Asked, second: &mut Peer, point: u64, takes: bool) -> Seg {
    let byte = if asked.form == FastJoinForm::In { 0xf8 } else { 0xf9 };
    let (own_key, other_key) = (second.key, second.their_key);
    let hmac = keys::fast_ack_hmac(own_key, other_key, byte, 0, point, asked.hmac);
    let option = ExperimentalMessage::FastJoinSynAck {
        form: asked.form,
        backup: false,
        hmac,
        point: point as u32,
    };
    second.expected = second.irs.add(1 + if takes { asked.data.len() as u32 } else { 0 });
    let seg = Seg::syn_ack().mss(1_400).sack_permitted().window_scale(7);
    seg.mptcp(MptcpOption::Experimental(option.option()))
}

/// Writes, loses the data on the first path, and opens the second one with it.
fn in_a_hurry(script: &mut Script, id: ConnectionId, data: &[u8]) {
    let n = script.run(|e, now| e.write(now, id, data));
    assert_eq!(n, Ok(data.len()));
    let path = script.take_sent()[0].path;
    script.run(|e, now| e.send_failed(now, &path, 0, NetworkError::Unreachable));
    script.run(|e, now| e.path_action(now, id, OPEN));
}

fn payload(sent: &[SentSegment], path: FourTuple) -> Vec<u8> {
    sent.iter().filter(|s| s.path == path).flat_map(|s| s.seg.payload.clone()).collect()
}

fn up(script: &Script, id: ConnectionId) -> usize {
    let info = script.endpoint.info(id).expect("the connection exists");
    info.subflows.iter().filter(|s| s.state == SubflowState::Established).count()
}

#[test]
fn unacknowledged_data_goes_with_the_syn_and_after_the_answer() {
    let (mut script, first, id) = agreed();
    let data = bytes(4_000, 1);
    in_a_hurry(&mut script, id, &data);
    let (asked, mut second) = take_syn(&mut script, &first, first.expected_dsn);
    assert_eq!(asked.form, FastJoinForm::Out);
    assert_eq!(asked.point, first.expected_dsn as u32);
    assert!(!asked.data.is_empty() && data.starts_with(&asked.data));
    assert!(asked.data.len() + 60 <= 1_480, "{} bytes in a SYN", asked.data.len());
    script.take_sent();
    script.advance(MS(50));
    let has = first.expected_dsn + asked.data.len() as u64;
    let seg = answer(&asked, &mut second, has, true);
    second.send(&mut script, seg);
    let sent = script.take_sent();
    let rest = payload(&sent, second.path);
    assert_eq!([asked.data.clone(), rest].concat(), data, "each byte once, in order, immediately");
    assert_eq!(up(&script, id), 2);
    assert_eq!(script.endpoint.info(id).map(|i| i.bytes_acked), Some(asked.data.len() as u64));
    let counters = script.endpoint.counters();
    assert_eq!((counters.fast_join_syn_tx, counters.fast_join_syn_ack_rx), (1, 1));
}

#[test]
fn with_nothing_to_send_the_syn_carries_the_data_ack() {
    let (mut script, mut first, id) = agreed();
    first.send_data(&mut script, &[1; 700]);
    script.read_all(id);
    script.take_sent();
    script.run(|e, now| e.path_action(now, id, OPEN));
    let (asked, mut second) = take_syn(&mut script, &first, first.next_dsn);
    assert_eq!((asked.form, asked.data.len()), (FastJoinForm::In, 0));
    let point = second.next_dsn;
    let seg = answer(&asked, &mut second, point, true);
    second.send(&mut script, seg);
    let third = script.next_sent().expect("the third ACK");
    assert!(third.seg.options.mptcp.is_empty() && third.seg.dss().data_ack.is_some());
    second.send_data(&mut script, b"resent");
    assert_eq!(script.read_all(id), b"resent");
    assert_eq!(up(&script, id), 2);
}

#[test]
fn data_that_the_answerer_did_not_take_goes_again_first_of_all() {
    let (mut script, first, id) = agreed();
    let data = bytes(3_000, 1);
    in_a_hurry(&mut script, id, &data);
    let (asked, mut second) = take_syn(&mut script, &first, first.expected_dsn);
    script.take_sent();
    script.advance(MS(50));
    let seg = answer(&asked, &mut second, first.expected_dsn, false);
    second.send(&mut script, seg);
    let sent = script.take_sent();
    assert_eq!(payload(&sent, second.path), data);
    let on_second = |s: &&SentSegment| s.path == second.path && !s.seg.payload.is_empty();
    let again = sent.iter().find(on_second).expect("data");
    assert_eq!(again.seg.payload, asked.data);
    let mapping = again.seg.dss().mapping.expect("a mapping");
    assert_eq!((mapping.ssn, usize::from(mapping.length)), (1, asked.data.len()));
    assert_eq!(again.seg.header.seq, second.irs.add(1));
}

/// Takes the following ordinary join, and completes it.
#[track_caller]
fn join_follows(script: &mut Script, first: &Peer, id: ConnectionId, data: &[u8], name: &str) {
    let sent = script.take_sent();
    let join = sent.iter().find_map(|s| Some((s.clone(), s.seg.options.mptcp.join()?)));
    let Some((syn, MpJoin::Syn { token, nonce, .. })) = join else {
        panic!("{name}: no MP_JOIN among {sent:#?}");
    };
    assert_eq!(token, keys::token(first.key));
    assert!(syn.seg.payload.is_empty(), "{name}");
    let mut third = Peer { timestamps: Some((1, 0)), ..Peer::new(syn.path, first.key) };
    (third.their_key, third.expected_dsn) = (first.their_key, first.expected_dsn);
    third.record_received(&syn);
    let hmac = keys::left64(keys::join_hmac(first.key, first.their_key, 5, nonce));
    let answer = MpJoin::SynAck { backup: false, address_id: 0, hmac, nonce: 5 };
    let seg = Seg::syn_ack().mss(1_400).sack_permitted().window_scale(7);
    third.send(script, seg.mptcp(MptcpOption::Join(answer)));
    script.take_sent();
    third.acknowledge(script);
    script.advance(MS(1));
    let sent = script.take_sent();
    assert_eq!(payload(&sent, third.path), data, "{name}: every byte over the ordinary join");
    assert_eq!(script.endpoint.counters().fast_join_fallback, 1, "{name}");
    assert_eq!(up(script, id), 2, "{name}");
    // Fast JOIN is not used on this pair of addresses now.
    let last = third.stamp(Seg::ack().flag(TcpFlags::RST).acking(third.expected));
    third.inject(script, last);
    script.take_sent();
    script.run(|e, now| e.path_action(now, id, OPEN));
    let sent = script.take_sent();
    let syn = sent.iter().find(|s| s.seg.header.flags.contains(TcpFlags::SYN)).expect("a SYN");
    assert!(syn.seg.options.mptcp.join().is_some(), "{name}: remembered");
}

/// A segment sent instead of the valid answer.
type Instead = fn(&Asked, &mut Peer, u64) -> Option<Seg>;

#[test]
fn refused_or_mangled_it_becomes_an_ordinary_join_immediately() {
    let cases: [(&str, Instead); 6] = [
        ("refused", |asked, second, _| {
            second.expected = second.irs.add(1 + asked.data.len() as u32);
            Some(Seg::ack().flag(TcpFlags::RST))
        }),
        ("bad HMAC", |asked, second, point| {
            let spoiled = Asked { hmac: asked.hmac ^ 1, data: asked.data.clone(), ..*asked };
            Some(answer(&spoiled, second, point, true))
        }),
        ("an impossible DATA_ACK", |asked, second, point| {
            Some(answer(asked, second, point + (1 << 33), true))
        }),
        ("stripped, data taken", |asked, second, point| {
            let mut seg = answer(asked, second, point, true);
            seg.options.mptcp = Default::default();
            Some(seg)
        }),
        ("stripped, data not taken", |asked, second, point| {
            let mut seg = answer(asked, second, point, false);
            seg.options.mptcp = Default::default();
            Some(seg)
        }),
        ("an ordinary answer that has the data", |asked, second, _| {
            second.expected = second.irs.add(1 + asked.data.len() as u32);
            let join = MpJoin::SynAck { backup: false, address_id: 0, hmac: 1, nonce: 5 };
            Some(Seg::syn_ack().mss(1_400).mptcp(MptcpOption::Join(join)))
        }),
    ];
    for (name, instead) in cases {
        let (mut script, first, id) = agreed();
        let data = bytes(3_000, 1);
        in_a_hurry(&mut script, id, &data);
        let (asked, mut second) = take_syn(&mut script, &first, first.expected_dsn);
        script.take_sent();
        let point = first.expected_dsn + asked.data.len() as u64;
        let seg = instead(&asked, &mut second, point).expect("a segment");
        second.send(&mut script, seg);
        join_follows(&mut script, &first, id, &data, name);
    }
}

#[test]
fn without_an_answer_the_next_syn_is_an_ordinary_one() {
    let (mut script, first, id) = agreed();
    let data = bytes(3_000, 1);
    in_a_hurry(&mut script, id, &data);
    let (_, second) = take_syn(&mut script, &first, first.expected_dsn);
    script.take_sent();
    let before = script.now();
    loop {
        assert!(script.advance_to_send(Duration::from_secs(3)), "nothing more is sent");
        let sent = script.take_sent();
        let syn = sent.iter().find(|s| s.path == second.path);
        let Some(syn) = syn else { continue };
        assert!(syn.seg.header.flags.contains(TcpFlags::SYN));
        assert_eq!(syn.seg.header.seq, second.irs, "the same attempt");
        assert!(syn.seg.payload.is_empty() && syn.seg.options.mptcp.join().is_some());
        assert!(script.now() - before <= Duration::from_secs(1));
        break;
    }
    // The answer to the first one may still come, and is valid.
    let mut late = second.clone();
    let asked = Asked { form: FastJoinForm::Out, point: 0, hmac: 0, data: Vec::new() };
    let wrong = answer(&asked, &mut late, first.expected_dsn, false);
    late.send(&mut script, wrong);
    assert_eq!(script.endpoint.counters().fast_join_bad_hmac, 1);
    assert_eq!(up(&script, id), 1);
}

#[test]
fn the_ordinary_answer_to_the_repeated_syn_brings_everything() {
    let (mut script, first, id) = agreed();
    let data = bytes(3_000, 1);
    in_a_hurry(&mut script, id, &data);
    let (_, second) = take_syn(&mut script, &first, first.expected_dsn);
    script.take_sent();
    script.advance(MS(1_001));
    let sent: Vec<SentSegment> =
        script.take_sent().into_iter().filter(|s| s.path == second.path).collect();
    let Some(MpJoin::Syn { nonce, .. }) = sent[0].seg.options.mptcp.join() else { panic!() };
    let mut second = Peer { expected: second.irs.add(1), ..second };
    let hmac = keys::left64(keys::join_hmac(first.key, first.their_key, 5, nonce));
    let join = MpJoin::SynAck { backup: false, address_id: 0, hmac, nonce: 5 };
    let seg = Seg::syn_ack().mss(1_400).sack_permitted().window_scale(7);
    second.send(&mut script, seg.mptcp(MptcpOption::Join(join)));
    assert_eq!(payload(&script.take_sent(), second.path), b"", "nothing before the fourth ACK");
    second.acknowledge(&mut script);
    script.advance(MS(1));
    assert_eq!(payload(&script.take_sent(), second.path), data);
    assert_eq!(script.endpoint.counters().fast_join_fallback, 1);
}

#[test]
fn a_join_that_is_never_answered_gives_its_data_back() {
    let (mut script, mut first, id) = agreed();
    let data = bytes(3_000, 1);
    in_a_hurry(&mut script, id, &data);
    let (_, second) = take_syn(&mut script, &first, first.expected_dsn);
    script.take_sent();
    script.advance(Duration::from_secs(20));
    assert!(script.take_sent().iter().any(|s| s.path == first.path && !s.seg.payload.is_empty()));
    let info = script.endpoint.info(id).expect("the connection exists");
    assert!(info.subflows.iter().all(|s| s.path != second.path), "{:?}", info.subflows);
    // The first path works again: the stream continues there.
    first.expected_dsn += 3_000;
    first.expected = first.expected.add(3_000);
    first.acknowledge(&mut script);
    assert_eq!(script.endpoint.info(id).map(|i| i.bytes_acked), Some(3_000));
}

#[test]
fn without_agreement_a_hurried_join_is_an_ordinary_one() {
    let mut hosts = TwoHosts::new(
        by_hand(),
        ConnectionConfig { allow_extensions: Extensions::NONE, ..config() },
        |_| MiddleboxAction::Pass,
        1,
    );
    hosts.run_ms(500);
    open_in_a_hurry(&mut hosts);
    hosts.run_ms(500);
    assert_eq!(hosts.count(|c| c.fast_join_syn_tx), 0);
    assert_eq!(hosts.info(Side::A).subflows.len(), 2);
}

fn open_in_a_hurry(hosts: &mut TwoHosts) {
    let (now, id) = (hosts.pair.now(), hosts.id(Side::A));
    hosts.pair.endpoint(Side::A).path_action(now, id, OPEN);
}

fn is_fast_syn(p: &Packet<'_>) -> bool {
    let fast = |m| matches!(m, ExperimentalMessage::FastJoinSyn { .. });
    p.seg.options.mptcp.experimental().any(fast)
}

fn is_fast_syn_ack(p: &Packet<'_>) -> bool {
    let fast = |m| matches!(m, ExperimentalMessage::FastJoinSynAck { .. });
    p.seg.options.mptcp.experimental().any(fast)
}

fn flip_last(p: &mut Packet<'_>) {
    let mut spoiled = marline_wire::mptcp::MptcpOptions::default();
    for option in p.seg.options.mptcp.iter() {
        let MptcpOption::Experimental(mut experimental) = option else { continue };
        experimental.bytes[usize::from(experimental.len) - 1] ^= 1;
        spoiled.push(MptcpOption::Experimental(experimental));
    }
    p.seg.options.mptcp = spoiled;
}

/// The first path dies permanently, and a middlebox interferes with the join. Both directions are tested.
#[test]
fn a_fast_join_delivers_its_bytes_through_any_middlebox() {
    type Box = fn(&mut Packet<'_>) -> MiddleboxAction;
    let boxes: [(&str, Box); 9] = [
        ("nothing", |_| MiddleboxAction::Pass),
        ("strips the SYN", |p| {
            if is_fast_syn(p) {
                p.strip();
            }
            MiddleboxAction::Pass
        }),
        ("strips the SYN/ACK", |p| {
            if is_fast_syn_ack(p) {
                p.strip();
            }
            MiddleboxAction::Pass
        }),
        ("drops the data of a SYN", |p| {
            if is_fast_syn(p) {
                p.seg.payload.clear();
            }
            MiddleboxAction::Pass
        }),
        ("cuts the data of a SYN", |p| {
            if is_fast_syn(p) {
                p.seg.payload.truncate(100);
            }
            MiddleboxAction::Pass
        }),
        ("mangles the SYN", |p| {
            if is_fast_syn(p) {
                flip_last(p);
            }
            MiddleboxAction::Pass
        }),
        ("mangles the SYN/ACK", |p| {
            if is_fast_syn_ack(p) {
                flip_last(p);
            }
            MiddleboxAction::Pass
        }),
        ("drops SYNs with the option", |p| {
            if is_fast_syn(p) { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
        }),
        ("drops SYN/ACKs with the option", |p| {
            if is_fast_syn_ack(p) { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
        }),
    ];
    for (name, middlebox) in boxes {
        for upload in [true, false] {
            let mut hosts = TwoHosts::new(by_hand(), config(), middlebox, 3);
            hosts.run_ms(500);
            let side = if upload { Side::A } else { Side::B };
            let data = bytes(200_000, 5);
            hosts.write(side, &data);
            hosts.run_ms(15);
            kill_first_path(&mut hosts, middlebox);
            hosts.run_ms(100);
            open_in_a_hurry(&mut hosts);
            hosts.run_ms(20_000);
            let got = &hosts.ends[side.other() as usize].received;
            assert!(*got == data, "{name}, upload {upload}: {} of {}", got.len(), data.len());
            assert_eq!(hosts.count(|c| c.fast_join_syn_tx), 1, "{name}: once");
            let fell_back =
                u64::from(!["nothing", "drops SYN/ACKs with the option"].contains(&name));
            let box_saw_data = upload || !name.contains("the data of a SYN");
            if box_saw_data && name != "drops SYN/ACKs with the option" {
                assert_eq!(hosts.count(|c| c.fast_join_fallback), fell_back, "{name}, {upload}");
            }
        }
    }
}

fn kill_first_path(hosts: &mut TwoHosts, middlebox: fn(&mut Packet<'_>) -> MiddleboxAction) {
    hosts.middlebox =
        Box::new(move |p| if p.path == 0 { MiddleboxAction::Drop } else { middlebox(p) });
}
