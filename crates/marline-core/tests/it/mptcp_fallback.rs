//! Tests of the fallback to plain TCP when MPTCP options do not pass (RFC 8684 sections 3.1 and 3.7).

use crate::two_hosts;
use std::time::Duration;

use crate::two_hosts::{Dice, MiddleboxAction, Packet, TwoHosts, bytes, two_paths};
use marline_core::FallbackReason::{
    FirstDataWithoutOption, InfiniteMapping, SynAckWithoutOption, SynRetries, SynWithoutOption,
};
use marline_core::{CloseReason, FallbackReason};
use marline_testkit::fixtures::calling;
use marline_testkit::{Expect, Peer, Script, Seg, Side, capable, config, endpoint_config};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{MpCapable, MpCapableForm, MptcpOption};

const SIZE: usize = 300_000;

/// A connection through a middlebox that changes segments. It must run as plain TCP, with these reasons at the
/// client and at the server, and bytes and ends must be correct, whichever side speaks first.
#[track_caller]
fn falls_back(change: fn(&mut Packet<'_>), client: FallbackReason, server: FallbackReason) {
    for first in [Side::A, Side::B] {
        let middlebox = move |p: &mut Packet<'_>| {
            change(p);
            MiddleboxAction::Pass
        };
        let mut hosts = TwoHosts::new(config(), config(), middlebox, 1);
        hosts.exchange_and_close(first, &bytes(SIZE, 1), &bytes(SIZE, 2));
        let reasons = [hosts.ends[0].fallback, hosts.ends[1].fallback];
        assert_eq!(reasons, [Some(client), Some(server)], "{first:?} spoke first");
        let total = hosts.trace.iter().filter(|(_, s)| !s.payload.is_empty()).count();
        let repeats = hosts.count(|c| c.duplicate_data);
        assert!(total < 600 && repeats == 0, "{total} data segments, {repeats} repeated");
    }
}

fn is(seg: &Seg, flags: TcpFlags) -> bool {
    seg.header.flags.contains(flags)
}

#[test]
fn the_syn_loses_its_option() {
    let strip = |p: &mut Packet<'_>| {
        if p.to == Side::B && is(p.seg, TcpFlags::SYN) {
            p.strip();
        }
    };
    falls_back(strip, SynAckWithoutOption, SynWithoutOption);
}

#[test]
fn the_syn_ack_loses_its_option() {
    let strip = |p: &mut Packet<'_>| {
        if p.to == Side::A && is(p.seg, TcpFlags::SYN) {
            p.strip();
        }
    };
    falls_back(strip, SynAckWithoutOption, FirstDataWithoutOption);
}

#[test]
fn options_pass_on_syns_only() {
    let strip = |p: &mut Packet<'_>| {
        if !is(p.seg, TcpFlags::SYN) {
            p.strip();
        }
    };
    falls_back(strip, FirstDataWithoutOption, FirstDataWithoutOption);
}

#[test]
fn only_the_third_ack_passes_with_its_option() {
    let strip = |p: &mut Packet<'_>| {
        if p.to == Side::B && !p.seg.payload.is_empty() || p.seg.options.dss.is_some() {
            p.strip();
        }
    };
    falls_back(strip, FirstDataWithoutOption, FirstDataWithoutOption);
}

/// Options are removed in one direction only, except on some segments. The side that does not see them falls back
/// first; the other side learns of it by an infinite mapping, or by ACKs without DATA_ACK.
#[track_caller]
fn falls_back_one_way(towards: Side, passes: fn(&Packet<'_>) -> bool) {
    for first in [Side::A, Side::B] {
        let strip = move |p: &mut Packet<'_>| {
            if p.to == towards && !passes(p) {
                p.strip();
            }
            MiddleboxAction::Pass
        };
        let mut hosts = TwoHosts::new(config(), config(), strip, 1);
        hosts.exchange_and_close(first, &bytes(SIZE, 1), &bytes(SIZE, 2));
        assert_eq!(hosts.end(towards).fallback, Some(FirstDataWithoutOption), "{first:?}");
        let other = hosts.end(towards.other()).fallback;
        assert!(matches!(other, Some(InfiniteMapping | FirstDataWithoutOption)), "{other:?}");
    }
}

