//! Tests of resets that may come from a middlebox, and of their effects.

use marline_core::{CloseReason, ConnectionConfig};
use marline_policy::LocalAddress;
use marline_testkit::{Side, config};
use marline_wire::TcpFlags;

use crate::two_hosts::{MiddleboxAction, Packet, TwoHosts, bytes, local_address, two_paths};

/// Behavior of a path.
type PathBehavior = fn(&mut Packet<'_>) -> MiddleboxAction;

const PASS: PathBehavior = |_| MiddleboxAction::Pass;
const RESET: PathBehavior = |_| MiddleboxAction::Refuse;
const SWALLOW: PathBehavior = |_| MiddleboxAction::Drop;

/// A client with two addresses. Until `from_ms`, both paths pass all packets. After that, each behaves as in `later`.
fn hosts_whose_paths_turn(from_ms: u64, later: [PathBehavior; 2]) -> TwoHosts {
    let mut hosts = TwoHosts::new(two_paths(config()), config(), PASS, 1);
    hosts.run_ms(from_ms);
    hosts.middlebox = Box::new(move |packet| later[packet.path](packet));
    hosts
}

fn second(up: bool) -> LocalAddress {
    LocalAddress { up, ..local_address(2, "10.1.0.1") }
}

fn set_second(hosts: &mut TwoHosts, up: bool) {
    let (now, id) = (hosts.pair.now(), hosts.id(Side::A));
    hosts.pair.endpoint(Side::A).set_local_address(now, Some(id), second(up));
}

/// Checks that both sides' bytes arrive.
#[track_caller]
fn carries_on(hosts: &mut TwoHosts) {
    let had = [hosts.ends[0].received.len(), hosts.ends[1].received.len()];
    hosts.write(Side::A, &bytes(50_000, 3));
    hosts.write(Side::B, &bytes(50_000, 4));
    hosts.run_ms(10_000);
    for (side, had, salt) in [(Side::A, had[0], 4), (Side::B, had[1], 3)] {
        let end = hosts.end(side);
        assert_eq!(end.closed, None, "{side:?}");
        assert!(end.received[had..] == bytes(50_000, salt), "{side:?}");
    }
}

/// Time in seconds until the client's connection ended, and the reason.
fn end_of_client(hosts: &mut TwoHosts, within_s: u64) -> Option<(u64, CloseReason)> {
    (1..=within_s).find_map(|second| {
        hosts.run_ms(1_000);
        hosts.ends[0].closed.map(|why| (second, why))
    })
}

#[test]
fn resets_of_the_only_path_and_of_its_joins_leave_time_for_another_path() {
    let mut hosts = hosts_whose_paths_turn(500, [RESET, PASS]);
    set_second(&mut hosts, false);
    hosts.write(Side::A, b"into the box");
    hosts.run_ms(12_000);
    let refused = hosts.sent_to(Side::B, 0).filter(|s| s.header.flags == TcpFlags::SYN).count();
    assert!(refused >= 4, "{refused} SYNs: joins were retried repeatedly");
    assert_eq!(hosts.ends[0].closed, None);
    set_second(&mut hosts, true);
    hosts.run_ms(1_000);
    assert_eq!(hosts.ends[1].received, b"into the box");
    hosts.ends[1].received.clear();
    carries_on(&mut hosts);
}

#[test]
fn a_box_that_resets_for_a_while_is_outlived_on_the_same_path() {
    let mut hosts = hosts_whose_paths_turn(500, [RESET, PASS]);
    set_second(&mut hosts, false);
    hosts.write(Side::A, b"into the box");
    hosts.run_ms(10_000);
    hosts.middlebox = Box::new(PASS);
    hosts.run_ms(3_000);
    assert_eq!(hosts.ends[1].received, b"into the box");
}

#[test]
fn resets_of_every_join_end_the_connection_in_bounded_time() {
    let mut hosts = hosts_whose_paths_turn(500, [RESET, RESET]);
    hosts.write(Side::A, b"into the boxes");
    let (after_s, why) = end_of_client(&mut hosts, 120).expect("an end");
    assert_eq!(why, CloseReason::Refused);
    assert!((30..=33).contains(&after_s), "after {after_s} s");
}

/// A captive portal on one path proves nothing about the other, on which the phone is in a tunnel.
#[test]
fn resets_on_one_path_do_not_cut_the_wait_for_one_that_is_silent() {
    let mut hosts = hosts_whose_paths_turn(500, [RESET, SWALLOW]);
    set_second(&mut hosts, false);
    hosts.run_ms(100);
    set_second(&mut hosts, true);
    hosts.write(Side::A, b"into the box");
    hosts.run_ms(45_000);
    assert_eq!(hosts.ends[0].closed, None);
    hosts.middlebox =
        Box::new(|packet| if packet.path == 1 { PASS(packet) } else { RESET(packet) });
    hosts.run_ms(10_000);
    assert_eq!(hosts.ends[1].received, b"into the box");
}

/// The application was killed, and the RST has no MP_FASTCLOSE: the first join shows that the connection is
/// unknown, by the peer's own report (MP_TCPRST).
#[test]
fn a_peer_that_aborted_without_fastclose_ends_the_connection_at_the_first_join() {
    let mut hosts = hosts_whose_paths_turn(500, [PASS, PASS]);
    set_second(&mut hosts, false);
    let mut bare = 1;
    hosts.middlebox = Box::new(move |packet| {
        if packet.to == Side::A && packet.seg.header.flags.contains(TcpFlags::RST) && bare > 0 {
            bare -= 1;
            packet.strip();
        }
        MiddleboxAction::Pass
    });
    let (now, id) = (hosts.pair.now(), hosts.id(Side::B));
    hosts.pair.endpoint(Side::B).abort(now, id);
    hosts.pair.endpoint(Side::B).release(now, id);
    let (after_s, why) = end_of_client(&mut hosts, 120).expect("an end");
    assert_eq!(why, CloseReason::Refused);
    assert!(after_s <= 2, "after {after_s} s");
}

#[test]
fn a_reset_ends_plain_tcp_immediately() {
    let mut hosts = TwoHosts::new(
        two_paths(config()),
        config(),
        |packet| {
            packet.strip();
            MiddleboxAction::Pass
        },
        1,
    );
    hosts.run_ms(500);
    hosts.middlebox = Box::new(RESET);
    hosts.write(Side::A, b"into the box");
    let (after_s, why) = end_of_client(&mut hosts, 120).expect("an end");
    assert_eq!((after_s, why), (1, CloseReason::PeerReset));
}

/// The middlebox does not support subflows opened by MP_JOIN, and resets each as soon as it carries data.
#[test]
fn a_box_that_resets_every_join_with_its_first_data_ends_the_connection_in_bounded_time() {
    let mut hosts = hosts_whose_paths_turn(500, [PASS, PASS]);
    hosts.middlebox = Box::new(|packet| {
        if packet.seg.payload.is_empty() { MiddleboxAction::Pass } else { MiddleboxAction::Refuse }
    });
    hosts.write(Side::A, b"into the boxes");
    let (after_s, why) = end_of_client(&mut hosts, 300).expect("an end");
    // The server, which receives none of this, soon has no room for more subflows.
    assert!(matches!(why, CloseReason::PeerReset | CloseReason::Refused), "{why:?}");
    assert!((30..=60).contains(&after_s), "after {after_s} s");
}

/// The NAT neither passes nor answers segments of unknown connections: the only path looks dead, while other ports
/// would pass.
#[test]
fn a_nat_that_drops_a_lost_mapping_is_passed_on_other_ports() {
    let only = vec![local_address(1, "10.0.0.1")];
    let client = ConnectionConfig { local_addresses: only, ..config() };
    let mut hosts = TwoHosts::new(client, config(), PASS, 1);
    hosts.write(Side::A, b"before");
    hosts.run_ms(500);
    let port = hosts.info(Side::A).subflows[0].path.local.port();
    hosts.middlebox = Box::new(move |packet| {
        let ports = [packet.seg.header.src_port, packet.seg.header.dst_port];
        if ports.contains(&port) { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    });
    hosts.write(Side::A, b" and after");
    hosts.write(Side::B, b"down, too");
    hosts.run_ms(3_000);
    assert_eq!(hosts.ends[1].received, b"before and after");
    assert_eq!(hosts.ends[0].received, b"down, too");
    hosts.run_ms(120_000);
    assert_eq!(hosts.info(Side::A).subflows.len(), 1, "the stuck one was given up");
}
