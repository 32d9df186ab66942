//! Tests against faults known from other implementations.

use marline_sim::{Amount, Bulk, Paths};
use marline_time::{Duration, Instant};

use super::{Sent, bursts, ms, offered_by, scene};

/// All schedulers that make copies.
const ALL: [&str; 7] = [
    "redundant",
    "opportunistic-redundant",
    "redundant-idle",
    "burst-end",
    "probing",
    "hedged",
    "auto-redundant",
];
/// Schedulers that immediately copy the end of every burst.
const TAIL: [&str; 4] = ["redundant", "opportunistic-redundant", "redundant-idle", "burst-end"];

const MBYTE: u64 = 1_000_000;

/// Time until the server has read `bytes` from the client, and the bytes that all links carried in both directions.
fn upload(paths: &mut Paths, bytes: u64) -> (Duration, u64) {
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    paths.connect(0, Box::new(Bulk::new(Amount::Bytes(bytes), 1, 2))).expect("a connection");
    let server = paths.server;
    paths.world.run_while(Instant::from_secs(300), |world| {
        world.node(server).report(0).is_none_or(|report| report.read < bytes)
    });
    let report = paths.server_report(0).expect("accepted");
    assert_eq!((report.read, report.wrong_at), (bytes, None));
    let arrived = report.arrived.expect("bytes arrived").1;
    let links = paths.up.iter().chain(&paths.down);
    let carried = links.map(|link| paths.world.link(*link).stats().offered_bytes).sum();
    (arrived.since(Instant::ZERO), carried)
}

#[test]
fn on_a_single_path_goodput_is_that_of_plain_tcp() {
    let links = ["rate=10M,delay=20ms,queue=60ms", "rate=10M,delay=20ms,queue=60ms,loss=0.5%"];
    for link in links {
        let (plain, bytes) = upload(&mut scene(&[link], "min-rtt", 3), 10 * MBYTE);
        for scheduler in ALL {
            let (time, carried) = upload(&mut scene(&[link], scheduler, 3), 10 * MBYTE);
            println!("{link}, {scheduler}: {time:?} for {plain:?}, {carried} bytes for {bytes}");
            assert!(time <= plain.mul_f64(1.01), "{scheduler}: {time:?} against {plain:?}");
            assert!(carried <= bytes + bytes / 100, "{scheduler}: {carried} against {bytes}");
        }
    }
}

#[test]
fn redundancy_is_as_fast_as_the_better_path_for_twice_the_bytes() {
    let cases = [
        ["rate=90M,delay=10ms,queue=40ms", "rate=90M,delay=12ms,queue=40ms"],
        ["rate=90M,delay=10ms,queue=40ms", "rate=5M,delay=100ms,queue=300ms"],
        ["rate=90M,delay=10ms,queue=40ms,loss=0.1%", "rate=30M,delay=60ms,queue=80ms,loss=1%"],
    ];
    for links in cases {
        let alone = links.map(|link| upload(&mut scene(&[link], "min-rtt", 2), 40 * MBYTE));
        let best = alone[0].min(alone[1]);
        // Wrappers do not change how the scheduler below them uses the paths.
        let below = "min-rtt,completion=off";
        let limit = best.0.max(upload(&mut scene(&links, below, 2), 40 * MBYTE).0);
        for scheduler in ALL {
            let (time, carried) = upload(&mut scene(&links, scheduler, 2), 40 * MBYTE);
            let times = carried as f64 / best.1 as f64;
            println!("{links:?}, {scheduler}: {time:?} for {:?}, bytes x {times:.2}", best.0);
            let limit = if scheduler == "redundant" { best.0 } else { limit };
            assert!(time <= limit.mul_f64(1.05) + ms(200), "{scheduler}: {time:?} for {limit:?}");
            assert!(times <= 2.1, "{scheduler}: {times:.2} times the bytes");
        }
    }
}

