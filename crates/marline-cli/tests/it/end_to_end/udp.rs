//! Tests of UDP through the proxy: SOCKS5 associations and forwards (-U), over emulated links that fail, with
//! unsolicited peers, forged and repeated frames, and a server that is killed.

mod hairpin;
mod hostile;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::support;
use super::support::{Running, start_client, start_server, stun};
use super::{ended, link};
use marline_testkit::{free_address, need};

const PATIENCE: Duration = Duration::from_secs(30);

/// Returns a UDP port on loopback that echoes datagrams, and reports them with their source.
fn watched_target(socket: UdpSocket) -> (SocketAddr, Receiver<(SocketAddr, Vec<u8>)>) {
    let address = socket.local_addr().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 10_000];
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

/// Returns a STUN server.
fn stun_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 1_500];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = stun::answer(&buffer[..len], from) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    address
}

/// Returns the address at which a STUN server saw the application.
fn binding(app: &Association, server: SocketAddr, transaction: [u8; 12]) -> SocketAddr {
    app.send(server, &stun::request(transaction));
    let (from, answer) = app.recv(PATIENCE).expect("an answer of STUN");
    assert_eq!(from, server);
    stun::mapped(&answer, transaction).expect("an answer to this request")
}

/// An application with a UDP association.
pub(crate) struct Association {
    /// Dropping it ends the association.
    control: TcpStream,
    socket: UdpSocket,
    relay: SocketAddr,
}

impl Association {
    pub(crate) fn open(socks: SocketAddr) -> Association {
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

    pub(crate) fn send(&self, to: SocketAddr, payload: &[u8]) {
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

    /// Returns the next datagram and its sender, or `None` if none arrived in time.
    pub(crate) fn recv(&self, patience: Duration) -> Option<(SocketAddr, Vec<u8>)> {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 10_000];
        let (len, from) = self.socket.recv_from(&mut buffer).ok()?;
        assert_eq!(from, self.relay);
        let [0, 0, 0, 1, a, b, c, d, high, low, payload @ ..] = &buffer[..len] else {
            panic!("no header with an IPv4 address: {:?}", &buffer[..len.min(30)]);
        };
        let from = SocketAddr::new([*a, *b, *c, *d].into(), u16::from_be_bytes([*high, *low]));
        Some((from, payload.to_vec()))
    }

    /// Sends until an echo arrives, because datagrams may be lost while there is no lane yet.
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

/// Returns a server that allows loopback, and a client with one path to it.
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
    assert_eq!(app.recv(PATIENCE), Some((two, Vec::new())), "an empty datagram arrives as well");
}

#[test]
fn a_server_of_several_shards_finds_the_lane_that_a_frame_is_for() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8", "--shards", "4"]);
    let paths = [1, 2].map(|host| format!("127.0.0.{host}={}", server.address));
    let flags = ["--path", &paths[0], "--path", &paths[1]];
    let target = echo_target();
    // The shard of each client's lane is that of its connection, which is random.
    for _ in 0..4 {
        let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
        Association::open(socks).echo(target, b"to a shard");
    }
}

#[test]
fn peers_see_one_address_of_an_application_and_their_other_ports_reach_it_there() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let app = Association::open(socks);
    let mapped = binding(&app, stun_server(), [1; 12]);
    assert_eq!(mapped, binding(&app, stun_server(), [2; 12]), "endpoint-independent mapping");
    let other = Association::open(socks);
    assert_ne!(mapped, binding(&other, stun_server(), [3; 12]), "another application's");
    // Another port of an address that the application has sent to, and an answer.
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

