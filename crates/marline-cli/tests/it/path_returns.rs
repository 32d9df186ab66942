//! Test of the return to a path that was dead or slow: a TCP stream and a UDP flow of echoes through `marline
//! client` and `marline server`, over WiFi and LTE. Prints the time from WiFi's return until echoes use it again.
//! Needs root.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it path_returns -- --nocapture --include-ignored
//! ```
//! The same test in virtual time, with limits: `cargo test -p marline-sim --test it path_returns -- --nocapture`.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use marline_lab::scenario::Side;
use rustix::time::{ClockId, clock_gettime};

use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};

const WIFI: &str = "up.rate=15M,down.rate=30M,delay=8ms,queue=100ms";
const LTE: &str = "up.rate=6M,down.rate=15M,delay=100ms,queue=100ms";
/// WiFi at the edge of its range.
const SLOW: &str = "rate=300k,delay=400ms,queue=1s";
const MESSAGE: usize = 100;
const EVERY: Duration = Duration::from_millis(100);
/// A round trip over WiFi and the delay of a busy machine. An echo with one direction over LTE takes 108 ms.
const OVER_WIFI: Duration = Duration::from_millis(90);
/// Time after which only probes are sent on a silent path.
const SETTLING: Duration = Duration::from_secs(2);
/// Limit on both sides' probes on a silent path. They are counted during silences of at least this length, because
/// in shorter ones a single probe counts much.
const MOST_PROBE_BYTES_PER_S: f64 = 300.0;
const COUNTED_S: u64 = 10;
/// Links of a test in which a dead link must be detected from its own round-trip time, not from that of the slower
/// link.
const FIBER: &str = "rate=20M,delay=20ms,queue=100ms";
const SATELLITE: &str = "rate=50M,delay=300ms,queue=300ms,loss=0.5%";
const FIBER_DEATHS: usize = 6;
const SATELLITE_KNOWN: Duration = Duration::from_secs(4);
/// A return requires most of this many echoes in a row, because one may be late on a busy machine.
const IN_A_ROW: usize = 10;
const MOST: usize = 8;

/// Returns the time of a clock shared by both processes.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Runs the target of TCP streams.
#[test]
pub(super) fn tcp_echo() {
    if two_uplinks::plays(tcp_echo) {
        two_uplinks::echo("127.0.0.1:8080");
    }
}

/// Runs the target of UDP flows.
#[test]
pub(super) fn udp_echo() {
    if !two_uplinks::plays(udp_echo) {
        return;
    }
    let socket = UdpSocket::bind("127.0.0.1:8081").expect("bind");
    println!("ready");
    let mut buffer = [0; 2_048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..length], from);
    }
}

/// Sends messages at a fixed rate. Prints for each echo when its message was sent and how long it took.
#[test]
pub(super) fn user() {
    if !two_uplinks::plays(user) {
        return;
    }
    let begun = Instant::now();
    let stream = loop {
        match TcpStream::connect("127.0.0.1:9000") {
            Ok(stream) => break stream,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(EVERY);
    };
    stream.set_nodelay(true).expect("an option");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.connect("127.0.0.1:9001").expect("a peer");
    let (mut reader, receiver) = (&stream, socket.try_clone().expect("a handle"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = [0; MESSAGE];
            while reader.read_exact(&mut message).is_ok() {
                came_back("tcp", &message);
            }
        });
        scope.spawn(move || {
            let mut message = [0; MESSAGE];
            loop {
                if let Ok(MESSAGE) = receiver.recv(&mut message) {
                    came_back("udp", &message);
                }
            }
        });
        let mut message = [7; MESSAGE];
        loop {
            message[..8].copy_from_slice(&now_ns().to_be_bytes());
            (&stream).write_all(&message).expect("the stream continues");
            let _ = socket.send(&message);
            std::thread::sleep(EVERY);
        }
    });
}

