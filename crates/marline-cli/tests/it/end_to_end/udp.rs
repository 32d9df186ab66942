//! Tests of UDP through the proxy: associations of SOCKS5 and forwards (-U), over emulated links that fail, with peers
//! that nobody asked, forged and repeated frames, and a server that is killed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::support;
use super::support::{Running, start_client, start_server};
use super::{ended, link};

const PATIENCE: Duration = Duration::from_secs(30);

/// A UDP port of loopback that sends everything back, and tells what came from where.
fn watched_target(socket: UdpSocket) -> (SocketAddr, Receiver<(SocketAddr, Vec<u8>)>) {
    let address = socket.local_addr().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4_096];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = tell.send((from, buffer[..len].to_vec()));
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    (address, told)
}

fn echo_target() -> SocketAddr {
    watched_target(UdpSocket::bind("127.0.0.1:0").unwrap()).0
}

/// A STUN server (RFC 8489): answers binding requests with the address that they came from.
fn stun_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 1_500];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let IpAddr::V4(ip) = from.ip() else { continue };
            if len < 20 || buffer[..2] != [0, 1] || buffer[4..8] != STUN_MAGIC {
                continue;
            }
            let mut answer = vec![1, 1, 0, 12];
            answer.extend_from_slice(&buffer[4..20]);
            // XOR-MAPPED-ADDRESS, 8 bytes, IPv4.
            answer.extend_from_slice(&[0, 0x20, 0, 8, 0, 1]);
            answer.extend_from_slice(&(from.port() ^ 0x2112).to_be_bytes());
            answer.extend(ip.octets().iter().zip(STUN_MAGIC).map(|(byte, magic)| byte ^ magic));
            let _ = socket.send_to(&answer, from);
        }
    });
    address
}

const STUN_MAGIC: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];

/// The address that a STUN server saw us at.
fn binding(app: &Association, server: SocketAddr, transaction: [u8; 12]) -> SocketAddr {
    let mut request = vec![0, 1, 0, 0];
    request.extend_from_slice(&STUN_MAGIC);
    request.extend_from_slice(&transaction);
    app.send(server, &request);
    let (from, answer) = app.recv(PATIENCE).expect("an answer of STUN");
    assert_eq!((from, &answer[..2], &answer[8..20]), (server, &[1, 1][..], &transaction[..]));
    let port = u16::from_be_bytes([answer[26], answer[27]]) ^ 0x2112;
    let ip: Vec<u8> = answer[28..32].iter().zip(STUN_MAGIC).map(|(b, m)| b ^ m).collect();
    SocketAddr::new([ip[0], ip[1], ip[2], ip[3]].into(), port)
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
fn both(dir: &Path, flags: &[&str]) -> (support::ServerSide, Running, SocketAddr) {
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

#[test]
fn a_server_of_several_shards_finds_the_lane_that_a_frame_is_for() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8", "--shards", "4"]);
    let paths = [1, 2].map(|host| format!("127.0.0.{host}={}", server.address));
    let flags = ["--path", &paths[0], "--path", &paths[1]];
    let target = echo_target();
    // Each client's lane is on the shard where its connection happened to come in.
    for _ in 0..4 {
        let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
        Association::open(socks).echo(target, b"to a shard");
    }
}

#[test]
fn peers_see_one_address_of_an_application_and_those_it_did_not_ask_reach_it_there() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let app = Association::open(socks);
    let mapped = binding(&app, stun_server(), [1; 12]);
    assert_eq!(mapped, binding(&app, stun_server(), [2; 12]), "endpoint-independent mapping");
    let other = Association::open(socks);
    assert_ne!(mapped, binding(&other, stun_server(), [3; 12]), "another application's");
    // Endpoint-independent filtering, and an answer.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = stranger.local_addr().unwrap();
    for text in [&b"hello"[..], b"again"] {
        stranger.send_to(text, mapped).unwrap();
        assert_eq!(app.recv(PATIENCE), Some((address, text.to_vec())));
    }
    app.send(address, b"who is there");
    let mut buffer = [0; 64];
    let (len, from) = stranger.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], from), (&b"who is there"[..], mapped));
}

