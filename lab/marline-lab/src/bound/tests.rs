use super::*;
use crate::experiment::{Variant, simulate};
use crate::scenario::Event;
use crate::workload::Gap;

const fn every(ms: f64) -> Gap {
    Gap { least_ms: ms, most_ms: ms }
}

fn burst(bytes: u32) -> Workload {
    Workload::Bursts { bytes, gap: every(50.0), count: 40 }
}

const fn ask() -> Workload {
    Workload::Ask { request_bytes: 1_460, answer_bytes: 1_460, gap: every(50.0), count: 40 }
}

fn bound(links: &[(&str, &str)], workload: Workload) -> Bound {
    Bound::for_experiment(&Experiment::over(links, workload), 1).expect("bound")
}

impl Bound {
    /// Bound of a message with the workload's size that began at this time.
    fn least(&self, sent_ms: f64) -> f64 {
        self.latency_ms(sent_ms, self.workload.sizes(1).size_of(0))
    }
}

/// 12 Mbit/s: a packet of 1,500 bytes takes a millisecond.
#[track_caller]
fn near(found: f64, expected_ms: f64, off_ms: f64) {
    assert!((found - expected_ms).abs() <= off_ms, "{found} is not {expected_ms}");
}

#[test]
fn a_packet_takes_its_time_on_the_wire_and_the_delay() {
    let one = bound(&[("a", "rate=12M,delay=10ms")], burst(1_460));
    assert_eq!(one.least(0.0), 11.0);
    assert_eq!(one.least(700.3), 11.0);
    // The slow wire with the short delay is better for small messages, the other for large ones.
    let links = [("a", "rate=1M,delay=5ms"), ("b", "rate=100M,delay=12ms")];
    near(bound(&links, burst(85)).least(0.0), 6.0, 1e-6);
    near(bound(&links, burst(1_460)).least(0.0), 12.12, 1e-6);
}

#[test]
fn the_bound_ignores_random_loss_and_jitter() {
    let unlucky = "rate=12M,delay=10ms,jitter=4ms,loss=50%,drop=1+2+3,reorder=50%:30ms";
    assert_eq!(bound(&[("a", unlucky)], burst(1_460)).least(0.0), 7.0);
    let wide = bound(&[("a", "rate=12M,delay=2ms,jitter=4ms")], burst(1_460));
    assert_eq!(wide.least(0.0), 1.0, "never before it was sent");
}

#[test]
fn data_lost_in_an_outage_is_resent_after_it() {
    // The workload starts one second after the simulation.
    let link = [("a", "rate=12M,delay=10ms,down=1.1s-1.2s")];
    let one = bound(&link, burst(1_460));
    assert_eq!(one.least(88.0), 11.0);
    // A packet in flight when the link goes down is sent again at 200 ms.
    near(one.least(95.0), 116.0, 2e-3);
    near(one.least(150.25), 60.75, 2e-3);
    let suspended = [("a", "rate=12M,delay=10ms,down=1.1s-1.2s,outage=suspend")];
    near(bound(&suspended, burst(1_460)).least(95.0), 111.0, 2e-3);
    let both = [link[0], ("b", "rate=12M,delay=40ms")];
    assert_eq!(bound(&both, burst(1_460)).least(95.0), 41.0);
}

#[test]
fn events_of_the_scenario_are_known_to_it() {
    let mut experiment = Experiment::over(&[("a", "rate=12M,delay=100ms")], burst(1_460));
    let event = |at: &str, command: &str| Event {
        at: at.to_owned(),
        path: "a".to_owned(),
        command: command.to_owned(),
    };
    experiment.scenario.events = vec![event("20ms", "set delay=10ms"), event("500ms", "down")];
    experiment.patience = std::time::Duration::from_secs(2);
    let bound = Bound::for_experiment(&experiment, 1).expect("bound");
    // Waiting for the short delay is faster: the packet leaves the queue at 20 ms.
    near(bound.least(0.0), 30.0, 2e-3);
    assert_eq!(bound.least(100.0), 11.0);
    assert_eq!(bound.least(495.0), f64::INFINITY);
}

#[test]
fn request_and_answer_may_take_different_paths() {
    let links = [
        ("a", "rate=12M,up.delay=5ms,down.delay=80ms"),
        ("b", "rate=12M,up.delay=90ms,down.delay=7ms"),
    ];
    near(bound(&links, ask()).least(0.0), 6.0 + 8.0, 1e-6);
}

