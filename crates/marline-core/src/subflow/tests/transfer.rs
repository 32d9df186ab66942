use marline_time::{Duration, Rate};
use marline_wire::{SeqNum, TcpFlags};

use super::pair::{Pair, WireEffect, config};
use crate::subflow::SubflowEvent;

const MS: fn(u64) -> Duration = Duration::from_millis;

#[test]
fn both_directions_at_once_without_loss() {
    let mut pair = Pair::established(config());
    pair.client.written = 3_000_000;
    pair.server().written = 2_000_000;
    pair.run_for(Duration::from_secs(3));
    assert_eq!((pair.server().received, pair.client.received), (3_000_000, 2_000_000));
    assert_eq!(pair.client.reductions() + pair.server().reductions(), 0);
    let info = pair.client.tcp.info(marline_policy::SubflowId(0), false);
    assert_eq!((info.bytes_sent, info.bytes_retransmitted, info.in_flight), (3_000_000, 0, 0));
    assert_eq!(info.bytes_received, 2_000_000);
    assert_eq!((info.rtos, info.probes), (0, 0));
}

#[test]
fn the_first_window_goes_immediately_and_later_data_is_paced() {
    let mut pair = Pair::established(config());
    pair.logging = true;
    let start = pair.now;
    pair.client.written = 200_000;
    pair.run_for(MS(70));
    let data: Vec<u64> = pair
        .log
        .iter()
        .filter(|(_, packet)| packet.to == 1 && !packet.payload.is_empty())
        .map(|(at, _)| at.since(start).as_micros() as u64)
        .collect();
    assert_eq!(data.iter().filter(|at| **at < 1_000).count(), 10, "{data:?}");
    // the second round trip: twenty segments, no more than five in any millisecond
    let second: Vec<u64> =
        data.iter().copied().filter(|at| (19_000..39_900).contains(at)).collect();
    assert!(second.len() >= 18, "{data:?}");
    for pair in second.windows(6) {
        assert!(pair[5] - pair[0] >= 1_000, "{second:?}");
    }
}

#[test]
fn the_window_grows_only_while_it_limits() {
    let mut pair = Pair::established(config());
    for _ in 0..200 {
        pair.client.written += 1_000;
        pair.run_for(MS(25));
    }
    assert_eq!(pair.client.tcp.cwnd(), 10 * u64::from(pair.client.tcp.mss()));
}

#[test]
fn idleness_is_signaled() {
    let mut pair = Pair::established(config());
    pair.client.written = 1_000;
    pair.run_for(Duration::from_secs(5));
    pair.client.written += 1_000;
    pair.run_for(MS(50));
    assert_eq!(pair.client.signals(), [marline_policy::CongestionSignal::Idle]);
}

#[test]
fn the_sequence_space_wraps_in_both_directions() {
    let mut pair = Pair::with_isns(config(), SeqNum(u32::MAX - 50_000), SeqNum(u32::MAX - 3));
    let mut n = 0_u32;
    pair.set_filter(move |_, _| {
        n += 1;
        if n.is_multiple_of(41) { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.client.written = 400_000;
    pair.run_for(MS(50));
    pair.server().written = 300_000;
    pair.run_for(Duration::from_secs(60));
    assert_eq!((pair.server().received, pair.client.received), (400_000, 300_000));
}

/// More than 4 GiB is too much to send here: the positions are moved instead.
#[test]
fn positions_beyond_four_gibibytes() {
    let mut pair = Pair::established(config());
    pair.client.written = 100_000;
    pair.run_for(Duration::from_secs(1));
    let jump = 3 * (1_u64 << 32) - 100_000 - 20_000;
    pair.client.tcp.skip(jump, 0);
    pair.server().tcp.skip(0, jump);
    pair.client.pushed += jump;
    pair.client.written += jump + 100_000;
    pair.server().received += jump;
    let mut n = 0_u32;
    pair.set_filter(move |_, _| {
        n += 1;
        if n.is_multiple_of(29) { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.run_for(Duration::from_secs(20));
    assert_eq!(pair.server().received, 3 * (1_u64 << 32) + 80_000);
}

#[test]
fn a_message_is_pushed_and_acknowledged_immediately() {
    let mut pair = Pair::established(config());
    pair.logging = true;
    for _ in 0..40 {
        pair.client.written += 200;
        let start = pair.now;
        pair.log.clear();
        pair.run_for(MS(100));
        assert_eq!(pair.log.len(), 2, "{:?}", pair.log);
        assert!(pair.log[0].1.has(TcpFlags::PSH));
        assert_eq!(pair.log[1].0, start + MS(10));
    }
    assert!(!pair.client.saw(SubflowEvent::ProbeTimeout));
}

#[test]
fn a_dialogue_saves_its_acks() {
    let mut pair = Pair::established(config());
    for _ in 0..40 {
        pair.client.written += 200;
        pair.run_for(MS(10));
        pair.server().written += 200;
        pair.run_for(MS(10) + Duration::from_micros(500));
    }
    assert_eq!((pair.client.received, pair.server().received), (8_000, 8_000));
    let sent = pair.sent;
    // three rounds to see the dialogue, then one segment each way
    assert!(sent[0] < 60 && sent[1] < 60, "{sent:?}");
}

#[test]
fn the_rate_sampler_finds_the_bottleneck() {
    // 20 Mbit/s: a packet is sent at least 580 us after the previous one.
    let mut pair = Pair::established(config());
    let mut free_at = pair.now;
    pair.set_filter(move |now, packet| {
        if packet.to == 0 {
            return WireEffect::Pass;
        }
        free_at = free_at.max(now) + Rate::from_mbit(20).time_for(packet.size() as u64);
        WireEffect::Late(free_at.since(now))
    });
    pair.client.written = 4_000_000;
    pair.run_for(Duration::from_secs(1));
    let view = pair.client.tcp.info(marline_policy::SubflowId(0), false);
    let rate = view.delivery_rate.unwrap().bits_per_s();
    assert!((18_500_000..20_000_000).contains(&rate), "{rate}");
}