#[test]
fn each_address_that_sends_to_a_forward_gets_its_own_answers_and_no_strangers() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let (target, seen) = watched_target(UdpSocket::bind("127.0.0.1:0").unwrap());
    let path = format!("127.0.0.1={}", server.address);
    let forward = format!("0:localhost:{}", target.port());
    let invite = server.invite_file.to_str().unwrap();
    let mut client = Running::start(
        dir.path(),
        &["client", "--invite-file", invite, "--path", &path, "-U", &forward],
    );
    let port = client.address_after("udp forward listening on ");
    let applications: Vec<UdpSocket> = (0..20)
        .map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
        .collect();
    let mut buffer = [0; 64];
    for round in 0..3u8 {
        for (number, socket) in applications.iter().enumerate() {
            socket.send_to(&[round, number as u8], port).unwrap();
        }
        for (number, socket) in applications.iter().enumerate() {
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from), (&[round, number as u8][..], port));
        }
    }
    let from: BTreeMap<u8, SocketAddr> =
        seen.try_iter().map(|(from, payload)| (payload[1], from)).collect();
    assert_eq!(from.len(), 20);
    // A stranger finds the port of the first; who uses the forward hears of its target only.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"I am the target", from[&0]).unwrap();
    applications[0].send_to(&[9, 0], port).unwrap();
    let (len, _) = applications[0].recv_from(&mut buffer).unwrap();
    assert_eq!(buffer[..len], [9, 0]);
}

#[test]
fn names_are_looked_up_over_a_flow_of_dns() {
    let _others = support::among_others();
    // Below 1024: not everybody may.
    let Ok(socket) = UdpSocket::bind("127.7.7.53:53") else {
        return eprintln!(
            "SKIPPED names_are_looked_up_over_a_flow_of_dns: port 53 is not to be had"
        );
    };
    let (resolver, _seen) = watched_target(socket);
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let app = Association::open(socks);
    for id in 0..50u8 {
        // A query for "a.": the answer here is the query.
        let query = [id, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
        app.send(resolver, &query);
        assert_eq!(app.recv(PATIENCE), Some((resolver, query.to_vec())));
    }
}

#[test]
fn a_call_goes_on_when_one_of_its_two_links_dies() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let (mut wifi_link, wifi) =
        link(dir.path(), server.address, "rate=20M,delay=5ms", &["3s down"]);
    let (_lte_link, lte) = link(dir.path(), server.address, "rate=20M,delay=25ms", &[]);
    let cut = Instant::now() + Duration::from_secs(3);
    let paths = [format!("127.0.0.1={wifi}"), format!("127.0.0.2={lte}")];
    let flags = ["--path", &paths[0], "--path", &paths[1]];
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    let (target, app) = (echo_target(), Association::open(socks));
    app.echo(target, b"ring");
    let (mut sent, mut arrivals) = (0u32, Vec::new());
    let mut seen = BTreeMap::new();
    let begun = Instant::now();
    let until = cut + Duration::from_secs(4);
    while Instant::now() < until {
        // 160 bytes of G.711 each 20 ms.
        let mut frame = [0; 172];
        frame[..4].copy_from_slice(&sent.to_be_bytes());
        app.send(target, &frame);
        sent += 1;
        let next = begun + Duration::from_millis(20) * sent;
        while let Some(left) = next.checked_duration_since(Instant::now()).filter(|l| !l.is_zero())
        {
            if let Some((_, payload)) = app.recv(left.max(Duration::from_millis(1)))
                && payload.len() == 172
            {
                *seen.entry(payload[..4].to_vec()).or_insert(0) += 1;
                arrivals.push(Instant::now());
            }
        }
    }
    let gap = arrivals.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    let after = arrivals.iter().filter(|at| **at > cut).count();
    eprintln!(
        "{sent} frames, {} came back, {after} after the cut; longest gap {gap:?}",
        seen.len()
    );
    let (_, lost) = ended(&mut wifi_link);
    assert!(seen.values().all(|times| *times == 1), "each at most once");
    assert!(after > 50 && lost > 0, "{after} after the cut, {lost} lost on it");
}

/// A relay between client and server by an enemy: every frame of a lane comes several times, several times changed,
/// and once from another address.
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

/// Sends a frame of a lane from an address where nobody has proven to be.
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
        // The number, the body and the tag; not the lane.
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
        assert!(counts.values().all(|times| *times == 1), "something came twice");
    }
    eprintln!("500 sent, {} came, {} came back", there.len(), back.len());
    assert!(back.len() > 400, "{} of 500 came back", back.len());
}