#[test]
fn options_of_data_and_acks_vanish_towards_the_server() {
    falls_back_one_way(Side::B, |p| {
        p.seg.options.mptcp.capable().is_some() && p.seg.payload.is_empty()
    });
}

#[test]
fn options_of_data_and_acks_vanish_towards_the_client() {
    falls_back_one_way(Side::A, |p| is(p.seg, TcpFlags::SYN));
}

#[test]
fn syns_with_the_option_are_swallowed() {
    let mut syns = 0;
    let swallow = move |p: &mut Packet<'_>| {
        let offered = is(p.seg, TcpFlags::SYN) && p.seg.options.has_mptcp();
        syns += u32::from(offered);
        assert!(syns <= 3, "RFC 8684 section 3.1 requires plain TCP after a few SYNs");
        if offered { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    };
    let mut hosts = TwoHosts::new(config(), config(), swallow, 1);
    hosts.exchange_and_close(Side::A, &bytes(SIZE, 1), &bytes(SIZE, 2));
    let reasons = [hosts.ends[0].fallback, hosts.ends[1].fallback];
    assert_eq!(reasons, [Some(SynRetries), Some(SynWithoutOption)]);
}

fn change_capable(p: &mut Packet<'_>, change: impl FnOnce(&mut MpCapable)) {
    let Some(mut capable) = p.seg.options.mptcp.capable() else { return };
    change(&mut capable);
    p.seg.options.mptcp = Default::default();
    p.seg.options.mptcp.push(MptcpOption::Capable(capable));
}

#[test]
fn an_unknown_extension_falls_back_to_tcp() {
    let set_b = |p: &mut Packet<'_>| {
        if p.to == Side::B && is(p.seg, TcpFlags::SYN) {
            change_capable(p, |c| c.extensibility = true);
        }
    };
    falls_back(set_b, SynAckWithoutOption, SynWithoutOption);
    let set_b = |p: &mut Packet<'_>| {
        if p.to == Side::A && is(p.seg, TcpFlags::SYN) {
            change_capable(p, |c| c.extensibility = true);
        }
    };
    falls_back(set_b, SynAckWithoutOption, FirstDataWithoutOption);
}

#[test]
fn no_hash_algorithm_in_common() {
    let clear_h = |p: &mut Packet<'_>| {
        if p.to == Side::B && is(p.seg, TcpFlags::SYN) {
            change_capable(p, |c| c.hmac_sha256 = false);
        }
    };
    falls_back(clear_h, SynAckWithoutOption, SynWithoutOption);
    let clear_h = |p: &mut Packet<'_>| {
        if p.to == Side::A && is(p.seg, TcpFlags::SYN) {
            change_capable(p, |c| c.hmac_sha256 = false);
        }
    };
    falls_back(clear_h, SynAckWithoutOption, FirstDataWithoutOption);
}

