//! Test of delivery gaps: those reported to observers, compared with those the other application experienced.

use crate::cases::{connection, link};
use marline_core::{MonitorEvent, MonitorKind, StreamDirection};
use marline_sim::{Amount, Bulk, Echo, EchoServer, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

/// Allowed difference between reported and experienced gaps.
const AGREES: Duration = Duration::from_millis(50);

const WIFI: &str = "rate=20M,delay=8ms,queue=50ms";
const LTE: &str = "rate=20M,delay=20ms,queue=50ms";

fn at_s(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// Gaps in this direction: when each began and ended.
fn told(events: &[MonitorEvent], wanted: StreamDirection) -> Vec<(Instant, Instant)> {
    let hole = |event: &MonitorEvent| match event.kind {
        MonitorKind::Hole { direction, since, .. } if direction == wanted => {
            Some((since, event.at))
        }
        _ => None,
    };
    events.iter().filter_map(hole).collect()
}

fn agree(a: Instant, b: Instant) -> bool {
    a.max(b).since(a.min(b)) <= AGREES
}

/// Typing (a message every 20 ms) over these links, which are silent from 4 s to 6 s.
fn typed(links: &[&str]) -> (Paths, usize) {
    let config =
        PathsConfig::new(links.iter().map(|spec| link(spec)).collect(), connection("auto"));
    let mut paths = Paths::new(&config, SeedTree::new(7));
    paths.listen(Box::new(|_| Box::new(EchoServer::new(1))));
    let echo = Echo::new(200, Duration::from_millis(20), 500, 1);
    paths.connect(0, Box::new(echo)).expect("a connection");
    for path in 0..links.len() {
        paths.schedule_path_change(at_s(4), path, false);
        paths.schedule_path_change(at_s(6), path, true);
    }
    paths.world.run_until(at_s(30));
    (paths, links.len())
}

#[test]
fn a_scripted_outage_is_reported_as_the_reader_felt_it() {
    for links in [&[WIFI][..], &[WIFI, LTE][..]] {
        let (paths, count) = typed(links);
        let reader = paths.server_report(0).expect("accepted");
        let felt = reader.longest_gap_within(at_s(4), at_s(12));
        assert!(felt.length >= Duration::from_secs(2), "{count} paths: {felt:?}");
        let events = paths.world.node(paths.client).monitor();
        let all = told(events, StreamDirection::Sent);
        let [(since, ended)] = all[..] else { panic!("{count} paths: expected one gap: {all:?}") };
        println!("{count} paths: experienced {felt:?}, reported {since:?} to {ended:?}");
        assert!(agree(since, felt.from), "{count} paths: began {since:?}, experienced {felt:?}");
        assert!(agree(since, at_s(4)), "{count} paths: {since:?} is not when the links died");
        assert!(
            agree(ended, felt.from + felt.length),
            "{count} paths: ended {ended:?}, experienced {felt:?}"
        );
    }
}

#[test]
fn application_pauses_are_not_reported_as_holes() {
    let config = PathsConfig::new(vec![link(WIFI), link(LTE)], connection("auto"));
    let mut paths = Paths::new(&config, SeedTree::new(7));
    paths.listen(Box::new(|_| Box::new(EchoServer::new(1))));
    // Half a second between two messages.
    let echo = Echo::new(200, Duration::from_millis(500), 40, 1);
    paths.connect(0, Box::new(echo)).expect("a connection");
    paths.world.run_until(at_s(30));
    assert_eq!(paths.client_report(0).expect("connected").latencies.len(), 40);
    for node in [paths.client, paths.server] {
        for direction in [StreamDirection::Sent, StreamDirection::Received] {
            let all = told(paths.world.node(node).monitor(), direction);
            assert!(all.is_empty(), "{direction:?}: {all:?}");
        }
    }
}

/// The receiver knows that data waits behind a lost part of a download.
#[test]
fn a_receiver_reports_the_hole_that_blocked_data_of_another_path() {
    let links =
        vec![link("rate=20M,delay=60ms,queue=100ms"), link("rate=20M,delay=100ms,queue=100ms")];
    let config = PathsConfig::new(links, connection("round-robin"));
    let mut paths = Paths::new(&config, SeedTree::new(3));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(20_000_000), 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    paths.schedule_path_change(at_s(3), 0, false);
    paths.world.run_until(at_s(60));
    let felt = paths.client_report(0).expect("connected").longest_gap_within(at_s(3), at_s(6));
    assert!(felt.length >= Duration::from_millis(150), "{felt:?}");
    let all = told(paths.world.node(paths.client).monitor(), StreamDirection::Received);
    println!("experienced {felt:?}, reported {all:?}");
    let same = |(since, ended): &&(Instant, Instant)| {
        agree(*since, felt.from) && agree(*ended, felt.from + felt.length)
    };
    assert!(all.iter().any(|hole| same(&hole)), "experienced {felt:?}, reported {all:?}");
}
