//! Tests of connections whose first path is silent from the start, or slow: when the first byte arrives over another
//! path, and what happens to the first path.

use marline_algos::Registry;
use marline_core::{ConnectionConfig, SubflowInfo, SubflowState};
use marline_sim::{Amount, Bulk, EchoServer, Pace, Paths, PathsConfig, Units};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::link;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Hosts with these paths. Paths after the first few are backups.
fn hosts(links: &[&str], regular: usize) -> Paths {
    let set = Registry::default().policy_set("min-rtt", "full-mesh", "cubic", "rack-tlp");
    let config = ConnectionConfig::new(set.expect("built-in names"));
    let mut described = PathsConfig::new(links.iter().map(|spec| link(spec)).collect(), config);
    described.backup = (0..links.len()).map(|path| path >= regular).collect();
    let mut paths = Paths::new(&described, SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(5_000_000), 22, 11))));
    paths
}

/// Downloads over the first path; returns the time of the first byte.
fn first_byte(paths: &mut Paths) -> Duration {
    paths.connect(0, Box::new(Bulk::new(Amount::Bytes(1), 11, 22))).expect("a connection");
    loop {
        let now = paths.world.now();
        if let Some((first, _)) = paths.client_report(0).and_then(|report| report.arrived) {
            return first.since(Instant::ZERO);
        }
        assert!(now < Instant::from_secs(30), "no byte arrives");
        paths.world.run_until(now + ms(1));
    }
}

/// The subflows of the only connection of client or server that are up.
fn established(paths: &Paths, server: bool) -> Vec<SubflowInfo> {
    let node = if server { paths.server } else { paths.client };
    let endpoint = paths.world.node(node).endpoint();
    let connections = endpoint.connections();
    assert_eq!(connections.len(), 1, "{connections:?}");
    let info = endpoint.info(connections[0]).expect("the connection exists");
    assert_eq!(info.fallback, None);
    let mut subflows = info.subflows;
    subflows.retain(|subflow| subflow.state == SubflowState::Established);
    subflows
}

/// The delay, and two round trips until the server's first byte arrives.
#[test]
fn the_first_byte_comes_by_the_other_path_and_the_first_is_joined_once_it_works() {
    let mut paths = hosts(&["rate=8M,delay=10ms", "rate=8M,delay=20ms"], 2);
    paths.set_path_up(0, false);
    paths.schedule_path_change(Instant::from_secs(2), 0, true);
    let took = first_byte(&mut paths);
    assert!(took > ms(250 + 80) && took < ms(250 + 90), "{took:?}");
    assert_eq!(established(&paths, false).len(), 1);
    paths.world.run_until(Instant::from_secs(4));
    let subflows = established(&paths, false);
    assert_eq!(subflows.len(), 2);
    assert!(subflows.iter().all(|subflow| subflow.bytes_received > 100_000), "{subflows:?}");
    assert_eq!(established(&paths, true).len(), 2);
}

/// The answer on the first path arrives when the connection uses the other path: the server keeps no state for it.
#[test]
fn a_slow_first_path_leaves_no_second_connection() {
    let mut paths = hosts(&["rate=8M,delay=300ms", "rate=8M,delay=20ms"], 2);
    let took = first_byte(&mut paths);
    assert!(took < ms(250 + 90), "{took:?}");
    paths.world.run_until(Instant::from_millis(2_900));
    assert_eq!(established(&paths, true).len(), 2, "and joins it");
    assert_eq!(established(&paths, false).len(), 2);
}

#[test]
fn a_backup_path_waits_until_the_first_was_asked_twice() {
    let mut paths = hosts(&["rate=8M,delay=10ms", "rate=8M,delay=20ms"], 1);
    paths.set_path_up(0, false);
    let took = first_byte(&mut paths);
    assert!(took > ms(1_250 + 80) && took < ms(1_250 + 90), "{took:?}");
}

/// An echo every 20 ms over a first path with an RTT of 58 ms, which is dead from the given time until 1.1 s, and a
/// second path with an RTT of 18 ms. Returns the sorted durations of echoes sent between two and five seconds.
fn echoes_beside_a_path_that_died_at(dies_ms: u64) -> Vec<Duration> {
    let mut paths = hosts(&["rate=20M,delay=29ms", "rate=20M,delay=9ms"], 2);
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    let times: Vec<Instant> = (0..250).map(|n| Instant::from_millis(59 + 20 * n)).collect();
    let pace = Pace::At { bytes: 120, times: times.clone() };
    paths.connect(0, Box::new(Units::new(pace, 120, 7, 7))).expect("a connection");
    paths.schedule_path_change(Instant::from_millis(dies_ms), 0, false);
    paths.schedule_path_change(Instant::from_millis(1_100), 0, true);
    paths.world.run_until(Instant::from_secs(6));
    assert_eq!(established(&paths, false).len(), 2, "dead after {dies_ms} ms");
    assert_eq!(established(&paths, true).len(), 2, "dead after {dies_ms} ms");
    let report = paths.client_report(0).expect("it connected");
    assert_eq!(report.received.len(), times.len(), "dead after {dies_ms} ms");
    let both = times.iter().zip(&report.received);
    let late = both.filter(|(sent, _)| sent.since(Instant::ZERO) >= Duration::from_secs(2));
    let mut took: Vec<Duration> = late.map(|(sent, came)| came.since(*sent)).collect();
    took.sort_unstable();
    took
}

/// After the handshake, no segment is answered, with or without options.
#[test]
fn a_path_dying_after_the_handshake_does_not_cause_fallback() {
    for dies_ms in (59..=120).step_by(3) {
        let took = echoes_beside_a_path_that_died_at(dies_ms);
        let (p50, p90) = (took[took.len() / 2], took[took.len() * 9 / 10]);
        assert!(p50 < ms(20) && p90 < ms(25), "dead after {dies_ms} ms: {p50:?}, {p90:?}");
    }
}