/// The paths that carried the byte at `at`, each with the first time.
fn carriers(sent: &[Sent], at: u64) -> Vec<(usize, Duration)> {
    let mut found: Vec<(usize, Duration)> = Vec::new();
    for segment in sent.iter().filter(|s| s.start <= at && at < s.end) {
        if found.iter().all(|(path, _)| *path != segment.path) {
            found.push((segment.path, segment.at));
        }
    }
    found
}

#[test]
fn the_end_of_every_burst_is_on_both_paths_at_once() {
    let links = ["rate=50M,delay=10ms,queue=50ms", "rate=20M,delay=40ms,queue=100ms"];
    for scheduler in TAIL {
        for bytes in [1, 200, 1_000, 4_500, 11_000] {
            // A path without room at that moment never carries the segment.
            if scheduler == "opportunistic-redundant" && bytes > 4_500 {
                continue;
            }
            let at: Vec<u64> = (0..20).map(|n| n * 500).collect();
            let result = bursts(&mut scene(&links, scheduler, 1), bytes, &at);
            for (burst, at) in (1..).zip(&at) {
                let mut carriers = carriers(&result.sent, burst * bytes - 1);
                carriers.sort_unstable();
                let paths: Vec<usize> = carriers.iter().map(|(path, _)| *path).collect();
                assert_eq!(paths, [0, 1], "{scheduler}, {bytes} bytes, burst {burst}");
                let late = carriers.iter().map(|(_, time)| time.saturating_sub(ms(*at))).max();
                // Immediately: before any answer could arrive.
                assert!(late.is_some_and(|late| late < ms(20)), "{scheduler}: {carriers:?}");
            }
        }
    }
}

/// The last segment of the fifth burst is lost on the faster path.
#[test]
fn a_lost_end_costs_the_other_paths_delay_and_no_timeout() {
    for scheduler in TAIL {
        // A run without loss shows the packet's number on the link.
        let other = "rate=20M,delay=40ms,queue=100ms";
        let whole = ["rate=50M,delay=10ms,queue=50ms", other];
        let at: Vec<u64> = (0..6).map(|n| n * 500).collect();
        // By then the whole fifth burst has been sent, and nothing of the sixth.
        let last = offered_by(&mut scene(&whole, scheduler, 1), 7_000, &at, &[2_009])[0];
        let lossy = format!("{},down.drop={last}", whole[0]);
        let mut paths = scene(&[lossy.as_str(), other], scheduler, 1);
        let result = bursts(&mut paths, 7_000, &at);
        let lost = paths.world.link(paths.down[0]).stats().dropped_loss;
        println!("{scheduler}: {:?}", result.latencies);
        assert_eq!(lost, 1, "{scheduler}");
        // 7,000 bytes at 20 Mbit/s, of which burst-end sends one segment on the other path, plus 40 ms.
        assert!(result.latencies[4] >= ms(40), "{scheduler}: it was not the last segment");
        assert!(result.latencies[4] <= ms(46), "{scheduler}: {:?}", result.latencies[4]);
        assert!(result.latencies[3] <= ms(13), "{scheduler}: {:?}", result.latencies[3]);
    }
}

#[test]
fn copies_do_not_end_with_the_beginning() {
    let links = ["rate=50M,delay=10ms,queue=50ms,loss=1%", "rate=20M,delay=40ms,queue=100ms"];
    for scheduler in ["redundant", "opportunistic-redundant", "redundant-idle"] {
        let at: Vec<u64> = (0..1_200).map(|n| n * 100).collect();
        let result = bursts(&mut scene(&links, scheduler, 5), 300, &at);
        let of = |path: usize, second: u64| {
            let within = |s: &&Sent| s.path == path && s.at.as_secs() == second;
            result.sent.iter().filter(within).count()
        };
        for second in [0, 1, 30, 60, 90, 118, 119] {
            // Ten messages per second, plus retransmissions.
            assert!(of(0, second) >= 10, "{scheduler}: {} in second {second}", of(0, second));
            assert!(of(1, second) >= 10, "{scheduler}: {} in second {second}", of(1, second));
        }
    }
}
