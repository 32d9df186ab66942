//! Tests of path MTU discovery, keepalive and the pacer's timer.

use marline_time::Duration;

use super::doubles::Reno;
use super::pair::{Pair, WireEffect, config};
use crate::Keepalive;
use crate::subflow::{SubflowConfig, SubflowEvent};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn small_base() -> SubflowConfig {
    SubflowConfig { base_segment: 1_232, max_segment: 1_452, ..config() }
}

#[test]
fn the_larger_size_is_found_with_one_probe() {
    let mut pair = Pair::established(small_base());
    assert_eq!(pair.client.tcp.mss(), 1_232 - 52);
    pair.client.written = 300_000;
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.server().received, 300_000);
    assert!(pair.client.saw(SubflowEvent::MtuFound(1_452)));
    assert_eq!(pair.client.tcp.max_segment(), 1_452);
    assert_eq!(pair.client.tcp.mss(), 1_452 - 52);
    assert_eq!(pair.client.reductions(), 0);
}

#[test]
fn a_lost_mtu_probe_is_not_congestion_and_its_bytes_are_resent() {
    let mut pair = Pair::established(small_base());
    pair.set_filter(
        |_, packet| if packet.size() > 1_300 { WireEffect::Drop } else { WireEffect::Pass },
    );
    pair.logging = true;
    pair.client.written = 2_000_000;
    pair.run_for(Duration::from_secs(20));
    assert_eq!(pair.server().received, 2_000_000);
    assert_eq!(pair.client.reductions(), 0, "{:?}", pair.client.signals());
    let found = pair.client.tcp.max_segment();
    assert!((1_300 - 32..=1_300).contains(&found), "{found}");
    let info = pair.client.tcp.info(marline_policy::SubflowId(0), false);
    assert_eq!(info.rtos, 0);
    let oversized = pair.log.iter().filter(|(_, packet)| packet.size() > 1_300).count();
    assert!((2..12).contains(&oversized), "{oversized}");
}

#[test]
fn a_black_hole_falls_back_to_the_base_size() {
    let mut pair = Pair::established(small_base());
    pair.client.written = 300_000;
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.client.tcp.max_segment(), 1_452);
    pair.set_filter(
        |_, packet| if packet.size() > 1_300 { WireEffect::Drop } else { WireEffect::Pass },
    );
    pair.client.written += 300_000;
    pair.run_for(Duration::from_secs(20));
    assert_eq!(pair.server().received, 600_000);
    let found = pair.client.tcp.settled_segment();
    assert!((1_232..=1_300).contains(&found), "{found}");
}

#[test]
fn the_carrier_can_reduce_the_segment_size() {
    let mut pair = Pair::established(config());
    pair.client.written = 100_000;
    pair.run_for(MS(15));
    pair.client.tcp.reduce_segment(1_100);
    pair.logging = true;
    pair.run_for(Duration::from_secs(2));
    assert_eq!(pair.server().received, 100_000);
    assert!(pair.log.iter().all(|(_, packet)| packet.size() <= 1_100));
}

/// The peer's NAT rebinds in the middle of a download: segments sent meanwhile are lost.
#[test]
fn after_a_rebinding_lost_data_is_probed_immediately() {
    for (new_host, silent_ms) in [(false, 15), (true, 15), (false, 3_000), (true, 3_000)] {
        let mut pair = Pair::established(small_base());
        pair.client.written = 4_000_000;
        pair.run_for(MS(60));
        let info = |pair: &Pair| pair.client.tcp.info(marline_policy::SubflowId(0), false);
        pair.set_filter(|_, packet| {
            if !packet.payload.is_empty() { WireEffect::Drop } else { WireEffect::Pass }
        });
        pair.run_for(MS(silent_ms));
        pair.set_filter(|_, _| WireEffect::Pass);
        pair.logging = true;
        let (now, before) = (pair.now, info(&pair));
        if new_host {
            pair.client.tcp.reset_path_measurements(now, &Reno::default());
            assert_eq!(pair.client.tcp.settled_segment(), 1_232);
            assert_eq!(pair.client.tcp.cwnd(), 10 * u64::from(pair.client.tcp.mss()));
            assert_eq!((info(&pair).srtt, pair.client.tcp.rto()), (None, Duration::from_secs(1)));
        }
        pair.client.tcp.retry_after_move(now);
        pair.transmit();
        pair.run_for(MS(1));
        assert!(
            pair.log.iter().any(|(_, packet)| !packet.payload.is_empty()),
            "{new_host} {silent_ms} {}",
            info(&pair).cwnd
        );
        if !new_host && silent_ms < 100 {
            assert_eq!(
                info(&pair).cwnd,
                before.cwnd,
                "the path did not change, so measurements remain valid"
            );
        }
        pair.run_for(Duration::from_secs(20));
        assert_eq!(pair.server().received, 4_000_000);
    }
}

#[test]
fn the_peers_mss_binds() {
    let mut pair = Pair::new(config());
    pair.config.max_segment = 800;
    pair.config.base_segment = 800;
    pair.logging = true;
    pair.client.written = 20_000;
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.server().received, 20_000);
    assert!(pair.log.iter().all(|(_, packet)| packet.size() <= 800));
}

#[test]
fn keepalives_keep_a_living_peer_and_end_a_dead_one() {
    let seconds = Duration::from_secs;
    let times = Keepalive { idle: seconds(20), interval: seconds(20), probes: 8 };
    let keepalive = Some(times);
    let mut pair = Pair::established(SubflowConfig { keepalive, ..config() });
    pair.run_for(Duration::from_secs(3_600));
    assert!(pair.client.tcp.is_established() && !pair.client.tcp.health().is_unreachable());
    assert!((100..400).contains(&pair.sent[0]), "{:?}", pair.sent);
    pair.set_filter(|_, _| WireEffect::Drop);
    pair.run_for(Duration::from_secs(3_600));
    assert!(pair.client.saw(SubflowEvent::Dead));
    assert!(pair.server().saw(SubflowEvent::Dead));
}

#[test]
fn an_idle_subflow_wants_no_timer() {
    let mut pair = Pair::established(config());
    pair.client.written = 100_000;
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.client.tcp.next_timeout(), None);
    assert_eq!(pair.server().tcp.next_timeout(), None);
}
