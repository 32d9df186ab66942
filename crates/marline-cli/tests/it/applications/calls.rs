//! Comparison of calls inside WireGuard: over `-U` with the lane's policies, and over a duplicator that works like
//! engarde (each datagram on each path, and WireGuard drops the second one). The duplicator is our own. WiFi loses
//! datagrams and then fails repeatedly. Prints delays, missed deadlines and gaps. Needs root.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it applications::calls -- --nocapture --include-ignored
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline_lab::scenario::Side;
use marline_time::{PcgRng, Rng as _};
use rustix::time::{ClockId, clock_gettime};

use super::support::two_uplinks::{self, TwoUplinks, hear};
use super::wireguard::{FAR, NEAR, PORT as WIREGUARD_PORT, tunnel};
use super::{client, support};

const WIFI: &str = "rate=30M,delay=10ms,queue=80ms,loss=1%";
const LTE: &str = "rate=20M,delay=30ms,queue=200ms,loss=0.1%";

/// Payload of a datagram, and its header: a sequence number and the sending time.
const DATAGRAM: usize = 1_000;
const HEAD: usize = 16;
const CALL_PORT: u16 = 9_000;
/// Port of the duplicator at the server.
const COPIES_PORT: u16 = 51_821;

/// Start of the call that is not measured, and the measured time before WiFi first fails.
const BEGINNING: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_secs(20);
/// Number of failures of WiFi, their duration, and the time between them.
const DEATHS: u32 = 5;
const DEAD: Duration = Duration::from_secs(2);
const ALIVE: Duration = Duration::from_secs(4);

/// Returns the clock shared by both namespaces.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("no variable {name}"))
}

/// Runs one end of a call: sends frames of one to four datagrams every 20 to 33 ms until stopped, and prints the sent
/// and received ones.
#[test]
fn caller() {
    if !two_uplinks::plays(caller) {
        return;
    }
    let (name, seed) = (variable("NAME"), variable("SEED").parse().expect("a number"));
    let socket = UdpSocket::bind(variable("LOCAL")).expect("bind");
    socket.connect(variable("PEER")).expect("a peer");
    println!("ready");
    let receiving = socket.try_clone().expect("a handle");
    let file = std::fs::File::create(format!("{name}.came")).expect("a file");
    std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut file, mut datagram) = (file, [0; DATAGRAM]);
        // An ICMP error before the other end listens is ignored.
        loop {
            if let Ok(DATAGRAM) = receiving.recv(&mut datagram) {
                let field = |at: usize| {
                    u64::from_be_bytes(datagram[at..at + 8].try_into().expect("eight bytes"))
                };
                writeln!(file, "{} {} {}", field(0), field(8), now_ns()).expect("written");
            }
        }
    });
    use std::io::Write as _;
    let mut sent = std::fs::File::create(format!("{name}.sent")).expect("a file");
    let (mut random, mut number) = (PcgRng::new(seed, 0), 0_u64);
    let mut datagram = [7; DATAGRAM];
    loop {
        for _ in 0..=random.below(4) {
            let at = now_ns();
            datagram[..8].copy_from_slice(&u64::to_be_bytes(number));
            datagram[8..HEAD].copy_from_slice(&at.to_be_bytes());
            let _ = socket.send(&datagram);
            writeln!(sent, "{number} {at}").expect("written");
            number += 1;
        }
        std::thread::sleep(Duration::from_micros(20_000 + random.below(13_000)));
    }
}

/// Runs the duplicator at the user: sends WireGuard's datagrams from each of these addresses, and passes received ones
/// to WireGuard.
#[test]
fn near_copies() {
    if !two_uplinks::plays(near_copies) {
        return;
    }
    let inside = UdpSocket::bind((Ipv4Addr::LOCALHOST, WIREGUARD_PORT)).expect("bind");
    let application: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
    let mut paths = Vec::new();
    for path in variable("PATHS").split(',') {
        let (local, remote) = path.split_once('>').expect("two addresses");
        let socket = UdpSocket::bind((local, 0)).expect("bind");
        socket.connect((remote, COPIES_PORT)).expect("a peer");
        let (back, to) = (inside.try_clone().expect("a handle"), Arc::clone(&application));
        let receiving = socket.try_clone().expect("a handle");
        std::thread::spawn(move || {
            let mut datagram = [0; 2_048];
            loop {
                let Ok(length) = receiving.recv(&mut datagram) else { continue };
                let to = *to.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(to) = to {
                    let _ = back.send_to(&datagram[..length], to);
                }
            }
        });
        paths.push(socket);
    }
    println!("ready");
    let mut datagram = [0; 2_048];
    loop {
        let Ok((length, from)) = inside.recv_from(&mut datagram) else { continue };
        *application.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
        for path in &paths {
            let _ = path.send(&datagram[..length]);
        }
    }
}

