//! Tests of the built-in policies on simulated connections: redundancy costs no goodput, backups
//! stay silent until needed, paths are rebuilt, and a scheduler may change while data flows.

use crate::cases::link;
use marline_core::ConnectionConfig;
use marline_sim::{Amount, Bulk, Echo, EchoServer, Paths, PathsConfig, Samples};
use marline_time::{Duration, Instant, SeedTree};

const MBYTE: u64 = 1_000_000;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn at(secs: u64) -> Instant {
    Instant::from_secs(secs)
}

/// Two hosts with these links between them; both sides run these policies.
fn scene(links: &[&str], backup: &[bool], policies: [&str; 2], seed: u64) -> Paths {
    let [scheduler, path_manager] = policies;
    let set = marline_research::registry().policy_set(scheduler, path_manager, "cubic", "rack-tlp");
    let connection = ConnectionConfig::new(set.expect("built-in names"));
    let mut config = PathsConfig::new(links.iter().map(|spec| link(spec)).collect(), connection);
    config.backup = backup.to_vec();
    Paths::new(&config, SeedTree::new(seed))
}

/// The client sends `bytes` from path 0 on; the server only reads.
fn upload(paths: &mut Paths, bytes: u64) {
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    paths.connect(0, Box::new(Bulk::new(Amount::Bytes(bytes), 1, 2))).expect("a connection");
}

/// Runs until the server has read `bytes`; returns the time.
fn finish(paths: &mut Paths, bytes: u64, limit: Instant) -> Instant {
    let server = paths.server;
    paths.world.run_while(limit, |world| {
        world.node(server).report(0).is_none_or(|report| report.read < bytes)
    });
    let report = paths.server_report(0).expect("accepted");
    assert_eq!((report.read, report.wrong_at), (bytes, None), "by {:?}", paths.world.now());
    report.arrived.expect("bytes arrived").1
}

/// Bytes that the client's link delivered on each path.
fn carried(paths: &Paths) -> Vec<u64> {
    paths.up.iter().map(|link| paths.world.link(*link).stats().delivered_bytes).collect()
}

fn time_to_upload(links: &[&str], scheduler: &str, bytes: u64, seed: u64) -> Duration {
    let mut paths = scene(links, &[], [scheduler, "full-mesh"], seed);
    upload(&mut paths, bytes);
    finish(&mut paths, bytes, at(120)) - Instant::ZERO
}

#[test]
fn on_one_path_redundant_and_round_robin_are_as_fast_as_min_rtt() {
    for spec in ["rate=20M,delay=20ms,queue=40ms", "rate=20M,delay=20ms,queue=40ms,loss=0.5%"] {
        let time = |scheduler| time_to_upload(&[spec], scheduler, 20 * MBYTE, 3);
        let (plain, redundant, turns) = (time("min-rtt"), time("redundant"), time("round-robin"));
        println!("one path {spec}: min-rtt {plain:?}, redundant {redundant:?}, turns {turns:?}");
        assert!(redundant <= plain.mul_f64(1.01), "{spec}: {redundant:?} against {plain:?}");
        assert!(turns <= plain.mul_f64(1.01), "{spec}: {turns:?} against {plain:?}");
    }
}

/// A scheduler that assigns segments one by one with the known segment size does not wait for an answer to each,
/// neither while larger ones are probed nor if options leave more room than usual.
#[test]
fn segments_given_out_one_by_one_follow_each_other_at_once() {
    let time = |scheduler: &str, mptcp: bool, base_segment: u16| {
        let set =
            marline_research::registry().policy_set(scheduler, "full-mesh", "cubic", "rack-tlp");
        let connection =
            ConnectionConfig { mptcp, ..ConnectionConfig::new(set.expect("built-in names")) };
        let mut config =
            PathsConfig::new(vec![link("rate=100M,delay=10ms,queue=100ms")], connection);
        config.capabilities.base_segment = base_segment;
        let mut paths = Paths::new(&config, SeedTree::new(1));
        upload(&mut paths, MBYTE);
        finish(&mut paths, MBYTE, at(120)) - Instant::ZERO
    };
    for mptcp in [true, false] {
        for base in [1_240, 1_480] {
            let plain = time("min-rtt", mptcp, base);
            for scheduler in ["round-robin", "opportunistic-redundant", "redundant"] {
                let took = time(scheduler, mptcp, base);
                println!("{scheduler}, {base} bytes, mptcp {mptcp}: {took:?}, min-rtt {plain:?}");
                assert!(took <= plain.mul_f64(1.05), "{scheduler}: {took:?} against {plain:?}");
            }
        }
    }
}

