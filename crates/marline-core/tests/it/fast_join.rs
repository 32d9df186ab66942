//! Tests of Fast JOIN at the server, segment by segment: both forms, and every SYN that is refused.

use std::time::Duration;

use marline_core::{ConnectionConfig, ConnectionId, Extensions};
use marline_testkit::fixtures::{path, served};
use marline_testkit::{Expect, Peer, Script, Seg, SentSegment, config, endpoint_config, keys};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{
    ExperimentalMessage, Extensions as Bits, FastJoinForm, MpJoin, MptcpOption,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SYN_ACK: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);
const OUT: u8 = 0xf6;
const IN: u8 = 0xf4;

/// A server, its peer on the first path, and Fast JOIN agreed on.
fn agreed() -> (Script, Peer, ConnectionId) {
    let (mut script, mut peer, id) = served(endpoint_config(Some(config())), 1);
    let hello = ExperimentalMessage::Hello(Bits::FAST_JOIN).option();
    let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(MptcpOption::Experimental(hello));
    peer.send(&mut script, seg);
    script.advance(MS(10));
    peer.receive_all(&mut script);
    assert_eq!(script.endpoint.info(id).map(|i| i.extensions), Some(Extensions::FAST_JOIN));
    (script, peer, id)
}

/// Like [`agreed`], with numbered SYNs.
fn agreed_to_count() -> (Script, Peer, ConnectionId) {
    let (mut script, mut peer, id) = served(endpoint_config(Some(config())), 1);
    let both = Bits::FAST_JOIN.union(Bits::COUNTED_JOIN);
    let hello = ExperimentalMessage::Hello(both).option();
    let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(MptcpOption::Experimental(hello));
    peer.send(&mut script, seg);
    script.advance(MS(10));
    peer.receive_all(&mut script);
    assert_eq!(script.endpoint.info(id).map(|i| i.extensions), Some(both));
    (script, peer, id)
}

/// Content of a SYN; tests change parts of it.
#[derive(Clone)]
struct Claim {
    message: u8,
    point: u64,
    data: Vec<u8>,
    spoil_hmac: u64,
    /// Sent instead of `data`, which the HMAC covers.
    swapped: Option<Vec<u8>>,
}

fn claim(message: u8, point: u64, data: &[u8]) -> Claim {
    Claim { message, point, data: data.to_vec(), spoil_hmac: 0, swapped: None }
}

impl Claim {
    fn hmac(&self, first: &Peer) -> u64 {
        self.covered(first).hmac() ^ self.spoil_hmac
    }

    fn covered(&self, first: &Peer) -> keys::FastJoinSyn<'_> {
        keys::FastJoinSyn {
            own_key: first.key,
            other_key: first.their_key,
            message: self.message,
            address_id: 3,
            token: keys::token(first.their_key),
            point: self.point,
            data: &self.data,
        }
    }

    fn syn(&self, first: &Peer) -> Seg {
        let option = ExperimentalMessage::FastJoinSyn {
            form: if self.message & 2 == 0 { FastJoinForm::In } else { FastJoinForm::Out },
            backup: self.message & 1 != 0,
            address_id: 3,
            token: keys::token(first.their_key),
            point: self.point as u32,
            hmac: self.hmac(first),
        };
        let syn = Seg::syn().mss(1_400).sack_permitted().window_scale(7);
        let syn = syn.mptcp(MptcpOption::Experimental(option.option()));
        syn.payload(self.swapped.as_ref().unwrap_or(&self.data))
    }

    /// Sends it from a new port.
    fn send(&self, script: &mut Script, first: &Peer, port: u16) -> Peer {
        let mut second =
            Peer { timestamps: Some((1, 0)), ..Peer::new(path(1, 2, port), first.key) };
        (second.their_key, second.next_dsn, second.expected_dsn) =
            (first.their_key, first.next_dsn, first.expected_dsn);
        let syn = self.syn(first);
        second.send(script, syn);
        second
    }
}

