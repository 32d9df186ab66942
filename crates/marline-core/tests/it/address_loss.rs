//! Tests of local addresses that are lost while a connection has only its first subflow: in the first round trip,
//! on plain TCP, during joins. Another address stays up.

use std::time::Duration;

use marline_core::{CloseReason, ConnectionConfig};
use marline_policy::LocalAddress;
use marline_testkit::{Side, config};
use marline_wire::TcpFlags;
use marline_wire::mptcp::MptcpOption;

use crate::two_hosts::{
    MiddleboxAction, Packet, TwoHosts, bytes, local_address, second_unused, two_paths,
};

const SIZE: usize = 100_000;

fn pass(_: &mut Packet<'_>) -> MiddleboxAction {
    MiddleboxAction::Pass
}

/// The address of the first path is lost: nothing passes in either direction.
fn lose_first(hosts: &mut TwoHosts) {
    let now = hosts.pair.now();
    let gone = LocalAddress { up: false, ..local_address(1, "10.0.0.1") };
    hosts.pair.endpoint(Side::A).set_local_address(now, None, gone);
}

/// The first path works again, and its address is back.
fn first_comes_back(hosts: &mut TwoHosts) {
    hosts.middlebox = Box::new(pass);
    let now = hosts.pair.now();
    hosts.pair.endpoint(Side::A).set_local_address(now, None, local_address(1, "10.0.0.1"));
}

