//! Tests of listeners that withhold the SYN/ACK until the application decides, segment by segment.

use std::net::SocketAddr;
use std::time::Duration;

use marline_core::{
    CloseReason, ConnectionConfig, ConnectionId, EndpointConfig, Event, FourTuple, Limits,
};
use marline_testkit::timeline::{MSS, plain};
use marline_testkit::{Script, Seg, capable, endpoint_config};
use marline_wire::mptcp::MpCapableForm;
use marline_wire::{SeqNum, TcpFlags};

const ISS: SeqNum = SeqNum(0xffff_fff0);

fn asking() -> ConnectionConfig {
    ConnectionConfig { withhold_syn_ack: true, ..plain() }
}

fn listening(limits: Limits) -> Script {
    Script::new(EndpointConfig { limits, ..endpoint_config(Some(asking())) }, 11)
}

/// Addresses of the client's connection from this port.
fn from(port: u16) -> FourTuple {
    FourTuple {
        local: SocketAddr::from(([203, 0, 113, 7], 443)),
        remote: SocketAddr::from(([198, 18, 0, 2], port)),
    }
}

fn syn() -> Seg {
    Seg::syn().at(ISS).mss(MSS).window_scale(7).sack_permitted()
}

fn requests(script: &mut Script) -> Vec<FourTuple> {
    let asked = script.take_events().into_iter().filter_map(|event| match event {
        Event::Requested(path) => Some(path),
        _ => None,
    });
    asked.collect()
}

fn admit(script: &mut Script, path: FourTuple) -> Option<ConnectionId> {
    script.run(|endpoint, now| endpoint.admit(now, &path))
}

/// Completes the handshake of an admitted connection; returns its SYN/ACK's number.
fn complete(script: &mut Script, path: FourTuple) -> SeqNum {
    let sent = script.next_sent().expect("a SYN/ACK");
    assert_eq!(sent.path, path);
    assert!(sent.seg.header.flags.contains(TcpFlags::SYN.with(TcpFlags::ACK)));
    let irs = sent.seg.header.seq;
    script.inject(path, Seg::ack().at(ISS.add(1)).acking(irs.add(1)));
    irs
}

fn closed(script: &mut Script) -> Option<(ConnectionId, CloseReason)> {
    script.take_events().into_iter().find_map(|event| match event {
        Event::Closed { connection, reason } => Some((connection, reason)),
        _ => None,
    })
}

#[test]
fn a_syn_waits_for_the_applications_word_however_often_it_comes() {
    let mut script = listening(Limits::default());
    for _ in 0..5 {
        script.inject(from(40_000), syn());
        script.advance(Duration::from_secs(20));
        script.expect_nothing();
    }
    assert_eq!(requests(&mut script), [from(40_000)], "reported once");
    assert_eq!((script.endpoint.requests(), script.endpoint.connections().len()), (1, 0));
    let id = admit(&mut script, from(40_000)).expect("the request is still pending");
    let irs = complete(&mut script, from(40_000));
    assert_eq!(script.take_incoming(), Some(id));
    let data = Seg::ack().flag(TcpFlags::PSH).at(ISS.add(1)).payload(b"hello");
    script.inject(from(40_000), data.acking(irs.add(1)));
    assert_eq!(script.read_all(id), b"hello");
    assert_eq!(script.endpoint.requests(), 0);
    assert_eq!(admit(&mut script, from(40_000)), None, "no request is left");
}

#[test]
fn the_latest_syn_is_the_one_that_is_answered() {
    let mut script = listening(Limits::default());
    script.inject(from(40_000), syn());
    // The program gave up, and another one got its port.
    let later = SeqNum(77_000);
    script.inject(from(40_000), Seg::syn().at(later).mss(500));
    admit(&mut script, from(40_000)).expect("a request");
    let sent = script.next_sent().expect("a SYN/ACK");
    assert_eq!(sent.seg.header.ack, later.add(1));
    assert_eq!(sent.seg.options.window_scale, None, "the second one offered none");
}

#[test]
fn the_wait_is_in_no_estimate_of_the_round_trip() {
    let mut script = listening(Limits::default());
    script.inject(from(40_000), syn());
    script.advance(Duration::from_secs(9));
    let id = admit(&mut script, from(40_000)).expect("a request");
    script.advance(Duration::from_millis(30));
    complete(&mut script, from(40_000));
    let info = script.endpoint.info(id).expect("the connection exists");
    assert_eq!(info.subflows[0].srtt, Some(Duration::from_millis(30)));
}

#[test]
fn a_refusal_acknowledges_the_syn_and_the_next_one_asks_again() {
    let mut script = listening(Limits::default());
    script.inject(from(40_000), syn());
    assert!(script.run(|endpoint, now| endpoint.refuse(now, &from(40_000))));
    let sent = script.next_sent().expect("a RST");
    let header = &sent.seg.header;
    assert_eq!(header.flags, TcpFlags::RST.with(TcpFlags::ACK));
    assert_eq!((header.seq, header.ack), (SeqNum(0), ISS.add(1)));
    assert!(!script.run(|endpoint, now| endpoint.refuse(now, &from(40_000))), "already reported");
    script.expect_nothing();
    script.inject(from(40_000), syn());
    assert_eq!(requests(&mut script).len(), 2);
}