/// RFC 8684 section 3.1: a listener that does not know the version answers with its own highest. A SYN of version
/// 2 is assumed to have the form of version 1's.
#[test]
fn an_unknown_version_is_answered_and_falls_back() {
    for version in [0, 2, 15] {
        let mut script = Script::new(endpoint_config(Some(config())), 1);
        let path = marline_core::FourTuple {
            local: "10.9.0.1:443".parse().expect("an address"),
            remote: "10.0.0.1:40000".parse().expect("an address"),
        };
        let mut peer = Peer::new(path, 7);
        let MptcpOption::Capable(known) = capable(MpCapableForm::Syn) else { unreachable!() };
        let offer = MptcpOption::Capable(MpCapable { version, ..known });
        peer.send(&mut script, Seg::syn().mss(1_400).mptcp(offer));
        let answer = script.take_sent().pop().expect("a SYN/ACK");
        let option = answer.seg.options.mptcp.capable();
        assert!(option.is_none_or(|c| c.version == 1), "{option:?}");
        peer.record_received(&answer);
        peer.send(&mut script, Seg::ack().payload(b"plain"));
        let id = script.endpoint.connections()[0];
        let mut got = [0; 8];
        assert_eq!(script.run(|e, now| e.read(now, id, &mut got)), Ok(5));
        assert_eq!(script.run(|e, now| e.write(now, id, b"too")), Ok(3));
        script.advance(Duration::from_millis(100));
        for sent in script.take_sent() {
            assert!(!sent.seg.options.has_mptcp(), "{:?}", sent.seg);
        }
    }
}

#[test]
fn options_vanish_in_mid_stream_and_nothing_else_is_left() {
    for towards in [Side::A, Side::B] {
        let mut seen = 0;
        let strip = move |p: &mut Packet<'_>| {
            seen += u32::from(!p.seg.payload.is_empty());
            if seen > 40 && p.to == towards {
                p.strip();
            }
            MiddleboxAction::Pass
        };
        let mut hosts = TwoHosts::new(config(), config(), strip, 1);
        hosts.write(Side::A, &bytes(SIZE, 1));
        hosts.run_ms(20_000);
        hosts.write(Side::B, &bytes(SIZE, 2));
        hosts.run_ms(120_000);
        let [client, server] = &hosts.ends;
        for (end, sent) in [(client, bytes(SIZE, 2)), (server, bytes(SIZE, 1))] {
            assert!(sent.starts_with(&end.received), "only bytes that were sent, in order");
        }
        // A fallback can no longer be negotiated: both ends get a clear error.
        let done = |end: &two_hosts::End| end.closed.is_some();
        assert!(
            done(client) && done(server),
            "{towards:?}: {:?} {:?}",
            client.closed,
            server.closed
        );
    }
}

/// Options vanish on one of two paths: that subflow is reset, and the other continues.
#[test]
fn options_vanish_on_a_joined_subflow() {
    for towards in [Side::A, Side::B] {
        let strip = move |p: &mut Packet<'_>| {
            let join = p.seg.options.mptcp.join().is_some();
            if p.path == 1 && p.to == towards && !join && !is(p.seg, TcpFlags::RST) {
                p.strip();
            }
            MiddleboxAction::Pass
        };
        let mut hosts = TwoHosts::new(two_paths(config()), config(), strip, 1);
        hosts.exchange_and_close(Side::A, &bytes(SIZE, 1), &bytes(SIZE, 2));
        assert_eq!((hosts.ends[0].fallback, hosts.ends[1].fallback), (None, None));
        let middlebox = |s: &Seg| {
            s.options.mptcp.iter().any(|o| matches!(o, MptcpOption::TcpRst(r) if r.reason == 6))
        };
        let resets = hosts.trace.iter().filter(|(_, s)| middlebox(s)).count();
        assert!(resets > 0, "no RST names the middlebox");
    }
}

/// Losses alone, of any segment, are not a reason to fall back.
#[test]
fn losses_are_not_mistaken_for_boxes() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let lose = move |_: &mut Packet<'_>| {
            if dice.once_in(8) { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
        };
        let mut hosts = TwoHosts::new(two_paths(config()), config(), lose, seed);
        let first = if seed % 2 == 0 { Side::A } else { Side::B };
        hosts.write(Side::A, b"x");
        hosts.write(Side::B, b"y");
        hosts.run_ms(60_000);
        hosts.exchange_and_close(first, &bytes(100_000, 1), &bytes(100_000, 2));
        // Three SYNs in a row may be lost as well.
        let tried = hosts.ends.iter().any(|end| end.fallback == Some(SynRetries));
        assert!(tried || hosts.ends.iter().all(|end| end.fallback.is_none()), "seed {seed}");
    }
}

