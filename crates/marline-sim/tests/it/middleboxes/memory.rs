//! Tests of the memory of networks that drop SYNs with MP_CAPABLE: only the first connection pays.

use marline_core::{ConnectionConfig, FallbackReason};
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

use super::world::{config, link};

/// Opens a connection and tells how long it took, and why it is on plain TCP, if it is.
fn open(paths: &mut Paths, over: usize) -> (Duration, Option<FallbackReason>) {
    let start = paths.world.now();
    let client = paths.client;
    let index = paths.world.node(client).connections().count();
    let id = paths.connect(over, Box::new(Bulk::new(Amount::Bytes(1), 11, 22)));
    let id = id.expect("a connection");
    let opened = |paths: &Paths| paths.client_report(index).and_then(|report| report.opened_at);
    while opened(paths).is_none() {
        let next = paths.world.now() + Duration::from_millis(1);
        assert!(next.since(start) < Duration::from_secs(30), "it hangs");
        paths.world.run_until(next);
    }
    let info = paths.world.node(client).endpoint().info(id).expect("it lives");
    (paths.world.now().since(start), info.fallback)
}

fn paths(boxes: &[&str]) -> Paths {
    paths_of(config(true, false), boxes)
}

fn paths_of(client: ConnectionConfig, boxes: &[&str]) -> Paths {
    let links = boxes.iter().map(|boxes| link(boxes)).collect();
    let mut paths = Paths::new(&PathsConfig::new(links, client), SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(1), 22, 11))));
    paths
}

const QUICK: Duration = Duration::from_millis(50);
const SLOW: Duration = Duration::from_secs(7);

#[test]
fn the_second_connection_does_not_wait_and_other_networks_are_not_blamed() {
    let mut client = config(true, false);
    client.connection_attempt_delay = None;
    let mut paths = paths_of(client, &["up.block=mptcp:syn", ""]);
    let (took, why) = open(&mut paths, 0);
    assert!(took > SLOW && why == Some(FallbackReason::SynRetries), "{took:?} {why:?}");
    let (took, why) = open(&mut paths, 0);
    assert!(took < QUICK && why == Some(FallbackReason::KnownNetwork), "{took:?} {why:?}");
    let (took, why) = open(&mut paths, 1);
    assert!(took < QUICK && why.is_none(), "{took:?} {why:?}");
}

#[test]
fn it_is_forgotten_after_an_hour_and_later_the_second_time() {
    let mut paths = paths(&["up.block=mptcp:syn"]);
    open(&mut paths, 0);
    paths.world.run_until(Instant::from_secs(3_590));
    assert_eq!(open(&mut paths, 0).1, Some(FallbackReason::KnownNetwork));
    paths.world.run_until(Instant::from_secs(3_700));
    assert_eq!(open(&mut paths, 0).1, Some(FallbackReason::SynRetries), "it is tried again");
    paths.world.run_until(Instant::from_secs(10_000));
    assert_eq!(open(&mut paths, 0).1, Some(FallbackReason::KnownNetwork));
    // The middlebox is gone: the next try succeeds, and nothing is held against the network.
    let (up, down) = (paths.up[0], paths.down[0]);
    let free = link("");
    paths.world.set_link(up, free.up);
    paths.world.set_link(down, free.down);
    paths.world.run_until(Instant::from_secs(11_000));
    assert_eq!(open(&mut paths, 0).1, None);
}

#[test]
fn an_address_that_comes_back_is_another_network() {
    let mut paths = paths(&["up.block=mptcp:syn"]);
    open(&mut paths, 0);
    let now = paths.world.now();
    paths.at_set_address(now + Duration::from_secs(1), 0, false);
    paths.at_set_address(now + Duration::from_secs(2), 0, true);
    paths.world.run_until(now + Duration::from_secs(3));
    let (took, why) = open(&mut paths, 0);
    assert!(took > SLOW && why == Some(FallbackReason::SynRetries), "{took:?} {why:?}");
}

/// Losses make nobody suspicious: three SYNs are lost, and the fourth would have been answered anyway.
#[test]
fn a_syn_ack_with_the_option_absolves() {
    let mut paths = paths(&["up.drop=1+2+3"]);
    assert_eq!(open(&mut paths, 0).1, Some(FallbackReason::SynRetries));
    let now = paths.world.now();
    paths.at_set_address(now + Duration::from_secs(1), 0, false);
    paths.at_set_address(now + Duration::from_secs(2), 0, true);
    paths.world.run_until(now + Duration::from_secs(3));
    assert_eq!(open(&mut paths, 0).1, None);
    assert_eq!(open(&mut paths, 0).1, None);
}

/// A delay, and a round trip of the other path.
const OVER_THE_OTHER: Duration = Duration::from_millis(300);

#[test]
fn another_path_spares_the_wait_and_the_fallback() {
    for boxes in ["up.block=mptcp:syn", "down.block=mptcp:synack"] {
        let mut paths = paths(&[boxes, ""]);
        for _ in 0..2 {
            let (took, why) = open(&mut paths, 0);
            assert!(took < OVER_THE_OTHER && why.is_none(), "{boxes}: {took:?} {why:?}");
        }
    }
}

#[test]
fn a_server_of_plain_tcp_costs_the_second_path_one_round_trip_once() {
    let mut paths = paths(&["strip=mptcp", "strip=mptcp"]);
    let stripped = Some(FallbackReason::SynAckWithoutOption);
    let (took, why) = open(&mut paths, 0);
    assert!(took < QUICK * 2 && took > QUICK && why == stripped, "{took:?} {why:?}");
    let (took, why) = open(&mut paths, 0);
    assert!(took < QUICK && why == stripped, "{took:?} {why:?}");
}
