//! Tests of eMPTCP: energy and time of downloads over WiFi of several rates and LTE, compared with one path and both.
//! docs/research/energy.md has the table that they print.

use marline_core::{ConnectionConfig, ReceiveTimer, SubflowInfo};
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::{at_server, link};

const LTE: &str = "radio=lte,rate=10M,delay=30ms,queue=100ms";
const MB: u64 = 1_000_000;

fn wifi(rate: &str) -> String {
    format!("radio=wifi,rate={rate},delay=10ms,queue=100ms")
}

/// A client with these policies over these links. The second link has the backup flag if the manager avoids it.
fn scene(links: &[&str], scheduler: &str, path_manager: &str, bytes: u64) -> Paths {
    let registry = marline_research::registry();
    let policies = registry.policy_set(scheduler, path_manager, "cubic", "rack-tlp");
    let connection = ConnectionConfig::new(policies.expect("known names"));
    let links: Vec<_> = links.iter().map(|text| link(text)).collect();
    let mut config = PathsConfig::new(links, connection);
    config.backup = vec![false, path_manager != "full-mesh"];
    config.backup.truncate(config.links.len());
    // A client that only receives would otherwise not notice that its path died.
    config.client.receive_timer = Some(ReceiveTimer::with_probes());
    let mut paths = Paths::new(&config, SeedTree::new(1));
    paths.listen(Box::new(move |_| Box::new(Bulk::new(Amount::Bytes(bytes), 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    paths
}

fn read(paths: &Paths) -> u64 {
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    report.read
}

/// Bytes that the server has sent over LTE, and whether it regards that path as a backup.
fn over_lte(paths: &Paths) -> Option<(u64, bool)> {
    let lte = |s: &&SubflowInfo| s.path.remote.ip() == Paths::address(1, 0);
    at_server(paths).iter().find(lte).map(|s| (s.bytes_sent, s.backup))
}

/// Results of a download.
#[derive(Copy, Clone, Debug)]
struct Download {
    /// Time until the last byte was read.
    took_s: f64,
    /// Energy caused by traffic of all radios, including tails.
    joules: f64,
    /// Number of times that LTE was woken.
    woken: u64,
}

fn download(links: &[&str], path_manager: &str, bytes: u64) -> Download {
    let mut paths = scene(links, "min-rtt", path_manager, bytes);
    let mut now = Instant::ZERO;
    while read_or_none(&paths) < bytes {
        now += Duration::from_millis(50);
        assert!(now < Instant::from_secs(600), "{path_manager}: {} bytes", read(&paths));
        paths.world.run_until(now);
    }
    // Tails.
    paths.world.run_until(now + Duration::from_secs(30));
    let energy = |n: &usize| {
        let radio = paths.world.link(paths.up[*n]).radio().expect("a radio");
        radio.energy(paths.world.now())
    };
    let all: Vec<_> = (0..links.len()).collect();
    let lte = all.iter().find(|n| links[**n] == LTE);
    Download {
        took_s: now.as_secs_f64(),
        joules: all.iter().map(|n| energy(n).traffic_j()).sum(),
        woken: lte.map_or(0, |n| energy(n).promotions),
    }
}

fn read_or_none(paths: &Paths) -> u64 {
    paths.client_report(0).map_or(0, |report| report.read)
}

/// WiFi alone, LTE alone, both with min-RTT, eMPTCP.
fn row(rate: &str, bytes: u64) -> [Download; 4] {
    let wifi = wifi(rate);
    let both = [wifi.as_str(), LTE];
    let all = [
        download(&both[..1], "full-mesh", bytes),
        download(&both[1..], "full-mesh", bytes),
        download(&both, "full-mesh", bytes),
        download(&both, "emptcp", bytes),
    ];
    let mb = bytes as f64 / MB as f64;
    let cells = all.map(|d| format!("{:.2} J/MB, {:.1} s", d.joules / mb, d.took_s));
    println!("| {mb} MB, WiFi {rate} | {} | woken {}", cells.join(" | "), all[3].woken);
    all
}

#[test]
fn fast_wifi_carries_it_alone_and_the_cellular_radio_sleeps() {
    let cells = [("20M", MB), ("20M", 40 * MB), ("4M", MB), ("4M", 40 * MB), ("1M", MB)];
    for (rate, bytes) in cells {
        let [wifi, lte, both, ours] = row(rate, bytes);
        assert_eq!(ours.woken, 0, "{rate}, {bytes} bytes");
        assert!(ours.joules < 1.05 * wifi.joules && ours.took_s < 1.05 * wifi.took_s, "{ours:?}");
        assert!(ours.joules < 0.9 * lte.joules.min(both.joules), "{ours:?} {lte:?} {both:?}");
    }
}

#[test]
fn slow_wifi_is_left_for_cellular_once_that_pays() {
    for (rate, bytes) in [("1M", 60 * MB), ("500k", 30 * MB)] {
        let [wifi, lte, both, ours] = row(rate, bytes);
        assert_eq!(ours.woken, 1, "{ours:?}");
        assert!(ours.joules < 0.9 * wifi.joules && ours.took_s < wifi.took_s / 2.0, "{ours:?}");
        // The cost of starting over WiFi.
        assert!(ours.joules < 1.3 * both.joules.min(lte.joules), "{ours:?} {both:?} {lte:?}");
    }
}

#[test]
fn cellular_is_opened_while_wifi_is_slow_and_suspended_by_a_priority_afterwards() {
    let wifi = wifi("0s:20M+10s:500k+40s:20M");
    let lte = "radio=lte,rate=5M,delay=30ms,queue=100ms";
    let mut paths = scene(&[&wifi, lte], "min-rtt", "emptcp", 10_000 * MB);
    paths.world.run_until(Instant::from_secs(10));
    assert_eq!(over_lte(&paths), None, "not opened");
    paths.world.run_until(Instant::from_secs(25));
    let (sent, backup) = over_lte(&paths).expect("opened");
    assert!(!backup && sent > 5 * MB, "{sent} bytes");
    paths.world.run_until(Instant::from_secs(60));
    let (before, backup) = over_lte(&paths).expect("the connection exists");
    let read_before = read(&paths);
    assert!(backup, "the client set the backup flag");
    paths.world.run_until(Instant::from_secs(65));
    let (after, _) = over_lte(&paths).expect("the connection exists");
    let read = read(&paths) - read_before;
    println!("{sent} bytes by 25 s, {} while suspended, {read} over WiFi", after - before);
    assert_eq!(after, before);
    assert!(read > 10 * MB, "{read} bytes over WiFi");
}

#[test]
fn wifi_that_dies_is_replaced_immediately() {
    let wifi = wifi("20M");
    let mut paths = scene(&[&wifi, LTE], "min-rtt", "emptcp", 10_000 * MB);
    paths.schedule_path_change(Instant::from_secs(10), 0, false);
    paths.world.run_until(Instant::from_secs(10));
    assert_eq!(over_lte(&paths), None);
    paths.world.run_until(Instant::from_secs(16));
    let (sent, backup) = over_lte(&paths).expect("opened");
    let report = paths.client_report(0).expect("connected");
    let hole = report.longest_gap_within(Instant::from_secs(9), Instant::from_secs(15)).length;
    println!("{sent} bytes over LTE, a gap of {hole:?}");
    assert!(sent > 2 * MB && !backup && hole < Duration::from_secs(3), "{sent} {hole:?}");
}
