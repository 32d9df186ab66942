use marline_policy::CongestionSignal;
use marline_time::{Duration, Instant};
use marline_wire::TcpFlags;

use super::pair::{Packet, Pair, WireEffect, config};
use crate::subflow::{SubflowConfig, SubflowEvent};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Drops the first transmission of the data segments with these numbers.
fn drop_data(numbers: &'static [u64]) -> impl FnMut(Instant, &Packet) -> WireEffect {
    let mut seen = 0;
    let mut highest = 0;
    move |_, packet: &Packet| {
        if packet.to == 0 || packet.payload.is_empty() || packet.ssn <= highest {
            return WireEffect::Pass;
        }
        highest = packet.ssn;
        seen += 1;
        if numbers.contains(&(seen - 1)) { WireEffect::Drop } else { WireEffect::Pass }
    }
}

fn transfer(numbers: &'static [u64], bytes: u64) -> Pair {
    let mut pair = Pair::established(config());
    pair.set_filter(drop_data(numbers));
    pair.logging = true;
    pair.client.written = bytes;
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.server().received, bytes);
    pair
}

fn retransmissions(pair: &Pair) -> usize {
    let data: Vec<u64> = pair
        .log
        .iter()
        .filter(|(_, packet)| packet.to == 1 && !packet.payload.is_empty())
        .map(|(_, packet)| packet.ssn)
        .collect();
    let mut unique = data.clone();
    unique.sort_unstable();
    unique.dedup();
    data.len() - unique.len()
}

#[test]
fn one_loss_costs_one_reduction_and_one_segment() {
    for lost in [&[0], &[5], &[60]] {
        let pair = transfer(lost, 200_000);
        assert_eq!(retransmissions(&pair), 1, "{lost:?}");
        assert_eq!(pair.client.reductions(), 1, "{lost:?}");
        assert_eq!(pair.client.signals().last(), Some(&CongestionSignal::RecoveryDone));
        let info = pair.client.tcp.info(marline_policy::SubflowId(0), false);
        assert_eq!((info.rtos, info.probes), (0, 0), "{lost:?}");
    }
}

#[test]
fn a_burst_of_losses_is_one_episode() {
    let pair = transfer(&[20, 21, 22, 25, 28], 200_000);
    assert_eq!(retransmissions(&pair), 5);
    assert_eq!(pair.client.reductions(), 1);
}

#[test]
fn the_last_segment_is_repaired_by_a_probe_not_a_timeout() {
    let pair = transfer(&[9], 10 * 1_400);
    let last = pair.log.iter().rfind(|(_, p)| p.to == 1 && !p.payload.is_empty());
    let first = pair.log[0].0;
    assert!(last.unwrap().0.since(first) < MS(120), "{:?}", last.map(|(at, _)| at));
    assert!(pair.client.saw(SubflowEvent::ProbeTimeout));
    assert!(pair.client.has_silence_ended());
    let info = pair.client.tcp.info(marline_policy::SubflowId(0), false);
    assert_eq!((info.rtos, info.probes), (0, 1));
}

#[test]
fn a_probe_takes_new_data_if_there_is_any() {
    let mut pair = Pair::established(config());
    pair.client.written = 1_000;
    pair.set_filter(drop_data(&[0]));
    pair.transmit();
    pair.logging = true;
    // The application writes while the window is closed for all segments but a probe.
    pair.client.answer_probes_with_data = true;
    let timeout = pair.client.tcp.next_timeout().unwrap();
    pair.now = timeout;
    pair.client.tcp.on_timeout(timeout);
    assert!(pair.client.tcp.wants_new_data_probe() && !pair.client.tcp.health().is_unreachable());
    pair.client.written = 2_000;
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.log[0].1.ssn, 1_001);
    assert_eq!(pair.server().received, 2_000);
}

#[test]
fn a_dead_path_backs_off_and_ends() {
    let mut pair = Pair::established(config());
    pair.client.answer_probes_with_data = false;
    pair.set_filter(|_, packet| if packet.to == 1 { WireEffect::Drop } else { WireEffect::Pass });
    pair.logging = true;
    pair.client.written = 20_000;
    pair.run_for(Duration::from_secs(600));
    assert!(pair.client.saw(SubflowEvent::Dead));
    let counts: Vec<u32> = pair
        .client
        .events
        .iter()
        .filter_map(
            |event| if let SubflowEvent::Rto { count } = event { Some(*count) } else { None },
        )
        .collect();
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8]);
    let times: Vec<u64> = pair.log.iter().map(|(at, _)| at.as_millis()).collect();
    let gaps: Vec<u64> = times.windows(2).map(|w| w[1] - w[0]).filter(|gap| *gap > 150).collect();
    for gap in gaps.windows(2).skip(1) {
        assert!((2 * gap[0]).abs_diff(gap[1]) <= 4, "{gaps:?}");
    }
    assert_eq!(pair.client.tcp.unacked().count(), 10, "the connection still finds what was sent");
    assert_eq!(pair.client.tcp.next_timeout(), None);
    pair.client.tcp.reset();
    pair.transmit();
    assert!(pair.log.last().unwrap().1.has(TcpFlags::RST));
}

