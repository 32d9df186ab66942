use marline_time::{Duration, Instant, PcgRng, Rng, SeedTree};

use super::*;
use crate::{Direction, LinkConfig, RadioConfig};

const MS: fn(u64) -> Instant = Instant::from_millis;

fn radio(kind: RadioKind) -> Radio {
    Radio::new(RadioParameters::published(kind), Instant::ZERO)
}

/// Asserts equality to the nanojoule.
#[track_caller]
fn joules(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} J, expected {expected}");
}

#[test]
fn a_lone_packet_over_lte_costs_a_promotion_and_a_whole_tail() {
    let mut lte = radio(RadioKind::Lte);
    assert_eq!(lte.packet(MS(1_000), Direction::Up, 100), Instant::from_micros(1_260_100));
    assert_eq!(lte.state(MS(1_200)), RadioState::Promotion);
    assert_eq!(lte.state(MS(1_300)), RadioState::Transfer);
    assert_eq!(lte.state(MS(2_000)), RadioState::Tail(0));
    assert_eq!(lte.state(MS(12_836)), RadioState::Tail(0));
    assert_eq!(lte.state(MS(12_837)), RadioState::Idle);
    let energy = lte.energy(MS(30_000));
    // 260.1 ms at 1210.7 mW; 100 ms at 1288.04 mW and 800 bits of 438.39 nJ; 11.476 s at 1060 mW.
    let parts = [0.260_1 * 1.210_7, 0.1 * 1.288_04 + 800.0 * 438.39e-9, 11.476 * 1.060];
    energy.energy_by_state_j().into_iter().zip(parts).for_each(|(found, part)| joules(found, part));
    joules(energy.traffic_j(), 12.608_617_782);
    // One second before (no cycle of 1.28 s was over) and 17.1639 s after: 13 cycles.
    joules(energy.idle_j(), 13.0 * 0.043_2 * 0.594_3);
    assert_eq!(energy.idle_time, Duration::from_micros(18_163_900));
    assert_eq!((energy.promotions, energy.packets), (1, 1));
}

#[test]
fn a_packet_within_the_tail_is_not_delayed_and_restarts_it() {
    let mut lte = radio(RadioKind::Lte);
    lte.packet(MS(0), Direction::Down, 0);
    assert_eq!(lte.packet(MS(10_000), Direction::Down, 1_000_000), MS(10_000));
    assert_eq!(lte.state(MS(21_000)), RadioState::Tail(0));
    let energy = lte.energy(MS(60_000));
    // Transfer twice 100 ms and 8 Mbit of 51.97 mJ; tail from 0.3601 to 10 s and 11.476 s.
    let [promotion, transfer, tail] = energy.energy_by_state_j();
    joules(promotion, 0.260_1 * 1.210_7);
    joules(transfer, 0.2 * 1.288_04 + 8.0 * 0.051_97);
    joules(tail, (10.0 - 0.360_1 + 11.476) * 1.060);
    assert_eq!(energy.promotions, 1);
}

#[test]
fn three_g_has_two_tails_and_wifi_hardly_any() {
    let mut umts = radio(RadioKind::Umts);
    assert_eq!(umts.packet(MS(0), Direction::Up, 0), Instant::from_micros(582_100));
    assert_eq!(umts.state(MS(8_600)), RadioState::Tail(0));
    assert_eq!(umts.state(MS(9_000)), RadioState::Tail(1));
    assert_eq!(umts.state(MS(9_493)), RadioState::Idle);
    let tail = 7.99 * 0.803_9 + 0.82 * 0.601_3;
    joules(umts.energy(MS(9_493)).energy_by_state_j()[2], tail);
    let mut wifi = radio(RadioKind::Wifi);
    wifi.packet(MS(0), Direction::Down, 125_000);
    let traffic = 0.079_1 * 0.124_4 + 0.1 * 0.132_86 + 0.137_01 + 0.138_1 * 0.119_3;
    joules(wifi.energy(MS(5_000)).traffic_j(), traffic);
    assert!(!RadioParameters::published(RadioKind::Wifi).waits_for_promotion());
}

