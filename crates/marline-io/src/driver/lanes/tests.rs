use core::net::SocketAddr;

use marline_algos::Registry;
use marline_core::{FourTuple, PathAddresses};
use marline_datagram::{FlowId, LaneConfig, LaneIds, TestCipher};

use super::*;

const ID: u64 = 7;
const ALONE: Shard = Shard::SINGLE;

fn config() -> LaneConfig {
    let registry = Registry::default();
    let policy = registry.datagram_policy("auto").unwrap();
    LaneConfig::new(policy, registry.congestion("cubic-westwood").unwrap())
}

fn lanes(numbers: PathNumbers) -> Lanes {
    let [keys, _] = TestCipher::pair(1);
    let lane = Lane::new(config(), LaneIds { local: ID, peers: 8 }, keys, Instant::ZERO);
    let mut lanes = Lanes::new(ALONE, SecretRng::from_os().unwrap());
    assert!(lanes.admits(ID, 8));
    lanes.insert(ID, 8, lane, ConnectionId(3), numbers);
    assert!(!lanes.admits(ID, 9) && !lanes.admits(9, 8) && !lanes.admits(0, 9));
    lanes
}

/// Builds subflows with these local ids; the peer's ids are higher by 100.
fn subflows(flows: &[u64]) -> Vec<SubflowLocation> {
    let end = SocketAddr::from(([192, 0, 2, 1], 7));
    let path = FourTuple { local: end, remote: end };
    let place = |flow: &u64| SubflowLocation {
        local_flow: *flow,
        peer_flow: flow + 100,
        path,
        backup: false,
        cost: marline_policy::PathCost::NONE,
        srtt: None,
    };
    flows.iter().map(place).collect()
}

fn paths(lanes: &Lanes) -> Vec<(u8, u64)> {
    lanes.paths(ID).iter().map(|path| (path.id.0, path.flow)).collect()
}

fn told(lanes: &mut Lanes) -> Vec<(u8, u64)> {
    let mut arrivals = Arrivals::default();
    let cx = &Context::from_waker(Waker::noop());
    lanes.take(ID, cx, &mut arrivals).unwrap();
    arrivals.paths().iter().map(|named| (named.path.0, named.peer_flow)).collect()
}

#[test]
fn subflows_between_equal_addresses_share_one_path_number() {
    let mut lanes = lanes(PathNumbers::Local);
    let now = Instant::from_secs(1);
    // Subflows 11 and 12 have the same addresses; 14 has no validated address.
    let place = |flow: u64| match flow {
        12 => Some(11),
        14 => None,
        other => Some(other),
    };
    lanes.look(ID, now, &subflows(&[10, 11, 12, 13, 14]), place);
    assert_eq!(paths(&lanes), [(0, 10), (1, 11), (2, 13)]);
    assert_eq!(told(&mut lanes), [(0, 110), (1, 111), (2, 113)]);
    // One ends, and the other subflow with these addresses takes its number.
    lanes.on_flow_ended(11);
    assert_eq!(lanes.connection_to_check(ID, now), Some(ConnectionId(3)));
    lanes.look(ID, now, &subflows(&[10, 12, 13]), place);
    assert_eq!(paths(&lanes), [(0, 10), (2, 13), (1, 12)]);
    assert_eq!(told(&mut lanes), [(1, 112)]);
    assert_eq!(lanes.connection_to_check(ID, now), None, "nothing has changed");
    lanes.on_changes(1);
    assert!(lanes.connection_to_check(ID, now).is_some());
    lanes.look(ID, now, &[], place);
    assert_eq!(paths(&lanes), []);
}

#[test]
fn the_peer_numbers_paths_before_or_after_their_subflows_exist() {
    let mut lanes = lanes(PathNumbers::Peers);
    let now = Instant::from_secs(1);
    lanes.look(ID, now, &subflows(&[10]), Some);
    assert_eq!(paths(&lanes), [(0, 10)], "the first path needs no announcement");
    let named = |id: u8, flow: u64| LanePath { id: PathId(id), flow };
    lanes.assign_path_number(ID, named(1, 11), now);
    lanes.assign_path_number(ID, named(2, 12), now);
    lanes.assign_path_number(ID, named(32, 13), now);
    lanes.look(ID, now, &subflows(&[10, 12, 13]), Some);
    assert_eq!(paths(&lanes), [(0, 10), (2, 12)], "numbers are below 32");
    lanes.settle(ID, now);
    let soon = lanes.next_timeout().expect("checks for the other subflow");
    assert!(soon <= now + MISSING_PATH_INTERVAL);
    lanes.look(ID, soon, &subflows(&[10, 11, 12]), Some);
    assert_eq!(paths(&lanes), [(0, 10), (2, 12), (1, 11)]);
    // Another subflow with a number in use replaces the first.
    lanes.assign_path_number(ID, named(2, 14), now);
    lanes.look(ID, soon, &subflows(&[10, 11, 12, 14]), Some);
    assert_eq!(paths(&lanes), [(0, 10), (1, 11), (2, 14)]);
    assert_eq!(told(&mut lanes), [], "nothing is announced back");
}

