//! Tests of the agreement of both ends on a fallback, segment by segment: their knowledge of each other,
//! announcements, and that no end of stream hides missing bytes (docs/spec/fallback.md).

use marline_core::{CloseReason, Event, FallbackReason};
use marline_testkit::Seg;
use marline_testkit::timeline::multipath::{Subflows, multipath};
use marline_wire::mptcp::{MpFail, MptcpOption};

/// A server whose data was DATA_ACKed, and which has DATA_ACKed mapped data.
fn proven() -> Subflows {
    let mut line = Subflows::served(multipath());
    line.data(0, b"first");
    line.write(3);
    let _ = line.sent();
    line.ack(0);
    line
}

/// Mapped data was DATA_ACKed: to the peer, Multipath TCP is proven. It would repeat under new numbers the data
/// that a side on plain TCP does not DATA_ACK.
#[test]
fn data_without_options_behind_data_that_was_data_acked_ends_the_subflow() {
    let mut line = proven();
    line.send(0, Seg::ack().payload(b" bare"));
    assert_eq!(line.sent(), ["a: R 4 reset 6"]);
    assert_eq!((line.read(), line.fallback()), (b"first".to_vec(), None));
}

/// There was no answer to the DATA_ACK: options may not pass in this direction, so that the peer uses plain TCP,
/// as Linux does then without an infinite mapping. If it does not, the fallback is announced to it.
#[test]
fn data_without_options_behind_a_data_ack_that_may_not_have_arrived_is_plain_tcp() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"first");
    assert_eq!(line.sent(), ["a: ack 6 dack8 6"]);
    line.send(0, Seg::ack().payload(b" bare"));
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    assert_eq!(line.sent(), ["a: ack 11 fail 6"]);
    assert_eq!(line.read(), b"first bare");
}

/// A middlebox splits the first segment and leaves the options on the first piece, which the other overtakes.
#[test]
fn data_without_options_that_is_out_of_order_decides_nothing() {
    for server in [true, false] {
        let mut line = if server { Subflows::served } else { Subflows::called }(multipath());
        if !server {
            line.write(5);
            let _ = line.sent();
            line.ack(0);
        }
        line.send_at(0, 6, Seg::ack().payload(b" piece"));
        assert_eq!(line.fallback(), None, "server: {server}");
        let dsn = line.dsn(1);
        let whole = Seg::ack().data_ack(line.endpoint_dsn(if server { 1 } else { 6 }));
        line.send_at(0, 1, whole.mapping(dsn, 1, 11).payload(b"first"));
        assert_eq!((line.read(), line.closed()), (b"first piece".to_vec(), None));
        assert_eq!(line.fallback(), None, "server: {server}");
    }
}

/// The ACK that shows that options do not pass is the connection's ACK: no other may follow.
#[test]
fn the_ack_that_causes_a_fallback_wakes_the_writer() {
    let mut line = Subflows::called(multipath());
    let id = line.id();
    let more = vec![b'x'; 1 << 16];
    let mut written = 0;
    while let Ok(bytes) = line.script.run(|e, now| e.write(now, id, &more)) {
        written += bytes;
    }
    assert!(written > 0);
    // The window is closed until its last byte is acknowledged.
    for _ in 0..3 {
        for sent in line.script.take_sent() {
            line.peers[0].record_received(&sent);
        }
        line.wait(100);
    }
    let _ = line.script.take_events();
    line.send(0, Seg::ack());
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    let events = line.script.take_events();
    let writable = events.iter().any(|event| matches!(event, Event::Writable(_)));
    assert!(writable, "{events:?}");
}

/// The peer fell back after bytes without a mapping were acknowledged and discarded: the stream has a permanent
/// gap, and its end must not be reported.
#[test]
fn an_infinite_mapping_behind_discarded_bytes_ends_the_connection() {
    for fin in [false, true] {
        let mut line = Subflows::served(multipath());
        line.data(0, b"hello");
        let _ = line.sent();
        // A middlebox merged two segments and kept the options of one.
        let dsn = line.dsn(6);
        line.send(0, Seg::ack().mapping(dsn, 6, 5).payload(b"first second"));
        assert_eq!(line.sent(), ["a: ack 18 dack8 11"]);
        let point = line.dsn(11);
        let infinite = if fin { Seg::fin() } else { Seg::ack().payload(b"third") };
        line.send(0, infinite.mapping(point, 11, 0));
        assert_eq!(line.closed(), Some(CloseReason::PeerMisbehaved), "fin: {fin}");
        let sent = line.sent();
        assert_eq!(sent.last().map(String::as_str), Some("a: R 1 fastclose"), "{sent:?}");
        assert_eq!(line.read(), b"hellofirst");
    }
}

/// The peer already uses plain TCP, and its infinite mapping is lost.
#[test]
fn plain_data_behind_discarded_bytes_ends_the_connection() {
    for fin in [false, true] {
        let mut line = Subflows::served(multipath());
        line.data(0, b"hello");
        let dsn = line.dsn(6);
        line.send(0, Seg::ack().mapping(dsn, 6, 5).payload(b"first second"));
        let fail = MpFail { dsn: line.endpoint_dsn(1) };
        line.option(0, MptcpOption::Fail(fail));
        assert_eq!(line.fallback(), Some(FallbackReason::PeerFailed));
        line.send(0, if fin { Seg::fin() } else { Seg::ack().payload(b"third") });
        assert_eq!(line.closed(), Some(CloseReason::PeerMisbehaved), "fin: {fin}");
        assert_eq!(line.read(), b"hellofirst");
    }
}