#[test]
fn a_request_may_be_forgotten_without_a_word_and_leaves_its_number() {
    let mut script = listening(Limits::default());
    script.inject(from(40_000), syn());
    assert_eq!(script.endpoint.forget_request(&from(40_000)), Some(ISS));
    assert_eq!(script.endpoint.forget_request(&from(40_000)), None);
    script.advance(Duration::from_secs(60));
    script.expect_nothing();
}

#[test]
fn requests_are_bounded_and_a_place_that_is_free_again_is_taken() {
    let mut script = listening(Limits { syn_queue: 8, ..Limits::default() });
    for port in 1..=20_000 {
        script.inject(from(port), syn());
    }
    assert_eq!(requests(&mut script).len(), 8);
    script.expect_nothing();
    assert_eq!(script.endpoint.counters().syn_queue_overflow, 20_000 - 8);
    admit(&mut script, from(3)).expect("one of the first");
    // An ignored SYN is repeated.
    script.inject(from(500), syn());
    assert_eq!(requests(&mut script), [from(500)]);
}

#[test]
fn connections_and_requests_are_bounded_together() {
    let mut script = listening(Limits { connections: 2, ..Limits::default() });
    for port in 1..=3 {
        script.inject(from(port), syn());
    }
    assert_eq!(requests(&mut script).len(), 2);
    admit(&mut script, from(1)).expect("room");
    complete(&mut script, from(1));
    script.inject(from(3), syn());
    assert_eq!(requests(&mut script), []);
    assert_eq!(script.endpoint.counters().connections_refused, 2);
}

#[test]
fn an_unanswered_late_syn_ack_closes_the_admitted_connection() {
    let mut script = listening(Limits::default());
    script.inject(from(40_000), syn());
    let id = admit(&mut script, from(40_000)).expect("a request");
    script.advance(Duration::from_secs(600));
    assert_eq!(closed(&mut script), Some((id, CloseReason::TimedOut)));
    assert_eq!(script.endpoint.connections(), []);

    // A client that no longer knows the SYN sends a RST.
    script.take_sent();
    script.inject(from(40_001), syn());
    let id = admit(&mut script, from(40_001)).expect("a request");
    let sent = script.next_sent().expect("a SYN/ACK");
    script.inject(from(40_001), Seg::rst().at(sent.seg.header.ack));
    assert!(matches!(closed(&mut script), Some((closed, _)) if closed == id));
    assert_eq!(script.endpoint.connections(), []);
}

#[test]
fn unanswered_admitted_connections_give_way_to_new_ones() {
    let mut script = listening(Limits { syn_queue: 4, ..Limits::default() });
    for port in 1..=100 {
        script.inject(from(port), syn());
        admit(&mut script, from(port)).expect("a request");
    }
    assert_eq!(script.endpoint.connections().len(), 4);
    let told = script.take_events();
    let ended = |event: &&Event| matches!(event, Event::Closed { .. });
    assert_eq!(told.iter().filter(ended).count(), 96, "the application knew of them");
}

#[test]
fn a_port_is_used_again_after_a_connection_that_we_ended_first() {
    let mut script = listening(Limits::default());
    script.inject(from(40_000), syn());
    let id = admit(&mut script, from(40_000)).expect("a request");
    let irs = complete(&mut script, from(40_000));
    script.run(|endpoint, now| endpoint.shutdown(now, id));
    script.run(|endpoint, now| endpoint.release(now, id));
    let fin = script.take_sent().pop().expect("a FIN");
    assert!(fin.seg.header.flags.contains(TcpFlags::FIN));
    let theirs = Seg::ack().flag(TcpFlags::FIN).at(ISS.add(1)).acking(irs.add(2));
    script.inject(from(40_000), theirs);
    script.take_sent();
    assert!(script.endpoint.in_time_wait() && script.endpoint.connections().is_empty());
    script.take_events();

    script.inject(from(40_000), Seg::syn().at(ISS.add(5_000)).mss(MSS));
    script.expect_nothing();
    assert_eq!(requests(&mut script), [from(40_000)]);
    admit(&mut script, from(40_000)).expect("a request");
    let sent = script.next_sent().expect("a SYN/ACK");
    assert!(sent.seg.header.seq.offset_from(irs.add(2)) < 1 << 31, "beyond what was before");
}

#[test]
fn a_client_that_offers_multipath_gets_plain_tcp() {
    let mut script = listening(Limits::default());
    script.inject(from(40_000), syn().mptcp(capable(MpCapableForm::Syn)));
    admit(&mut script, from(40_000)).expect("a request");
    let sent = script.next_sent().expect("a SYN/ACK");
    assert!(sent.seg.options.mptcp.capable().is_none());
}

#[test]
fn a_stopped_listener_refuses_earlier_requests() {
    let mut script = listening(Limits::default());
    script.inject(from(40_000), syn());
    script.endpoint.stop_accepting();
    assert_eq!(admit(&mut script, from(40_000)), None);
    let sent = script.next_sent().expect("a RST");
    assert!(sent.seg.header.flags.contains(TcpFlags::RST));
}