#[test]
fn redundant_is_never_slower_than_the_best_single_path() {
    let cases: [[&str; 2]; 4] = [
        ["rate=20M,delay=10ms,queue=20ms", "rate=20M,delay=40ms,queue=80ms"],
        ["rate=5M,delay=5ms,queue=20ms", "rate=30M,delay=50ms,queue=100ms"],
        ["rate=20M,delay=10ms,queue=20ms,loss=2%", "rate=10M,delay=30ms,queue=60ms"],
        ["rate=20M,delay=10ms,queue=20ms,loss=1%", "rate=20M,delay=15ms,queue=30ms,loss=1%"],
    ];
    for links in cases {
        for seed in 1..=3 {
            let single = links.map(|spec| time_to_upload(&[spec], "min-rtt", 8 * MBYTE, seed));
            let best = single[0].min(single[1]);
            let both = time_to_upload(&links, "redundant", 8 * MBYTE, seed);
            println!("{links:?} seed {seed}: alone {single:?}, redundant {both:?}");
            assert!(both <= best.mul_f64(1.03) + ms(100), "{links:?}: {both:?} against {best:?}");
        }
    }
}

/// 600 messages of 200 bytes, 20 a second, echoed; their latencies.
fn echo(links: &[&str], scheduler: &str, seed: u64) -> Samples {
    let mut paths = scene(links, &[], [scheduler, "full-mesh"], seed);
    paths.listen(Box::new(|_| Box::new(EchoServer::new(5))));
    paths.connect(0, Box::new(Echo::new(200, ms(50), 600, 5))).expect("a connection");
    paths.world.run_until(at(60));
    let report = paths.client_report(0).expect("connected");
    assert_eq!((report.latencies.len(), report.wrong_at), (600, None));
    let samples = Samples::new(report.latencies.clone());
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|q| samples.quantile(q));
    let max = samples.max();
    println!(
        "echo, {scheduler}, {} paths: p50 {p50:?} p95 {p95:?} p99 {p99:?} max {max:?}",
        links.len()
    );
    samples
}

#[test]
fn small_messages_sent_redundantly_do_not_feel_one_paths_losses() {
    let bad = "rate=20M,delay=15ms,queue=50ms,loss=2%";
    let slow = "rate=10M,delay=30ms,queue=100ms,loss=2%";
    let alone = echo(&[bad], "min-rtt", 4);
    echo(&[bad, slow], "min-rtt", 4);
    let both = echo(&[bad, slow], "redundant", 4);
    assert!(both.quantile(0.5) <= alone.quantile(0.5) + ms(2));
    // A loss on the fast path costs the slow path's delay, in one or both directions.
    assert!(both.quantile(0.99) <= ms(62), "{:?}", both.quantile(0.99));
    assert!(alone.quantile(0.99) >= ms(70), "losses delay echoes on one path");
}

#[test]
fn a_backup_is_silent_until_needed_and_again_afterwards() {
    for scheduler in ["min-rtt", "round-robin", "redundant"] {
        let links = ["rate=10M,delay=10ms,queue=40ms", "rate=10M,delay=40ms,queue=80ms"];
        let mut paths = scene(&links, &[false, true], [scheduler, "full-mesh"], 6);
        upload(&mut paths, 25 * MBYTE);
        paths.schedule_path_change(at(5), 0, false);
        paths.schedule_path_change(at(12), 0, true);
        let mut on_backup = Vec::new();
        for secs in [5, 12, 15, 18] {
            paths.world.run_until(at(secs));
            on_backup.push(carried(&paths)[1]);
        }
        println!("{scheduler}: bytes on the backup at 5, 12, 15 and 18 s: {on_backup:?}");
        assert!(on_backup[0] < 5_000, "{scheduler}: {} unnecessary bytes", on_backup[0]);
        assert!(on_backup[1] > 6 * MBYTE, "{scheduler}: it carries data when needed");
        assert!(on_backup[3] - on_backup[2] < 5_000, "{scheduler}: silent again");
        finish(&mut paths, 25 * MBYTE, at(120));
    }
}