#[test]
fn an_idle_radio_listens_at_the_end_of_each_cycle() {
    let lte = radio(RadioKind::Lte);
    let drawn = |us| lte.energy(Instant::from_micros(us)).idle_fj;
    assert_eq!(drawn(1_236_800), 0);
    assert_eq!(drawn(1_236_900), 100_000 * 594_300);
    assert_eq!(drawn(1_280_000), 43_200_000 * 594_300);
    assert_eq!(drawn(2_500_000), drawn(1_280_000));
    assert_eq!(drawn(128_000_000), 100 * drawn(1_280_000));
    assert_eq!(lte.energy(MS(9_000)).traffic_j(), 0.0);
}

/// Packets at random times, with gaps from nothing to beyond the tail.
fn packets(rng: &mut PcgRng) -> Vec<(Instant, Direction, u64)> {
    let mut now = Instant::ZERO;
    let mut packet = || {
        let longest = [1, 100, 1_000, 20_000][rng.below(4) as usize];
        now += Duration::from_micros(rng.below(longest * 1_000));
        let direction = if rng.chance(0.5) { Direction::Up } else { Direction::Down };
        (now, direction, rng.below(1_500))
    };
    (0..200).map(|_| packet()).collect()
}

#[test]
fn energy_is_monotonic_additive_and_independent_of_readings() {
    for seed in 0..60 {
        let mut rng = SeedTree::new(seed).stream("packets");
        let kind = RadioKind::ALL[seed as usize % 3];
        let packets = packets(&mut rng);
        let end = packets.last().expect("some").0 + Duration::from_secs(20);
        let mut whole = radio(kind);
        for (at, way, bytes) in &packets {
            whole.packet(*at, *way, *bytes);
        }
        // Another radio is queried repeatedly, and updates its energy each time.
        let (mut looked, mut before) = (radio(kind), Energy::NONE);
        let (mut next, mut now) = (0, Instant::ZERO);
        let mut slices = Energy::NONE;
        while now < end {
            now = (now + Duration::from_nanos(rng.below(3_000_000_000))).min(end);
            while packets.get(next).is_some_and(|packet| packet.0 <= now) {
                let (at, way, bytes) = packets[next];
                looked.packet(at, way, bytes);
                next += 1;
            }
            let energy = looked.energy(now);
            let slice = less(energy, before);
            slices += slice;
            before = energy;
        }
        assert_eq!(whole.energy(end), looked.energy(end), "seed {seed}");
        assert_eq!(whole.energy(end), slices, "seed {seed}");
        let bytes: u64 = packets.iter().map(|packet| packet.2).sum();
        assert!(before.bytes_fj >= u128::from(bytes) * 400_000, "{kind}: bytes cost");
    }
}

/// Energy drawn since `before`; panics if any value decreased.
fn less(now: Energy, before: Energy) -> Energy {
    Energy {
        idle_fj: now.idle_fj.checked_sub(before.idle_fj).expect("idle grows"),
        promotion_fj: now.promotion_fj.checked_sub(before.promotion_fj).expect("grows"),
        transfer_fj: now.transfer_fj.checked_sub(before.transfer_fj).expect("grows"),
        bytes_fj: now.bytes_fj.checked_sub(before.bytes_fj).expect("grows"),
        tail_fj: now.tail_fj.checked_sub(before.tail_fj).expect("grows"),
        promotions: now.promotions - before.promotions,
        packets: now.packets - before.packets,
        idle_time: now.idle_time - before.idle_time,
    }
}

