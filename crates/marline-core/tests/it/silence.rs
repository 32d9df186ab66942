//! Tests of a client that detects a dead path by its silence, without help from the peer: the receive timer's
//! probes, and the keepalives of a lone subflow.

use crate::two_hosts;
use std::time::Duration;

use crate::two_hosts::{MiddleboxAction, TwoHosts, bytes, second_unused, two_paths};
use marline_core::{
    CloseReason, ConnectionConfig, EndpointConfig, Event, Linger, LoneKeepalive, MonitorKind,
    ReceiveProbes, ReceiveTimer,
};
use marline_policy::{SubflowId, UnreachableCause};
use marline_testkit::fixtures::{calling, listening, served};
use marline_testkit::{Peer, Script, Seg, Side, config, endpoint_config};
use marline_time::Instant;
use marline_wire::mptcp::MptcpOption;

const FIRST: SubflowId = SubflowId(0);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn with_timer(timer: ReceiveTimer) -> ConnectionConfig {
    ConnectionConfig { receive_timer: Some(timer), ..second_unused(config()) }
}

fn with_keepalive() -> ConnectionConfig {
    ConnectionConfig { lone_keepalive: Some(LoneKeepalive::default()), ..second_unused(config()) }
}

/// A client that is connected to a scripted server.
fn client(config: ConnectionConfig) -> (Script, Peer) {
    let endpoint = EndpointConfig { monitor: true, ..endpoint_config(None) };
    let (mut script, mut peer, _) = calling(endpoint, config);
    peer.acknowledge(&mut script);
    script.advance(ms(100));
    peer.receive_all(&mut script);
    script.take_events();
    (script, peer)
}

/// Reports of silence to the path manager: time, subflow and cause.
fn silences(script: &mut Script) -> Vec<(Instant, SubflowId, UnreachableCause)> {
    let told = script.take_events().into_iter().filter_map(|event| match event {
        Event::Monitor(event) => match event.kind {
            MonitorKind::SubflowSilent { id, cause } => Some((event.at, id, cause)),
            _ => None,
        },
        _ => None,
    });
    told.collect()
}

/// Times of probes: empty segments one octet before the next data, which every TCP answers.
fn probes(script: &mut Script, peer: &Peer) -> Vec<Instant> {
    let probe = |seg: &Seg| seg.is_empty() && seg.header.seq.add(1) == peer.expected;
    let sent = script.take_sent();
    sent.iter().filter(|sent| probe(&sent.seg)).map(|sent| sent.at).collect()
}

/// A burst of data, as a server sends it.
fn burst(script: &mut Script, peer: &mut Peer) -> Instant {
    for n in 0..10 {
        peer.send_data(script, &bytes(1_400, n));
        script.advance(ms(1));
    }
    script.advance(ms(60));
    peer.receive_all(script);
    script.now() - ms(61)
}

fn since(start: Instant, times: &[Instant]) -> Vec<u64> {
    times.iter().map(|at| at.since(start).as_millis() as u64).collect()
}

/// 1.5 s of silence cause a probe of a peer that does not mark its last data. The answer is awaited for one round
/// trip (10 ms, and four times half of it), at least 50 ms.
#[test]
fn a_silent_peer_without_marks_is_probed_three_times() {
    let (mut script, mut peer) = client(with_timer(ReceiveTimer::with_probes()));
    let last = burst(&mut script, &mut peer);
    script.advance(ms(60_000));
    let sent = probes(&mut script, &peer);
    let (asked, later) = sent.split_at(3);
    assert_eq!(since(last, asked), [1_500, 1_550, 1_600]);
    // The silent path is probed further: often while the connection is in use, then slowly.
    let paced = [2_250, 2_850, 3_450, 4_050, 4_650, 34_650];
    assert_eq!(since(last, later), paced);
    let silent = silences(&mut script);
    let cause = UnreachableCause::UnansweredProbes;
    assert_eq!(silent, [(last + ms(1_650), FIRST, cause)]);
    let counters = script.endpoint.counters();
    assert_eq!((counters.receive_timer_probes, counters.receive_timer_expired), (3, 1));
}

#[test]
fn an_answer_stops_the_probes_until_new_data_arrives() {
    let (mut script, mut peer) = client(with_timer(ReceiveTimer::with_probes()));
    for _ in 0..3 {
        let last = burst(&mut script, &mut peer);
        script.advance(ms(1_470));
        assert_eq!(since(last, &probes(&mut script, &peer)), [1_500]);
        peer.acknowledge(&mut script);
        script.advance(ms(60_000));
        assert_eq!(probes(&mut script, &peer), [], "an idle path stays idle");
    }
    assert_eq!(silences(&mut script), []);
}

