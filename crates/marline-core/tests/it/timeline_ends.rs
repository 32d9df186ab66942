//! Tests of the end of Multipath TCP connections, segment by segment: DATA_FIN from either side,
//! with data and alone, crossing, lost; half-closed connections; subflow FINs without it; aborts,
//! with and without unread data (RFC 8684 sections 3.3.3 and 3.5).

use marline_core::{CloseReason, ConnectionConfig, ReadError, WriteError};
use marline_testkit::timeline::multipath::{Subflows, capable, multipath, syn};
use marline_testkit::{Seg, SentSegment};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{MpCapableForm, MpFastclose, MpTcpRst, MptcpOption};

fn served() -> Subflows {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    let _ = line.sent();
    assert_eq!(line.read(), b"hello");
    line
}

fn nothing() -> [&'static str; 0] {
    []
}

/// The peer's FIN on a subflow, with its DATA_ACK.
fn fin(line: &mut Subflows, on: usize) {
    let ack = line.peers[on].expected_dsn;
    line.send(on, Seg::fin().data_ack(ack));
}

#[test]
fn we_finish_first() {
    let mut line = served();
    line.shutdown();
    assert_eq!(line.sent(), ["a: ack 6 dack8 6 dsn 1+1@0 dfin"]);
    line.ack(0);
    assert_eq!(line.sent(), nothing(), "the subflow stays, because the peer may still send");
    line.data(0, b"more");
    assert_eq!(line.sent(), ["a: ack 10 dack8 10"]);
    assert_eq!(line.read(), b"more");
    line.data_fin(0);
    assert_eq!(
        line.sent(),
        ["a: 1 F dack8 11"],
        "both sides are done, and the FIN carries the last DATA_ACK"
    );
    assert_eq!(line.closed(), Some(CloseReason::Finished));
    fin(&mut line, 0);
    assert_eq!(line.sent(), ["a: ack 11 dack8 11"]);
    line.send_at(0, 10, Seg::fin());
    assert_eq!(line.sent(), ["a: ack 11 dack8 11"], "TIME-WAIT answers a repeated FIN");
}

/// The DATA_FIN leaves no room for SACK next to timestamps: out-of-order data is reported by a separate ACK.
#[test]
fn a_data_fin_does_not_replace_an_ack_of_out_of_order_data() {
    for timestamps in [false, true] {
        let mut line = Subflows::listening(ConnectionConfig { timestamps, ..multipath() });
        let stamped = |seg: Seg, at| if timestamps { seg.timestamps(at, 1) } else { seg };
        let option = |form| MptcpOption::Capable(capable(form));
        line.send(0, stamped(syn().mptcp(option(MpCapableForm::Syn)), 1));
        let _ = line.sent();
        let third = option(line.keys_form());
        line.send(0, stamped(Seg::ack().mptcp(third), 2));
        line.id = line.script.take_incoming();
        let hello = stamped(line.mapped(0, b"hello"), 3);
        line.send(0, hello);
        let _ = line.sent();
        // Both pending: a DATA_FIN, and an ACK.
        line.script.endpoint.shutdown(line.script.now(), line.id());
        let late = Seg::ack().mapping(line.dsn(16), 16, 4).payload(b"late");
        line.send_at(0, 16, stamped(late, 5));
        let sent = line.script.take_sent();
        let fin = |sent: &&SentSegment| sent.seg.options.dss.is_some_and(|dss| dss.data_fin);
        let tells = |sent: &&SentSegment| !sent.seg.options.sack.is_empty();
        assert_eq!(sent.iter().filter(fin).count(), 1, "{sent:?}");
        assert_eq!(sent.iter().filter(tells).count(), 1, "{sent:?}");
        assert_eq!(sent.len(), if timestamps { 2 } else { 1 }, "room for both without timestamps");
    }
}

/// The existing subflows may drop options of pure ACKs; the new one is used before them.
#[test]
fn a_data_fin_without_an_answer_goes_again_on_the_subflow_that_comes_up() {
    let mut line = served();
    line.shutdown();
    assert_eq!(line.sent(), ["a: ack 6 dack8 6 dsn 1+1@0 dfin"]);
    line.wait(1_500);
    let repeats = line.sent();
    assert!(repeats.iter().all(|words| words == "a: ack 6 dack8 6 dsn 1+1@0 dfin"), "{repeats:?}");
    let on = line.add_path();
    let syn = line.join_syn(3, false);
    line.send(on, syn);
    let _ = line.sent();
    line.wait(10);
    let third = line.join_ack(on);
    line.send(on, third);
    let sent = line.sent();
    assert!(
        sent.iter().any(|words| words.starts_with("b:") && words.ends_with("dfin")),
        "{sent:?}"
    );
}