#[test]
fn large_messages_flow_over_all_paths_at_once() {
    let (fast, slow) = (("a", "rate=12M,delay=10ms"), ("b", "rate=6M,delay=10ms"));
    // 146,000 bytes are 100 full packets.
    near(bound(&[fast], burst(146_000)).least(0.0), 110.0, 0.2);
    let both = bound(&[fast, slow], burst(146_000)).least(0.0);
    near(both, 10.0 + 100.0 / 1.5, 0.4);
    // The second path's delay is longer than the whole transfer over the first.
    let far = bound(&[fast, ("b", "rate=6M,delay=500ms")], burst(146_000)).least(0.0);
    near(far, 110.0, 0.4);
    // The link is down for a while, and packets in flight are lost.
    let down = bound(&[("a", "rate=12M,delay=10ms,down=1.05s-1.25s")], burst(146_000));
    near(down.least(0.0), 310.0 + 10.0, 0.4);
    let none = bound(&[("a", "rate=0s:12M+1.05s:0,delay=10ms")], burst(146_000));
    assert_eq!(none.least(0.0), f64::INFINITY);
    let unlimited = bound(&[("a", "delay=10ms")], burst(146_000));
    assert_eq!(unlimited.least(0.0), 10.0);
}

#[test]
fn a_later_copy_may_overtake_a_large_message() {
    let mut experiment = Experiment::over(&[("a", "rate=12M,delay=500ms")], burst(146_000));
    let command = "set delay=10ms".to_owned();
    experiment.scenario.events =
        vec![Event { at: "150ms".to_owned(), path: "a".to_owned(), command }];
    let bound = Bound::for_experiment(&experiment, 1).expect("bound");
    // The message had been sent completely by 100 ms, but the copy begun at 150 ms arrives first.
    near(bound.least(0.0), 260.0, 0.4);
    // Without a rate limit it arrives at once.
    experiment.scenario.events[0].command = "set delay=10ms,rate=unlimited".to_owned();
    let bound = Bound::for_experiment(&experiment, 1).expect("bound");
    near(bound.least(0.0), 160.0, 0.4);
}

#[test]
fn a_block_is_bounded_by_its_last_byte() {
    let blocks = Workload::Blocks { bytes: 8_192, lasts_ms: 1_000 };
    near(bound(&[("a", "rate=12M,delay=10ms")], blocks).least(0.0), 10.027_334, 1e-5);
}

/// Many kinds of links, three workloads, several schedulers: no run beats the bound.
#[test]
fn no_simulated_run_beats_the_bound() {
    let links = [
        "rate=20M,delay=5ms,loss=3%,jitter=3ms",
        "rate=8M,delay=30ms,flap=2s:300ms",
        "rate=0s:10M+2s:500k+3s:0+4s:30M/5s,delay=20ms,jitter=normal:2ms,overtaking=yes",
        "rate=walkout:30M,delay=4ms,reorder=2%:20ms",
        "rate=5M,delay=25ms,ge=1s:200ms:100%:1%,outage=suspend,down=3s-3.5s",
        "rate=2M,delay=60ms,queue=500ms,loss=0.5%",
    ];
    let echoes =
        Workload::Ask { gap: every(30.0), count: 150, request_bytes: 300, answer_bytes: 900 };
    let bursts = Workload::Bursts { bytes: 60_000, gap: every(300.0), count: 15 };
    let random = Workload::RandomBursts {
        least_bytes: 500,
        most_bytes: 90_000,
        gap: every(300.0),
        count: 15,
    };
    let blocks = Workload::Blocks { bytes: 8_192, lasts_ms: 4_000 };
    let mut nearest = f64::INFINITY;
    for (number, first) in links.iter().enumerate() {
        let second = links[(number * 3 + 1) % links.len()];
        for (workload, scheduler) in [
            (echoes, "min-rtt"),
            (echoes, "redundant"),
            (bursts, "round-robin"),
            (random, "min-rtt"),
            (blocks, "min-rtt"),
        ] {
            let mut experiment = Experiment::over(&[("a", first), ("b", second)], workload);
            let command = "set down.delay=2ms".to_owned();
            let event = Event { at: "2500ms".to_owned(), path: "b".to_owned(), command };
            experiment.scenario.events = vec![event];
            let seed = 11 + number as u64;
            let variant = Variant::new(scheduler).scheduler(scheduler);
            let outcome = simulate(&experiment, &variant, seed).expect("run");
            let bound = Bound::for_experiment(&experiment, seed).expect("bound");
            let messages = outcome.messages(&workload);
            assert!(messages.len() >= 10, "{first} + {second}: {:?}", outcome.incomplete);
            for message in messages {
                let least_ms = bound.latency_ms(message.sent_ms, message.bytes);
                nearest = nearest.min(message.latency_ms / least_ms);
                assert!(
                    message.latency_ms >= least_ms,
                    "{first} + {second}, {scheduler}: {message:?} beats {least_ms} ms"
                );
            }
        }
    }
    // The bound is tight: some run comes close to it.
    assert!(nearest < 1.1, "{nearest}");
}

#[test]
fn ratios_compare_the_same_quantiles() {
    let (ours, bounds) = ([10.0, 20.0, 30.0, 80.0], [10.0, 10.0, 10.0, 20.0]);
    assert_eq!(ratio(&ours, &bounds, 0.5), 2.0);
    assert_eq!(ratio(&ours, &bounds, 1.0), 4.0);
    assert!(ratio(&[], &[], 0.5).is_nan());
}
