//! Tests of a client that waits for the mark, and suspects its path when it gets no data.

use marline_core::Extensions;
use marline_testkit::Seg;
use marline_wire::mptcp::{ExperimentalMessage, MpExperimental, MptcpOption, WireDsn};

use super::{BOTH, agree, asking_client, client, judged_after, mapped, ms, option, send};
use crate::two_hosts::write;

#[test]
fn data_without_the_mark_starts_the_timer() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), Some(1_500), "no timeout was reported");
    let counters = script.endpoint.counters();
    assert_eq!((counters.receive_timer_expired, counters.receive_timer_probes), (1, 0));
}

#[test]
fn the_mark_stops_it() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    script.advance(ms(100));
    send(&mut script, &mut peer, b"that was it", true);
    assert_eq!(judged_after(&mut script), None);
    assert_eq!(script.endpoint.counters().mp_idle_rx, 1);
    // Idle, then more data.
    send(&mut script, &mut peer, b"there is more", false);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

/// Data that a server sent before it agreed has no mark, even at its end.
#[test]
fn data_before_the_agreement_starts_no_timer() {
    let (mut script, mut peer) = asking_client();
    send(&mut script, &mut peer, b"an answer", false);
    agree(&mut script, &mut peer, BOTH);
    assert_eq!(judged_after(&mut script), None);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), Some(1_500));
    // The same case, with an agreement that overtakes the data.
    let (mut script, mut peer) = asking_client();
    let late = peer.stamp(mapped(&peer, b"an answer"));
    peer.next = late.end();
    peer.next_dsn = peer.next_dsn.wrapping_add(9);
    agree(&mut script, &mut peer, BOTH);
    peer.inject(&mut script, late);
    assert_eq!(judged_after(&mut script), None);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

/// The mark was lost: either a middlebox dropped the option, or the segment with it is missing.
#[test]
fn a_lost_mark_is_a_verdict() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    let lost = mapped(&peer, b"that was it").mptcp(option(ExperimentalMessage::Idle));
    let lost = peer.stamp(lost);
    script.advance(ms(1_000));
    // It is retransmitted just in time.
    peer.inject(&mut script, lost);
    assert_eq!(judged_after(&mut script), None);
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

#[test]
fn a_mark_that_overtakes_counts_once_the_rest_is_here() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"one ", false);
    let late = peer.stamp(mapped(&peer, b"two "));
    peer.next = late.end();
    peer.next_dsn = peer.next_dsn.wrapping_add(4);
    send(&mut script, &mut peer, b"three", true);
    script.advance(ms(1_000));
    peer.inject(&mut script, late);
    assert_eq!(judged_after(&mut script), None);
}

#[test]
fn an_old_mark_does_not_stop_the_timer_of_later_data() {
    let (mut script, mut peer) = client(BOTH);
    let marked = mapped(&peer, b"that was it").mptcp(option(ExperimentalMessage::Idle));
    let marked = peer.stamp(marked);
    peer.inject(&mut script, marked.clone());
    peer.next = marked.end();
    peer.next_dsn = peer.next_dsn.wrapping_add(11);
    script.advance(ms(20));
    send(&mut script, &mut peer, b"no, it was not", false);
    script.advance(ms(100));
    peer.inject(&mut script, marked);
    assert_eq!(judged_after(&mut script), Some(1_400));
}

#[test]
fn marks_that_mean_nothing_are_ignored() {
    let mark = || option(ExperimentalMessage::Idle);
    // Without a mapping, on the peer's pure ACK.
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    let ack = Seg::ack().data_ack(peer.expected_dsn).mptcp(mark());
    peer.send(&mut script, ack);
    assert_eq!(judged_after(&mut script), Some(1_500));
    // Not agreed on: the timer does not run, since every pause would be a verdict.
    let (mut script, mut peer) = client(Extensions::RTO);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), None);
    send(&mut script, &mut peer, b"that was it", true);
    assert_eq!(script.endpoint.counters().mp_idle_rx, 0);
    // With a length that does not match a mark.
    let (mut script, mut peer) = client(BOTH);
    let longer = MpExperimental::new(1, &[0]).expect("an option");
    let seg = mapped(&peer, b"that was it").mptcp(MptcpOption::Experimental(longer));
    peer.send(&mut script, seg);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

/// A mark on data beyond the window, which is dropped, is ignored.
#[test]
fn a_mark_beyond_the_window_is_ignored() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    let mut far = mapped(&peer, b"that was it").mptcp(option(ExperimentalMessage::Idle));
    let mapping = far.options.dss.as_mut().and_then(|dss| dss.mapping.as_mut()).expect("one");
    mapping.dsn = WireDsn::Short(peer.next_dsn as u32 + (1 << 30));
    peer.send(&mut script, far);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

/// An advancing DATA_ACK proves that the peer is alive.
#[test]
fn progress_of_our_own_data_restarts_it() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    script.advance(ms(1_000));
    write(&mut script, b"a request");
    peer.receive_all(&mut script);
    peer.acknowledge(&mut script);
    assert_eq!(judged_after(&mut script), Some(1_500));
}