fn came_back(kind: &str, message: &[u8; MESSAGE]) {
    let sent = message.first_chunk().map_or(0, |sent| u64::from_be_bytes(*sent));
    println!("{kind} {sent} {}", now_ns().saturating_sub(sent));
}

/// Echoes of one kind: sending time and duration of each.
#[derive(Debug, Default)]
struct Echoes(Vec<(u64, u64)>);

impl Echoes {
    /// Returns the longest time without an echo that began before `since` or within half a second after it, and ended
    /// after it.
    fn gap(&self, since: u64) -> Duration {
        let mut arrived: Vec<u64> = self.0.iter().map(|(sent, took)| sent + took).collect();
        arrived.sort_unstable();
        let near = |pair: &&[u64]| pair[1] >= since && pair[0] <= since + 500_000_000;
        let gaps = arrived.windows(2).filter(near).map(|pair| pair[1] - pair[0]);
        Duration::from_nanos(gaps.max().unwrap_or_default())
    }

    /// Returns the time from `since` until echoes use WiFi in both directions.
    fn over_wifi(&self, since: u64) -> Option<Duration> {
        let after: Vec<_> = self.0.iter().filter(|(sent, took)| sent + took >= since).collect();
        let quick = |(_, took): &&(u64, u64)| Duration::from_nanos(*took) <= OVER_WIFI;
        let is_return = |row: &&[&(u64, u64)]| {
            quick(&row[0]) && row.iter().filter(|echo| quick(echo)).count() >= MOST
        };
        let first = after.windows(IN_A_ROW).find(is_return)?[0];
        Some(Duration::from_nanos(first.0 + first.1 - since))
    }
}

/// The user's echoes so far.
struct Heard {
    lines: Receiver<String>,
    tcp: Echoes,
    udp: Echoes,
}

impl Heard {
    fn listen(&mut self) {
        loop {
            let line = match self.lines.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => panic!("the user's program ended"),
            };
            let mut words = line.split(' ');
            let kind = words.next().unwrap_or_default().to_owned();
            let mut number = || words.next()?.parse().ok();
            let (Some(sent), Some(took)) = (number(), number()) else { continue };
            match kind.as_str() {
                "tcp" => self.tcp.0.push((sent, took)),
                "udp" => self.udp.0.push((sent, took)),
                _ => {}
            }
        }
    }

    /// Waits until both kinds of echoes use WiFi. Returns the times since `since`.
    fn returns(&mut self, since: u64) -> (Duration, Duration) {
        let begun = Instant::now();
        loop {
            self.listen();
            if let (Some(tcp), Some(udp)) = (self.tcp.over_wifi(since), self.udp.over_wifi(since)) {
                return (tcp, udp);
            }
            let (last_tcp, last_udp) = (self.tcp.0.last(), self.udp.0.last());
            assert!(
                begun.elapsed() < PATIENCE * 3,
                "not over WiFi again: {last_tcp:?}, {last_udp:?}"
            );
            std::thread::sleep(EVERY);
        }
    }
}

/// Returns the number of bytes that both sides have sent on WiFi.
fn offered(hosts: &TwoUplinks) -> u64 {
    let links = hosts.net.report().expect("a report");
    let wifi = links.iter().filter(|link| link.name == "wifi");
    wifi.map(|link| link.up.stats.offered_bytes + link.down.stats.offered_bytes).sum()
}

/// Kind of failure of WiFi.
#[derive(Copy, Clone, Debug)]
enum Trouble {
    Silent,
    Slow,
    Flapping,
}

