//! Tests of UDP from programs in the namespace: echoes in both families and by name, mapped addresses, queries to
//! remote resolvers, too long datagrams, and a carrier without lanes.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::streams::{INSIDE, target};
use super::targets::{ECHO, MIRRORS};
use super::{PATIENCE, TARGET_V4, TARGET_V6, World, support, two_uplinks};
use marline_lab::scenario::Side;

/// Time after which a datagram is sent again, because the links lose some.
const AGAIN: Duration = Duration::from_millis(500);

fn socket(peer: SocketAddr) -> UdpSocket {
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a socket");
    socket.set_read_timeout(Some(AGAIN)).expect("timeout");
    socket
}

/// Sends until an answer from this peer is `right`.
fn ask(
    socket: &UdpSocket,
    peer: SocketAddr,
    payload: &[u8],
    right: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let begun = Instant::now();
    let mut buffer = [0; 10_000];
    while begun.elapsed() < PATIENCE {
        socket.send_to(payload, peer).expect("sent");
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            assert_eq!(from, peer);
            if right(&buffer[..len]) {
                return buffer[..len].to_vec();
            }
        }
    }
    panic!("no answer from {peer}");
}

fn echo(socket: &UdpSocket, peer: SocketAddr, payload: &[u8]) {
    ask(socket, peer, payload, |answer| answer == payload);
}

/// Returns the address that a peer sees.
fn mapped(socket: &UdpSocket, peer: SocketAddr) -> SocketAddr {
    let answer = ask(socket, peer, b"from where?", |_| true);
    String::from_utf8(answer).expect("text").parse().expect("an address")
}

#[test]
fn datagrams_reach_either_family_and_names_and_come_back() {
    let _others = support::among_others();
    let Some(world) = World::set("run-udp", &[]) else { return };
    world.inside(echoes);
    world.wait_for_nothing();
}

#[test]
fn echoes() {
    if !two_uplinks::plays(echoes) {
        return;
    }
    for peer in target(ECHO) {
        let socket = socket(peer);
        for len in [1, 0, 1_000] {
            echo(&socket, peer, &vec![b'x'; len]);
        }
    }
    let mut named = ("v4.example.test", ECHO).to_socket_addrs().expect("an address");
    let peer = named.next().expect("an address");
    echo(&socket(peer), peer, b"by name");
}

#[test]
fn a_socket_has_one_address_for_all_peers_and_another_has_its_own() {
    let _others = support::among_others();
    let Some(world) = World::set("run-stun", &[]) else { return };
    world.inside(mappings);
}

#[test]
fn mappings() {
    if !two_uplinks::plays(mappings) {
        return;
    }
    for (one, two) in target(MIRRORS[0]).into_iter().zip(target(MIRRORS[1])) {
        let (first, second) = (socket(one), socket(one));
        let address = mapped(&first, one);
        assert_eq!(mapped(&first, two), address, "endpoint-independent");
        assert_ne!(mapped(&second, one), address);
        assert_eq!(mapped(&first, one), address);
    }
}

#[test]
fn sources_at_the_same_time_get_their_own_answers() {
    let _others = support::among_others();
    let Some(world) = World::set("run-udp-two", &[]) else { return };
    world.inside(two_at_once);
}

#[test]
fn two_at_once() {
    if !two_uplinks::plays(two_at_once) {
        return;
    }
    let [peer, _] = target(ECHO);
    std::thread::scope(|scope| {
        for name in [b'a', b'b'] {
            scope.spawn(move || {
                let socket = socket(peer);
                for number in 0..30 {
                    ask(&socket, peer, &[name, number], |answer| {
                        assert_eq!(answer[0], name, "another's");
                        answer[1] == number
                    });
                }
            });
        }
    });
}

#[test]
fn dig_asks_a_resolver_beyond_over_udp() {
    let _others = support::among_others();
    let Some(world) = World::set("run-udp-dig", &["dig"]) else { return };
    let dig = "dig +notcp +tries=20 +time=1";
    let text = world.run(&format!("$run {dig} +short @{TARGET_V4} v4.example.test A"));
    assert_eq!(text.trim(), TARGET_V4);
}