/// Takes the answer to a Fast JOIN and checks it: full 64 bits of its position.
#[track_caller]
fn take_answer(script: &mut Script, second: &mut Peer, claim: &Claim, point: u64) -> SentSegment {
    let sent = script.expect(&Expect::any().flags(SYN_ACK));
    let first = Peer { their_key: second.their_key, ..Peer::new(second.path, second.key) };
    let nibble = if claim.message & 2 == 0 { 0xf8 } else { 0xf9 };
    let asked = claim.hmac(&first);
    let hmac = keys::fast_ack_hmac(second.their_key, second.key, nibble, 0, point, asked);
    let said: Vec<_> = sent.seg.options.mptcp.experimental().collect();
    let form = if claim.message & 2 == 0 { FastJoinForm::In } else { FastJoinForm::Out };
    let point = point as u32;
    let right = ExperimentalMessage::FastJoinSynAck { form, backup: false, hmac, point };
    assert_eq!(said, [right]);
    second.record_received(&sent);
    sent
}

/// One RST is sent, and the connection continues.
#[track_caller]
fn refused(script: &mut Script, first: &mut Peer, id: ConnectionId, name: &str) {
    let sent = script.take_sent();
    let resets = sent.iter().filter(|s| s.seg.header.flags.contains(TcpFlags::RST)).count();
    assert_eq!((sent.len(), resets), (1, 1), "{name}: {sent:#?}");
    assert_eq!(script.endpoint.info(id).map(|i| i.subflows.len()), Some(1), "{name}");
    first.send_data(script, b"alive");
    assert_eq!(script.read_all(id), b"alive", "{name}");
    script.advance(MS(100));
    first.receive_all(script);
}

#[test]
fn data_with_the_syn_is_there_immediately_and_the_subflow_carries_from_the_third_ack_on() {
    let (mut script, first, id) = agreed();
    let claim = claim(OUT, first.next_dsn, b"in a hurry");
    let mut second = claim.send(&mut script, &first, 50_000);
    assert_eq!(script.read_all(id), b"in a hurry");
    second.next_dsn += 10;
    let point = second.next_dsn;
    let answer = take_answer(&mut script, &mut second, &claim, point);
    assert_eq!(answer.seg.header.ack, second.iss.add(11), "the data is acknowledged with the SYN");
    // No fourth ACK, no HMAC in the third: data is sent with it.
    second.send_data(&mut script, b" and more");
    assert_eq!(script.read_all(id), b" and more");
    script.run(|e, now| e.write(now, id, &[7; 3_000])).expect("room");
    script.advance(MS(5));
    let sent = script.take_sent();
    let on_second = sent.iter().filter(|s| s.path == second.path && !s.seg.payload.is_empty());
    assert!(on_second.count() > 0, "the answer is sent to the peer's subflow: {sent:#?}");
    assert_eq!(script.endpoint.counters().fast_join_syn_rx, 1);
}

#[test]
fn a_data_ack_with_the_syn_gets_missing_data_after_the_third_ack() {
    let (mut script, first, id) = agreed();
    script.run(|e, now| e.write(now, id, &[7; 5_000])).expect("room");
    script.advance(MS(1));
    // According to the SYN, the first two thousand of five thousand bytes arrived.
    let base = first.expected_dsn;
    let lost = script.take_sent();
    assert!(lost.iter().all(|s| s.path == first.path));
    let claim = claim(IN, base + 2_000, b"");
    let mut second = claim.send(&mut script, &first, 50_000);
    take_answer(&mut script, &mut second, &claim, base + 5_000);
    assert_eq!(script.endpoint.info(id).map(|i| i.bytes_acked), Some(2_000));
    assert!(
        script.take_sent().is_empty(),
        "no data is sent before the peer's address is validated"
    );
    second.expected_dsn = base + 2_000;
    second.acknowledge(&mut script);
    let sent = script.take_sent();
    let data: Vec<&SentSegment> =
        sent.iter().filter(|s| s.path == second.path && !s.seg.payload.is_empty()).collect();
    let bytes: usize = data.iter().map(|s| s.seg.payload.len()).sum();
    assert_eq!(bytes, 3_000, "{sent:#?}");
    let oldest = data[0].seg.dss().mapping.expect("a mapping").dsn;
    assert_eq!(oldest.unwrap_near(base), Some(base + 2_000));
}