/// Passes this many segments on the first path, and drops all later ones.
fn first_path_dies_after(segments: usize) -> impl FnMut(&mut Packet<'_>) -> MiddleboxAction {
    let mut left = segments;
    move |packet| {
        if packet.path > 0 {
            return MiddleboxAction::Pass;
        }
        let dead = left == 0;
        left = left.saturating_sub(1);
        if dead { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    }
}

fn without_mptcp(config: ConnectionConfig) -> ConnectionConfig {
    ConnectionConfig { mptcp: false, ..config }
}

/// Time in milliseconds until the client's connection has ended, and the reason.
fn ends_after(hosts: &mut TwoHosts, within_s: u64) -> Option<(u64, CloseReason)> {
    let began = hosts.pair.now();
    for _ in 0..within_s * 20 {
        hosts.run_ms(50);
        if let Some(reason) = hosts.ends[0].closed {
            return Some((hosts.pair.now().since(began).as_millis() as u64, reason));
        }
    }
    None
}

/// A real handover: the stream continues by a join from the other address within a second or two, whichever side
/// writes.
#[test]
fn an_address_that_goes_after_the_third_ack_is_replaced_by_a_join() {
    for writer in [Side::A, Side::B] {
        for lost_after_ms in [21, 25, 29] {
            // SYN, SYN/ACK, third ACK with the first data, perhaps more data.
            let hosts = TwoHosts::new(two_paths(config()), config(), pass, 1);
            let mut hosts = hosts;
            hosts.write(writer, &bytes(SIZE, 1));
            hosts.run_ms(lost_after_ms);
            hosts.middlebox = Box::new(first_path_dies_after(0));
            lose_first(&mut hosts);
            hosts.run_ms(3_000);
            let (there, from) = (writer.other() as usize, writer as usize);
            assert!(hosts.ends[1].id.is_some(), "{writer:?}, {lost_after_ms} ms: no connection");
            let info = hosts.info(Side::A);
            let (got, closed) = (hosts.ends[there].received.len(), hosts.ends[from].closed);
            assert_eq!(got, SIZE, "{writer:?}, {lost_after_ms} ms: {closed:?}, {info:?}");
            assert!(hosts.ends[there].received == bytes(SIZE, 1));
            for end in &mut hosts.ends {
                end.received.clear();
            }
            hosts.exchange_and_close(Side::A, &bytes(SIZE, 3), &bytes(SIZE, 4));
        }
    }
}

/// The path manager may treat a second subflow, or a reserve, in any way while the first one exists.
#[test]
fn no_path_manager_closes_the_join_that_replaces_a_lost_address() {
    let registry = marline_algos::Registry::default();
    let impatient = "break-before-make,patience=0ms,probe=20ms,settle=50ms,quiet=100ms";
    for manager in ["full-mesh", "backup", "break-before-make", impatient, "multimob", "manual"] {
        for backup in [true, false] {
            let mut client = two_paths(config());
            client.local_addresses[1].backup = backup;
            client.policies.path_manager = registry.path_manager(manager).expect("a path manager");
            let mut hosts = TwoHosts::new(client, config(), first_path_dies_after(3), 1);
            hosts.run_ms(25);
            lose_first(&mut hosts);
            hosts.run_ms(2_000);
            assert_eq!(hosts.ends[0].closed, None, "{manager}, backup {backup}");
            hosts.exchange_and_close(Side::A, &bytes(SIZE, 3), &bytes(SIZE, 4));
        }
    }
}

/// A client with IPv4 on the first path and IPv6 on the second.
fn two_families(mut config: ConnectionConfig) -> ConnectionConfig {
    config.local_addresses = vec![local_address(1, "10.0.0.1"), local_address(2, "fd00:1::1")];
    config
}

/// The client learns the server's IPv6 address from DNS.
fn learn_ipv6(hosts: &mut TwoHosts) {
    let (now, id) = (hosts.pair.now(), hosts.id(Side::A));
    let address = "[2001:db8::1]:443".parse().expect("an address");
    hosts.pair.endpoint(Side::A).add_remote_address(now, id, address);
}

/// The other address cannot reach the server's address in use, but one of its own family that the client knows, before
/// or after the loss.
#[test]
fn an_address_that_goes_after_the_third_ack_is_replaced_by_one_of_the_other_family() {
    for known_before in [true, false] {
        let mut hosts = TwoHosts::new(two_families(config()), config(), pass, 1);
        hosts.write(Side::A, &bytes(SIZE, 1));
        hosts.run_ms(21);
        hosts.middlebox = Box::new(first_path_dies_after(0));
        if known_before {
            learn_ipv6(&mut hosts);
        }
        lose_first(&mut hosts);
        hosts.run_ms(500);
        if !known_before {
            learn_ipv6(&mut hosts);
        }
        hosts.run_ms(3_000);
        let (got, info) = (hosts.ends[1].received.len(), hosts.info(Side::A));
        assert_eq!(got, SIZE, "known before: {known_before}, {info:?}");
        assert!(hosts.ends[1].received == bytes(SIZE, 1));
    }
}

/// Another network is up, so a connection that cannot be continued ends: the application can connect there.
#[test]
fn a_plain_connection_ends_although_the_other_address_is_of_another_family() {
    let client = without_mptcp(two_families(config()));
    let mut hosts = TwoHosts::new(client, config(), pass, 1);
    hosts.run_ms(50);
    learn_ipv6(&mut hosts);
    hosts.middlebox = Box::new(first_path_dies_after(0));
    lose_first(&mut hosts);
    hosts.write(Side::A, &bytes(SIZE, 1));
    let ended = ends_after(&mut hosts, 200);
    let Some((ms, CloseReason::Unreachable)) = ended else { panic!("{ended:?}") };
    assert!(ms <= 3_500, "{ms} ms");
}

/// The server does not have the client's key, so the connection cannot be continued: the caller gets the error
/// while it waits.
#[test]
fn an_address_that_goes_with_the_third_ack_ends_the_connection_soon() {
    for client_writes in [true, false] {
        // SYN and SYN/ACK pass.
        let mut hosts = TwoHosts::new(two_paths(config()), config(), first_path_dies_after(2), 1);
        if client_writes {
            hosts.write(Side::A, &bytes(SIZE, 1));
        }
        hosts.run_ms(21);
        lose_first(&mut hosts);
        let ended = ends_after(&mut hosts, 200);
        let Some((ms, CloseReason::Unreachable)) = ended else { panic!("{ended:?}") };
        assert!(ms <= 3_500, "{ms} ms");
    }
}

/// The server allows no joins to its address, or the other path is dead as well: two timeouts.
#[test]
fn an_address_that_goes_where_no_join_can_replace_it_ends_the_connection_after_two_timeouts() {
    let denies = ConnectionConfig { deny_join_id0: true, ..config() };
    let mut hosts = TwoHosts::new(two_paths(config()), denies, first_path_dies_after(2), 1);
    hosts.write(Side::A, &bytes(SIZE, 1));
    hosts.run_ms(21);
    lose_first(&mut hosts);
    let ended = ends_after(&mut hosts, 200);
    let Some((ms, CloseReason::Unreachable)) = ended else { panic!("{ended:?}") };
    assert!(ms <= 2_000, "{ms} ms");

    let mut hosts = TwoHosts::new(two_paths(config()), config(), pass, 1);
    hosts.write(Side::A, &bytes(SIZE, 1));
    hosts.run_ms(21);
    hosts.middlebox = Box::new(|_| MiddleboxAction::Drop);
    lose_first(&mut hosts);
    let ended = ends_after(&mut hosts, 200);
    let Some((ms, CloseReason::Unreachable)) = ended else { panic!("{ended:?}") };
    assert!(ms <= 3_500, "{ms} ms");
}

/// Without another address, waiting for this one is the best option.
#[test]
fn an_address_that_goes_and_comes_back_is_waited_for_if_it_is_the_only_one() {
    for client in [config(), without_mptcp(config())] {
        let client =
            ConnectionConfig { local_addresses: vec![local_address(1, "10.0.0.1")], ..client };
        let mut hosts = TwoHosts::new(client, config(), first_path_dies_after(2), 1);
        hosts.write(Side::A, &bytes(SIZE, 1));
        hosts.run_ms(21);
        lose_first(&mut hosts);
        hosts.run_ms(10_000);
        assert_eq!(hosts.ends[0].closed, None);
        hosts.middlebox = Box::new(pass);
        let (now, back) = (hosts.pair.now(), local_address(1, "10.0.0.1"));
        hosts.pair.endpoint(Side::A).set_local_address(now, None, back);
        hosts.run_ms(5_000);
        assert!(hosts.ends[1].received == bytes(SIZE, 1));
    }
}

/// The only address is lost in the first round trip, and another one comes: break before make.
#[test]
fn another_address_that_comes_after_the_first_has_gone_is_joined_from() {
    let mut client = config();
    client.local_addresses = vec![local_address(1, "10.0.0.1")];
    let mut hosts = TwoHosts::new(client, config(), pass, 1);
    hosts.write(Side::A, &bytes(SIZE, 1));
    hosts.run_ms(21);
    hosts.middlebox = Box::new(first_path_dies_after(0));
    lose_first(&mut hosts);
    hosts.run_ms(4_000);
    assert_eq!(hosts.ends[0].closed, None);
    let (now, new) = (hosts.pair.now(), local_address(2, "10.1.0.1"));
    hosts.pair.endpoint(Side::A).set_local_address(now, None, new);
    hosts.run_ms(3_000);
    assert!(hosts.ends[1].received == bytes(SIZE, 1), "{:?}", hosts.ends[0].closed);
}

/// The SYN was lost with its address: another one is sent from another address, including one kept in reserve.
/// Without Multipath TCP no other path can be tried, and the caller gets the error.
#[test]
fn an_address_that_goes_with_the_syn() {
    for backup in [false, true] {
        let mut client = two_paths(config());
        client.local_addresses[1].backup = backup;
        let mut hosts = TwoHosts::new(client, config(), first_path_dies_after(0), 1);
        hosts.write(Side::A, &bytes(SIZE, 1));
        hosts.run_ms(5);
        lose_first(&mut hosts);
        hosts.run_ms(1_000);
        assert!(hosts.ends[1].received == bytes(SIZE, 1), "backup: {backup}");
    }
    let client = without_mptcp(two_paths(config()));
    let mut hosts = TwoHosts::new(client, config(), first_path_dies_after(0), 1);
    hosts.run_ms(5);
    lose_first(&mut hosts);
    let ended = ends_after(&mut hosts, 200);
    let Some((ms, CloseReason::Unreachable)) = ended else { panic!("{ended:?}") };
    assert!(ms <= 3_500, "{ms} ms");
}

/// A plain TCP connection cannot be joined. Outstanding data fails after two timeouts instead of all.
#[test]
fn an_address_that_goes_under_a_plain_connection() {
    let strip = |packet: &mut Packet<'_>| {
        packet.strip();
        MiddleboxAction::Pass
    };
    let mut hosts = TwoHosts::new(second_unused(config()), config(), strip, 1);
    hosts.write(Side::A, &bytes(1_000, 1));
    hosts.run_ms(500);
    assert!(hosts.ends[0].fallback.is_some() && hosts.ends[1].received.len() == 1_000);
    lose_first(&mut hosts);
    hosts.middlebox = Box::new(first_path_dies_after(0));
    assert_eq!(ends_after(&mut hosts, 60), None, "it is idle, and the address may come back");
    hosts.write(Side::A, &bytes(SIZE, 1));
    let ended = ends_after(&mut hosts, 200);
    let Some((ms, CloseReason::Unreachable)) = ended else { panic!("{ended:?}") };
    assert!(ms <= 2_000, "{ms} ms");
    assert_eq!(hosts.ends[1].closed, None, "nothing reaches it, and it has nothing to send");
    first_comes_back(&mut hosts);
    hosts.run_ms(500);
    assert_eq!(hosts.ends[1].closed, Some(CloseReason::PeerReset), "now it is informed");
}

