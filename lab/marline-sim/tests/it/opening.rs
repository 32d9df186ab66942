//! Tests of the round trips that a handshake or a close may take.

use crate::cases::{connection, link};
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

/// RTT 40 ms.
const LINK: &str = "rate=100M,delay=20ms,queue=40ms";

fn transfer(client: Amount, server: Amount) -> Paths {
    let config = PathsConfig::new(vec![link(LINK)], connection("min-rtt"));
    let mut paths = Paths::new(&config, SeedTree::new(1));
    paths.listen(Box::new(move |_| Box::new(Bulk::new(server, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(client, 2, 1))).expect("a connection");
    paths
}

#[test]
fn a_server_that_speaks_first_is_heard_after_two_round_trips() {
    let mut paths = transfer(Amount::Nothing, Amount::Bytes(10_000));
    paths.world.run_until(Instant::from_millis(90));
    let client = paths.client_report(0).unwrap();
    assert_eq!((client.read, client.wrong_at), (10_000, None));
}

#[test]
fn a_client_that_speaks_first_is_heard_after_one_and_a_half() {
    let mut paths = transfer(Amount::Bytes(10_000), Amount::Nothing);
    paths.world.run_until(Instant::from_millis(65));
    let server = paths.server_report(0).unwrap();
    assert_eq!((server.read, server.wrong_at), (10_000, None));
}

#[test]
fn a_client_with_nothing_to_say_still_shows_its_keys() {
    let mut paths = transfer(Amount::Nothing, Amount::Nothing);
    paths.world.run_until(Instant::from_millis(150));
    let (client, server) = (paths.client_report(0).unwrap(), paths.server_report(0).unwrap());
    assert!(server.eof_at.is_some_and(|at| at < Instant::from_millis(85)), "{server:?}");
    assert!(client.eof_at.is_some_and(|at| at < Instant::from_millis(125)), "{client:?}");
}

#[test]
fn an_address_that_comes_back_is_not_withdrawn() {
    let mut paths = transfer(Amount::Nothing, Amount::Until(Instant::from_secs(9)));
    for (from, to) in [(2_000, 2_400), (4_000, 4_020), (6_000, 7_500)] {
        paths.schedule_path_change(Instant::from_millis(from), 0, false);
        paths.schedule_address_change(Instant::from_millis(from), 0, false);
        paths.schedule_path_change(Instant::from_millis(to), 0, true);
        paths.schedule_address_change(Instant::from_millis(to), 0, true);
    }
    paths.world.run_until(Instant::from_secs(10));
    let client = paths.client_report(0).unwrap();
    assert!(client.eof_at.is_some() && client.wrong_at.is_none(), "{:?}", client.eof_at);
    for (from, to) in [(2_000, 2_400), (4_000, 4_020), (6_000, 7_500)] {
        let (from, to) = (Instant::from_millis(from), Instant::from_millis(to));
        let hole = client.longest_gap_within(from, to + Duration::from_millis(500));
        // Join: SYN, SYN/ACK, third ACK, data: two round trips, and one more for its fourth ACK; and the time
        // of a few segments on the link.
        let allowed = to.since(from) + Duration::from_millis(205);
        println!("gone for {:?}: gap {:?}", to.since(from), hole.length);
        assert!(hole.length <= allowed, "{hole:?} of {allowed:?}");
    }
}

#[test]
fn the_window_opens_as_fast_as_slow_start() {
    let config =
        PathsConfig::new(vec![link("rate=200M,delay=50ms,queue=100ms")], connection("min-rtt"));
    let mut paths = Paths::new(&config, SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Endless, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    paths.world.run_until(Instant::from_secs(4));
    let client = paths.client_report(0).unwrap();
    let second = client.goodput(Instant::from_secs(2), Instant::from_secs(4));
    println!("200 Mbit/s, 100 ms: {second} after two seconds");
    assert!(second.bits_per_s() > 170_000_000, "{second}");
}