#[test]
fn a_repeated_syn_is_answered_again_and_delivers_once() {
    let (mut script, first, id) = agreed();
    let claim = claim(OUT, first.next_dsn, b"once");
    let mut second = claim.send(&mut script, &first, 50_000);
    take_answer(&mut script, &mut second, &claim, first.next_dsn + 4);
    let again = claim.syn(&first).at(second.iss).timestamps(1, 0);
    second.inject(&mut script, again);
    take_answer(&mut script, &mut second, &claim, first.next_dsn + 4);
    assert_eq!(script.read_all(id), b"once");
    assert_eq!(script.endpoint.counters().fast_join_replayed, 0);
}

/// The answer is lost, and the opener retries with an ordinary join from the same ports. It gets the answer to
/// that; its next segment shows which of the two it received.
#[test]
fn a_half_open_one_becomes_an_ordinary_join_if_its_opener_does() {
    for goes_on_ordinary in [true, false] {
        let (mut script, first, id) = agreed();
        let claim = claim(OUT, first.next_dsn, b"once");
        let mut second = claim.send(&mut script, &first, 50_000);
        second.next_dsn += 4;
        let point = second.next_dsn;
        take_answer(&mut script, &mut second, &claim, point);
        let bare = second.join_syn(&first, 9, 3).at(second.iss).timestamps(1, 0);
        second.inject(&mut script, bare);
        let sent = script.expect(&Expect::any().flags(SYN_ACK));
        assert_eq!(sent.seg.header.ack, second.iss.add(1), "only the bare SYN");
        let Some(MpJoin::SynAck { hmac, nonce, .. }) = sent.seg.options.mptcp.join() else {
            panic!("no MP_JOIN: {:#?}", sent.seg);
        };
        let right = keys::join_hmac(first.their_key, first.key, nonce, 9);
        assert_eq!(hmac, keys::left64(right));
        if goes_on_ordinary {
            second.next = second.iss.add(1);
            for spoil in [1, 0] {
                let mut ours = keys::join_hmac(first.key, first.their_key, 9, nonce);
                ours[0] ^= spoil;
                let hmac = ours[..20].try_into().expect("20 bytes");
                let third = Seg::ack().mptcp(MptcpOption::Join(MpJoin::Ack { hmac }));
                second.send(&mut script, third);
                let up = script.take_sent().iter().any(|s| s.path == second.path);
                assert_eq!(up, spoil == 0, "a fourth ACK only for the right HMAC");
            }
            // The SYN's data arrives again at its position, and is read once.
            second.next_dsn = first.next_dsn;
            second.send_data(&mut script, b"once");
        }
        second.send_data(&mut script, b" over");
        assert_eq!(script.read_all(id), b"once over", "ordinary: {goes_on_ordinary}");
        let info = script.endpoint.info(id).expect("the connection exists");
        assert_eq!(info.subflows.len(), 2);
    }
}

#[test]
fn an_invalid_fast_join_is_refused_without_harm() {
    let (mut script, mut first, id) = agreed();
    let next = first.next_dsn;
    let good = claim(OUT, next, b"evil");
    let cases = [
        ("bad HMAC", Claim { spoil_hmac: 1, ..good.clone() }),
        ("swapped data", Claim { swapped: Some(b"live".to_vec()), ..good.clone() }),
        ("data cut off", Claim { swapped: Some(b"evi".to_vec()), ..good.clone() }),
        ("data dropped", Claim { swapped: Some(Vec::new()), ..good.clone() }),
        ("empty data", claim(OUT, next, b"")),
        (
            "data with a DATA_ACK",
            Claim { swapped: Some(b"x".to_vec()), ..claim(IN, first.expected_dsn, b"") },
        ),
        (
            "the other form",
            Claim {
                spoil_hmac: good.hmac(&first) ^ claim(IN, next, b"").hmac(&first),
                ..claim(IN, next, b"")
            },
        ),
        ("high bits of another round", claim(OUT, next ^ 1 << 40, b"evil")),
        ("an ACK of data that was never sent", claim(IN, first.expected_dsn + 1, b"")),
    ];
    for (n, (name, claim)) in cases.into_iter().enumerate() {
        claim.send(&mut script, &first, 50_000 + n as u16);
        refused(&mut script, &mut first, id, name);
        script.advance(Duration::from_secs(60));
        script.take_sent();
        first.acknowledge(&mut script);
    }
    let counters = script.endpoint.counters();
    assert_eq!((counters.fast_join_empty, counters.fast_join_stale), (2, 1));
    assert_eq!(counters.fast_join_bad_hmac, 6);
}

