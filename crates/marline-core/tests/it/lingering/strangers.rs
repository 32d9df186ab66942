//! Tests of connections that a server keeps for unauthenticated peers.

use marline_core::{
    CloseReason, ConnectionConfig, ConnectionId, EndpointConfig, Event, SocketOption,
};
use marline_core::{Limits, Linger};
use marline_testkit::fixtures::{path, serve};
use marline_testkit::{Peer, Script, Seg, config, endpoint_config};
use marline_time::Duration as Span;

use super::S;

/// A server that keeps connections without a path for an hour, and those of unauthenticated peers for half a minute.
fn patient(lingering: usize) -> EndpointConfig {
    let linger =
        Linger { timeout: Span::from_secs(3_600), unknown_peer: Some(Span::from_secs(30)) };
    let mut endpoint = endpoint_config(Some(ConnectionConfig { linger, ..config() }));
    endpoint.limits = Limits { lingering, ..endpoint.limits };
    endpoint
}

/// Another peer connects.
fn another(script: &mut Script, n: u16) -> (Peer, ConnectionId) {
    let mut peer = Peer::new(path(0, 2, 40_000 + n), 0x1111_0000 + u64::from(n));
    let id = serve(script, &mut peer);
    (peer, id)
}

/// Connections that ended since the last call.
fn ended(script: &mut Script) -> Vec<(ConnectionId, CloseReason)> {
    let closed = |event| match event {
        Event::Closed { connection, reason } => Some((connection, reason)),
        _ => None,
    };
    script.take_events().into_iter().filter_map(closed).collect()
}

#[test]
fn a_stranger_that_sent_a_reset_is_not_waited_for_long_and_a_known_peer_is() {
    let mut script = Script::new(patient(100), 1);
    let (mut stranger, unknown) = another(&mut script, 1);
    let (mut friend, known) = another(&mut script, 2);
    script.run(|e, now| e.set(now, known, SocketOption::KnownPeer));
    stranger.send(&mut script, Seg::rst());
    friend.send(&mut script, Seg::rst());
    script.advance(S(29));
    assert_eq!(ended(&mut script), []);
    script.advance(S(2));
    assert_eq!(ended(&mut script), [(unknown, CloseReason::TimedOut)]);
    script.advance(S(3_500));
    assert_eq!(ended(&mut script), []);
    script.advance(S(100));
    assert_eq!(ended(&mut script), [(known, CloseReason::TimedOut)]);
}

/// The application authenticates the peer before the RST arrives.
#[test]
fn a_peer_that_becomes_known_during_the_wait_is_kept() {
    let mut script = Script::new(patient(0), 2);
    let (mut peer, known) = another(&mut script, 1);
    script.run(|e, now| e.set(now, known, SocketOption::KnownPeer));
    peer.send(&mut script, Seg::rst());
    script.advance(S(600));
    assert_eq!(ended(&mut script), []);
}

/// Silence is not a reset: a laptop's lid may be closed during lunch.
#[test]
fn a_silent_unauthenticated_peer_is_kept_as_long_as_others() {
    let mut script = Script::new(patient(100), 3);
    let (_, id) = another(&mut script, 1);
    script.run(|e, now| e.write(now, id, b"are you there?")).expect("room");
    script.advance(S(3_000));
    assert_eq!(ended(&mut script), []);
    script.advance(S(700));
    assert_eq!(ended(&mut script), [(id, CloseReason::TimedOut)]);
}

#[test]
fn strangers_without_a_subflow_are_bounded_in_number_and_the_oldest_goes_first() {
    let mut script = Script::new(patient(3), 4);
    let all: Vec<_> = (0..5).map(|n| another(&mut script, n)).collect();
    let (mut friend, known) = another(&mut script, 9);
    script.run(|e, now| e.set(now, known, SocketOption::KnownPeer));
    friend.send(&mut script, Seg::rst());
    let ids: Vec<_> = all.iter().map(|(_, id)| *id).collect();
    for (mut peer, _) in all {
        peer.send(&mut script, Seg::rst());
        script.advance(S(1));
    }
    let gone = |n: usize| (ids[n], CloseReason::TimedOut);
    assert_eq!(
        ended(&mut script),
        [gone(0), gone(1)],
        "three unauthenticated peers, and one known peer"
    );
    script.advance(S(60));
    assert_eq!(ended(&mut script), [gone(2), gone(3), gone(4)]);
}

/// A peer that came back has a path, and does not count among those without one.
#[test]
fn a_stranger_that_came_back_does_not_count() {
    let mut script = Script::new(patient(1), 5);
    let (mut first, returned) = another(&mut script, 1);
    first.send(&mut script, Seg::rst());
    script.advance(S(5));
    script.take_sent();
    let mut second = Peer::new(path(1, 2, 50_000), 0);
    second.join(&mut script, &first, 2);
    script.take_sent();
    let (mut other, waits) = another(&mut script, 2);
    other.send(&mut script, Seg::rst());
    assert_eq!(ended(&mut script), []);
    script.advance(S(40));
    assert_eq!(ended(&mut script), [(waits, CloseReason::TimedOut)]);
    assert!(script.endpoint.info(returned).is_some());
}
