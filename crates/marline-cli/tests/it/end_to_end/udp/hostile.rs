//! Tests of UDP against attackers: forged, repeated and spoofed frames, floods of flows and of applications, and
//! other programs on the machine.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::support;
use super::support::{Running, resident_kib, start_client, start_server};
use super::{Association, PATIENCE, both, echo_target, watched_target};

/// Returns an attacker's relay between client and server: every frame of a lane is sent several times, several times
/// modified, and once from another address.
fn enemy(server: SocketAddr) -> SocketAddr {
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = near.local_addr().unwrap();
    std::thread::spawn(move || {
        let spoofed = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut ways: BTreeMap<SocketAddr, UdpSocket> = BTreeMap::new();
        let mut buffer = [0; 4_096];
        while let Ok((len, from)) = near.recv_from(&mut buffer) {
            let far = ways.entry(from).or_insert_with(|| {
                let far = UdpSocket::bind("127.0.0.1:0").unwrap();
                far.connect(server).unwrap();
                let (back, near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                let spoofed = spoofed.try_clone().unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4_096];
                    while let Ok(len) = back.recv(&mut buffer) {
                        attack(&buffer[..len], |frame| drop(near.send_to(frame, from)));
                        spoof(&buffer[..len], &spoofed, from);
                    }
                });
                far
            });
            attack(&buffer[..len], |frame| drop(far.send(frame)));
            spoof(&buffer[..len], &spoofed, server);
        }
    });
    address
}

/// Sends a frame of a lane from an address that has not been validated.
fn spoof(frame: &[u8], from: &UdpSocket, to: SocketAddr) {
    if frame.first() == Some(&0x28) {
        let _ = from.send_to(frame, to);
    }
}

fn attack(frame: &[u8], send: impl Fn(&[u8])) {
    send(frame);
    if frame.first() != Some(&0x28) {
        return;
    }
    for number in 0..20 {
        send(frame);
        let mut forged = frame.to_vec();
        // The number, the body or the tag, but not the lane.
        let at = 9 + (number * 97) % (frame.len() - 9);
        forged[at] ^= 1 << (number % 8);
        send(&forged);
    }
}

#[test]
fn forged_and_repeated_frames_bring_nothing_and_nothing_twice() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", enemy(server.address));
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let (target, seen) = watched_target(UdpSocket::bind("127.0.0.1:0").unwrap());
    let app = Association::open(socks);
    let mut back = BTreeMap::new();
    for number in 0..500u32 {
        app.send(target, &number.to_be_bytes());
        let wait = Duration::from_millis(if number == 0 { 10_000 } else { 5 });
        while let Some((_, payload)) = app.recv(wait) {
            *back.entry(payload).or_insert(0) += 1;
            if number == 0 {
                break;
            }
        }
    }
    while let Some((_, payload)) = app.recv(Duration::from_millis(500)) {
        *back.entry(payload).or_insert(0) += 1;
    }
    let mut there = BTreeMap::new();
    seen.try_iter().for_each(|(_, payload)| *there.entry(payload).or_insert(0) += 1);
    for counts in [&there, &back] {
        assert!(
            counts.keys().all(|payload| payload.len() == 4 && payload[0] == 0 && payload[1] == 0)
        );
        assert!(counts.values().all(|times| *times == 1), "a datagram arrived twice");
    }
    eprintln!("500 sent, {} came, {} came back", there.len(), back.len());
    assert!(back.len() > 400, "{} of 500 came back", back.len());
}

#[test]
fn a_hundred_thousand_flows_leave_memory_bounded_and_others_unharmed() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (server, client, socks) = both(dir.path(), &[]);
    let path = format!("127.0.0.1={}", server.address);
    let (_quiet, other_socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let target = echo_target();
    let (greedy, modest) = (Association::open(socks), Association::open(other_socks));
    greedy.echo(target, b"before");
    modest.echo(target, b"before");
    let before = [resident_kib(server.process.id()), resident_kib(client.id())];
    for number in 0..100_000u32 {
        let [_, a, b, c] = number.to_be_bytes();
        greedy.send(SocketAddr::from(([127, 1 + a, b, c], 9)), b"flow");
        if number % 5_000 == 0 {
            // Datagrams sent faster than they are read are lost before they reach the proxy.
            greedy.echo(target, &number.to_be_bytes());
            modest.echo(target, &number.to_be_bytes());
        }
    }
    greedy.echo(target, b"after");
    modest.echo(target, b"after");
    let after = [resident_kib(server.process.id()), resident_kib(client.id())];
    eprintln!("server and client: {before:?} KiB before, {after:?} after 100,000 flows");
    for (before, after) in before.iter().zip(after) {
        assert!(after < before + 32 * 1_024, "{before} KiB, and then {after}");
    }
}

#[test]
fn more_applications_than_a_forward_takes_replace_those_that_were_silent_for_longest() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let target = echo_target();
    let forward = format!("0:127.0.0.1:{}", target.port());
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let invite = server.invite_file.to_str().unwrap();
    let args = ["client", "--invite-file", invite, "--path", &path, "-U", &forward];
    let mut client = Running::start(dir.path(), &args);
    let port = client.address_after("udp forward listening on ");
    let mut buffer = [0; 16];
    let mut echo = |socket: &UdpSocket, payload: &[u8]| {
        let until = Instant::now() + PATIENCE;
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        while Instant::now() < until {
            socket.send_to(payload, port).unwrap();
            if socket.recv(&mut buffer).is_ok_and(|len| buffer[..len] == *payload) {
                return;
            }
        }
        panic!("no echo");
    };
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    echo(&first, b"first");
    for number in 0..2_000u32 {
        let application = UdpSocket::bind("127.0.0.1:0").unwrap();
        application.send_to(b"once", port).unwrap();
        if number % 100 == 0 {
            echo(&application, b"often");
        }
    }
    let server_sockets = std::fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap();
    let open = server_sockets.count();
    assert!(open < 1_100, "{open} descriptors of the server");
    echo(&first, b"again");
}

#[test]
fn an_association_is_its_applications_and_ends_with_its_connection() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let (target, seen) = watched_target(UdpSocket::bind("127.0.0.1:0").unwrap());
    let app = Association::open(socks);
    app.echo(target, b"mine");
    // Another program on this machine.
    let mut datagram = vec![0, 0, 0, 1, 127, 0, 0, 1];
    datagram.extend_from_slice(&target.port().to_be_bytes());
    datagram.extend_from_slice(b"not mine");
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.send_to(&datagram, app.relay).unwrap();
    app.echo(target, b"still mine");
    assert!(seen.try_iter().all(|(_, payload)| payload != b"not mine"));
    let Association { control, socket, relay } = app;
    drop(control);
    // Its port is closed, which the system reports to the sender.
    socket.connect(relay).unwrap();
    let until = Instant::now() + PATIENCE;
    while socket.send(&datagram).is_ok() {
        assert!(Instant::now() < until, "the association is still open");
        std::thread::sleep(Duration::from_millis(20));
    }
}