#[test]
fn the_backup_path_manager_keeps_the_second_path_in_reserve() {
    let links = ["rate=10M,delay=10ms,queue=40ms", "rate=10M,delay=40ms,queue=80ms"];
    let mut paths = scene(&links, &[], ["min-rtt", "backup"], 6);
    upload(&mut paths, 10 * MBYTE);
    paths.schedule_address_change(at(4), 0, false);
    paths.world.run_until(at(4));
    let before = carried(&paths);
    assert!(before[0] > 3 * MBYTE && before[1] < 5_000, "{before:?}");
    let done = finish(&mut paths, 10 * MBYTE, at(60));
    println!("backup manager: {before:?} before, {:?} after, done at {done}", carried(&paths));
    assert!(done < at(12), "{done:?}");
}

#[test]
fn a_path_that_was_dead_is_joined_soon_after_it_lives() {
    let links = ["rate=4M,delay=10ms,queue=40ms", "rate=20M,delay=20ms,queue=40ms"];
    let mut paths = scene(&links, &[], ["min-rtt", "full-mesh"], 8);
    paths.set_path_up(1, false);
    upload(&mut paths, 200 * MBYTE);
    // There is no notification that the path works again; only a probe shows it.
    paths.schedule_path_change(at(40), 1, true);
    paths.world.run_until(at(40));
    assert_eq!(carried(&paths)[1], 0);
    let up = paths.up[1];
    let used =
        paths.world.run_while(at(60), |world| world.link(up).stats().delivered_bytes < MBYTE);
    println!("a dead path carried 1 MB {:?} after its return", paths.world.now() - at(40));
    assert!(used, "not within 20 s");
}

#[test]
fn the_scheduler_changes_while_data_flows() {
    let links = ["rate=10M,delay=10ms,queue=40ms", "rate=10M,delay=12ms,queue=40ms"];
    let mut paths = scene(&links, &[], ["min-rtt", "full-mesh"], 9);
    upload(&mut paths, 24 * MBYTE);
    let client = paths.client;
    let registry = marline_research::registry();
    for (secs, name) in [(4, "redundant"), (8, "round-robin"), (12, "min-rtt")] {
        let factory = registry.scheduler(name).expect("built in");
        paths.world.run_at(at(secs), move |world| {
            let now = world.now();
            let host = world.node_mut(client);
            let id = host.connections().next().expect("one connection").0;
            host.endpoint_mut().set_scheduler(now, id, factory);
            assert_eq!(host.endpoint().info(id).expect("open").scheduler, name);
        });
    }
    let mut read = Vec::new();
    for secs in [4, 8, 12] {
        paths.world.run_until(at(secs));
        read.push(paths.server_report(0).expect("accepted").read / 1_000);
    }
    let rates = [read[0], read[1] - read[0], read[2] - read[1]];
    println!(
        "kB read in 4 s: min-rtt {}, redundant {}, round-robin {}",
        rates[0], rates[1], rates[2]
    );
    // Redundant is as fast as one path, the others as fast as both.
    assert!(rates[1] < rates[0] * 3 / 4 && rates[1] * 4 / 3 < rates[2], "{rates:?}");
    finish(&mut paths, 24 * MBYTE, at(60));
}

#[test]
fn runs_repeat_to_the_packet() {
    for scheduler in ["min-rtt", "round-robin", "redundant"] {
        let run = || {
            let links = [
                "rate=8M,delay=10ms,queue=40ms,loss=1%",
                "rate=6M,delay=30ms,queue=60ms,jitter=5ms",
            ];
            let mut paths = scene(&links, &[], [scheduler, "full-mesh"], 11);
            upload(&mut paths, 3 * MBYTE);
            paths.world.run_until(at(10));
            paths.world.digest()
        };
        assert_eq!(run(), run(), "{scheduler}");
    }
}
