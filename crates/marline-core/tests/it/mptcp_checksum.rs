//! Tests of DSS checksums and of their failure: MP_FAIL, reset, infinite mapping (RFC 8684 sections
//! 3.3.1 and 3.7).

use std::time::Duration;

use crate::two_hosts::{
    Dice, MiddleboxAction, Packet, TwoHosts, by_turns, bytes, closed, read, reset_reason, served,
    two_paths, with_checksums,
};
use marline_core::{CloseReason, FallbackReason};
use marline_testkit::{Peer, Seg, Side, config, keys};
use marline_wire::mptcp::{Dss, MpCapableForm, MpFail, MptcpOption, WireDsn, WireMapping};
use marline_wire::{Checksum, TcpFlags, dss_checksum};

const SIZE: usize = 300_000;

fn mp_fail(seg: &Seg) -> Option<MpFail> {
    seg.options.mptcp.iter().find_map(|o| match o {
        MptcpOption::Fail(fail) => Some(fail),
        _ => None,
    })
}

fn is_infinite(seg: &Seg) -> bool {
    seg.dss().mapping.is_some_and(|m| m.length == 0)
}

/// Keys in the third ACK: client's, server's.
fn keys_of(trace: &[(Side, Seg)]) -> (u64, u64) {
    let keys = trace.iter().find_map(|(_, s)| match s.options.mptcp.capable()?.form {
        MpCapableForm::Ack { initiator_key, listener_key, .. } => {
            Some((initiator_key, listener_key))
        }
        _ => None,
    });
    keys.expect("a third ACK")
}

/// Expected checksum of a segment's mapping, computed only from the segment and the keys.
fn right_checksum(seg: &Seg, idsn: u64) -> Option<(Option<u16>, u16)> {
    let sum = Checksum::of(&seg.payload);
    if let Some(m) = seg.dss().mapping {
        let near = idsn.wrapping_add(1);
        let dsn = m.dsn.unwrap_near(near).expect("a DSN near the start");
        return Some((m.checksum, dss_checksum(dsn, m.ssn, m.length, sum)));
    }
    let MpCapableForm::Ack { data: Some(data), .. } = seg.options.mptcp.capable()?.form else {
        return None;
    };
    Some((data.checksum, dss_checksum(idsn.wrapping_add(1), 1, data.length, sum)))
}

#[test]
fn every_mapping_carries_a_right_checksum_if_either_side_asks() {
    for (client, server) in [(with_checksums(), config()), (config(), with_checksums())] {
        let pass = |_: &mut Packet<'_>| MiddleboxAction::Pass;
        let mut hosts = TwoHosts::new(two_paths(client), server, pass, 1);
        hosts.exchange_and_close(Side::A, &bytes(SIZE, 1), &bytes(SIZE, 2));
        let (client_key, server_key) = keys_of(&hosts.trace);
        let [mut mapped, mut fins, mut capable] = [0; 3];
        for (to, seg) in &hosts.trace {
            let key = if *to == Side::B { client_key } else { server_key };
            let Some((found, right)) = right_checksum(seg, keys::idsn(key)) else {
                let bare = seg.payload.is_empty();
                assert!(bare, "data without a mapping of its own: {seg:?}");
                continue;
            };
            assert_eq!(found, Some(right), "{seg:?}");
            mapped += 1;
            fins += u32::from(seg.dss().data_fin);
            capable += u32::from(seg.options.mptcp.capable().is_some());
        }
        assert!(mapped > 400 && fins >= 2 && capable >= 1, "{mapped} {fins} {capable}");
    }
}

