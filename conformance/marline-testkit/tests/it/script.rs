//! Tests of the scripted peer against the endpoint: both roles, a join, data both ways.

use std::net::SocketAddr;
use std::time::Duration;

use marline_core::{Event, FourTuple};
use marline_testkit::{Expect, Peer, Script, Seg, config, endpoint_config};

fn path(local: [u8; 4], remote: [u8; 4]) -> FourTuple {
    FourTuple { local: SocketAddr::from((local, 80)), remote: SocketAddr::from((remote, 40_000)) }
}

#[test]
fn a_client_opens_and_writes() {
    let mut script = Script::new(endpoint_config(None), 1);
    let ends = path([10, 0, 0, 1], [10, 0, 0, 2]);
    let id = script.connect(config(), ends.local, ends.remote);
    let mut peer = Peer::new(ends, 0x0102_0304_0506_0708);
    peer.accept(&mut script);
    let events = script.take_events();
    assert!(
        events.iter().any(|e| matches!(e, Event::Connected { fallback: None, .. })),
        "{events:?}"
    );
    script.run(|e, now| e.write(now, id, b"hello").expect("room"));
    let sent = script.expect(&Expect::any().payload(b"hello").at(peer.expected));
    let options = &sent.seg.options;
    // The first data repeats the keys, or has a plain mapping if the peer has already sent data.
    assert!(options.mptcp.capable().is_some() || options.dss.is_some());
    peer.record_received(&sent);
    peer.expected_dsn = marline_testkit::keys::idsn(peer.their_key).wrapping_add(6);
    peer.send_data(&mut script, b"world");
    let mut out = [0; 16];
    let read = script.run(|e, now| e.read(now, id, &mut out).expect("data"));
    assert_eq!(&out[..read], b"world");
    script.advance(Duration::from_millis(200));
    let answers = script.take_sent();
    let ack = Expect::any().pure_ack().acking(peer.next).data_ack(peer.next_dsn);
    assert!(answers.iter().any(|s| ack.missing(&s.seg).is_none()), "{answers:#?}");
}

#[test]
fn a_server_accepts_reads_and_is_joined() {
    let mut script = Script::new(endpoint_config(Some(config())), 2);
    let mut first = Peer::new(path([10, 0, 0, 1], [10, 0, 0, 2]), 0x1111_2222_3333_4444);
    first.connect(&mut script);
    first.send_data(&mut script, b"from the first path");
    let incoming = script.take_events().into_iter().find_map(|event| match event {
        Event::Incoming(id) => Some(id),
        _ => None,
    });
    let id = incoming.expect("a connection");
    script.advance(Duration::from_millis(100));
    let _ = script.take_sent();

    let mut second = Peer::new(path([10, 0, 0, 1], [10, 1, 0, 2]), 0);
    second.join(&mut script, &first, 1);
    second.send_data(&mut script, b", and from the second");
    script.advance(Duration::from_millis(100));
    let mut out = [0; 64];
    let read = script.run(|e, now| e.read(now, id, &mut out).expect("data"));
    assert_eq!(&out[..read], b"from the first path, and from the second");
    let info = script.endpoint.info(id).expect("the connection exists");
    assert_eq!(info.subflows.len(), 2);
}

#[test]
fn a_join_with_an_unknown_token_is_refused() {
    let mut script = Script::new(endpoint_config(Some(config())), 3);
    let mut first = Peer::new(path([10, 0, 0, 1], [10, 0, 0, 2]), 5);
    first.connect(&mut script);
    first.send_data(&mut script, b"x");
    script.advance(Duration::from_millis(100));
    let _ = script.take_sent();
    first.their_key ^= 1;
    let mut stranger = Peer::new(path([10, 0, 0, 1], [10, 1, 0, 2]), 0);
    let syn = stranger.join_syn(&first, 9, 1);
    stranger.send(&mut script, syn);
    let reset = Expect::any().that("RST", |s| s.header.flags.contains(marline_wire::TcpFlags::RST));
    script.expect(&reset);
    assert_eq!(script.endpoint.counters().mp_join_no_token, 1);
}

#[test]
fn a_segment_without_a_connection_is_answered_with_a_reset() {
    let mut script = Script::new(endpoint_config(Some(config())), 4);
    let ends = path([10, 0, 0, 1], [10, 0, 0, 9]);
    script.inject(ends, Seg::ack().acking(marline_wire::SeqNum(77)));
    let reset = Expect::any().flags(marline_wire::TcpFlags::RST).at(marline_wire::SeqNum(77));
    script.expect(&reset);
    script.inject(ends, Seg::rst());
    script.expect_nothing();
}