/// A client whose first data is acknowledged without options falls back to plain TCP, and has no data that could
/// announce it. A server whose data was DATA_ACKed before would not detect it.
#[test]
fn a_side_that_falls_back_without_data_sends_mp_fail() {
    let mut line = Subflows::called(multipath());
    line.data(0, b"hello");
    let _ = line.sent();
    line.write(5);
    let _ = line.sent();
    line.send(0, Seg::ack());
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    assert_eq!(line.sent(), ["a: ack 6 fail 6"]);
    line.wait_for_send(5_000).expect("it may be lost");
    assert_eq!(line.sent(), ["a: ack 6 fail 6"]);
    // The answer ends it, and is not answered.
    line.option(0, MptcpOption::Fail(MpFail { dsn: line.endpoint_dsn(6) }));
    assert_eq!(line.sent(), Vec::<String>::new());
    assert_eq!(line.wait_for_send(60_000), None);
}

/// A connection that fell back, because an ACK lacked its options, and whose peer does not know: mapped data up to
/// 6 is DATA_ACKed, and data that TCP acknowledges beyond it was discarded.
fn fell_back_alone() -> Subflows {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    line.write(5);
    let _ = line.sent();
    line.send(0, Seg::ack());
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    line.write(5);
    let sent = line.sent();
    assert!(sent.contains(&"a: 6:11 P dsn8 1+inf@1".to_owned()), "{sent:?}");
    line
}

#[test]
fn a_peer_that_still_sends_data_acks_gets_mp_fail() {
    let mut line = fell_back_alone();
    line.send(0, Seg::ack().data_ack(line.endpoint_dsn(6)));
    line.wait_for_send(5_000).expect("MP_FAIL");
    assert_eq!(line.sent(), ["a: ack 6 fail 6"]);
    // The peer gets MP_FAIL, and has missed no data.
    line.option(0, MptcpOption::Fail(MpFail { dsn: line.endpoint_dsn(6) }));
    line.send(0, Seg::ack());
    line.send(0, Seg::fin());
    line.shutdown();
    let _ = line.sent();
    line.send(0, Seg::ack());
    assert_eq!(line.closed(), Some(CloseReason::Finished));
}

#[test]
fn the_end_of_a_peer_that_lacks_bytes_is_an_error() {
    let mut line = fell_back_alone();
    line.shutdown();
    let _ = line.sent();
    line.send(0, Seg::fin().data_ack(line.endpoint_dsn(6)));
    assert_eq!(line.closed(), Some(CloseReason::PeerMisbehaved));
}

#[test]
fn a_peer_that_ignores_mp_fail_ends_the_connection() {
    let mut line = fell_back_alone();
    let (mut fails, mut closed) = (0, None);
    while closed.is_none() {
        line.send(0, Seg::ack().data_ack(line.endpoint_dsn(6)));
        line.wait_for_send(120_000).expect("MP_FAIL is repeated, or the connection ends");
        fails += line.sent().iter().filter(|words| words.contains("fail")).count();
        closed = line.closed();
    }
    assert!((3..=10).contains(&fails), "{fails}");
    assert_eq!(closed, Some(CloseReason::PeerMisbehaved));
}

/// A FIN without options in the middle of the stream comes from a peer on plain TCP, for which all data was sent.
#[test]
fn a_fin_without_options_in_mid_stream_ends_the_subflow_by_a_reset() {
    let mut line = proven();
    line.send(0, Seg::fin());
    assert_eq!(line.sent(), ["a: R 4 reset 6"]);
    // At the end of the stream no data is missing.
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    line.data_fin(0);
    let _ = line.sent();
    line.send(0, Seg::fin());
    let sent = line.sent();
    assert!(sent.iter().all(|words| !words.contains(" R ")), "{sent:?}");
}

/// ACKs without options acknowledge data that was DATA_ACKed before: the peer may use plain TCP, and must not get
/// data twice.
#[test]
fn nothing_is_repeated_on_a_subflow_whose_acks_have_lost_their_options() {
    let mut line = Subflows::called(multipath());
    line.write(5);
    let _ = line.sent();
    line.ack(0);
    line.write(5);
    let _ = line.sent();
    line.ack(0);
    line.write(5);
    assert_eq!(line.sent(), ["a: 11:16 P dack 1 dsn 11+5"]);
    line.send(0, Seg::ack());
    assert_eq!((line.fallback(), line.sent()), (None, vec![]));
    line.wait_for_send(5_000).expect("the data-level timer");
    assert_eq!(line.sent(), ["a: R 16 reset 6"]);
}

/// A middlebox passes data and removes the options of ACKs: a DATA_FIN is answered, but never DATA_ACKed.
#[test]
fn a_data_fin_that_is_answered_without_options_ends_the_subflow() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    line.shutdown();
    let mut fins = 0;
    while fins < 10 {
        let sent = line.sent();
        fins += sent.iter().filter(|words| words.ends_with("dfin")).count();
        if sent.iter().any(|words| words.contains("R 1 reset 6")) {
            break;
        }
        line.send(0, Seg::ack());
        line.wait_for_send(60_000).expect("it is repeated");
    }
    assert!((3..=6).contains(&fins), "{fins}");
}

/// The peer falls back on its own and reports this with MP_FAIL.
#[test]
fn mp_fail_of_a_peer_that_fell_back_leads_to_plain_tcp_and_is_answered() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    line.write(5);
    let _ = line.sent();
    line.ack(0);
    line.option(0, MptcpOption::Fail(MpFail { dsn: line.endpoint_dsn(6) }));
    assert_eq!(line.fallback(), Some(FallbackReason::PeerFailed));
    assert_eq!(line.sent(), ["a: ack 6 fail 6"]);
    line.send(0, Seg::ack().payload(b" plain"));
    assert_eq!(line.read(), b"hello plain");
}