#[test]
fn every_moment_is_paid_for_once() {
    for seed in 0..30 {
        let mut rng = SeedTree::new(seed).stream("packets");
        let packets = packets(&mut rng);
        let kind = RadioKind::ALL[seed as usize % 3];
        // With the same power everywhere and free bytes, energy is that power times the time.
        let mut flat = RadioParameters::published(kind);
        let all = 1_000_000;
        (flat.transfer_power_uw, flat.up_fj_per_byte, flat.down_fj_per_byte) = (all, 0, 0);
        flat.promotion.power_uw = all;
        flat.tails.iter_mut().for_each(|tail| tail.power_uw = all);
        (flat.idle_listen.power_uw, flat.idle_listen.lasts) = (all, flat.idle_cycle);
        let mut radio = Radio::new(flat, Instant::ZERO);
        for (at, way, bytes) in &packets {
            radio.packet(*at, *way, *bytes);
        }
        let end = packets.last().expect("some").0 + Duration::from_secs(30);
        let energy = radio.energy(end);
        joules(energy.traffic_j() + energy.idle_j(), end.as_secs_f64());
    }
}

#[test]
fn time_that_goes_back_is_the_latest_known() {
    let mut lte = radio(RadioKind::Lte);
    lte.packet(MS(5_000), Direction::Up, 10);
    let same = lte.packet(MS(1_000), Direction::Up, 10);
    assert_eq!(same, Instant::from_micros(5_260_100));
    assert_eq!(lte.energy(MS(0)).packets, 2);
    assert_eq!(lte.state(MS(0)), RadioState::Promotion);
}

#[test]
fn each_parameter_swings_the_energy_by_at_most_its_share() {
    let mut run = Sensitivity::new(RadioParameters::published(RadioKind::Lte), Instant::ZERO);
    run.packet(MS(0), Direction::Up, 1_000);
    let (end, nominal) = (MS(40_000), run.nominal().energy(MS(40_000)).traffic_j());
    let swings = run.parameter_swings(end);
    assert_eq!(swings.len(), 8);
    for swing in &swings {
        assert!(swing.low_j <= nominal && nominal <= swing.high_j, "{swing:?}");
        assert!(swing.high_j <= nominal * 1.2 && swing.low_j >= nominal * 0.8, "{swing:?}");
    }
    let of = |name| *swings.iter().find(|swing| swing.parameter == name).expect("a parameter");
    joules(of("tail power").high_j - nominal, 0.2 * 11.476 * 1.060);
    joules(of("tail time").low_j - nominal, -0.2 * 11.576 * 1.060);
    joules(of("promotion time").high_j - nominal, 0.2 * 0.260_1 * 1.210_7);
    joules(of("idle power").high_j, nominal);
    assert_eq!(run.range_j(end).1, of("tail time").high_j);
}

#[test]
fn radio_kinds_are_guessed_from_interface_names() {
    for (name, kind) in [
        ("wlan0", Some(RadioKind::Wifi)),
        ("wlp3s0", Some(RadioKind::Wifi)),
        ("WiFi", Some(RadioKind::Wifi)),
        ("lte", Some(RadioKind::Lte)),
        ("rmnet_data0", Some(RadioKind::Lte)),
        ("wwan0", Some(RadioKind::Lte)),
        ("3g", Some(RadioKind::Umts)),
        ("eth0", None),
        ("starlink", None),
        ("", None),
    ] {
        assert_eq!(RadioKind::guess(name), kind, "{name}");
    }
    for kind in RadioKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
}

// ---- on a link

fn duplex(text: &str) -> (LinkConfig, LinkConfig) {
    let spec: crate::DuplexSpec = text.parse().expect("a link");
    let both = spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no traces");
    (both.up, both.down)
}

fn link(config: LinkConfig) -> crate::Link<Vec<u8>> {
    crate::Link::new(config, &SeedTree::new(1), Instant::ZERO)
}

/// When each of the packets offered so far arrives.
fn arrivals(link: &mut crate::Link<Vec<u8>>) -> Vec<u64> {
    let mut arrived = Vec::new();
    while let Some(now) = link.next_event() {
        while link.poll(now).is_some() {
            arrived.push(now.as_micros());
        }
    }
    arrived
}