#[test]
fn stale_points_are_refused_and_recent_ones_deliver_nothing_twice() {
    let mut small = config();
    small.receive_buffer = 20_000;
    let (mut script, mut first, id) = served(endpoint_config(Some(small)), 1);
    let hello = ExperimentalMessage::Hello(Bits::FAST_JOIN).option();
    let seg = Seg::ack().data_ack(first.expected_dsn).mptcp(MptcpOption::Experimental(hello));
    first.send(&mut script, seg);
    let old = first.next_dsn;
    for _ in 0..25 {
        first.send_data(&mut script, &[1; 1_000]);
        script.read_all(id);
    }
    script.take_sent();
    // More than a receive window ago.
    claim(OUT, old, &[1; 1_000]).send(&mut script, &first, 50_000);
    assert_eq!(script.endpoint.counters().fast_join_stale, 1);
    refused(&mut script, &mut first, id, "stale");
    // A more recent one: an ordinary subflow, and no data for the reader.
    let recent = claim(OUT, old + 24_000, &[9; 1_000]);
    let mut second = recent.send(&mut script, &first, 50_001);
    let answer = take_answer(&mut script, &mut second, &recent, first.next_dsn);
    assert_eq!(answer.seg.header.ack, second.iss.add(1_001));
    assert_eq!(script.read_all(id), b"");
}

#[test]
fn data_beyond_the_window_is_ignored_and_the_subflow_taken() {
    let mut small = config();
    small.receive_buffer = 4_000;
    let (mut script, mut first, id) = served(endpoint_config(Some(small)), 1);
    let hello = ExperimentalMessage::Hello(Bits::FAST_JOIN).option();
    let seg = Seg::ack().data_ack(first.expected_dsn).mptcp(MptcpOption::Experimental(hello));
    first.send(&mut script, seg);
    script.take_sent();
    let beyond = claim(OUT, first.next_dsn + 3_800, &[9; 1_000]);
    let mut second = beyond.send(&mut script, &first, 50_000);
    let answer = take_answer(&mut script, &mut second, &beyond, first.next_dsn);
    assert_eq!(answer.seg.header.ack, second.iss.add(1), "only the SYN");
    assert_eq!(script.endpoint.counters().fast_join_data_ignored, 1);
    // The sequence space carries other data then: none of the SYN's data was kept.
    second.next = second.iss.add(1);
    second.send_data(&mut script, b"fits");
    assert_eq!(script.read_all(id), b"fits");
}

#[test]
fn a_replayed_fast_join_is_refused_from_any_address() {
    let (mut script, mut first, id) = agreed();
    let claims = [claim(OUT, first.next_dsn, b"once"), claim(IN, first.expected_dsn, b"")];
    for (n, claim) in claims.iter().enumerate() {
        let port = 50_000 + 10 * n as u16;
        let mut second = claim.send(&mut script, &first, port);
        script.expect(&Expect::any().flags(SYN_ACK));
        // Closed again, so that not even the four-tuple is known.
        second.next = second.iss.add(1 + claim.data.len() as u32);
        let reset = second.stamp(Seg::ack().flag(TcpFlags::RST));
        second.inject(&mut script, reset);
        script.read_all(id);
        script.take_sent();
        if n == 0 {
            first.next_dsn += 4;
        }
        for replay in [port, port + 1] {
            claim.send(&mut script, &first, replay);
            refused(&mut script, &mut first, id, "a replay");
        }
    }
    assert_eq!(script.endpoint.counters().fast_join_replayed, 4);
}

