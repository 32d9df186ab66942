use std::sync::Arc;

use marline_time::{Duration, Rate};

use super::*;
use crate::{DelayConfig, Faults, Jitter, LossConfig, OutageConfig, RateConfig, Reorder, Steps};

const MS: fn(u64) -> Instant = Instant::from_millis;
const DUR: fn(u64) -> Duration = Duration::from_millis;

fn link(config: LinkConfig) -> Link<Vec<u8>> {
    Link::new(config, &SeedTree::new(1), Instant::ZERO)
}

/// 12 Mbit/s: a packet of 1500 bytes a millisecond.
fn twelve_mbit(delay: Duration, queue: QueueLimit) -> LinkConfig {
    LinkConfig {
        rate: RateConfig::Constant(Rate::from_mbit(12)),
        queue,
        delay: DelayConfig { base: delay, ..DelayConfig::default() },
        ..LinkConfig::default()
    }
}

fn packet(mark: u8) -> Vec<u8> {
    let mut bytes = vec![0; 1500];
    bytes[0] = mark;
    bytes
}

/// Runs until no events are left and returns (arrival, mark).
fn drain(link: &mut Link<Vec<u8>>) -> Vec<(Instant, u8)> {
    let mut arrived = Vec::new();
    while let Some(now) = link.next_event() {
        while let Some(packet) = link.poll(now) {
            arrived.push((now, packet[0]));
        }
    }
    arrived
}

#[test]
fn rate_and_delay_add_up_and_order_is_kept() {
    let mut link = link(twelve_mbit(DUR(10), QueueLimit::Bytes(100_000)));
    for mark in 0..3 {
        link.offer(MS(0), packet(mark));
    }
    assert_eq!(drain(&mut link), [(MS(11), 0), (MS(12), 1), (MS(13), 2)]);
    assert_eq!(link.stats().queue_max_bytes, 4500);
    assert_eq!(link.stats().delivered_bytes, 4500);
}

#[test]
fn a_late_driver_gets_the_same_packets() {
    let mut link = link(twelve_mbit(DUR(10), QueueLimit::Bytes(100_000)));
    link.offer(MS(0), packet(0));
    link.offer(MS(5), packet(1));
    assert_eq!(link.poll(MS(500)).map(|p| p[0]), Some(0));
    assert_eq!(link.poll(MS(500)).map(|p| p[0]), Some(1));
    assert_eq!(link.poll(MS(500)), None);
}

#[test]
fn the_tail_is_dropped_in_bytes_and_in_time() {
    for queue in [QueueLimit::Bytes(4500), QueueLimit::Time(DUR(3))] {
        let mut link = link(twelve_mbit(DUR(0), queue));
        for mark in 0..5 {
            link.offer(MS(0), packet(mark));
        }
        assert_eq!(link.stats().dropped_queue, 2);
        assert_eq!(drain(&mut link).iter().map(|a| a.1).collect::<Vec<_>>(), [0, 1, 2]);
        let mut kept = 0;
        while link.take_dropped().is_some() {
            kept += 1;
        }
        assert_eq!(kept, 2);
    }
}

#[test]
fn a_down_link_drops_queued_packets_but_not_arrived_ones() {
    let mut config = twelve_mbit(DUR(5), QueueLimit::Bytes(100_000));
    config.outage = OutageConfig { intervals: vec![(DUR(8), DUR(20))], ..Default::default() };
    let mut link = link(config);
    for mark in 0..10 {
        link.offer(MS(0), packet(mark));
    }
    link.offer(MS(15), packet(90));
    link.offer(MS(20), packet(91));
    // Arrived by 8 ms: those sent by 3 ms.
    let marks: Vec<u8> = drain(&mut link).iter().map(|a| a.1).collect();
    assert_eq!(marks, [0, 1, 2, 91]);
    assert_eq!(link.stats().dropped_outage, 8);
}

#[test]
fn a_suspended_link_keeps_queue_and_flight() {
    let mut config = twelve_mbit(DUR(5), QueueLimit::Bytes(100_000));
    config.outage.mode = OutageMode::Suspend;
    let mut link = link(config);
    for mark in 0..3 {
        link.offer(MS(0), packet(mark));
    }
    link.set_up(MS(1) + Duration::from_micros(500), false);
    assert!(!link.is_up());
    assert_eq!(link.next_event(), None);
    assert_eq!(link.poll(MS(100)), None);
    link.set_up(MS(101) + Duration::from_micros(500), true);
    assert_eq!(drain(&mut link), [(MS(106), 0), (MS(107), 1), (MS(108), 2)]);
    assert_eq!(link.stats().dropped(), 0);
}

#[test]
fn commands_and_schedule_must_both_allow_traffic() {
    let mut config = twelve_mbit(DUR(0), QueueLimit::Bytes(100_000));
    config.outage.intervals = vec![(DUR(10), DUR(20))];
    let mut link = link(config);
    link.set_up(MS(5), false);
    link.offer(MS(6), packet(1));
    link.set_up(MS(15), true);
    link.offer(MS(16), packet(2));
    link.offer(MS(21), packet(3));
    assert_eq!(drain(&mut link), [(MS(22), 3)]);
}

#[test]
fn a_changed_rate_applies_to_the_rest_of_the_packet_being_sent() {
    let mut link = link(twelve_mbit(DUR(0), QueueLimit::Bytes(100_000)));
    link.offer(MS(0), packet(0));
    link.offer(MS(0), packet(1));
    let mut config = link.config().clone();
    config.rate = RateConfig::Constant(Rate::from_mbit(6));
    link.set_config(Instant::from_micros(500), config);
    assert_eq!(
        drain(&mut link),
        [(Instant::from_micros(1_500), 0), (Instant::from_micros(3_500), 1)]
    );
}

