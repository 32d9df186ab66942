//! Tests of claims in the source documents without a table: repair of one-packet messages, window divided by RTT as a
//! path estimate, copies made by an application, a permanent cellular path next to WiFi, and a predicted handover.
//! docs/research/papers/coverage.md has a line for each.

use std::net::SocketAddr;

use marline_core::{ConnectionConfig, SubflowInfo};
use marline_link::radio::Energy;
use marline_policy::{AddressId, LocalAddress};
use marline_sim::{Amount, Bulk, Paths, PathsConfig, mean, quantile};
use marline_time::{Duration, Instant, Rate, SeedTree};

use crate::cases::bursts::latencies;
use crate::cases::{self, LINUX_314, at_server, link};

fn connection(scheduler: &str, path_manager: &str, congestion: &str) -> ConnectionConfig {
    let registry = marline_research::registry();
    let set = registry.policy_set(scheduler, path_manager, congestion, LINUX_314);
    ConnectionConfig::new(set.expect("known names"))
}

fn plain(congestion: &str) -> ConnectionConfig {
    ConnectionConfig { mptcp: false, ..connection("lowest-rtt", "full-mesh", congestion) }
}

/// ReMP TCP, section 2: one-packet messages, ten per second, are repaired by the timer, because too little data
/// follows to detect a loss earlier.
#[test]
fn messages_of_one_packet_are_repaired_by_timers_mostly() {
    let (mut timers, mut lost) = (0, 0);
    for seed in 1..=4 {
        let lossy = "rate=50M,delay=55ms,jitter=10ms,down.loss=3%";
        let mut paths = cases::scene(&[lossy], plain("cubic"), seed);
        latencies(&mut paths, 64, &(0..600).map(|n| n * 100).collect::<Vec<_>>());
        let sent = &at_server(&paths)[0];
        timers += sent.rtos + sent.probes;
        lost += paths.world.link(paths.down[0]).stats().dropped();
    }
    println!("{timers} timers for {lost} losses");
    assert!(lost > 40, "the test proves nothing: {lost}");
    assert!(timers * 3 > lost * 2, "{timers} of {lost}");
}

/// Estimates of a path of 20 Mbit/s during a download, relative to that rate: window divided by RTT, and delivery
/// rate, averaged over samples every 100 ms.
fn estimates(loss: &str, congestion: &str) -> [f64; 2] {
    let text = format!("rate=20M,delay=30ms,queue=60ms,down.loss={loss}");
    let mut paths = cases::scene(&[&text], plain(congestion), 1);
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Endless, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    let mut seen = [Vec::new(), Vec::new()];
    for tick in 50..300_u64 {
        paths.world.run_until(Instant::from_millis(tick * 100));
        let sent = &at_server(&paths)[0];
        let by_window = Rate::over(sent.cwnd, sent.srtt.expect("measured"));
        let delivered = sent.delivery_rate.expect("measured");
        for (seen, rate) in seen.iter_mut().zip([by_window, delivered]) {
            seen.push(rate.bits_per_s() as f64 / 20e6);
        }
    }
    seen.map(|shares| mean(&shares))
}

/// PAPD, slide 6: under random losses a window says little about the rate of its path, but the delivery rate of a
/// sender that losses do not slow down does (slide 7).
#[test]
fn window_over_rtt_is_a_poor_estimate_of_a_rate_under_random_losses() {
    let [calm, lossy, bbr] =
        [("0", "cubic"), ("1%", "cubic"), ("1%", "bbr")].map(|(loss, cc)| estimates(loss, cc));
    println!(
        "window over RTT and delivery rate: {calm:.2?}; lossy {lossy:.2?}, with BBR {bbr:.2?}"
    );
    assert!((0.85..1.15).contains(&calm[0]) && (0.85..1.15).contains(&calm[1]), "{calm:?}");
    assert!(lossy[0] < 0.4, "{lossy:?}");
    assert!((0.85..1.15).contains(&bbr[1]), "{bbr:?}");
    assert!(bbr[0] > 1.3, "two windows are in flight: {bbr:?}");
}

const ACCESS: [&str; 2] =
    ["rate=20M,delay=15ms,ge=4s:100ms:40%:1%", "rate=20M,delay=25ms,ge=4s:100ms:40%:1%"];

/// Messages over two paths: redundant Multipath TCP, and an application that writes each to two TCP connections and
/// uses the earlier arrival. Times from writing to reading in ms, and bytes on each path per byte written.
fn copied(bytes: u64, count: u64, interval_ms: u64) -> [Vec<f64>; 2] {
    let at_ms: Vec<u64> = (0..count).map(|n| n * interval_ms).collect();
    let ms = |all: Vec<Duration>| all.iter().map(|one| one.as_secs_f64() * 1e3).collect::<Vec<_>>();
    // A named link loses the same packets regardless of other links.
    let run = |used: &[usize], connection: ConnectionConfig| {
        let links = used.iter().map(|index| link(ACCESS[*index])).collect();
        let mut config = PathsConfig::new(links, connection);
        config.names = used.iter().map(|index| format!("path {index}")).collect();
        ms(latencies(&mut Paths::new(&config, SeedTree::new(1)), bytes, &at_ms))
    };
    let redundant = run(&[0, 1], connection("redundant", "full-mesh", "cubic"));
    let [first, second] = [0, 1].map(|path| run(&[path], plain("cubic")));
    let sooner = first.iter().zip(&second).map(|(a, b)| a.min(*b)).collect();
    [redundant, sooner]
}