#[test]
fn a_subflow_whose_bytes_are_changed_is_reset_and_the_other_carries_them() {
    for towards in [Side::A, Side::B] {
        let change = move |p: &mut Packet<'_>| {
            if p.path == 1 && p.to == towards && p.seg.payload.len() > 100 {
                p.seg.payload[50] ^= 0xff;
            }
            MiddleboxAction::Pass
        };
        let client = by_turns(two_paths(with_checksums()));
        let mut hosts = TwoHosts::new(client, by_turns(config()), change, 1);
        hosts.exchange_and_close(Side::A, &bytes(4 * SIZE, 1), &bytes(4 * SIZE, 2));
        assert_eq!((hosts.ends[0].fallback, hosts.ends[1].fallback), (None, None));
        let reset =
            |s: &&(Side, Seg)| s.1.header.flags.contains(TcpFlags::RST) && mp_fail(&s.1).is_some();
        let resets = hosts.trace.iter().filter(reset).count();
        assert!(resets > 0, "{towards:?}: no RST with MP_FAIL");
        assert!(hosts.count(|c| c.data_csum_err) > 0);
    }
}

/// Segments that the middlebox loses besides changing one.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Loss {
    Nothing,
    FirstMpFail,
    Answer,
    FirstInfiniteMapping,
}

/// Changes one byte of the `nth` data segment towards a side; the segment stays changed when it is repeated. Loses
/// segments according to `loss`.
fn changes_one(
    towards: Side,
    nth: usize,
    loss: Loss,
) -> impl FnMut(&mut Packet<'_>) -> MiddleboxAction {
    let (mut seen, mut changed, mut lost) = (0, None, false);
    move |p: &mut Packet<'_>| {
        let wanted = match loss {
            Loss::Nothing => false,
            Loss::FirstMpFail => mp_fail(p.seg).is_some() && p.to != towards,
            Loss::Answer => mp_fail(p.seg).is_some() && p.to == towards,
            Loss::FirstInfiniteMapping => is_infinite(p.seg) && p.to == towards,
        };
        if wanted && !lost {
            lost = true;
            return MiddleboxAction::Drop;
        }
        if p.to == towards && p.seg.payload.len() > 100 {
            seen += 1;
            if seen == nth {
                changed = Some(p.seg.header.seq);
            }
            if changed == Some(p.seg.header.seq) {
                p.seg.payload[50] ^= 0xff;
            }
        }
        MiddleboxAction::Pass
    }
}

/// One byte differs; returns where.
#[track_caller]
fn the_one_difference(got: &[u8], sent: &[u8]) -> usize {
    assert_eq!(got.len(), sent.len());
    let different: Vec<usize> = (0..got.len()).filter(|&i| got[i] != sent[i]).collect();
    assert_eq!(different.len(), 1, "{different:?}");
    assert_eq!(got[different[0]], sent[different[0]] ^ 0xff);
    different[0]
}

#[track_caller]
fn goes_on_plain(towards: Side, nth: usize, loss: Loss) {
    let context = format!("{towards:?} {nth} {loss:?}");
    let middlebox = changes_one(towards, nth, loss);
    let mut hosts = TwoHosts::new(with_checksums(), config(), middlebox, 1);
    let data = bytes(SIZE, 1);
    let from = towards.other();
    hosts.write(from, &data);
    hosts.run_ms(60_000);
    let got = std::mem::take(&mut hosts.end(towards).received);
    the_one_difference(&got, &data);
    // Both know it, and no data was sent twice.
    let reasons = [hosts.end(towards).fallback, hosts.end(from).fallback];
    let wanted = [FallbackReason::ChecksumFailed, FallbackReason::PeerFailed].map(Some);
    assert_eq!(reasons, wanted, "{context}");
    let payload: usize = hosts.sent_to(towards, 0).map(|s| s.payload.len()).sum();
    let extra = payload - SIZE;
    assert!(loss == Loss::FirstInfiniteMapping || extra == 0, "{context}: {extra} bytes twice");
    let since = hosts.trace.len();
    hosts.exchange_and_close(Side::A, &bytes(SIZE, 3), &bytes(SIZE, 4));
    for (_, seg) in &hosts.trace[since..] {
        let dss = seg.dss();
        assert!(dss.data_ack.is_none() && !dss.data_fin, "{context}: {seg:?}");
    }
}