/// MultiMob's own parameters judge by silence alone: without MP_IDLE every pause would be a verdict.
#[test]
fn without_probes_a_stock_peer_is_never_judged() {
    let (mut script, mut peer) = client(with_timer(ReceiveTimer::multimob()));
    burst(&mut script, &mut peer);
    script.advance(ms(60_000));
    assert_eq!(probes(&mut script, &peer), []);
    assert_eq!(silences(&mut script), []);
}

#[test]
fn a_client_with_a_single_path_does_not_probe() {
    let timer = with_timer(ReceiveTimer::with_probes());
    let lone = with_keepalive();
    for mut config in [timer, lone] {
        config.local_addresses.truncate(1);
        let (mut script, mut peer) = client(config);
        burst(&mut script, &mut peer);
        script.advance(ms(60_000));
        assert_eq!(probes(&mut script, &peer), []);
    }
}

#[test]
fn our_own_shut_window_does_not_count_as_silence() {
    let config = ConnectionConfig {
        receive_buffer: 14_000,
        buffer_tuning: marline_core::BufferTuning::Fixed,
        ..with_timer(ReceiveTimer::with_probes())
    };
    let (mut script, mut peer) = client(config);
    burst(&mut script, &mut peer);
    script.advance(ms(20_000));
    assert_eq!(probes(&mut script, &peer), [], "the application reads nothing");
    let id = script.endpoint.connections()[0];
    script.read_all(id);
    peer.receive_all(&mut script);
    script.advance(ms(4_000));
    assert_eq!(probes(&mut script, &peer).len(), 3, "the window is open, and no data arrives");
    assert_eq!(silences(&mut script).len(), 1);
}

#[test]
fn the_end_of_the_stream_ends_the_wait() {
    let (mut script, mut peer) = client(with_timer(ReceiveTimer::with_probes()));
    burst(&mut script, &mut peer);
    let fin = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 0, 1).data_fin();
    peer.send(&mut script, fin);
    peer.receive_all(&mut script);
    script.advance(ms(5_000));
    assert_eq!(probes(&mut script, &peer), []);
}

/// MultiMob's rule: two unanswered keepalives on an idle connection's only subflow.
#[test]
fn two_unanswered_keepalives_on_the_only_subflow_are_a_verdict() {
    let (mut script, mut peer) = client(with_keepalive());
    let last = burst(&mut script, &mut peer);
    script.advance(ms(13_000));
    let heard = last.max(last + ms(1));
    let sent = probes(&mut script, &peer);
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1].since(sent[0]).as_millis(), 1_000);
    assert!(sent[0].since(heard) <= marline_time::Duration::from_millis(10_050));
    let silent = silences(&mut script);
    assert_eq!(silent, [(sent[1] + ms(1_000), FIRST, UnreachableCause::UnansweredKeepalives)]);
    // No subflow was opened: the next verdict needs another silence of this length.
    script.advance(ms(12_500));
    assert_eq!(silences(&mut script).len(), 1);
    assert_eq!(probes(&mut script, &peer).len(), 2);
}

#[test]
fn an_answered_keepalive_is_repeated_after_the_next_idle_time() {
    let (mut script, mut peer) = client(with_keepalive());
    burst(&mut script, &mut peer);
    for _ in 0..5 {
        assert!(script.advance_to_send(ms(10_100)));
        assert_eq!(probes(&mut script, &peer).len(), 1);
        script.advance(ms(20));
        peer.acknowledge(&mut script);
        script.take_sent();
    }
    assert_eq!(silences(&mut script), []);
}

/// A cellular radio would never sleep, and there is no better path.
#[test]
fn a_backup_path_gets_no_keepalives() {
    let mut config = with_keepalive();
    config.local_addresses[0].backup = true;
    let (mut script, mut peer) = client(config);
    script.advance(ms(3_600_000));
    assert_eq!(peer.receive_all(&mut script).len(), 0);
}

/// A client with one address that probes for its peer.
fn with_probes(linger_s: u64) -> ConnectionConfig {
    ConnectionConfig {
        receive_probes: Some(ReceiveProbes::default()),
        linger: Linger::new(Duration::from_secs(linger_s)),
        ..config()
    }
}