/// ReMP TCP, section 1: copies above the transport suffer from head-of-line blocking on each connection. In this model
/// they do not: the earlier of two ordered streams is also in order, and an application still copies on a path that
/// the transport avoids since it fell silent.
#[test]
fn copies_made_by_an_application_are_not_behind_those_of_the_transport() {
    let [redundant, application] = copied(500, 3_000, 10);
    let [ours, theirs] = [&redundant, &application].map(|all| [mean(all), quantile(all, 0.99)]);
    println!("redundant {ours:.1?}, by the application {theirs:.1?} ms (mean, p99)");
    assert!((theirs[0] / ours[0] - 1.0).abs() < 0.05, "{ours:?} {theirs:?}");
    assert!(theirs[1] < ours[1], "{ours:?} {theirs:?}");
}

/// RepFlow: short flows are copied as a whole. The faster flow must be lucky with all of its segments, but within the
/// transport each segment is copied separately.
#[test]
fn a_flow_copied_whole_has_a_longer_tail_than_one_copied_within_the_transport() {
    let [redundant, application] = copied(60_000, 300, 400);
    let [ours, theirs] = [&redundant, &application].map(|all| [mean(all), quantile(all, 0.99)]);
    println!("redundant {ours:.1?}, by the application {theirs:.1?} ms (mean, p99)");
    assert!(theirs[1] > 1.1 * ours[1], "{ours:?} {theirs:?}");
}

/// Activity of LTE while short connections fetch data every 5 s over a good WiFi: payload bytes from the server, and
/// the radio's energy.
fn beside_wifi(scheduler: &str, path_manager: &str) -> (u64, Energy) {
    let links = vec![link("rate=30M,delay=15ms"), link("radio=lte,rate=20M,delay=30ms")];
    let mut config = PathsConfig::new(links, connection(scheduler, path_manager, "cubic"));
    config.backup = vec![false, path_manager != "full-mesh"];
    let mut paths = Paths::new(&config, SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(200_000), 1, 2))));
    let mut bytes = 0;
    for fetch in 0..12_u64 {
        paths.world.run_until(Instant::from_secs(1 + 5 * fetch));
        paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
        paths.world.run_until(Instant::from_secs(5 + 5 * fetch));
        let host = paths.world.node(paths.server);
        for (id, _) in host.connections() {
            let Some(info) = host.endpoint().info(id) else { continue };
            let over_lte = |s: &&SubflowInfo| s.path.remote.ip() == Paths::address(1, 0);
            bytes += info.subflows.iter().filter(over_lte).map(|s| s.bytes_sent).sum::<u64>();
        }
    }
    let report = paths.client_report(11).expect("connected");
    assert_eq!((report.read, report.wrong_at), (200_000, None));
    let radio = paths.world.link(paths.up[1]).radio().expect("LTE's radio");
    (bytes, radio.energy(paths.world.now()))
}

/// MultiMob, control by the client: a server that follows its client keeps data off the cellular path, but a permanent
/// path still wakes the radio. A path opened on demand does not.
#[test]
fn a_cellular_path_that_stands_wakes_the_radio_though_it_carries_no_data() {
    let (bytes, standing) = beside_wifi("follow-client", "full-mesh");
    let (none, asleep) = beside_wifi("follow-client", "break-before-make");
    println!("standing: {bytes} bytes, {standing:?}; not opened: {none} bytes, {asleep:?}");
    assert_eq!((bytes, none), (0, 0));
    assert!(standing.promotions >= 1 && standing.packets > 0, "{standing:?}");
    assert!(standing.idle_time < asleep.idle_time / 2, "{standing:?} {asleep:?}");
    assert_eq!((asleep.promotions, asleep.packets), (0, 0));
}

/// Longest gap in a download while WiFi dies silently after 10 s, optionally with an earlier notification of the
/// client to use it as a backup.
fn handover(told_ms: Option<u64>) -> Duration {
    let links = ["rate=30M,delay=15ms,queue=100ms", "rate=20M,delay=30ms,queue=100ms"];
    let mut paths = cases::scene(&links, connection("lowest-rtt", "full-mesh", "cubic"), 1);
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Endless, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    let client = paths.client;
    if let Some(told_ms) = told_ms {
        paths.world.run_at(Instant::from_millis(told_ms), move |world| {
            let now = world.now();
            let wifi = LocalAddress {
                backup: true,
                ..LocalAddress::new(AddressId(0), SocketAddr::new(Paths::address(0, 0), 0))
            };
            world.node_mut(client).endpoint_mut().set_local_address(now, None, wifi);
        });
    }
    paths.schedule_path_change(Instant::from_secs(10), 0, false);
    paths.world.run_until(Instant::from_secs(20));
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    report.longest_gap_within(Instant::from_secs(9), Instant::from_secs(18)).length
}

/// Frömmgen 2015, cited by ReMP TCP: a handover predicted by sensors. Here the predicting end reports it, and both
/// directions have left the path before it dies.
#[test]
fn a_handover_that_is_foreseen_leaves_a_short_hole() {
    let [blind, foreseen] = [None, Some(9_500)].map(handover);
    println!("a gap of {blind:?}, predicted {foreseen:?}");
    assert!(blind > Duration::from_millis(300), "the test proves nothing: {blind:?}");
    assert!(foreseen * 3 < blind, "{foreseen:?}");
}