#[test]
fn repeated_bad_hmacs_suspend_fast_join() {
    let (mut script, mut first, id) = agreed();
    let good = claim(OUT, first.next_dsn, b"good");
    for n in 0..20 {
        let wrong = Claim { spoil_hmac: 1 + n, ..good.clone() };
        wrong.send(&mut script, &first, 50_000 + n as u16);
        script.take_sent();
    }
    let counters = script.endpoint.counters();
    assert_eq!((counters.fast_join_bad_hmac, counters.fast_join_refused), (8, 12));
    // Ordinary joins are not affected, and after a while Fast JOIN is possible again.
    let mut second = Peer::new(path(1, 2, 51_000), first.key);
    second.join(&mut script, &first, 2);
    assert_eq!(script.endpoint.info(id).map(|i| i.subflows.len()), Some(2));
    script.advance(Duration::from_secs(11));
    script.take_sent();
    let mut third = good.send(&mut script, &first, 51_001);
    take_answer(&mut script, &mut third, &good, first.next_dsn + 4);
    assert_eq!(script.read_all(id), b"good");
    first.receive_all(&mut script);
}

#[test]
fn more_fresh_syns_than_are_remembered_are_refused() {
    let (mut script, first, id) = agreed();
    let mut taken = 0;
    for n in 0..40u8 {
        let one = claim(OUT, first.next_dsn, &[n; 10]);
        let second = one.send(&mut script, &first, 50_000 + u16::from(n));
        let sent = script.take_sent();
        let answered = sent.iter().any(|s| s.seg.header.flags.contains(SYN_ACK));
        taken += u32::from(answered);
        let reset = Peer { next: second.iss.add(11), ..second };
        let seg = reset.stamp(Seg::ack().flag(TcpFlags::RST));
        reset.inject(&mut script, seg);
    }
    assert_eq!(taken, 32);
    assert_eq!(script.read_all(id), [0; 10]);
}

#[test]
fn where_they_are_counted_all_that_are_fresh_are_taken_once() {
    let (mut script, first, id) = agreed_to_count();
    let (mut taken, mut replayed) = (0, 0);
    for n in 1..=300u64 {
        let mut one = claim(OUT, first.next_dsn, &[n as u8; 10]);
        let counted = one.covered(&first).counted_hmac(n);
        one.spoil_hmac = one.hmac(&first) ^ counted;
        for (again, port) in [(false, 50_000), (true, 51_000)] {
            let second = one.send(&mut script, &first, port + n as u16);
            let sent = script.take_sent();
            let answered = sent.iter().any(|s| s.seg.header.flags.contains(SYN_ACK));
            (taken, replayed) =
                (taken + u32::from(answered), replayed + u32::from(answered && again));
            if answered {
                let reset = Peer { next: second.iss.add(11), ..second };
                let seg = reset.stamp(Seg::ack().flag(TcpFlags::RST));
                reset.inject(&mut script, seg);
            }
        }
    }
    assert_eq!((taken, replayed), (300, 0));
    assert_eq!(script.endpoint.counters().fast_join_replayed, 300);
    assert_eq!(script.read_all(id), [1; 10]);
}

#[test]
fn fast_join_needs_an_agreement() {
    let (mut script, mut first, id) = served(endpoint_config(Some(config())), 1);
    claim(OUT, first.next_dsn, b"early").send(&mut script, &first, 50_000);
    refused(&mut script, &mut first, id, "not agreed on");
    let deaf = ConnectionConfig { allow_extensions: Extensions::NONE, ..config() };
    let (mut script, mut first, id) = served(endpoint_config(Some(deaf)), 1);
    let hello = ExperimentalMessage::Hello(Bits::FAST_JOIN).option();
    let seg = Seg::ack().data_ack(first.expected_dsn).mptcp(MptcpOption::Experimental(hello));
    first.send(&mut script, seg);
    script.take_sent();
    claim(OUT, first.next_dsn, b"early").send(&mut script, &first, 50_000);
    refused(&mut script, &mut first, id, "not allowed");
}

#[test]
fn an_unknown_token_is_refused() {
    let (mut script, mut first, id) = agreed();
    let stranger = Peer { their_key: 99, ..Peer::new(first.path, first.key) };
    claim(OUT, first.next_dsn, b"lost").send(&mut script, &stranger, 50_000);
    refused(&mut script, &mut first, id, "an unknown token");
    assert_eq!(script.endpoint.counters().mp_join_no_token, 1);
}
