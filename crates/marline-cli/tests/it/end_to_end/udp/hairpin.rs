//! Tests of clients of one server that reach each other at their mapped ports (RFC 4787 REQ-9), and no other ports
//! there.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use super::super::support::two_uplinks::{plays, possible};
use super::super::support::{
    self, name_of_test, run_ok, start_client, start_server, write_private,
};
use super::{Association, PATIENCE, binding, stun_server};

/// A public address that the server's host has.
const OWN: &str = "11.0.0.1";
const ROLE: &str = "MARLINE_TEST_ROLE";

#[test]
fn clients_of_one_server_reach_each_other_at_their_mapped_ports_and_no_other_service() {
    let _others = support::among_others();
    if !possible(&["unshare"]) {
        return;
    }
    let role = name_of_test(behind_one_server);
    let binary = std::env::current_exe().unwrap();
    let text = format!(
        "ip link set lo up; ip address add {OWN}/32 dev lo; exec {} --exact {role} --nocapture",
        binary.display()
    );
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120", "unshare", "--net", "bash", "-euc", &text])
        .env(ROLE, role)
        .output()
        .unwrap();
    let (out, err) = support::texts(&output);
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

struct Application {
    udp: Association,
    /// Address at which others reach it.
    address: SocketAddr,
}

impl Application {
    fn start(socks: SocketAddr, own: IpAddr) -> Application {
        let udp = Association::open(socks);
        // It has one port for all destinations.
        let mapped = binding(&udp, stun_server(), [1; 12]);
        Application { udp, address: SocketAddr::new(own, mapped.port()) }
    }
}

/// Sends until the datagram arrives.
fn pass(from: &Application, to: &Application, text: &[u8]) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        from.udp.send(to.address, text);
        if let Some(arrived) = to.udp.recv(Duration::from_millis(500)) {
            return assert_eq!(arrived, (from.address, text.to_vec()));
        }
    }
    panic!("{:?} did not arrive at {}", str::from_utf8(text), to.address);
}

#[test]
fn behind_one_server() {
    if !plays(behind_one_server) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let own: IpAddr = OWN.parse().unwrap();
    let mut server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let add = ["server", "--config", "server.toml", "credential", "add", "second"];
    let second = dir.path().join("second");
    write_private(&second, &run_ok(dir.path(), &add));
    server.process.line_with("credentials reloaded");
    let path = format!("127.0.0.1={}", server.address);
    let (_one, at_one) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let (_two, at_two) = start_client(dir.path(), &second, &["--path", &path]);
    let (a, b) = (Application::start(at_one, own), Application::start(at_two, own));
    let b_at = b.address;

    // B has not sent to that address, so its filter drops A's datagrams.
    for _ in 0..5 {
        a.udp.send(b_at, b"unasked");
        assert_eq!(b.udp.recv(Duration::from_millis(50)), None);
    }
    // A has sent to B's address, so B reaches A, and A reaches B from then on.
    pass(&b, &a, b"from B");
    pass(&a, &b, b"from A");
    // Two applications of one client.
    let c = Application::start(at_one, own);
    c.udp.send(a.address, b"ring");
    pass(&a, &c, b"from A to C");

    // A service of the server at that address stays unreachable.
    let service = UdpSocket::bind((own, 0)).unwrap();
    a.udp.send(service.local_addr().unwrap(), b"to a service");
    assert!(server.process.line_with("server itself").contains(OWN));
    // A service at a port that was mapped before stays unreachable as well.
    drop(b);
    let until = Instant::now() + PATIENCE;
    let late = loop {
        match UdpSocket::bind(b_at) {
            Ok(late) => break late,
            Err(error) => assert!(Instant::now() < until, "B's port is still mapped: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    for _ in 0..5 {
        a.udp.send(b_at, b"to B's old port");
    }
    // Later datagrams arrive, so the earlier ones were delivered or dropped.
    while a.udp.recv(Duration::from_millis(1)).is_some() {}
    pass(&c, &a, b"from C");
    for socket in [&service, &late] {
        socket.set_nonblocking(true).unwrap();
        assert!(socket.recv_from(&mut [0; 64]).is_err(), "a service was reached");
    }
}