impl Trouble {
    /// Applies the failure. Returns how many bytes per second both sides sent on WiFi after it had settled.
    fn befall(self, hosts: &TwoUplinks, seconds: u64) -> f64 {
        let order = |order: &str| hosts.net.command("wifi", order).expect("an order");
        let (begun, length) = (Instant::now(), Duration::from_secs(seconds));
        match self {
            Trouble::Silent => order("down"),
            Trouble::Slow => {
                order(&format!("set {SLOW}"));
            }
            Trouble::Flapping => {}
        }
        std::thread::sleep(SETTLING);
        let (before, since) = (offered(hosts), Instant::now());
        match self {
            Trouble::Silent | Trouble::Slow => std::thread::sleep(length - SETTLING),
            Trouble::Flapping => {
                while begun.elapsed() < length {
                    order("down");
                    std::thread::sleep(Duration::from_millis(1_100));
                    order("up");
                    std::thread::sleep(Duration::from_millis(400));
                }
                order("down");
            }
        }
        let bytes_per_s = (offered(hosts) - before) as f64 / since.elapsed().as_secs_f64();
        order(&format!("set {WIFI}"));
        order("up");
        bytes_per_s
    }
}

/// Settings of a server and a client.
#[derive(Copy, Clone, Debug)]
struct Settings {
    carrier: &'static str,
    server: &'static str,
}

const USUAL: Settings = Settings { carrier: "udp", server: "" };
const BY_TCP: Settings = Settings { carrier: "tcp", ..USUAL };
/// Connections of one client are in different shards of the server, and each shard probes for its own.
const FOUR_SHARDS: Settings = Settings { server: "--shards 4", ..USUAL };

/// Applies these failures in turn on one pair of hosts. Each return must take less time than the failure lasted,
/// and the probes during a silence are limited.
fn play(dir: &Path, name: &str, settings: Settings, troubles: &[(Trouble, u64)]) {
    let (hosts, mut heard) = talking(dir, name, settings, [WIFI, LTE]);
    heard.returns(now_ns());
    for (trouble, seconds) in troubles {
        let bytes_per_s = trouble.befall(&hosts, *seconds);
        let since = now_ns();
        let (tcp, udp) = heard.returns(since);
        println!(
            "WiFi {} for {seconds} s: TCP is back after {:.2} s, UDP after {:.2} s; {bytes_per_s:.0} B/s sent on it",
            format!("{trouble:?}").to_lowercase(),
            tcp.as_secs_f64(),
            udp.as_secs_f64()
        );
        let late = tcp.max(udp);
        assert!(late < Duration::from_secs(*seconds), "{trouble:?} for {seconds} s: {late:?}");
        if matches!(trouble, Trouble::Silent) && *seconds >= COUNTED_S {
            assert!(bytes_per_s <= MOST_PROBE_BYTES_PER_S, "{seconds} s: {bytes_per_s} B/s");
        }
        // The path is in use for some time before the next failure.
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// Hosts with a TCP stream and a UDP flow of echoes between them, over two links, of which the first is named wifi.
fn talking(dir: &Path, name: &str, settings: Settings, links: [&str; 2]) -> (TwoUplinks, Heard) {
    let Settings { carrier, server, .. } = settings;
    let mut hosts = TwoUplinks::set(&two_uplinks::wifi_and_lte(links[0], links[1]), name, dir);
    hear(&hosts.role(Side::Server, "", tcp_echo), "ready");
    hear(&hosts.role(Side::Server, "", udp_echo), "ready");
    hosts.marline_server(&format!("{carrier} {server}"));
    hosts.shell(Side::Client, "ip link set lo up");
    let client = format!(
        "marline client --invite-file invite --path wifi --path lte --carrier {carrier} \
         -L 9000:127.0.0.1:8080 -U 9001:127.0.0.1:8081"
    );
    hear(&hosts.program(Side::Client, &client), "listening on");
    let lines = hosts.role(Side::Client, "", user);
    let heard = Heard { lines, tcp: Echoes::default(), udp: Echoes::default() };
    (hosts, heard)
}

#[test]
fn echoes_are_back_on_wifi_soon_after_it_was_silent() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    play(dir.path(), "returns", USUAL, &[(Trouble::Silent, 4), (Trouble::Silent, 12)]);
}

#[test]
fn echoes_are_back_on_wifi_through_a_server_of_four_shards() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    play(dir.path(), "shards", FOUR_SHARDS, &[(Trouble::Silent, 4), (Trouble::Silent, 12)]);
}