#[test]
fn a_single_query_is_answered_after_wifi_has_died_unnoticed() {
    let _others = support::among_others();
    let Some(world) = World::set("run-udp-lone", &["dig"]) else { return };
    let options = format!("--invite-file invite --path wifi --path lte,backup --dns {TARGET_V4}");
    let dig = format!("dig +notcp +short @{TARGET_V4} v4.example.test A");
    // Then nothing is sent for longer than the interval of path probes, so the failure is not noticed.
    let inside = format!(
        "$run bash -euc '{dig} +tries=20 +time=1 > first; until [ -e dead ]; do sleep 0.05; done
         exec {dig} +tries=1 +time=4'"
    );
    let mut command = world.command_with(&options, &inside);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let asks = world.hosts.net.spawn(Side::Client, &mut command).expect("spawn");
    let begun = Instant::now();
    while std::fs::read(world.dir().join("first")).map_or(true, |text| text.is_empty()) {
        assert!(begun.elapsed() < PATIENCE, "no first answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(12));
    world.hosts.net.command("wifi", "down").expect("an order");
    std::fs::write(world.dir().join("dead"), "").expect("write");
    let output = asks.wait_with_output().expect("output");
    let (out, err) = support::texts(&output);
    assert_eq!(out.trim(), TARGET_V4, "{err}");
}

#[test]
fn ping_reaches_either_family_behind_the_server() {
    let _others = support::among_others();
    let Some(world) = World::set("run-ping", &["ping", "sysctl"]) else { return };
    let allow = "sysctl -qw net.ipv4.ping_group_range='0 2147483647'";
    world.hosts.shell(Side::Server, allow);
    for host in [TARGET_V4, TARGET_V6] {
        let text = world.run(&format!("$run ping -n -c 1 -W 20 {host}"));
        assert!(text.contains(&format!("bytes from {host}")), "{text}");
    }
}

#[test]
fn long_datagrams_pass_from_the_first_on_and_those_beyond_8_kb_are_dropped() {
    let _others = support::among_others();
    let Some(world) = World::set("run-udp-long", &[]) else { return };
    world.inside(long_ones);
}

#[test]
fn long_ones() {
    if !two_uplinks::plays(long_ones) {
        return;
    }
    for peer in target(ECHO) {
        let socket = socket(peer);
        for len in [1_316, 8_192, 1_472, 3_000] {
            echo(&socket, peer, &vec![b'x'; len]);
        }
        // Longer ones are sent in fragments, which are dropped.
        for len in [8_300, 20_000] {
            socket.send_to(&vec![b'y'; len], peer).expect("the system takes it");
        }
        echo(&socket, peer, &[7; 1_000]);
    }
}

#[test]
fn without_a_lane_a_port_is_unreachable_immediately() {
    let _others = support::among_others();
    let Some(world) = World::set("run-udp-none", &[]) else { return };
    let mut command = world.hosts.command("exec bash -euc \"$script\"");
    let options = format!("--direct --carrier raw --path wifi --dns {TARGET_V4}");
    command.env("run", format!("marline run {options} --")).env("script", INSIDE);
    world.inside_of(&mut command, unreachable);
    // The namespace's own network has no other hosts, even with a lane.
    world.inside(gateway_has_no_ports);
}

#[test]
fn unreachable() {
    if two_uplinks::plays(unreachable) {
        target(ECHO).into_iter().for_each(is_refused);
    }
}

#[test]
fn gateway_has_no_ports() {
    if two_uplinks::plays(gateway_has_no_ports) {
        is_refused("198.18.0.1:9".parse().expect("an address"));
    }
}

fn is_refused(peer: SocketAddr) {
    let socket = socket(peer);
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket.connect(peer).expect("connected");
    socket.send(b"anybody?").expect("sent");
    let error = socket.recv(&mut [0; 16]).expect_err("no peer answers");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{peer}");
}