#[test]
fn what_does_not_fit_is_dropped_and_quics_first_packets_pass() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let app = Association::open(socks);
    let (quic, other) = (echo_target(), echo_target());
    // QUIC's first packet is its longest, and its flow is not known yet: by address and by name.
    let initial = vec![7; 1_200];
    app.send(quic, &initial);
    assert_eq!(app.recv(PATIENCE), Some((quic, initial.clone())));
    let name = "a".repeat(60) + ".localhost";
    app.send_to_name(&name, other.port(), &initial);
    // Whether such a name resolves is the system's business; the flow beside it goes on.
    for len in [1_600, 3_000, 9_000] {
        app.send(quic, &vec![1; len]);
    }
    app.send_raw(&[0, 0, 1, 1, 127, 0, 0, 1, 0, 9, b'f']);
    app.send_raw(b"no header");
    app.send(quic, b"after");
    loop {
        let (from, payload) = app.recv(PATIENCE).unwrap();
        if payload == b"after" {
            assert_eq!(from, quic);
            break;
        }
        assert_eq!(
            (from, payload),
            (other, initial.clone()),
            "nothing that is too large, and no fragment"
        );
    }
}

/// Resident memory of a process, KiB.
fn resident_kib(process: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
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
    let before = [resident_kib(&server.process), resident_kib(&client)];
    for number in 0..100_000u32 {
        let [_, a, b, c] = number.to_be_bytes();
        greedy.send(SocketAddr::from(([127, 1 + a, b, c], 9)), b"flow");
        if number % 5_000 == 0 {
            // What is sent faster than it is taken is lost in front of the proxy.
            greedy.echo(target, &number.to_be_bytes());
            modest.echo(target, &number.to_be_bytes());
        }
    }
    greedy.echo(target, b"after");
    modest.echo(target, b"after");
    let after = [resident_kib(&server.process), resident_kib(&client)];
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
fn a_killed_server_carries_datagrams_again_when_it_is_back() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (mut server, _client, socks) = both(dir.path(), &[]);
    let (target, app) = (echo_target(), Association::open(socks));
    app.echo(target, b"before");
    server.process.signal("KILL");
    server.process.end();
    let args = ["server", "--config", "server.toml", "--allow", "127.0.0.0/8"];
    let mut again = Running::start(dir.path(), &args);
    again.line_with("listening on ");
    let back = Instant::now();
    app.echo(target, b"after");
    eprintln!("datagrams pass {:?} after the server was back", back.elapsed());
}

#[test]
fn an_association_is_its_applications_and_ends_with_its_connection() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let (target, seen) = watched_target(UdpSocket::bind("127.0.0.1:0").unwrap());
    let app = Association::open(socks);
    app.echo(target, b"mine");
    // Another program of this machine.
    let mut datagram = vec![0, 0, 0, 1, 127, 0, 0, 1];
    datagram.extend_from_slice(&target.port().to_be_bytes());
    datagram.extend_from_slice(b"not mine");
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.send_to(&datagram, app.relay).unwrap();
    app.echo(target, b"still mine");
    assert!(seen.try_iter().all(|(_, payload)| payload != b"not mine"));
    let Association { control, socket, relay } = app;
    drop(control);
    // Its port is closed: the system says so to who sends there.
    socket.connect(relay).unwrap();
    let until = Instant::now() + PATIENCE;
    while socket.send(&datagram).is_ok() {
        assert!(Instant::now() < until, "the association is still open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_rules_for_targets_hold_for_datagrams_by_address_and_by_name() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_server(dir.path(), &[]);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let (target, seen) = watched_target(UdpSocket::bind("127.0.0.1:0").unwrap());
    let app = Association::open(socks);
    app.send(target, b"by address");
    assert!(server.process.line_with("--allow").contains("--allow 127.0.0.1"));
    assert!(client.line_with("refuses datagrams").contains("code 32"));
    app.send_to_name("localhost", target.port(), b"by name");
    assert!(server.process.line_with("--allow").contains("loopback"));
    assert!(client.line_with("refuses datagrams").contains("localhost"));
    assert_eq!(seen.try_iter().count(), 0, "not one datagram passed");
}