#[test]
fn a_change_on_the_only_subflow_leads_to_plain_tcp() {
    for towards in [Side::A, Side::B] {
        for nth in [2, 40, 150] {
            goes_on_plain(towards, nth, Loss::Nothing);
        }
    }
}

#[test]
fn a_lost_mp_fail_is_repeated() {
    goes_on_plain(Side::B, 40, Loss::FirstMpFail);
    goes_on_plain(Side::A, 40, Loss::FirstMpFail);
}

#[test]
fn a_lost_answer_to_mp_fail_does_not_matter() {
    goes_on_plain(Side::B, 40, Loss::Answer);
    // No new data follows here that could carry the infinite mapping instead.
    goes_on_plain(Side::B, 208, Loss::Answer);
}

#[test]
fn a_lost_infinite_mapping_is_repeated() {
    goes_on_plain(Side::B, 40, Loss::FirstInfiniteMapping);
}

#[test]
fn the_first_bytes_are_changed() {
    goes_on_plain(Side::B, 1, Loss::Nothing);
    goes_on_plain(Side::A, 1, Loss::Nothing);
}

/// One byte changed, and one segment of 30 lost, regardless of its content: the bytes arrive once, as changed by
/// the middlebox, and the stream continues as plain TCP. Or they arrive as sent, if the subflow was given up and
/// another one carried them.
#[test]
fn a_change_among_losses() {
    let mut plain = 0;
    for seed in 0..40 {
        for towards in [Side::A, Side::B] {
            let mut change = changes_one(towards, 60, Loss::Nothing);
            let mut dice = Dice(seed);
            let middlebox = move |p: &mut Packet<'_>| {
                let action = change(p);
                if dice.once_in(30) { MiddleboxAction::Drop } else { action }
            };
            let mut hosts = TwoHosts::new(with_checksums(), config(), middlebox, seed);
            let data = bytes(SIZE, 1);
            hosts.write(towards.other(), &data);
            hosts.run_ms(120_000);
            let got = std::mem::take(&mut hosts.end(towards).received);
            assert_eq!(got.len(), SIZE, "seed {seed} {towards:?}: {:?}", hosts.ends[0].closed);
            if hosts.end(towards).fallback.is_some() {
                plain += 1;
                the_one_difference(&got, &data);
            } else {
                assert!(got == data, "seed {seed} {towards:?}");
            }
            hosts.exchange_and_close(Side::A, &bytes(SIZE, 3), &bytes(SIZE, 4));
        }
    }
    assert!(plain > 60, "{plain} of 80 fell back");
}

/// A middlebox like those that rewrite addresses in FTP: lengths change, and it adjusts sequence
/// numbers.
#[test]
fn bytes_inserted_by_a_middlebox_are_delivered_in_plain_tcp() {
    let (mut at, mut seen) = (None, 0);
    let insert = move |p: &mut Packet<'_>| {
        if p.to == Side::B {
            seen += usize::from(p.seg.payload.len() > 100);
            if seen == 40 && at.is_none() {
                at = Some(p.seg.header.seq);
            }
            let Some(at) = at else { return MiddleboxAction::Pass };
            if p.seg.header.seq == at {
                p.seg.payload.splice(10..10, *b"xyz");
            } else if p.seg.header.seq.offset_from(at) < 1 << 31 {
                p.seg.header.seq = p.seg.header.seq.add(3);
            }
            return MiddleboxAction::Pass;
        }
        let Some(at) = at else { return MiddleboxAction::Pass };
        let back = |n: marline_wire::SeqNum| {
            let behind = n.offset_from(at);
            if behind > 10 && behind < 1 << 31 { n.add(0u32.wrapping_sub(3)) } else { n }
        };
        p.seg.header.ack = back(p.seg.header.ack);
        let blocks: Vec<_> = p.seg.options.sack.as_slice().to_vec();
        p.seg.options.sack = Default::default();
        for mut block in blocks {
            (block.left, block.right) = (back(block.left), back(block.right));
            p.seg.options.sack.push(block);
        }
        MiddleboxAction::Pass
    };
    let mut hosts = TwoHosts::new(with_checksums(), config(), insert, 1);
    let data = bytes(SIZE, 1);
    hosts.write(Side::A, &data);
    hosts.run_ms(20_000);
    let got = std::mem::take(&mut hosts.end(Side::B).received);
    assert_eq!(got.len(), SIZE + 3);
    let place = (0..SIZE).find(|&i| got[i] != data[i]).expect("the difference");
    assert_eq!(&got[place..place + 3], b"xyz");
    assert!(got[..place] == data[..place] && got[place + 3..] == data[place..]);
    hosts.exchange_and_close(Side::A, &bytes(SIZE, 3), &bytes(SIZE, 4));
}