/// The cost of an hour without data: the probes get rarer, answered or not.
#[test]
fn receiver_probes_become_less_frequent() {
    let (mut script, mut peer) = client(with_probes(7_200));
    let last = burst(&mut script, &mut peer);
    let mut sent = Vec::new();
    for _ in 0..3_600 {
        script.advance(ms(1_000));
        let asked = probes(&mut script, &peer);
        if !asked.is_empty() {
            peer.acknowledge(&mut script);
        }
        sent.extend(since(last, &asked));
    }
    let seconds: Vec<u64> = sent.iter().map(|at| (at + 500) / 1_000).collect();
    assert_eq!(seconds[..8], [2, 4, 8, 16, 32, 64, 128, 248]);
    assert!((30..=40).contains(&seconds.len()), "{} probes in an hour", seconds.len());
    // Data restarts them.
    let last = burst(&mut script, &mut peer);
    script.advance(ms(2_500));
    assert_eq!(since(last, &probes(&mut script, &peer)).len(), 1);
}

/// A cellular radio may sleep, once it is clear that the server was not killed in mid-download.
#[test]
fn a_receiver_on_a_backup_path_probes_only_for_seconds() {
    let mut config = with_probes(7_200);
    config.local_addresses = second_unused(self::config()).local_addresses;
    config.local_addresses[0].backup = true;
    let (mut script, mut peer) = client(config);
    for _ in 0..2 {
        let last = burst(&mut script, &mut peer);
        script.advance(ms(3_600_000));
        let asked = since(last, &probes(&mut script, &peer));
        assert!(asked.len() == 3 && asked[2] < 10_000, "{asked:?}");
        peer.acknowledge(&mut script);
    }
}

/// A server that died in mid-download without a segment, and is back a second later: the end of the client's
/// connection, and the time in milliseconds. The client has no data in flight.
fn forgotten(client: ConnectionConfig) -> Option<(u64, CloseReason)> {
    let mut hosts = TwoHosts::new(client, config(), |_| MiddleboxAction::Pass, 1);
    hosts.run_ms(500);
    hosts.write(Side::B, &bytes(50_000, 3));
    hosts.run_ms(500);
    hosts.middlebox = Box::new(|_| MiddleboxAction::Drop);
    let (now, id) = (hosts.pair.now(), hosts.id(Side::B));
    hosts.pair.endpoint(Side::B).abort(now, id);
    hosts.pair.endpoint(Side::B).release(now, id);
    hosts.run_ms(1_000);
    hosts.middlebox = Box::new(|packet| {
        let word = |option| matches!(option, MptcpOption::Fastclose(_));
        if packet.seg.options.mptcp.iter().any(word) {
            // A restarted server has no key.
            packet.strip();
        }
        MiddleboxAction::Pass
    });
    (11..=600).find_map(|tenth| {
        hosts.run_ms(100);
        hosts.ends[0].closed.map(|why| (tenth * 100, why))
    })
}

/// The peer answers a probe with a reset, and the next join by reporting an unknown connection: the application gets
/// the error within ten seconds, on one path and on two.
#[test]
fn a_receiver_detects_a_forgotten_connection_within_ten_seconds() {
    for config in [with_probes(3_600), two_paths(with_probes(3_600))] {
        let (after_ms, why) = forgotten(config).expect("the application was not notified");
        println!("{why} after {after_ms} ms");
        assert!(matches!(why, CloseReason::PeerReset | CloseReason::Refused), "{why}");
        assert!(after_ms <= 10_000, "after {after_ms} ms");
    }
    // Without a probe it would not end: the test can fail.
    assert_eq!(forgotten(ConnectionConfig { receive_probes: None, ..with_probes(3_600) }), None);
}

/// A peer that vanished silently is given up after the time for which a connection is kept.
#[test]
fn a_receiver_gives_up_a_silent_peer_after_linger() {
    let (mut script, mut peer) = client(with_probes(60));
    burst(&mut script, &mut peer);
    let ended = (0..600).find_map(|second| {
        script.advance(ms(1_000));
        two_hosts::closed(&mut script).map(|why| (second, why))
    });
    let (after_s, why) = ended.expect("it waits forever");
    assert_eq!(why, CloseReason::TimedOut);
    assert!((60..=100).contains(&after_s), "after {after_s} s");
}

/// A server sends no probes: its clients' radios may sleep.
#[test]
fn a_server_does_not_send_receive_probes() {
    let mut endpoint = listening();
    if let Some(accept) = &mut endpoint.accept {
        accept.receive_probes = Some(ReceiveProbes::default());
    }
    let (mut script, mut peer, _) = served(endpoint, 1);
    burst(&mut script, &mut peer);
    script.advance(ms(600_000));
    assert_eq!(probes(&mut script, &peer), []);
}