/// The system's TCP retransmits its data, a full segment per second, so its connections are closed early.
#[test]
fn echoes_are_back_on_wifi_over_tcp() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    play(dir.path(), "by-tcp", BY_TCP, &[(Trouble::Silent, 4), (Trouble::Silent, 15)]);
}

/// The fiber link fails, and its detection must not wait for the satellite's round trips. In virtual time, with
/// limits: `cargo test -p marline-sim --test it satellite -- --nocapture`.
#[test]
fn echoes_go_on_by_the_satellite_when_the_fiber_beside_it_dies() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let (hosts, mut heard) = talking(dir.path(), "satellite", USUAL, [FIBER, SATELLITE]);
    heard.returns(now_ns());
    for _ in 0..FIBER_DEATHS {
        std::thread::sleep(SATELLITE_KNOWN);
        let since = now_ns();
        hosts.net.command("wifi", "down").expect("an order");
        std::thread::sleep(SATELLITE_KNOWN);
        heard.listen();
        let (tcp, udp) = (heard.tcp.gap(since), heard.udp.gap(since));
        println!("the fiber dies: TCP has a gap of {tcp:.2?}, UDP of {udp:.2?}");
        assert!(tcp.max(udp) < SATELLITE_KNOWN, "{tcp:?}, {udp:?}");
        hosts.net.command("wifi", "up").expect("an order");
        heard.returns(now_ns());
    }
}

#[test]
#[ignore = "minutes: cargo xtask nightly returns"]
fn echoes_are_back_on_wifi_soon_after_any_trouble() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let silent = [4, 10, 15, 30, 60, 120].map(|seconds| (Trouble::Silent, seconds));
    let slow = [4, 10, 30].map(|seconds| (Trouble::Slow, seconds));
    let flapping = [10, 30].map(|seconds| (Trouble::Flapping, seconds));
    play(dir.path(), "returns-all", USUAL, &[&silent[..], &slow, &flapping].concat());
}

/// UDP is blocked on WiFi, so that only TCP detects its return.
#[test]
fn echoes_are_back_on_wifi_over_tcp_where_udp_is_blocked() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&["nft"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let settings = Settings { carrier: "auto", ..USUAL };
    let (hosts, mut heard) = talking(dir.path(), "no-udp", settings, [WIFI, LTE]);
    heard.returns(now_ns());
    hosts.shell(
        Side::Server,
        "nft add table ip way
         nft 'add chain ip way in { type filter hook prerouting priority -300; }'
         nft 'add chain ip way out { type filter hook output priority 0; }'
         nft add rule ip way in iifname wifi meta l4proto udp drop
         nft add rule ip way out oifname wifi meta l4proto udp drop",
    );
    // Wait until its connections use TCP there.
    std::thread::sleep(Duration::from_secs(8));
    heard.returns(now_ns());
    for seconds in [12, 25] {
        let bytes_per_s = Trouble::Silent.befall(&hosts, seconds);
        let (tcp, udp) = heard.returns(now_ns());
        println!(
            "WiFi without UDP silent for {seconds} s: TCP is back after {tcp:.2?}, UDP after {udp:.2?}; \
             {bytes_per_s:.0} B/s"
        );
        assert!(tcp.max(udp) < Duration::from_secs(seconds), "{tcp:?}, {udp:?}");
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// The connection is given up during the silence, and has to be opened again.
#[test]
#[ignore = "minutes: cargo xtask nightly returns"]
fn echoes_are_back_on_wifi_over_tcp_soon_after_a_long_silence() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let silent = [30, 60, 120].map(|seconds| (Trouble::Silent, seconds));
    play(dir.path(), "returns-tcp", BY_TCP, &silent);
}