/// Sends 5,000 unsolicited datagrams to a mapped port. Returns how many arrive before an echo that is sent after
/// them.
fn flood_from_a_stranger(app: &Association, echo: SocketAddr, mapped: SocketAddr) -> usize {
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    let from = stranger.local_addr().unwrap();
    for number in 0..5_000_u32 {
        stranger.send_to(&[b'x'; 200], mapped).unwrap();
        if number % 50 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let mut arrived = 0;
    let until = Instant::now() + PATIENCE;
    app.send(echo, b"last");
    while Instant::now() < until {
        match app.recv(Duration::from_millis(500)) {
            Some((peer, _)) if peer == from => arrived += 1,
            Some((peer, payload)) if peer == echo && payload == b"last" => return arrived,
            Some(_) => {}
            None => app.send(echo, b"last"),
        }
    }
    panic!("no echo during a flood");
}

#[test]
fn strangers_reach_a_mapped_port_only_if_the_server_says_so_and_then_at_a_bounded_rate() {
    let _others = support::among_others();
    for (filter, least, most) in [(None, 0, 0), (Some("any"), 1, 1_000)] {
        let dir = tempfile::tempdir().unwrap();
        let mut flags = vec!["--allow", "127.0.0.0/8"];
        flags.extend(filter.iter().flat_map(|filter| ["--udp-filter", filter]));
        let server = start_server(dir.path(), &flags);
        let path = format!("127.0.0.1={}", server.address);
        let (_client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
        let (app, echo) = (Association::open(socks), echo_target());
        let mapped = binding(&app, stun_server(), [1; 12]);
        app.echo(echo, b"open");
        let arrived = flood_from_a_stranger(&app, echo, mapped);
        assert!((least..=most).contains(&arrived), "{filter:?}: {arrived} of 5000");
    }
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
    // An unsolicited peer sends to the port of the first application, but the user of a forward only receives from
    // its target.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"I am the target", from[&0]).unwrap();
    applications[0].send_to(&[9, 0], port).unwrap();
    let (len, _) = applications[0].recv_from(&mut buffer).unwrap();
    assert_eq!(buffer[..len], [9, 0]);
}

#[test]
fn names_are_looked_up_over_a_flow_of_dns() {
    let _others = support::among_others();
    // Port 53 needs a privilege on most systems.
    let Ok(socket) = UdpSocket::bind("127.7.7.53:53") else {
        return need::skip("port 53 of 127.7.7.53 cannot be bound");
    };
    let (resolver, _seen) = watched_target(socket);
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let app = Association::open(socks);
    for id in 0..50u8 {
        // A query for "a.". The answer here is the query.
        let query = [id, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
        app.send(resolver, &query);
        assert_eq!(app.recv(PATIENCE), Some((resolver, query.to_vec())));
    }
}

#[test]
fn a_call_continues_when_one_of_its_two_links_dies() {
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
        // 160 bytes of G.711 every 20 ms.
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

#[test]
fn datagrams_of_8_kb_pass_from_the_first_on_and_longer_ones_are_dropped() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (_server, _client, socks) = both(dir.path(), &[]);
    let app = Association::open(socks);
    let (quic, other) = (echo_target(), echo_target());
    // Neither the path's limits nor the flow are known when the first one is sent.
    for len in [1_316, 8_192, 1_200, 1_500, 3_000, 0] {
        let fresh = echo_target();
        app.send(fresh, &vec![5; len]);
        assert_eq!(app.recv(PATIENCE), Some((fresh, vec![5; len])), "{len} bytes");
    }
    // QUIC's first packet is its longest, and its flow is not known yet, by address and by name.
    let initial = vec![7; 1_200];
    app.send(quic, &initial);
    assert_eq!(app.recv(PATIENCE), Some((quic, initial.clone())));
    let name = "a".repeat(60) + ".localhost";
    app.send_to_name(&name, other.port(), &initial);
    // The system may or may not resolve such a name. The other flow continues.
    for len in [8_193, 9_000] {
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
            "no datagram that is too large, and no fragment"
        );
    }
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

/// Returns the value of a metric of a running program.
pub(super) fn metric(address: SocketAddr, name: &str) -> f64 {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.split(' ').nth(1)).map_or(0.0, |value| value.parse().unwrap())
}

#[test]
fn the_chosen_datagram_policy_is_used_and_shown_in_metrics() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server =
        start_server(dir.path(), &["--allow", "127.0.0.0/8", "--datagram-policy", "min-rtt"]);
    let rate = "rate=20M,delay=5ms";
    let (mut one_link, one) = link(dir.path(), server.address, rate, &[]);
    let (mut two_link, two) = link(dir.path(), server.address, rate, &[]);
    let paths = [format!("127.0.0.1={one}"), format!("127.0.0.2={two}")];
    let port = free_address();
    let metrics = port.to_string();
    let flags = ["--path", &paths[0], "--path", &paths[1], "--metrics", &metrics];
    let flags = [&flags[..], &["--datagram-policy", "duplicate"]].concat();
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    let (target, app) = (echo_target(), Association::open(socks));
    app.echo(target, b"first");
    let until = Instant::now() + PATIENCE;
    // Copies start once the second subflow is a path.
    while metric(port, "marline_lane_copied_bytes_total") == 0.0 {
        assert!(Instant::now() < until, "no copy was sent");
        app.echo(target, b"and again");
    }
    let before = metric(port, "marline_lane_copied_bytes_total");
    for number in 0..50u8 {
        app.echo(target, &[number; 1_000]);
    }
    let copied = metric(port, "marline_lane_copied_bytes_total") - before;
    assert!(copied > 45_000.0, "{copied} bytes of copies of 50,000");
    assert_eq!(metric(port, "marline_lanes"), 1.0);
    assert!(metric(port, "marline_udp_to_local_total") >= 51.0);
    let each = [ended(&mut one_link).0, ended(&mut two_link).0];
    assert!(each.iter().all(|bytes| *bytes > 50_000), "{each:?} bytes over the links");
}

#[test]
fn bursts_over_a_radio_that_loses_packets_are_repaired() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let lossy = "rate=30M,delay=5ms,loss=2%";
    let (_one_link, one) = link(dir.path(), server.address, lossy, &[]);
    // Equally lossy, or the bursts would move there.
    let (_two_link, two) = link(dir.path(), server.address, "rate=20M,delay=20ms,loss=2%", &[]);
    let paths = [format!("127.0.0.1={one}"), format!("127.0.0.2={two}")];
    let port = free_address();
    let metrics = port.to_string();
    let flags = ["--path", &paths[0], "--path", &paths[1], "--metrics", &metrics];
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    let (target, app) = (echo_target(), Association::open(socks));
    let until = Instant::now() + PATIENCE;
    let counts = || {
        ["repaired_total", "repair_bytes_total"]
            .map(|name| metric(port, &format!("marline_lane_{name}")))
    };
    // The client repairs echoes that are lost on their way back, and sends repairs of its own. Each end decides
    // independently between repairs and copies, so either may start first.
    while let [repaired, repair_bytes] = counts()
        && (repaired < 3.0 || repair_bytes < 1_000.0)
    {
        let both = format!("{repaired} repaired, {repair_bytes} bytes of repairs");
        assert!(Instant::now() < until, "{both}");
        for _ in 0..20 {
            (0..4u8).for_each(|number| app.send(target, &[number; 1_000]));
            std::thread::sleep(Duration::from_millis(25));
        }
    }
    let [_, bytes] = counts();
    assert!(bytes < 1e6, "{bytes} bytes of repairs");
}