/// Runs the duplicator at the server: passes datagrams to WireGuard, and sends the answers to all known addresses.
#[test]
fn far_copies() {
    if !two_uplinks::plays(far_copies) {
        return;
    }
    let outside = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, COPIES_PORT)).expect("bind");
    let inside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    inside.connect((Ipv4Addr::LOCALHOST, WIREGUARD_PORT)).expect("a peer");
    // The latest address of each host, because each path has a separate host here.
    let known: Arc<Mutex<BTreeMap<std::net::IpAddr, SocketAddr>>> = Arc::default();
    let (back, receiving, all) = (
        outside.try_clone().expect("a handle"),
        inside.try_clone().expect("a handle"),
        Arc::clone(&known),
    );
    std::thread::spawn(move || {
        let mut datagram = [0; 2_048];
        loop {
            let Ok(length) = receiving.recv(&mut datagram) else { continue };
            let all = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for to in all.values() {
                let _ = back.send_to(&datagram[..length], to);
            }
        }
    });
    println!("ready");
    let mut datagram = [0; 2_048];
    loop {
        let Ok((length, from)) = outside.recv_from(&mut datagram) else { continue };
        known.lock().unwrap_or_else(PoisonError::into_inner).insert(from.ip(), from);
        let _ = inside.send(&datagram[..length]);
    }
}

