//! Tests of UDP through the proxy: associations of SOCKS5 and forwards (-U), over emulated links that fail, with peers
//! that nobody asked, forged and repeated frames, and a server that is killed.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::support;
use super::support::{Running, start_client, start_server};
use super::{ended, link};

const PATIENCE: Duration = Duration::from_secs(30);

/// A UDP port of loopback that sends everything back.
fn echo_target() -> SocketAddr {
    echo_at("127.0.0.1:0")
}

fn echo_at(address: &str) -> SocketAddr {
    let socket = UdpSocket::bind(address).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4_096];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    address
}

/// An application with a UDP association.
struct Association {
    /// It ends with this.
    control: TcpStream,
    socket: UdpSocket,
    relay: SocketAddr,
}

impl Association {
    fn open(socks: SocketAddr) -> Association {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut control = TcpStream::connect(socks).unwrap();
        control.set_read_timeout(Some(PATIENCE)).unwrap();
        control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        let mut answer = [0; 12];
        control.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[..6], &[5, 0, 5, 0, 0, 1], "an IPv4 address");
        let [.., a, b, c, d, high, low] = answer;
        let relay = SocketAddr::new([a, b, c, d].into(), u16::from_be_bytes([high, low]));
        Association { control, socket, relay }
    }

    fn send(&self, to: SocketAddr, payload: &[u8]) {
        let IpAddr::V4(v4) = to.ip() else { panic!("tests use IPv4") };
        let mut datagram = vec![0, 0, 0, 1];
        datagram.extend_from_slice(&v4.octets());
        datagram.extend_from_slice(&to.port().to_be_bytes());
        datagram.extend_from_slice(payload);
        self.send_raw(&datagram);
    }

    fn send_to_name(&self, name: &str, port: u16, payload: &[u8]) {
        let mut datagram = vec![0, 0, 0, 3, name.len() as u8];
        datagram.extend_from_slice(name.as_bytes());
        datagram.extend_from_slice(&port.to_be_bytes());
        datagram.extend_from_slice(payload);
        self.send_raw(&datagram);
    }

    fn send_raw(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.relay).unwrap();
    }

    /// The next datagram, and whom it is from; `None`: none came in time.
    fn recv(&self, patience: Duration) -> Option<(SocketAddr, Vec<u8>)> {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 4_096];
        let (len, from) = self.socket.recv_from(&mut buffer).ok()?;
        assert_eq!(from, self.relay);
        let [0, 0, 0, 1, a, b, c, d, high, low, payload @ ..] = &buffer[..len] else {
            panic!("no header with an IPv4 address: {:?}", &buffer[..len.min(30)]);
        };
        let from = SocketAddr::new([*a, *b, *c, *d].into(), u16::from_be_bytes([*high, *low]));
        Some((from, payload.to_vec()))
    }

    /// Sends until it comes back: datagrams may be lost while there is no way yet.
    fn echo(&self, target: SocketAddr, payload: &[u8]) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            self.send(target, payload);
            if self.recv(Duration::from_millis(500)) == Some((target, payload.to_vec())) {
                return;
            }
        }
        panic!("no echo of {} bytes", payload.len());
    }
}

/// A server that allows loopback, and a client with one path to it.
fn both(dir: &std::path::Path, flags: &[&str]) -> (support::ServerSide, Running, SocketAddr) {
    let server = start_server(dir, &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let mut all = vec!["--path", &path];
    all.extend_from_slice(flags);
    let (client, socks) = start_client(dir, &server.invite_file, &all);
    (server, client, socks)
}

#[test]
fn an_association_reaches_addresses_and_names_and_its_first_datagram_is_not_lost() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let (one, two) = (echo_target(), echo_target());
    let app = Association::open(socks);
    // There is no lane yet, and the server knows no flow.
    for (number, target) in [one, two, one].into_iter().enumerate() {
        let text = format!("datagram {number}");
        app.send(target, text.as_bytes());
        assert_eq!(app.recv(PATIENCE), Some((target, text.into_bytes())));
    }
    app.send_to_name("localhost", one.port(), b"by name");
    let (from, payload) = app.recv(PATIENCE).unwrap();
    assert_eq!((from, &payload[..]), (one, &b"by name"[..]), "the address, not the name");
    app.send(two, b"");
    assert_eq!(app.recv(PATIENCE), Some((two, Vec::new())), "an empty one is one, too");
}