/// The peer never answers MP_FAIL: the subflow ends with a clear error.
#[test]
fn mp_fail_without_an_answer_ends_the_subflow() {
    let mut change = changes_one(Side::B, 40, Loss::Nothing);
    let middlebox = move |p: &mut Packet<'_>| {
        let _ = change(p);
        if mp_fail(p.seg).is_some() && !p.seg.header.flags.contains(TcpFlags::RST) {
            return MiddleboxAction::Drop;
        }
        MiddleboxAction::Pass
    };
    let mut hosts = TwoHosts::new(with_checksums(), config(), middlebox, 1);
    let data = bytes(SIZE, 1);
    hosts.write(Side::A, &data);
    hosts.run_ms(300_000);
    // The client may return on a new subflow, on which no data is changed.
    let [client, server] = &hosts.ends;
    assert!(data.starts_with(&server.received), "only right bytes");
    let ended = client.closed.is_some() && server.closed.is_some();
    assert!(ended || server.received.len() == SIZE, "{:?} {:?}", client.closed, server.closed);
    // Either side may time out first: the sender of the data misses its DATA_ACK.
    let reset = hosts.trace.iter().any(|(_, s)| s.header.flags.contains(TcpFlags::RST));
    assert!(reset, "the subflow ends");
}

fn checksummed(peer: &Peer, payload: &[u8], sum: impl FnOnce(u16) -> Option<u16>) -> Seg {
    let ssn = peer.next.offset_from(peer.iss);
    let right = dss_checksum(peer.next_dsn, ssn, payload.len() as u16, Checksum::of(payload));
    let mut seg = Seg::ack().data_ack(peer.expected_dsn);
    let mapping = WireMapping {
        dsn: WireDsn::Long(peer.next_dsn),
        ssn,
        length: payload.len() as u16,
        checksum: sum(right),
    };
    seg.options.dss = Some(Dss { mapping: Some(mapping), ..seg.dss() });
    seg.payload(payload)
}

/// RFC 8684 section 3.3: a missing checksum, or one that was not negotiated.
#[test]
fn checksums_must_be_as_agreed() {
    for agreed in [true, false] {
        let (mut script, mut peer) = served(if agreed { with_checksums() } else { config() }, 7, 1);
        let seg = checksummed(&peer, b"hello", |right| (!agreed).then_some(right));
        peer.send(&mut script, seg);
        let sent = script.take_sent().pop().expect("a RST");
        assert!(sent.seg.header.flags.contains(TcpFlags::RST), "{:?}", sent.seg);
        assert_eq!(reset_reason(&sent.seg), Some(1), "MPTCP-specific error");
        assert!(read(&mut script).is_empty());
    }
}