/// All data is acknowledged a round trip after the DATA_FIN, and the DATA_FIN is not: it was lost, regardless of
/// its timer.
#[test]
fn a_data_fin_that_the_last_data_overtook_by_a_round_trip_goes_again_immediately() {
    let mut line = served();
    line.write(3);
    line.shutdown();
    assert_eq!(line.sent(), ["a: 1:4 P dack8 6 dsn 1+3", "a: ack 6 dack8 6 dsn 4+1@0 dfin"]);
    line.wait(9);
    let data = line.endpoint_dsn(4);
    line.send(0, Seg::ack().data_ack(data));
    assert_eq!(line.sent(), nothing(), "it may be on its way");
    let mut line = served();
    line.write(3);
    line.shutdown();
    let _ = line.sent();
    line.wait(20);
    let data = line.endpoint_dsn(4);
    line.send(0, Seg::ack().data_ack(data));
    assert_eq!(line.sent(), ["a: ack 6 dack8 6 dsn 4+1@0 dfin"]);
    line.wait(10);
    let fin = line.endpoint_dsn(5);
    line.send(0, Seg::ack().data_ack(fin));
    line.wait(5_000);
    assert_eq!(line.sent(), nothing());
}

#[test]
fn the_peer_finishes_first() {
    let mut line = served();
    line.data_fin(0);
    assert_eq!(line.sent(), ["a: ack 6 dack8 7"]);
    line.write(3);
    assert_eq!(line.sent(), ["a: 1:4 P dack8 7 dsn 1+3"]);
    line.shutdown();
    assert_eq!(line.sent(), ["a: ack 6 dack8 7 dsn 4+1@0 dfin"]);
    line.ack(0);
    assert_eq!(line.sent(), ["a: 4 F dack8 7"]);
    assert_eq!(line.closed(), Some(CloseReason::Finished));
    fin(&mut line, 0);
    assert_eq!(line.sent(), ["a: ack 7 dack8 7"]);
}

#[test]
fn both_finish_at_once() {
    let mut line = served();
    line.shutdown();
    // The peer sent its DATA_FIN before ours arrived.
    let before = line.peers[0].expected_dsn;
    let dsn = line.peers[0].next_dsn;
    line.advance_dsn(1);
    line.send(0, Seg::ack().data_ack(before).mapping(dsn, 0, 1).data_fin());
    assert_eq!(line.sent(), ["a: ack 6 dack8 6 dsn 1+1@0 dfin", "a: ack 6 dack8 7"]);
    assert_eq!(line.closed(), None);
    line.ack(0);
    assert_eq!(line.sent(), ["a: 1 F dack8 7"]);
    assert_eq!(line.closed(), Some(CloseReason::Finished));
}

#[test]
fn the_data_fin_comes_with_the_last_data() {
    let mut line = served();
    let peer = &line.peers[0];
    let last = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 6, 4).data_fin();
    line.advance_dsn(4);
    line.send(0, last.payload(b"bye"));
    assert_eq!(line.sent(), ["a: ack 9 dack8 10"]);
    assert_eq!(line.read(), b"bye");
    let id = line.id();
    let end = line.script.run(|e, now| e.read(now, id, &mut [0; 9]));
    assert_eq!(end, Ok(0), "and then the end");
}

#[test]
fn a_data_fin_ahead_of_its_data_waits() {
    let mut line = served();
    let ack = line.peers[0].expected_dsn;
    let fin = line.dsn(6 + 3);
    line.send(0, Seg::ack().data_ack(ack).mapping(fin, 0, 1).data_fin());
    assert_eq!(line.sent(), ["a: ack 6 dack8 6"], "not before the data has arrived");
    line.data(0, b"bye");
    line.advance_dsn(1);
    assert_eq!(line.sent(), ["a: ack 9 dack8 10"]);
    assert_eq!(line.read(), b"bye");
}

#[test]
fn our_data_fin_waits_for_the_last_data_and_is_repeated() {
    let mut line = served();
    line.write(20_000);
    line.shutdown();
    let sent = line.sent();
    assert!(sent.iter().all(|words| !words.ends_with("dfin")), "the window is full: {sent:?}");
    while !line.sent().iter().any(|words| words.ends_with("dfin")) {
        line.wait(10);
        line.ack(0);
    }
    // All data, but not the DATA_FIN.
    let before = line.endpoint_dsn(20_001);
    line.send(0, Seg::ack().data_ack(before));
    line.wait_for_send(5_000).expect("it was not acknowledged");
    let again = line.sent();
    assert_eq!(again, ["a: ack 6 dack8 6 dsn 20001+1@0 dfin"]);
    line.ack(0);
    assert_eq!(line.wait_for_send(50_000), None);
}