/// At the edge of a WiFi cell, a radio can still receive, but its own packets no longer arrive.
#[test]
fn a_segment_from_the_peer_shortens_the_backoff() {
    let mut pair = Pair::established(config());
    pair.client.answer_probes_with_data = false;
    let start = pair.now;
    pair.set_filter(move |now, packet| {
        let out = now.since(start) < MS(5_000) && packet.to == 1;
        if out { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.logging = true;
    pair.client.written = 1_000;
    // The server sends data every 300 ms.
    for _ in 0..30 {
        pair.server().written += 100;
        pair.run_for(MS(300));
    }
    assert_eq!((pair.server().received, pair.client.received), (1_000, 3_000));
    let sent: Vec<u64> = pair
        .log
        .iter()
        .filter(|(_, p)| p.to == 1 && !p.payload.is_empty())
        .map(|(at, _)| at.since(start).as_millis() as u64)
        .collect();
    // With doubling, the last of them would be at 3.2 s and the next at 6.4 s.
    let arrived = sent.iter().find(|at| **at >= 5_000).copied().unwrap();
    assert!(arrived < 5_700, "{sent:?}");
    // The retransmissions are not faster than the intervals of probe and timer: 80 and 220 ms.
    assert!(sent.len() < 40 && sent.windows(2).all(|w| w[1] - w[0] >= 80), "{sent:?}");
    assert!(!pair.client.saw(SubflowEvent::Dead));
}

/// Both directions are dead until the third retransmission was sent, which is also lost. Then the peer sends a
/// segment.
#[test]
fn a_segment_from_the_peer_triggers_the_repeat_after_an_outage_of_both_directions() {
    let mut pair = Pair::established(config());
    pair.client.answer_probes_with_data = false;
    let mut lost = 0;
    pair.set_filter(move |_, packet| {
        let dead = lost < 5;
        lost += usize::from(dead && packet.to == 1 && !packet.payload.is_empty());
        if dead { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.logging = true;
    pair.client.written = 1_000;
    let sent = |pair: &Pair| -> Vec<Instant> {
        let data = pair.log.iter().filter(|(_, p)| p.to == 1 && !p.payload.is_empty());
        data.map(|(at, _)| *at).collect()
    };
    while sent(&pair).len() < 5 {
        pair.run_for(MS(1));
    }
    assert!(pair.client.tcp.health.is_unreachable());
    pair.server().written = 100;
    pair.run_for(Duration::from_secs(1));
    assert_eq!((pair.server().received, pair.client.received), (1_000, 100));
    let sent = sent(&pair);
    let round_trip = pair.client.tcp.srtt().unwrap();
    assert!(sent[5].since(sent[4]) <= round_trip, "{sent:?}, {round_trip:?}");
}

#[test]
fn after_an_outage_everything_is_repaired() {
    let mut pair = Pair::established(config());
    let start = pair.now;
    pair.set_filter(move |now, _| {
        let age = now.since(start);
        if age > MS(100) && age < MS(1_500) { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.client.written = 3_000_000;
    pair.run_for(Duration::from_secs(10));
    assert_eq!(pair.server().received, 3_000_000);
    let info = pair.client.tcp.info(marline_policy::SubflowId(0), false);
    assert!(info.rtos >= 2 && info.health.is_usable());
    assert!(pair.client.has_silence_ended());
    // Part of the flight had arrived and only its ACKs were lost: the timeout is undone, and the real losses are a
    // separate episode.
    assert!(matches!(
        pair.client.signals()[..],
        [.., CongestionSignal::Loss { .. }, CongestionSignal::RecoveryDone]
    ));
}

/// All packets of a time span are held and arrive late: the timeout was spurious.
fn delay_spike(config: SubflowConfig) -> Pair {
    let mut pair = Pair::established(config);
    let start = pair.now;
    pair.set_filter(move |now, packet| {
        let age = now.since(start);
        if packet.to == 1 && age > MS(60) && age < MS(500) {
            return WireEffect::Late(MS(500) - age);
        }
        WireEffect::Pass
    });
    pair.client.written = 2_000_000;
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.server().received, 2_000_000);
    pair
}

#[test]
fn a_spurious_timeout_is_taken_back_by_timestamps() {
    let pair = delay_spike(config());
    let signals = pair.client.signals();
    assert!(signals.iter().any(|s| matches!(s, CongestionSignal::Rto { .. })), "{signals:?}");
    assert!(signals.contains(&CongestionSignal::Spurious), "{signals:?}");
}

#[test]
fn a_spurious_timeout_is_taken_back_by_f_rto() {
    let pair = delay_spike(SubflowConfig { timestamps: false, ..config() });
    let signals = pair.client.signals();
    assert!(signals.contains(&CongestionSignal::Spurious), "{signals:?}");
}

#[test]
fn spurious_retransmissions_are_taken_back_by_dsack() {
    // One segment is delayed by a whole round trip and retransmitted, then both copies arrive.
    let mut pair = Pair::established(SubflowConfig { timestamps: false, ..config() });
    let mut done = false;
    pair.set_filter(move |_, packet| {
        if packet.ssn > 30_000 && !done {
            done = true;
            return WireEffect::Late(MS(29));
        }
        WireEffect::Pass
    });
    pair.logging = true;
    pair.client.written = 300_000;
    pair.run_for(Duration::from_secs(3));
    assert_eq!(pair.server().received, 300_000);
    assert_eq!(retransmissions(&pair), 1);
    let signals = pair.client.signals();
    assert!(signals.contains(&CongestionSignal::Spurious), "{signals:?}");
}

#[test]
fn a_lost_ack_does_not_make_the_path_look_slow() {
    let mut pair = Pair::established(config());
    pair.client.written = 100;
    pair.run_for(Duration::from_secs(1));
    let before = pair.client.tcp.srtt().expect("measured");
    // The next message arrives; the first ACK after it is lost, and the retransmission provokes another.
    let mut lost = 0;
    pair.set_filter(move |_, packet| {
        let ack = packet.to == 0 && packet.payload.is_empty();
        lost += u32::from(ack);
        if ack && lost == 1 { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.client.written = 200;
    pair.run_for(Duration::from_secs(3));
    assert_eq!(pair.server().received, 200);
    assert!(pair.client.tcp.snd_una().0 > 200, "acknowledged in the end");
    assert_eq!(pair.client.tcp.srtt(), Some(before));
}

#[test]
fn a_peer_that_takes_back_its_sacks_is_believed_again() {
    let mut pair = Pair::established(config());
    pair.set_filter(drop_data(&[0]));
    pair.client.written = 14_000;
    pair.transmit();
    pair.run_for(MS(22));
    assert!(pair.client.tcp.tx.board.bytes_sacked() > 0);
    // The receiver drops its out-of-order data, and its retransmission gets lost.
    let rx = &mut pair.server().tcp.rx;
    rx.queue = super::super::reorder::ReorderQueue::new(100);
    pair.run_for(Duration::from_secs(3));
    assert_eq!(pair.server().received, 14_000);
}

#[test]
fn without_sack_the_timer_repairs() {
    let mut pair = Pair::new(config());
    pair.set_filter(drop_data(&[3, 4]));
    pair.run_for(MS(5));
    pair.run_for(MS(45));
    pair.client.tcp.tx.sack_enabled = false;
    pair.server().tcp.tx.sack_enabled = false;
    pair.client.written = 100_000;
    pair.run_for(Duration::from_secs(20));
    assert_eq!(pair.server().received, 100_000);
}

#[test]
fn heavy_reordering_and_duplication_deliver_every_byte_once() {
    let mut pair = Pair::established(config());
    let mut n = 0_u64;
    pair.set_filter(move |_, _| {
        n += 1;
        match (n * 7_919) % 11 {
            0 => WireEffect::Twice(MS(n % 13)),
            1 | 2 => WireEffect::Late(MS(n % 17)),
            3 => WireEffect::Drop,
            _ => WireEffect::Pass,
        }
    });
    pair.client.written = 500_000;
    pair.server().written = 500_000;
    pair.run_for(Duration::from_secs(120));
    assert_eq!((pair.server().received, pair.client.received), (500_000, 500_000));
}

#[test]
fn prr_keeps_data_flowing_through_recovery() {
    let pair = transfer(&[40], 400_000);
    let at = |wanted: u64| {
        let found = pair.log.iter().filter(|(_, p)| p.to == 1 && p.ssn == 1 + wanted * 1_400);
        found.map(|(at, _)| *at).collect::<Vec<_>>()
    };
    let repeated = at(40)[1];
    // New data is sent within the round trip after the retransmission.
    let new = pair.log.iter().filter(|(when, p)| {
        p.to == 1 && p.ssn > 40 * 1_400 && *when > repeated && *when < repeated + MS(20)
    });
    assert!(new.count() >= 5);
}
