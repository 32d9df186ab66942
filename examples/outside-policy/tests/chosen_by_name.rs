//! The scheduler, chosen by name, carries a real connection in virtual time.

use marline_algos::Registry;
use marline_core::ConnectionConfig;
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Instant, SeedTree};

fn link(spec: &str) -> DuplexConfig {
    let spec: DuplexSpec = spec.parse().expect("a link");
    spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no traces")
}

/// A client that sends `bytes` over two paths with the scheduler of this name.
fn world(scheduler: &str, bytes: u64) -> Paths {
    let mut registry = Registry::default();
    outside_policy::register(&mut registry).expect("the name is free");
    let policies = registry.policy_set(scheduler, "full-mesh", "cubic", "rack-tlp");
    let config = ConnectionConfig::new(policies.expect("all four exist"));
    let links =
        vec![link("rate=20M,delay=10ms,queue=40ms"), link("rate=20M,delay=15ms,queue=40ms")];
    let mut paths = Paths::new(&PathsConfig::new(links, config), SeedTree::new(7));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    paths.connect(0, Box::new(Bulk::new(Amount::Bytes(bytes), 1, 2))).expect("a connection");
    paths
}

/// Bytes that the links from the client delivered.
fn bytes_per_path(paths: &Paths) -> Vec<u64> {
    paths.up.iter().map(|link| paths.world.link(*link).stats().delivered_bytes).collect()
}

fn assert_all_arrived(paths: &Paths, bytes: u64) {
    let server = paths.server_report(0).expect("accepted");
    assert_eq!((server.read, server.wrong_at), (bytes, None));
}

#[test]
fn all_data_stays_on_one_path_where_min_rtt_uses_both() {
    const BYTES: u64 = 10_000_000;
    let run = |scheduler: &str| {
        let mut paths = world(scheduler, BYTES);
        paths.world.run_until(Instant::from_secs(20));
        assert_all_arrived(&paths, BYTES);
        bytes_per_path(&paths)
    };
    let sticky = run("sticky");
    println!("bytes per path: sticky {sticky:?}");
    assert!(sticky[1] < BYTES / 100, "{sticky:?}");
    let min_rtt = run("min-rtt");
    println!("bytes per path: min-rtt {min_rtt:?}");
    assert!(min_rtt[1] > BYTES / 4, "{min_rtt:?}");
}

#[test]
fn a_sticky_scheduler_moves_off_a_dead_path_and_loses_no_byte() {
    const BYTES: u64 = 10_000_000;
    let mut paths = world("sticky", BYTES);
    paths.schedule_path_change(Instant::from_secs(2), 0, false);
    paths.world.run_until(Instant::from_secs(30));
    assert_all_arrived(&paths, BYTES);
    let bytes = bytes_per_path(&paths);
    assert!(bytes[0] > 1_000_000 && bytes[1] > BYTES / 3, "{bytes:?}");
}

#[test]
fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
    let mut registry = Registry::default();
    outside_policy::register(&mut registry).expect("the name is free");
    let error = registry.scheduler("stikcy").expect_err("misspelt");
    let known = registry.names(marline_algos::PolicyKind::Scheduler);
    assert!(known.contains(&"min-rtt") && known.contains(&"sticky"), "{known:?}");
    let expected = format!("unknown scheduler `stikcy`; known: {}", known.join(", "));
    assert_eq!(error.to_string(), expected);
    assert!(outside_policy::register(&mut registry).is_err(), "the name is already used");
}