#[test]
fn a_subflow_fin_does_not_end_the_stream() {
    let mut line = served();
    let b = line.join(3);
    fin(&mut line, 0);
    assert_eq!(line.sent(), ["a: 1 F dack8 6"], "that subflow closes");
    line.ack(0);
    let id = line.id();
    assert_eq!(line.script.run(|e, now| e.read(now, id, &mut [0; 9])), Err(ReadError::Blocked));
    line.data(b, b"still");
    assert_eq!(line.read(), b"still");
    line.write(3);
    let sent = line.sent();
    assert!(sent.iter().any(|words| words.starts_with("b: 1:4 P")), "{sent:?}");
}

#[test]
fn a_data_fin_on_one_subflow_closes_all() {
    let mut line = served();
    let b = line.join(3);
    line.data_fin(b);
    assert_eq!(line.sent(), ["b: ack 1 dack8 7"]);
    line.shutdown();
    let sent = line.sent();
    assert!(sent.len() == 1 && sent[0].ends_with("dsn 1+1@0 dfin"), "{sent:?}");
    line.ack(0);
    let mut sent = line.sent();
    sent.sort();
    assert_eq!(sent, ["a: 1 F dack8 7", "b: 1 F dack8 7"]);
    assert_eq!(line.closed(), Some(CloseReason::Finished));
}

#[test]
fn an_abort_says_fastclose_with_the_peer_s_key_on_every_subflow() {
    let mut line = served();
    line.join(3);
    line.write(100);
    let _ = line.sent();
    line.abort();
    let mut sent = line.sent();
    sent.sort();
    assert!(sent[0].starts_with("a: R ") && sent[0].ends_with("fastclose"), "{sent:?}");
    assert!(sent[1].starts_with("b: R ") && sent[1].ends_with("fastclose"), "{sent:?}");
    assert_eq!(line.closed(), Some(CloseReason::Aborted));
    let id = line.id();
    let late = line.script.run(|e, now| e.write(now, id, b"x"));
    assert!(matches!(late, Err(WriteError::Closed(_) | WriteError::Unknown)), "{late:?}");
    line.data(0, b"late");
    let sent = line.sent();
    assert!(sent[0].starts_with("a: R "), "later segments are answered again: {sent:?}");
}

#[test]
fn a_release_with_unread_data_is_an_abort_otherwise_orderly() {
    let mut line = served();
    line.data(0, b"unread");
    let _ = line.sent();
    line.release();
    let sent = line.sent();
    assert_eq!(sent, ["a: R 1 fastclose"], "the peer must learn that its data was not read");

    let mut line = served();
    line.release();
    assert_eq!(line.sent(), ["a: ack 6 dack8 6 dsn 1+1@0 dfin"]);
    let whole = line.peers[0].expected_dsn;
    line.peers[0].expected_dsn = line.endpoint_dsn(1);
    line.data(0, b"late");
    assert_eq!(line.sent(), ["a: ack 10 dack8 10"], "dropped: the peer has not all of ours");
    line.peers[0].expected_dsn = whole;
    line.ack(0);
    assert_eq!(line.sent(), ["a: R 1 fastclose"], "our end has arrived: now the peer is informed");
}

#[test]
fn a_reset_of_the_only_subflow_leaves_the_connection_waiting() {
    let mut line = served();
    let why = MptcpOption::TcpRst(MpTcpRst { transient: true, reason: 6 });
    line.send(0, Seg::rst().flag(TcpFlags::ACK).mptcp(why));
    assert_eq!((line.sent(), line.closed()), (vec![], None));
    let b = line.add_path();
    let syn = line.join_syn(3, false);
    line.send(b, syn);
    assert_eq!(line.sent(), ["b: S ack join 0 hmac"], "a new subflow continues");
    let third = line.join_ack(b);
    line.send(b, third);
    let _ = line.sent();
    line.data(b, b"again");
    assert_eq!(line.read(), b"again");
    line.send(b, Seg::rst().flag(TcpFlags::ACK));
    line.wait(59_000);
    assert_eq!(line.closed(), None);
    line.wait(2_000);
    assert_eq!(line.closed(), Some(CloseReason::TimedOut), "for a minute");
}

#[test]
fn after_the_end_a_fastclose_is_ignored() {
    let mut line = served();
    line.data_fin(0);
    line.shutdown();
    line.ack(0);
    assert_eq!(line.closed(), None);
    let _ = line.sent();
    line.ack(0);
    assert_eq!(line.closed(), Some(CloseReason::Finished));
    line.release();
    let _ = line.sent();
    let receiver_key = line.peers[0].their_key;
    line.option(0, MptcpOption::Fastclose(MpFastclose { receiver_key }));
    line.wait(120_000);
    let sent = line.sent();
    assert!(sent.iter().all(|words| !words.contains("fastclose")), "{sent:?}");
    assert_eq!(line.script.endpoint.connections(), []);
}