#[test]
fn a_stopped_rate_resumes_with_the_next_step() {
    let points = vec![(DUR(0), Rate::ZERO), (DUR(50), Rate::from_mbit(12))];
    let mut config = twelve_mbit(DUR(0), QueueLimit::Bytes(100_000));
    config.rate = RateConfig::Steps(Arc::new(Steps::new(points, None).unwrap()));
    let mut link = link(config);
    link.offer(MS(1), packet(7));
    assert_eq!(drain(&mut link), [(MS(51), 7)]);
}

#[test]
fn jitter_keeps_the_order_unless_overtaking_is_allowed() {
    for overtaking in [false, true] {
        let mut config = twelve_mbit(DUR(30), QueueLimit::Bytes(1 << 20));
        config.delay.jitter = Jitter::Uniform(DUR(20));
        config.delay.overtaking = overtaking;
        let mut link = link(config);
        for mark in 0..100 {
            link.offer(MS(0), packet(mark));
        }
        let arrived = drain(&mut link);
        assert_eq!(arrived.len(), 100);
        assert!(arrived.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        let in_order = arrived.windows(2).all(|pair| pair[0].1 < pair[1].1);
        assert_eq!(in_order, !overtaking);
    }
}

#[test]
fn faults_hit_at_their_rates() {
    let faults = Faults {
        reorder: Some(Reorder { probability: 0.05, extra: DUR(3) }),
        duplicate: 0.03,
        corrupt: 0.02,
        ..Faults::default()
    };
    let mut link = link(LinkConfig { faults, ..twelve_mbit(DUR(1), QueueLimit::Bytes(1 << 20)) });
    let (mut damaged, mut late, mut last) = (0, 0, 0u64);
    for number in 0..10_000u64 {
        let now = MS(number);
        let mut bytes = vec![0; 1500];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        link.offer(now, bytes);
        while let Some(packet) = link.poll(now) {
            damaged += u64::from(packet[8..].iter().any(|b| *b != 0));
            let got = u64::from_be_bytes(packet[..8].try_into().unwrap());
            late += u64::from(got < last);
            last = last.max(got.min(number));
        }
    }
    let stats = link.stats();
    assert!((250..350).contains(&stats.duplicated), "{stats:?}");
    assert!((150..260).contains(&stats.corrupted), "{stats:?}");
    assert!((420..600).contains(&stats.reordered), "{stats:?}");
    assert!(damaged > 120 && late > 350, "{damaged} {late}");
    assert_eq!(
        stats.delivered_packets,
        10_000 + stats.duplicated - link.flight.len() as u64 - link.queue.len() as u64
    );
}

#[test]
fn one_seed_is_one_run_and_stages_do_not_disturb_each_other() {
    let run = |jitter: Jitter, seed: u64| {
        let mut config = twelve_mbit(DUR(5), QueueLimit::Bytes(1 << 20));
        config.loss = LossConfig { random: 0.1, ..LossConfig::default() };
        config.delay.jitter = jitter;
        let mut link = Link::new(config, &SeedTree::new(seed), Instant::ZERO);
        for mark in 0..200 {
            link.offer(MS(0), packet(mark));
        }
        drain(&mut link)
    };
    let marks = |run: Vec<(Instant, u8)>| run.into_iter().map(|a| a.1).collect::<Vec<_>>();
    assert_eq!(run(Jitter::Normal(DUR(2)), 1), run(Jitter::Normal(DUR(2)), 1));
    assert_eq!(marks(run(Jitter::Normal(DUR(2)), 1)), marks(run(Jitter::None, 1)));
    assert_ne!(marks(run(Jitter::None, 1)), marks(run(Jitter::None, 2)));
}

#[test]
fn random_flaps_follow_their_means() {
    let mut config = twelve_mbit(DUR(0), QueueLimit::Bytes(1 << 20));
    config.outage.flap = Some((DUR(900), DUR(100)));
    let mut link = link(config);
    let mut down = 0;
    for now in 0..200_000 {
        link.poll(MS(now));
        down += u64::from(!link.is_up());
    }
    assert!((15_000..25_000).contains(&down), "{down}");
}

#[test]
fn oversized_packets_are_dropped_and_their_sender_notified() {
    let mut config = twelve_mbit(DUR(10), QueueLimit::Bytes(100_000));
    config.mtu = Some(Mtu { bytes: 1_280, silent: false });
    let mut told = Link::new(config.clone(), &SeedTree::new(1), Instant::ZERO);
    config.mtu = Some(Mtu { bytes: 1_280, silent: true });
    let mut hole = Link::new(config, &SeedTree::new(1), Instant::ZERO);
    let notices = [&mut told, &mut hole].map(|link| {
        for bytes in [1_280, 1_281, 576] {
            link.offer(MS(0), Ip(vec![bytes as u8; bytes]));
        }
        assert_eq!((link.stats().dropped_mtu, link.stats().dropped()), (1, 1));
        assert_eq!(link.queued_bytes(), 1_280 + 576);
        core::iter::from_fn(|| link.take_answer()).map(|notice| notice.0.len()).collect::<Vec<_>>()
    });
    assert_eq!(notices, [vec![1_280 + 1], vec![]]);
}

/// A packet whose notice has one byte more than the MTU.
#[derive(Clone, Debug)]
struct Ip(Vec<u8>);

impl Packet for Ip {
    fn wire_len(&self) -> usize {
        self.0.len()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn too_big(&self, mtu_bytes: u32) -> Option<Self> {
        Some(Ip(vec![0; mtu_bytes as usize + 1]))
    }
}