/// Middleboxes that drop options, combined with losses.
#[test]
fn stripped_options_with_losses_still_fall_back() {
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let towards = if seed % 2 == 0 { Side::A } else { Side::B };
        let middlebox = move |p: &mut Packet<'_>| {
            let bare = p.seg.payload.is_empty();
            let opening =
                is(p.seg, TcpFlags::SYN) || bare && p.seg.options.mptcp.capable().is_some();
            if !opening && (seed % 3 == 0 || p.to == towards) {
                p.strip();
            }
            if dice.once_in(30) { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
        };
        let mut hosts = TwoHosts::new(config(), config(), middlebox, seed);
        let first = if seed % 4 < 2 { Side::A } else { Side::B };
        hosts.run_ms(20_000);
        hosts.exchange_and_close(first, &bytes(100_000, 1), &bytes(100_000, 2));
        assert!(hosts.ends.iter().any(|end| end.fallback.is_some()), "seed {seed}");
    }
}

/// Plain TCP peers put the FIN into the segment with the last data.
#[test]
fn the_last_data_comes_with_a_fin() {
    let mut script = Script::new(endpoint_config(Some(config())), 1);
    let path = marline_core::FourTuple {
        local: "10.9.0.1:443".parse().expect("an address"),
        remote: "10.0.0.1:40000".parse().expect("an address"),
    };
    let mut peer = Peer::new(path, 7);
    peer.send(&mut script, Seg::syn().mss(1_400));
    let answer = script.expect(&Expect::any().plain_tcp());
    peer.record_received(&answer);
    peer.send(&mut script, Seg::ack());
    let id = script.endpoint.connections()[0];
    script.run(|e, now| e.shutdown(now, id));
    script.advance(Duration::from_millis(10));
    for sent in script.take_sent() {
        peer.record_received(&sent);
    }
    // Data, FIN and the ACK of our FIN in one: TIME-WAIT at once.
    peer.send(&mut script, Seg::fin().payload(b"the end"));
    let mut got = [0; 8];
    assert_eq!(script.run(|e, now| e.read(now, id, &mut got)), Ok(7));
    assert_eq!(&got[..7], b"the end");
    assert_eq!(script.run(|e, now| e.read(now, id, &mut got)), Ok(0));
    let closed = script.take_events().into_iter().find_map(|e| match e {
        marline_core::Event::Closed { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(closed, Some(CloseReason::Finished));
}

/// A middlebox removes mappings on the way to the server, which had sent all its data before it noticed and fell
/// back to plain TCP. The client has seen mappings, and a DATA_ACK of the data sent with the keys, but not of its
/// mapped data: an ACK of that without any option shows the server's mode. Data that it sent twice after that
/// would be in the stream twice.
#[test]
fn data_sent_with_the_keys_does_not_prove_mappings() {
    let (mut script, mut peer, id) = calling(endpoint_config(None), config());
    script.run(|endpoint, now| endpoint.write(now, id, &bytes(4_000, 1))).expect("room");
    let sent = script.take_sent();
    let data: Vec<_> = sent.iter().filter(|sent| !sent.seg.payload.is_empty()).collect();
    assert!(data.len() >= 3 && data[0].seg.options.mptcp.capable().is_some(), "{sent:#?}");
    assert!(data[1].seg.dss().mapping.is_some());
    peer.record_received(data[0]);
    let first = peer.expected_dsn.wrapping_add(data[0].seg.payload.len() as u64);
    peer.send(&mut script, Seg::ack().data_ack(first));
    data[1..].iter().for_each(|sent| peer.record_received(sent));
    peer.send(&mut script, Seg::ack());
    let fallback = script.endpoint.info(id).and_then(|info| info.fallback);
    assert_eq!(fallback, Some(FirstDataWithoutOption));
}
