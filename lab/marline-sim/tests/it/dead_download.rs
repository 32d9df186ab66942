//! Test of a 20 MB download whose only path loses everything from 1.5 s on. The server cannot open
//! another one and the client is not sending: silence is the only signal.

use crate::cases::dead_download::{Hole, Setting, false_alarms, run};
use marline_core::ReceiveTimer;
use marline_policy::UnreachableCause;
use marline_time::{Duration, Instant};

const MS: fn(u64) -> Duration = Duration::from_millis;
/// LTE: promotion of its radio, and round trip.
const PROMOTION: Duration = Duration::from_micros(260_100);
const LTE_RTT: Duration = Duration::from_millis(60);
/// Serialization of a few full segments.
const SLACK: Duration = Duration::from_millis(5);

fn holes(setting: Setting) -> Vec<Hole> {
    let mut holes = Vec::new();
    for (seed, dies_ms) in [(1, 1_500), (2, 1_503), (3, 1_511)] {
        let hole = run(setting, Instant::from_millis(dies_ms), seed);
        println!(
            "WiFi dies at {dies_ms} ms ({}{}{}): gap {} = notice {} ({}) + open {} + resume {} ms; 20 MB at {} ms",
            if setting.timer.probing.is_some() { "probing" } else { "multimob" },
            if setting.helped { "" } else { ", no help" },
            if setting.fast { ", Fast JOIN" } else { "" },
            hole.total.as_millis(),
            hole.notice.as_millis(),
            hole.cause,
            hole.open.as_millis(),
            hole.resume.as_millis(),
            hole.finished.as_millis(),
        );
        holes.push(hole);
    }
    holes
}

/// The gap consists of the timer, the promotion and some round trips of LTE: two with Fast JOIN (SYN with the
/// DATA_ACK and SYN/ACK; its ACK and the missing data). MP_JOIN needs three: the third ACK has no room for a DATA_ACK,
/// so the server first repeats a window of data that arrived long ago and whose DATA_ACKs died with WiFi.
#[track_caller]
fn check(setting: Setting, timer: Duration, cause: UnreachableCause) {
    let round_trips = if setting.fast { 2 } else { 3 };
    for hole in holes(setting) {
        assert_eq!(hole.cause, cause);
        assert!(hole.notice <= timer + SLACK, "notice {:?}, timer {timer:?}", hole.notice);
        let after = hole.total - hole.notice;
        let allowed = PROMOTION + LTE_RTT * round_trips + SLACK;
        assert!(after <= allowed, "{after:?} after the verdict, {allowed:?} allowed");
    }
}

/// The seed's parameters: the server's timeout (200 ms and its RTT) is below the floor of 500 ms.
#[test]
fn multimobs_receive_timer_opens_lte() {
    for fast in [false, true] {
        let setting = Setting { timer: ReceiveTimer::multimob(), helped: true, fast };
        check(setting, MS(500), UnreachableCause::ReceiveTimer);
    }
}

/// Three probes detect it sooner: the silence before the first probe, and three waits, each as long as the client's
/// RTT estimate.
#[test]
fn probes_open_lte_sooner() {
    for fast in [false, true] {
        let setting = Setting { timer: ReceiveTimer::with_probes(), helped: true, fast };
        check(setting, MS(350), UnreachableCause::UnansweredProbes);
    }
}

/// A server without extensions: its silence triggers a probe after 1.5 s.
#[test]
fn a_server_without_extensions_costs_a_second_more() {
    let setting = Setting { timer: ReceiveTimer::with_probes(), helped: false, fast: false };
    check(setting, MS(1_800), UnreachableCause::UnansweredProbes);
}

/// A path with losses, random delays or pauses of a tenth of a second is not dead: LTE keeps sleeping.
#[test]
fn a_bad_wifi_is_not_a_dead_one() {
    let links = [
        "rate=20M,delay=10ms,queue=50ms,loss=2%",
        "rate=20M,delay=10ms,queue=300ms,jitter=20ms",
        "rate=6M,delay=10ms,queue=50ms,flap=2s:30ms,outage=suspend",
    ];
    let mut alarms = Vec::new();
    for timer in [ReceiveTimer::multimob(), ReceiveTimer::with_probes()] {
        for wifi in links {
            for seed in 1..=5 {
                let setting = Setting { timer, helped: true, fast: false };
                for (at, cause) in false_alarms(setting, wifi, seed) {
                    alarms.push(format!("{timer}: {wifi}, seed {seed}: at {at:?}, {cause}"));
                }
            }
        }
    }
    assert!(alarms.is_empty(), "{alarms:#?}");
}

/// Silence alone cannot distinguish this from a dead path; most probes are answered.
#[test]
fn a_wifi_that_loses_every_twelfth_packet_is_seldom_taken_for_dead() {
    let setting = Setting { timer: ReceiveTimer::with_probes(), helped: true, fast: false };
    let wifi = "rate=20M,delay=10ms,queue=50ms,loss=8%";
    let alarms: Vec<usize> = (1..=40).map(|seed| false_alarms(setting, wifi, seed).len()).collect();
    assert!(alarms.iter().sum::<usize>() <= 6, "{alarms:?}");
}
