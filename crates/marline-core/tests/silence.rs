//! A client that notices a dead path by its silence, without any help of the peer: the receive timer's
//! probes, and the keepalives of a lone subflow.

mod two_hosts;

use std::time::Duration;

use marline_core::{
    ConnectionConfig, EndpointConfig, Event, LoneKeepalive, MonitorKind, ReceiveTimer,
};
use marline_policy::{SilenceCause, SubflowId};
use marline_testkit::scene::calling;
use marline_testkit::{Peer, Script, Seg, config, endpoint_config};
use marline_time::Instant;
use two_hosts::{bytes, second_unused};

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
    peer.hear_all(&mut script);
    script.take_events();
    (script, peer)
}

/// When the path manager heard of silence, and why.
fn silences(script: &mut Script) -> Vec<(Instant, SubflowId, SilenceCause)> {
    let told = script.take_events().into_iter().filter_map(|event| match event {
        Event::Monitor(event) => match event.kind {
            MonitorKind::SubflowSilent { id, cause } => Some((event.at, id, cause)),
            _ => None,
        },
        _ => None,
    });
    told.collect()
}

/// When probes went out: empty segments one before what is next, which every TCP answers.
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
    peer.hear_all(script);
    script.now() - ms(61)
}

fn since(start: Instant, times: &[Instant]) -> Vec<u64> {
    times.iter().map(|at| at.since(start).as_millis() as u64).collect()
}

/// 1.5 s of silence are worth a question to a peer that does not tell when it is done; one round trip
/// (10 ms, and four times half of it) is worth waiting for the answer, 50 ms at least.
#[test]
fn a_stock_peers_silence_is_questioned_and_three_times_no_answer_is_one() {
    let (mut script, mut peer) = client(with_timer(ReceiveTimer::probing()));
    let last = burst(&mut script, &mut peer);
    script.advance(ms(60_000));
    let sent = probes(&mut script, &peer);
    assert_eq!(since(last, &sent), [1_500, 1_550, 1_600]);
    let silent = silences(&mut script);
    let cause = SilenceCause::UnansweredProbes;
    assert_eq!(silent, [(last + ms(1_650), FIRST, cause)]);
    let counters = script.endpoint.counters();
    assert_eq!((counters.receive_timer_probes, counters.receive_timer_expired), (3, 1));
}

#[test]
fn an_answer_settles_it_until_data_comes_again() {
    let (mut script, mut peer) = client(with_timer(ReceiveTimer::probing()));
    for _ in 0..3 {
        let last = burst(&mut script, &mut peer);
        script.advance(ms(1_470));
        assert_eq!(since(last, &probes(&mut script, &peer)), [1_500]);
        peer.acknowledge(&mut script);
        script.advance(ms(60_000));
        assert_eq!(probes(&mut script, &peer), [], "an idle line stays idle");
    }
    assert_eq!(silences(&mut script), []);
}

/// The seed's own parameters judge by silence alone: without MP_IDLE that would condemn every pause.
#[test]
fn without_probes_a_stock_peer_is_never_judged() {
    let (mut script, mut peer) = client(with_timer(ReceiveTimer::multimob()));
    burst(&mut script, &mut peer);
    script.advance(ms(60_000));
    assert_eq!(probes(&mut script, &peer), []);
    assert_eq!(silences(&mut script), []);
}

#[test]
fn who_has_no_other_path_does_not_ask() {
    let timer = with_timer(ReceiveTimer::probing());
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
fn a_window_that_we_shut_ourselves_is_no_silence() {
    let config = ConnectionConfig {
        receive_buffer: 14_000,
        buffer_tuning: marline_core::BufferTuning::Fixed,
        ..with_timer(ReceiveTimer::probing())
    };
    let (mut script, mut peer) = client(config);
    burst(&mut script, &mut peer);
    script.advance(ms(20_000));
    assert_eq!(probes(&mut script, &peer), [], "the application reads nothing");
    let id = script.endpoint.connections()[0];
    script.read_all(id);
    peer.hear_all(&mut script);
    script.advance(ms(4_000));
    assert_eq!(probes(&mut script, &peer).len(), 3, "the window is open, and nothing comes");
    assert_eq!(silences(&mut script).len(), 1);
}

#[test]
fn the_end_of_the_stream_ends_the_wait() {
    let (mut script, mut peer) = client(with_timer(ReceiveTimer::probing()));
    burst(&mut script, &mut peer);
    let fin = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 0, 1).data_fin();
    peer.send(&mut script, fin);
    peer.hear_all(&mut script);
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
    assert_eq!(silent, [(sent[1] + ms(1_000), FIRST, SilenceCause::UnansweredKeepalives)]);
    // Nobody opened anything: the next verdict needs another silence as long.
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

/// A cellular radio would never sleep, and there is nothing better to go to.
#[test]
fn a_path_that_is_the_reserve_is_not_kept_awake() {
    let mut config = with_keepalive();
    config.local_addresses[0].backup = true;
    let (mut script, mut peer) = client(config);
    script.advance(ms(3_600_000));
    assert_eq!(peer.hear_all(&mut script).len(), 0);
}