/// Transport of WireGuard's datagrams.
#[derive(Copy, Clone, Debug)]
enum Transport {
    /// Copies of all datagrams on these paths, or one path alone.
    Copies(&'static str),
    /// `-U` with this datagram policy.
    Lane(&'static str),
}

const BOTH: &str = "10.0.1.2>10.0.1.1,10.0.2.2>10.0.2.1";

/// Results of a call.
struct Outcome {
    /// Delays in milliseconds, sorted. Infinite for a lost datagram.
    delays_ms: Vec<f64>,
    /// Longest time without a datagram, for each failure.
    gaps_ms: Vec<f64>,
    /// Bytes on both links while WiFi worked.
    bytes: u64,
}

/// Returns the numbers in a file, one row per line.
fn numbers<const N: usize>(file: &Path) -> Vec<[u64; N]> {
    let text = std::fs::read_to_string(file).expect("a file");
    let line = |line: &str| -> Option<[u64; N]> {
        let fields: Vec<u64> = line.split(' ').map_while(|field| field.parse().ok()).collect();
        fields.try_into().ok()
    };
    text.lines().filter_map(line).collect()
}

/// Returns the number of bytes on both interfaces of the user.
fn bytes_on_links(hosts: &TwoUplinks) -> u64 {
    let count = |name: &str| {
        let text = hosts.shell(Side::Client, &format!("ip -s -j link show {name}"));
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let stats = &value[0]["stats64"];
        ["rx", "tx"].map(|way| stats[way]["bytes"].as_u64().expect("a count")).iter().sum::<u64>()
    };
    count("wifi") + count("lte")
}

/// Runs a call over this transport, on links with this seed.
fn call(way: Transport, seed: u64) -> Outcome {
    let dir = tempfile::tempdir().expect("a folder");
    let scenario = format!("seed = {seed}\n{}", two_uplinks::wifi_and_lte(WIFI, LTE));
    let mut hosts = TwoUplinks::set(&scenario, "calls", dir.path());
    for side in [Side::Client, Side::Server] {
        hosts.shell(side, "ip link set lo up");
    }
    match way {
        Transport::Copies(paths) => {
            hear(&hosts.role(Side::Server, "", far_copies), "ready");
            hear(&hosts.role(Side::Client, &format!("env 'PATHS={paths}'"), near_copies), "ready");
        }
        Transport::Lane(policy) => {
            hosts.marline_server(&format!("udp --allow 10.0.1.1/32 --datagram-policy {policy}"));
            let flags = format!(
                "--datagram-policy {policy} -U 127.0.0.1:{WIREGUARD_PORT}:10.0.1.1:{WIREGUARD_PORT}"
            );
            client(&mut hosts, &flags, "udp forward listening on");
        }
    }
    tunnel(&mut hosts, &format!("{FAR}/32"));
    for (side, name, local, peer) in
        [(Side::Server, "far", FAR, NEAR), (Side::Client, "near", NEAR, FAR)]
    {
        let wrapper = format!(
            "env NAME={name} SEED={seed} LOCAL={local}:{CALL_PORT} PEER={peer}:{CALL_PORT}"
        );
        hear(&hosts.role(side, &wrapper, caller), "ready");
    }
    std::thread::sleep(BEGINNING);
    let (from, before) = (now_ns(), bytes_on_links(&hosts));
    std::thread::sleep(CALM);
    let (to, bytes) = (now_ns(), bytes_on_links(&hosts) - before);
    let mut deaths = Vec::new();
    for _ in 0..DEATHS {
        deaths.push(now_ns());
        hosts.net.command("wifi", "down").expect("WiFi dies");
        std::thread::sleep(DEAD);
        hosts.net.command("wifi", "up").expect("WiFi is back");
        std::thread::sleep(ALIVE);
    }
    drop(hosts);
    let mut outcome = Outcome { delays_ms: Vec::new(), gaps_ms: Vec::new(), bytes };
    for (sender, receiver) in [("near", "far"), ("far", "near")] {
        let sent = numbers::<2>(&dir.path().join(format!("{sender}.sent")));
        let came = numbers::<3>(&dir.path().join(format!("{receiver}.came")));
        judge(&mut outcome, &sent, &came, &(from..to), &deaths);
    }
    outcome.delays_ms.sort_by(f64::total_cmp);
    outcome
}

/// Adds the measurements of one direction.
fn judge(
    outcome: &mut Outcome,
    sent: &[[u64; 2]],
    came: &[[u64; 3]],
    during: &Range<u64>,
    deaths: &[u64],
) {
    let mut first = BTreeMap::new();
    for [number, sent_ns, came_ns] in came {
        first.entry(*number).or_insert((came_ns - sent_ns) as f64 / 1e6);
    }
    for [number, _] in sent.iter().filter(|[_, at]| during.contains(at)) {
        outcome.delays_ms.push(first.get(number).copied().unwrap_or(f64::INFINITY));
    }
    let dead_ns = DEAD.as_nanos() as u64;
    for death in deaths {
        let mut times: Vec<u64> = came.iter().map(|[_, _, at]| *at).collect();
        times.retain(|at| (death - 50_000_000..death + dead_ns).contains(at));
        times.extend([*death, death + dead_ns]);
        times.sort_unstable();
        let gap = times.windows(2).map(|pair| pair[1] - pair[0]).max().expect("two times");
        outcome.gaps_ms.push(gap as f64 / 1e6);
    }
}

/// Live measurement for docs/research/papers/datagrams.md.
#[test]
#[ignore = "a quarter of an hour, and the whole machine"]
fn beside_a_duplicator() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&["wireguard-go", "wg", "ping", "unshare"]) {
        return;
    }
    let ways = [
        ("WiFi alone", Transport::Copies("10.0.1.2>10.0.1.1")),
        ("LTE alone", Transport::Copies("10.0.2.2>10.0.2.1")),
        ("duplicator, as engarde", Transport::Copies(BOTH)),
        ("-U, auto", Transport::Lane("auto")),
        ("-U, min-rtt", Transport::Lane("min-rtt")),
        ("-U, duplicate", Transport::Lane("duplicate")),
    ];
    for seed in [71, 72] {
        for (name, way) in ways {
            let outcome = call(way, seed);
            let delays = &outcome.delays_ms;
            let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
            let late = |limit: f64| {
                let late = delays.iter().filter(|delay| **delay > limit).count();
                late as f64 * 100.0 / delays.len() as f64
            };
            let mut gaps = outcome.gaps_ms.clone();
            gaps.sort_by(f64::total_cmp);
            println!(
                "seed {seed}, {name}: {} datagrams, p50 {:.1}, p99 {:.1} ms, lost {:.2} %, later than 100 ms {:.2} %, \
                 {:.2} MB on links; WiFi dies: gap {:.0} ms in the median, {:.0} at most",
                delays.len(),
                at(0.5),
                at(0.99),
                late(1e9),
                late(100.0),
                outcome.bytes as f64 / 1e6,
                gaps[gaps.len() / 2],
                gaps[gaps.len() - 1],
            );
        }
    }
}
