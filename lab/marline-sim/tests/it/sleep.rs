//! Test of a connection that survives a sleep from which the machine wakes with other addresses.

use crate::cases::sleep::run;
use crate::cases::{connection, link};
use marline_sim::{Echo, EchoServer, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

#[test]
fn a_session_continues_soon_after_ten_minutes_without_any_path() {
    for seed in 1..=2 {
        let outcome = run(Duration::from_secs(600), "min-rtt", seed);
        println!("seed {seed}: first byte {:?} after the return", outcome.resumed_after);
        assert!(outcome.resumed_after <= Duration::from_secs(2), "{outcome:?}");
    }
}

/// A single path with plain TCP: only this path can carry the data, and after an outage of 10 s the next
/// retransmission would be 3 s away.
#[test]
fn an_address_that_returns_is_used_immediately() {
    let mut config = connection("min-rtt");
    config.mptcp = false;
    let scene = PathsConfig::new(vec![link("rate=20M,delay=10ms")], config);
    let mut paths = Paths::new(&scene, SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    let echo = Echo::new(64, Duration::from_millis(200), 200, 7);
    paths.connect(0, Box::new(echo)).expect("a connection");
    let (away, back) = (Instant::from_secs(5), Instant::from_secs(15));
    for (at, up) in [(away, false), (back, true)] {
        paths.schedule_path_change(at, 0, up);
        paths.schedule_address_change(at, 0, up);
    }
    paths.world.run_until(Instant::from_secs(60));
    let report = paths.client_report(0).expect("connected");
    assert_eq!((report.latencies.len(), report.wrong_at), (200, None));
    let hole = report.longest_gap_within(away, back);
    let resumed = (hole.from + hole.length).since(back);
    assert!(resumed <= Duration::from_millis(100), "{resumed:?} after the return");
}