/// A plain connection that the application aborts while its address is away.
#[test]
fn a_plain_connection_that_is_aborted_without_its_address_is_reset_when_that_is_back() {
    let (client, server) = (without_mptcp(second_unused(config())), config());
    let mut hosts = TwoHosts::new(client, server, pass, 1);
    hosts.write(Side::A, &bytes(1_000, 1));
    hosts.run_ms(500);
    lose_first(&mut hosts);
    hosts.middlebox = Box::new(first_path_dies_after(0));
    let (now, id) = (hosts.pair.now(), hosts.ends[0].id.expect("a connection"));
    hosts.pair.endpoint(Side::A).abort(now, id);
    hosts.run_ms(20_000);
    assert_eq!(hosts.ends[1].closed, None);
    first_comes_back(&mut hosts);
    hosts.run_ms(500);
    assert_eq!(hosts.ends[1].closed, Some(CloseReason::PeerReset));
}

/// A server opens no joins, and its client does not know its other address yet.
#[test]
fn an_address_of_the_server_that_goes_in_the_first_round_trip() {
    let mut server = config();
    server.local_addresses = vec![local_address(1, "10.9.0.1"), local_address(2, "10.9.0.2")];
    let mut hosts = TwoHosts::new(config(), server, first_path_dies_after(3), 1);
    hosts.run_ms(45);
    let now = hosts.pair.now();
    let gone = LocalAddress { up: false, ..local_address(1, "10.9.0.1") };
    hosts.pair.endpoint(Side::B).set_local_address(now, None, gone);
    hosts.write(Side::B, &bytes(SIZE, 1));
    hosts.run_ms(3_000);
    assert_eq!(hosts.ends[1].closed, Some(CloseReason::Unreachable));
}