#[test]
fn applications_and_peers_may_have_addresses_of_ipv6() {
    let _others = support::among_others();
    let Ok(socket) = UdpSocket::bind("[::1]:0") else {
        return need::skip("this machine has no IPv6");
    };
    let (target, _seen) = watched_target(socket);
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "::1/128", "--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let invite = server.invite_file.to_str().unwrap();
    let forward = format!("[::1]:0:[::1]:{}", target.port());
    let args =
        ["client", "--invite-file", invite, "--path", &path, "--socks5", "[::1]:0", "-U", &forward];
    let mut client = Running::start(dir.path(), &args);
    let port = client.address_after("udp forward listening on ");
    let socks = client.address_after("socks5 listening on ");
    let app = UdpSocket::bind("[::1]:0").unwrap();
    app.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 100];
    app.send_to(b"forwarded", port).unwrap();
    let (len, from) = app.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], from), (&b"forwarded"[..], port));
    let mut control = TcpStream::connect(socks).unwrap();
    control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut answer = [0; 24];
    control.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[..6], &[5, 0, 5, 0, 0, 4], "an IPv6 address");
    let relay = SocketAddr::new(socks.ip(), u16::from_be_bytes([answer[22], answer[23]]));
    let IpAddr::V6(ip) = target.ip() else { unreachable!("bound so") };
    let mut datagram = vec![0, 0, 0, 4];
    datagram.extend_from_slice(&ip.octets());
    datagram.extend_from_slice(&target.port().to_be_bytes());
    datagram.extend_from_slice(b"associated");
    app.send_to(&datagram, relay).unwrap();
    let (len, from) = app.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], from), (&datagram[..], relay), "with the header of its peer");
}