/// A peer like Linux as the sender: it answers MP_FAIL, and its infinite mapping refers to the new data.
#[test]
fn a_kernel_that_sent_the_damaged_data() {
    let (mut script, mut peer) = served(with_checksums(), 7, 1);
    let good = checksummed(&peer, b"good", Some);
    peer.send(&mut script, good);
    peer.next_dsn += 4;
    assert_eq!(read(&mut script), b"good");
    let failed_dsn = peer.next_dsn;
    let bad = checksummed(&peer, b"damaged", |right| Some(!right));
    peer.send(&mut script, bad);
    peer.next_dsn += 7;
    let flying = checksummed(&peer, b" and flying", Some);
    peer.send(&mut script, flying);
    peer.next_dsn += 11;
    assert!(read(&mut script).is_empty());
    let fails: Vec<_> = script.take_sent().iter().filter_map(|s| mp_fail(&s.seg)).collect();
    assert_eq!(fails, [MpFail { dsn: failed_dsn }]);
    peer.send(&mut script, Seg::ack().mptcp(MptcpOption::Fail(MpFail { dsn: peer.expected_dsn })));
    assert_eq!(read(&mut script), b"damaged and flying");
    let ssn = peer.next.offset_from(peer.iss);
    let mut new = Seg::ack().mapping(peer.next_dsn, ssn, 0).payload(b", and new");
    new.options.dss.as_mut().expect("DSS").mapping.as_mut().expect("mapping").checksum = Some(0);
    peer.send(&mut script, new);
    peer.send(&mut script, Seg::ack().payload(b", and plain"));
    assert_eq!(read(&mut script), b", and new, and plain");
    // Our own direction is plain as well, and announces it once.
    script.take_sent();
    let id = script.endpoint.connections()[0];
    for _ in 0..2 {
        let _ = script.run(|e, now| e.write(now, id, b"answer"));
    }
    let sent = script.take_sent();
    let data: Vec<_> = sent.iter().filter(|s| !s.seg.payload.is_empty()).collect();
    assert!(is_infinite(&data[0].seg), "{:?}", data[0].seg);
    assert!(data[1..].iter().all(|s| s.seg.options.dss.is_none()));
}

/// A peer like Linux as the receiver: MP_FAIL on an ACK, then plain TCP without DATA_ACKs.
#[test]
fn a_kernel_that_got_damaged_data() {
    let (mut script, mut peer) = served(with_checksums(), 7, 1);
    let hello = checksummed(&peer, b"hello", Some);
    peer.send(&mut script, hello);
    peer.next_dsn += 5;
    let id = script.endpoint.connections()[0];
    let _ = script.run(|e, now| e.write(now, id, b"first"));
    script.advance(Duration::from_millis(20));
    for sent in script.take_sent() {
        peer.record_received(&sent);
    }
    peer.acknowledge(&mut script);
    let una = peer.expected_dsn;
    let _ = script.run(|e, now| e.write(now, id, b"second"));
    for sent in script.take_sent() {
        peer.record_received(&sent);
    }
    // "second" is acknowledged by TCP but not by MPTCP.
    let fail = MptcpOption::Fail(MpFail { dsn: una });
    let ssn_of_second = peer.expected.offset_from(peer.irs) - 6;
    peer.send(&mut script, Seg::ack().data_ack(una).mptcp(fail));
    let answers: Vec<_> = script.take_sent().iter().filter_map(|s| mp_fail(&s.seg)).collect();
    assert_eq!(answers.len(), 1, "RFC 8684 section 3.7: MUST respond with an MP_FAIL");
    let _ = script.run(|e, now| e.write(now, id, b"third"));
    let sent = script.take_sent().pop().expect("new data");
    assert_eq!(sent.seg.payload, b"third", "nothing is sent again");
    let mapping = sent.seg.dss().mapping.expect("an infinite mapping");
    assert_eq!((mapping.length, mapping.checksum), (0, Some(0)));
    // It starts from the first byte that was not DATA_ACKed.
    assert_eq!((mapping.ssn, mapping.dsn), (ssn_of_second, WireDsn::Long(una)));
    peer.record_received(&sent);
    peer.send(&mut script, Seg::ack());
    // TCP's ACK was enough to clear the send buffer: the end follows as a FIN.
    script.run(|e, now| e.shutdown(now, id));
    let fin = script.take_sent().pop().expect("a FIN");
    assert!(fin.seg.header.flags.contains(TcpFlags::FIN) && !fin.seg.options.has_mptcp());
    peer.expected = fin.seg.end();
    peer.send(&mut script, Seg::fin());
    assert_eq!(closed(&mut script), Some(CloseReason::Finished));
}