#[test]
fn waiting_for_a_missing_lane_path_ends() {
    let mut lanes = lanes(PathNumbers::Peers);
    let now = Instant::from_secs(1);
    for id in 0..100 {
        lanes.assign_path_number(ID, LanePath { id: PathId(id), flow: 1_000 + u64::from(id) }, now);
    }
    let (mut at, mut looks) = (now, 0);
    while let Some(next) = lanes.next_timeout().or((looks == 0).then_some(now)) {
        at = next;
        lanes.on_timeout(at);
        lanes.look(ID, at, &subflows(&[10]), Some);
        lanes.settle(ID, at);
        looks += 1;
        assert!(looks < 1_000, "a silent lane needs no timer");
    }
    assert!(at <= now + PATH_TIMEOUT + MISSING_PATH_INTERVAL, "{at:?}");
    assert_eq!(paths(&lanes), [(0, 10)]);
}

#[test]
fn frames_come_from_a_path_or_are_counted() {
    let mut lanes = lanes(PathNumbers::Local);
    let now = Instant::from_secs(1);
    lanes.look(ID, now, &subflows(&[10]), Some);
    let frame = [0x28; 60];
    lanes.arrive(ID, now, &frame, |flow| flow == 10);
    lanes.arrive(ID, now, &frame, |_| false);
    lanes.arrive(ID + 1, now, &frame, |_| true);
    let counters = lanes.counters();
    assert_eq!((counters.frames_unvalidated, counters.unknown, counters.stats.foreign), (1, 1, 1));
    lanes.remove(ID);
    let after = lanes.counters();
    assert_eq!((after.lanes, after.stats.foreign), (0, 1), "ended lanes still count");
    assert!(lanes.next_timeout().is_none() && lanes.find_by_peer(8).is_none());
}

#[test]
fn a_silent_lane_path_is_probed_when_its_addresses_answer() {
    let mut lanes = lanes(PathNumbers::Local);
    let [_, keys] = TestCipher::pair(1);
    let mut peer = Lane::new(config(), LaneIds { local: 8, peers: ID }, keys, Instant::ZERO);
    let now = Instant::from_secs(1);
    peer.add_path(PathId(0), now);
    let subflows = subflows(&[10]);
    let addresses = subflows[0].path.addresses();
    lanes.look(ID, now, &subflows, Some);
    lanes.with(ID, |lane| lane.set_path_unreachable(PathId(0), now));
    let mut frame = Vec::new();
    while lanes.transmit(ID, now, &mut frame).is_some() {}
    lanes.settle(ID, now);
    let elsewhere = PathAddresses { remote: [9, 9, 9, 9].into(), ..addresses };
    lanes.on_path_answer(elsewhere);
    assert!(lanes.transmit(ID, now, &mut frame).is_none(), "another path");
    lanes.on_path_answer(addresses);
    lanes.transmit(ID, now, &mut frame).expect("a question");
    peer.handle(now, PathId(0), &mut frame.clone());
    let later = now + Duration::from_millis(50);
    peer.handle_timeout(later);
    while peer.poll_transmit(later, &mut frame).is_some() {
        lanes.arrive(ID, later, &frame, |_| true);
    }
    assert!(lanes.take_answered().is_empty());
    lanes.settle(ID, later);
    assert_eq!(lanes.take_answered().into_iter().collect::<Vec<_>>(), [addresses]);
    lanes.on_path_answer(addresses);
    lanes.settle(ID, later);
    assert!(lanes.take_answered().is_empty(), "reported only once");
}

#[test]
fn the_memory_of_a_lane_is_charged_and_bounded() {
    let budget = marline_core::MemoryBudget::new(Some(1 << 20));
    let account = budget.account(u64::MAX);
    let mut lanes = lanes(PathNumbers::Local);
    let now = Instant::from_secs(1);
    lanes.look(ID, now, &subflows(&[10]), Some);
    lanes.charge_to(ID, &account);
    let send = |lane: &mut Lane| lane.send(now, FlowId(1), &[7; 1_000]).is_ok();
    let taken = (0..1_000).filter(|_| lanes.with(ID, send) == Some(true)).count();
    lanes.settle(ID, now);
    // The account allows a third of the free memory, and a queue an eighth of this third.
    assert!((30..50).contains(&taken), "{taken}");
    assert!(account.used() >= taken as u64 * 1_000 && account.used() < 64 << 10);
    lanes.remove(ID);
    assert_eq!(account.used(), 0);
}