/// A join whose address is lost ends immediately, and the other subflows carry the stream.
#[test]
fn an_address_that_goes_during_its_join() {
    let mut hosts = TwoHosts::new(two_paths(config()), config(), pass, 1);
    hosts.middlebox = Box::new(|packet| {
        let third = packet.seg.options.mptcp.join().is_some()
            && !packet.seg.header.flags.contains(TcpFlags::SYN);
        if packet.path > 0 && third { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    });
    hosts.write(Side::A, &bytes(SIZE, 1));
    hosts.run_ms(85);
    assert_eq!(hosts.info(Side::A).subflows.len(), 2, "the join is under way");
    let (now, gone) = (hosts.pair.now(), local_address(2, "10.1.0.1"));
    let gone = LocalAddress { up: false, ..gone };
    hosts.pair.endpoint(Side::A).set_local_address(now, None, gone);
    assert_eq!(hosts.info(Side::A).subflows.len(), 1);
    hosts.run_ms(3_000);
    assert!(hosts.ends[1].received == bytes(SIZE, 1));
    hosts.exchange_and_close(Side::A, &bytes(SIZE, 3), &bytes(SIZE, 4));
}

/// Tests that a SYN to an address that the peer has withdrawn is not repeated.
#[test]
fn a_remote_address_that_is_withdrawn_during_a_join_is_not_asked_again() {
    let mut server = config();
    let second = LocalAddress { signal: true, ..local_address(2, "10.1.9.1") };
    server.local_addresses = vec![local_address(1, "10.9.0.1"), second];
    let mut hosts = TwoHosts::new(two_paths(config()), server, pass, 1);
    hosts.middlebox = Box::new(|packet| {
        let flags = packet.seg.header.flags;
        let answers = flags.contains(TcpFlags::SYN) && flags.contains(TcpFlags::ACK);
        if packet.path > 0 && answers { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    });
    hosts.write(Side::A, &bytes(SIZE, 1));
    hosts.run_ms(1_200);
    let joins = |hosts: &mut TwoHosts| {
        let to = "10.1.9.1".parse::<std::net::IpAddr>().expect("an address");
        hosts.info(Side::A).subflows.iter().filter(|s| s.path.remote.ip() == to).count()
    };
    assert!(joins(&mut hosts) > 0, "a join is under way: {:?}", hosts.info(Side::A).subflows);
    let (now, gone) = (hosts.pair.now(), LocalAddress { up: false, ..second });
    hosts.pair.endpoint(Side::B).set_local_address(now, None, gone);
    hosts.run_ms(200);
    let removed = hosts
        .trace
        .iter()
        .any(|(_, seg)| seg.options.mptcp.iter().any(|o| matches!(o, MptcpOption::RemoveAddr(_))));
    assert!(removed && joins(&mut hosts) == 0, "{:?}", hosts.info(Side::A).subflows);
    hosts.run(Duration::from_secs(5));
    assert_eq!(joins(&mut hosts), 0);
}
