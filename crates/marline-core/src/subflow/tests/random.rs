//! Randomized tests: regardless of temporary faults of the wire, every byte arrives once and in order, both ends
//! close, and no timer is left armed.

use marline_time::Duration;
use marline_wire::SeqNum;
use proptest::prelude::*;

use super::pair::{Pair, WireEffect, config};
use crate::SubflowState;
use crate::subflow::{SubflowConfig, SubflowEvent, SynRetries};

const MS: fn(u64) -> Duration = Duration::from_millis;

#[derive(Clone, Debug)]
struct Faults {
    seed: u64,
    /// Per thousand packets.
    drop: u64,
    late: u64,
    twice: u64,
    mark: u64,
    late_by_ms: u64,
    /// Interval in which no packet from this end passes.
    outage_ms: (u64, u64),
    last_ms: u64,
}

#[derive(Clone, Debug)]
struct RunParameters {
    faults: Faults,
    config: SubflowConfig,
    isns: (u32, u32),
    bytes: (u64, u64),
    delay_us: u64,
    largest: usize,
}

fn faults() -> impl Strategy<Value = Faults> {
    (
        any::<u64>(),
        0..200_u64,
        0..300_u64,
        0..100_u64,
        0..50_u64,
        0..80_u64,
        (0..2_000_u64, 0..1_500_u64),
        0..20_000_u64,
    )
        .prop_map(|(seed, drop, late, twice, mark, late_by_ms, outage_ms, last_ms)| Faults {
            seed,
            drop,
            late,
            twice,
            mark,
            late_by_ms,
            outage_ms,
            last_ms,
        })
}

fn settings() -> impl Strategy<Value = SubflowConfig> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 1..20_usize, 0..12_u8).prop_map(
        |(timestamps, ecn, pacing, small, ranges, window_scale)| SubflowConfig {
            timestamps,
            ecn,
            pacing,
            window_scale,
            base_segment: if small { 600 } else { 1_452 },
            out_of_order_ranges: ranges * ranges * 10,
            retries: 1_000,
            syn: SynRetries { most: 1_000, linear: 0 },
            ..config()
        },
    )
}

fn run_parameters() -> impl Strategy<Value = RunParameters> {
    let isns = (any::<u32>(), any::<u32>());
    let bytes = (0..300_000_u64, 0..100_000_u64);
    (faults(), settings(), isns, bytes, 0..60_000_u64, 700..1_500_usize).prop_map(
        |(faults, config, isns, bytes, delay_us, largest)| RunParameters {
            faults,
            config,
            isns,
            bytes,
            delay_us,
            largest,
        },
    )
}

fn play(run: RunParameters) -> Pair {
    let RunParameters { faults, config, isns, bytes, delay_us, largest } = run;
    let largest = largest.max(usize::from(config.base_segment) + 20);
    let mut pair = Pair::with_isns(config, SeqNum(isns.0), SeqNum(isns.1));
    pair.delay = Duration::from_micros(delay_us);
    // A base size that does not pass is a configuration error.
    let (start, mut seed) = (pair.now, faults.seed);
    let mut draw = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % 1_000
    };
    let late = MS(faults.late_by_ms);
    pair.set_filter(move |now, packet| {
        let age = now.since(start);
        if packet.size() > largest {
            return WireEffect::Drop;
        }
        if age >= MS(faults.last_ms) {
            return WireEffect::Pass;
        }
        let (from, length) = faults.outage_ms;
        if age >= MS(from) && age < MS(from + length) {
            return WireEffect::Drop;
        }
        match draw() {
            n if n < faults.drop => WireEffect::Drop,
            n if n < faults.drop + faults.late => WireEffect::Late(late),
            n if n < faults.drop + faults.late + faults.twice => WireEffect::Twice(late),
            n if n < faults.drop + faults.late + faults.twice + faults.mark => WireEffect::Mark,
            _ => WireEffect::Pass,
        }
    });
    pair.client.written = bytes.0;
    pair.client.close_after = true;
    let mut waited = 0;
    while pair.server.is_none() && waited < 300 {
        pair.run_for(Duration::from_secs(1));
        waited += 1;
    }
    let server = pair.server();
    server.written = bytes.1;
    server.close_after = true;
    pair.run_for(Duration::from_secs(600));
    pair
}

fn check(mut pair: Pair, from_client: u64, from_server: u64) {
    assert_eq!((pair.server().received, pair.client.received), (from_client, from_server));
    for end in [&pair.client, pair.server.as_ref().unwrap()] {
        assert!(end.saw(SubflowEvent::PeerFin) && end.saw(SubflowEvent::Finished));
        assert_eq!(end.tcp.state(), SubflowState::Closed);
        assert_eq!(end.tcp.next_timeout(), None);
        assert_eq!(end.tcp.unacked().count(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once_and_both_ends_close(run in run_parameters()) {
        let (from_client, from_server) = run.bytes;
        check(play(run), from_client, from_server);
    }
}