#[test]
fn the_packet_that_wakes_the_radio_waits_and_the_answer_does_not() {
    // 1500 bytes take a millisecond.
    let (up, down) = duplex("radio=lte,rate=12M,delay=20ms");
    let (mut up, mut down) = (link(up), link(down));
    down.share_radio(&up);
    up.offer(MS(100), vec![0; 1500]);
    up.offer(MS(200), vec![0; 1500]);
    assert_eq!(arrivals(&mut up), [381_100, 382_100]);
    down.offer(MS(383), vec![0; 1500]);
    assert_eq!(arrivals(&mut down), [404_000]);
    // The last packet left at 383 (the answer: 384 ms): idle 11.576 s later.
    up.offer(MS(11_959), vec![0; 1500]);
    assert_eq!(arrivals(&mut up), [11_980_000]);
    down.offer(MS(23_537), vec![0; 1500]);
    assert_eq!(arrivals(&mut down), [23_537_000 + 260_100 + 21_000]);
    let energy = down.radio().expect("a radio").energy(MS(24_000));
    assert_eq!((energy.promotions, energy.bytes_fj > 0), (2, true));
    assert_eq!(up.radio(), down.radio());
}

#[test]
fn a_meter_counts_and_delays_nothing() {
    let (up, _) = duplex("radio=lte:meter,rate=12M");
    assert!(!up.radio.expect("a radio").waits);
    let mut up = link(up);
    up.offer(MS(100), vec![0; 1500]);
    assert_eq!(arrivals(&mut up), [101_000]);
    let energy = up.radio().expect("a radio").energy(MS(20_000));
    assert_eq!(energy.promotions, 1);
    assert!(energy.traffic_j() > 12.6);
    let (mut slow, _) = duplex("radio=lte:1s,rate=12M");
    assert_eq!(slow.radio.expect("a radio").parameters.promotion.lasts, Duration::from_secs(1));
    let mut again = link(slow.clone());
    again.offer(MS(0), vec![0; 1500]);
    // Settings without a change of the radio leave it awake.
    slow.delay.base = Duration::from_millis(5);
    assert_eq!(arrivals(&mut again), [1_001_000]);
    again.set_config(MS(2_000), slow.clone());
    again.offer(MS(2_000), vec![0; 1500]);
    assert_eq!(arrivals(&mut again), [2_006_000]);
    slow.radio = None;
    again.set_config(MS(60_000), slow);
    again.offer(MS(60_000), vec![0; 1500]);
    assert_eq!(arrivals(&mut again), [60_006_000]);
    assert_eq!(again.radio(), None);
}

#[test]
fn an_outage_during_a_promotion_drops_packets() {
    let (up, _) = duplex("radio=lte,rate=12M");
    let mut up = link(up);
    up.offer(MS(0), vec![0; 1500]);
    up.set_up(MS(100), false);
    up.set_up(MS(200), true);
    up.offer(MS(210), vec![0; 1500]);
    assert_eq!(arrivals(&mut up), [261_100]);
    assert_eq!(up.stats().dropped_outage, 1);
    // Suspended while it wakes: continues with a whole packet.
    let (config, _) = duplex("radio=lte,rate=12M,outage=suspend,down=100ms-300ms");
    let mut held = link(config);
    held.offer(MS(0), vec![0; 1500]);
    assert_eq!(arrivals(&mut held), [301_000]);
}

#[test]
fn radios_of_different_kinds_are_not_shared() {
    let config = |kind, direction| {
        let parameters = RadioParameters::published(kind);
        let radio = Some(RadioConfig { parameters, direction, waits: true });
        LinkConfig { radio, ..LinkConfig::default() }
    };
    let mut up = link(config(RadioKind::Lte, Direction::Up));
    let down = link(config(RadioKind::Umts, Direction::Down));
    up.share_radio(&down);
    assert_eq!(up.radio().expect("a radio").parameters().kind, RadioKind::Lte);
}
