//! Test of `--mode interactive` between namespaces, over native TCP: WiFi becomes silent and returns while
//! keystrokes are echoed. LTE sleeps until then, carries everything meanwhile, including new connections, and
//! sleeps again afterwards. Once with `marline server`, once with the kernel's Multipath TCP. Needs root.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it interactive -- --nocapture
//! ```

use super::support;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};
use marline_lab::scenario::Side;
use marline_testkit::{need, wiretap};
use serde_json::Value;

const SCENARIO: &str = include_str!("support/phone.toml");

const WIFI: &str = "10.0.1.2:";
const LTE: &str = "10.0.2.2:";
const KEY_BYTES: usize = 60;
const TYPES_EVERY: Duration = Duration::from_millis(50);
/// WiFi becomes silent, then it returns, then the keystrokes end.
const DIES: Duration = Duration::from_secs(3);
const RETURNS: Duration = Duration::from_secs(8);
const ENDS: Duration = Duration::from_secs(21);
/// Time at which a new connection is opened, while WiFi is silent.
const OPENS: Duration = Duration::from_millis(5_500);
/// Number of keystrokes on the new connection.
const NEW_KEYS: usize = 40;
/// LTE must be closed within this time after WiFi's return: a probe every 1.2 s (2.4 s after a loss), a clean
/// period of 2 s, and a quiet time of 2 s. Every answer delayed by a busy machine restarts these.
const ASLEEP_AFTER: Duration = Duration::from_secs(11);
/// Time for traffic in progress to end.
const AT_REST: Duration = Duration::from_millis(500);
/// The longest echo: with our server, and with one without our extensions.
const HOLE_MS: [f64; 2] = [1_500.0, 3_000.0];

/// Echoes all data.
#[test]
fn echo() {
    if two_uplinks::plays(echo) {
        two_uplinks::echo("0.0.0.0:8080");
    }
}

/// Types keys, compares the echoes, and prints their number and the longest wait.
fn type_keys(count: usize) {
    let stream = TcpStream::connect("127.0.0.1:9000").expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut reader = stream.try_clone().expect("clone");
    let begun = Instant::now();
    let key = |n: usize| -> Vec<u8> { (0..KEY_BYTES).map(|i| (n * 31 + i) as u8).collect() };
    let typist = std::thread::spawn(move || {
        let mut stream = stream;
        for n in 0..count {
            std::thread::sleep((begun + TYPES_EVERY * n as u32).duration_since(Instant::now()));
            stream.write_all(&key(n)).expect("write");
        }
    });
    let mut longest = Duration::ZERO;
    for n in 0..count {
        let mut came = vec![0; KEY_BYTES];
        reader.read_exact(&mut came).expect("an echo");
        assert_eq!(came, key(n), "key {n}");
        longest = longest.max(begun.elapsed().saturating_sub(TYPES_EVERY * n as u32));
        if n == 0 {
            println!("first");
        }
    }
    typist.join().expect("typist");
    println!("sum {count} {}", longest.as_micros());
}

#[test]
fn keys() {
    if two_uplinks::plays(keys) {
        type_keys((ENDS.as_millis() / TYPES_EVERY.as_millis()) as usize);
    }
}

#[test]
fn new_keys() {
    if two_uplinks::plays(new_keys) {
        type_keys(NEW_KEYS);
    }
}

/// Output of `marline monitor --json`, in order.
struct Events {
    lines: Receiver<String>,
    seen: Vec<Value>,
}

impl Events {
    fn collect(&mut self) {
        let lines = self.lines.try_iter();
        self.seen.extend(lines.filter_map(|line| serde_json::from_str(&line).ok()));
    }

    /// Events with this name whose local address has this prefix.
    fn of(&self, name: &str, local: &str) -> Vec<&Value> {
        let here = |event: &&Value| {
            event["event"] == name && event["local"].as_str().is_none_or(|l| l.starts_with(local))
        };
        self.seen.iter().filter(here).collect()
    }

    /// Collects events until the subflows opened on LTE are closed, some seconds after WiFi's return.
    fn collect_until_asleep(&mut self, begun: Instant) {
        while !self.all_joined_are_closed(LTE) {
            assert!(begun.elapsed() < RETURNS + ASLEEP_AFTER, "LTE is awake: {:#?}", self.seen);
            std::thread::sleep(Duration::from_millis(100));
            self.collect();
        }
    }

    /// Returns true if all subflows that joined from this address are closed. Subflows of new connections close too,
    /// without having joined.
    fn all_joined_are_closed(&self, local: &str) -> bool {
        let closed = self.of("SF_CLOSED", local);
        let is_closed = |joined: &&Value| closed.iter().any(|c| c["local"] == joined["local"]);
        self.of("SF_ESTABLISHED", local).iter().all(is_closed)
    }
}

/// Packets offered to LTE's link so far, and the number of its radio's wakeups.
fn lte(hosts: &TwoUplinks) -> (u64, u64) {
    let report = hosts.net.report().expect("report").pop().expect("two links");
    let packets = report.up.stats.offered_packets + report.down.stats.offered_packets;
    (packets, report.radio.map_or(0, |radio| radio.energy.promotions))
}

fn table(hosts: &TwoUplinks) -> String {
    hosts.shell(Side::Client, "marline monitor --table --once --control client.sock")
}

/// Returns the line of the path health monitor for a local address.
fn health(table: &str, local: &str) -> String {
    let table_below = table.split("path health\n").nth(1).unwrap_or_default();
    let line = table_below.lines().find(|line| line.starts_with(local.trim_end_matches(':')));
    line.unwrap_or_else(|| panic!("no {local} in\n{table}")).to_owned()
}

/// The server in use.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Server {
    Ours,
    Kernel,
}

/// Makes WiFi silent and lets it return. Checks the effects as they occur.
fn run_outage(dir: &Path, server: Server) {
    let mut hosts = TwoUplinks::set(SCENARIO, "mobile", dir);
    let (wrapper, options) = match server {
        Server::Ours => ("", "--invite-file invite --carrier raw --warm 0 -L 9000:127.0.0.1:8080"),
        Server::Kernel => ("mptcpize run", "--direct -L 9000:10.0.1.1:8080"),
    };
    hear(&hosts.role(Side::Server, wrapper, echo), "ready");
    if server == Server::Ours {
        hosts.marline_server("raw");
    }
    let client = format!(
        "marline client {options} --mode interactive --path wifi --path lte,backup \
         --control client.sock --pcap caps --pcap-secrets"
    );
    hear(&hosts.program(Side::Client, &client), "listening on");
    println!("{server:?}, before anything was opened:\n{}", table(&hosts));
    let lines = hosts.program(Side::Client, "marline monitor --json --control client.sock");
    let mut events = Events { lines, seen: Vec::new() };
    std::thread::sleep(Duration::from_millis(300));
    let keys = hosts.role(Side::Client, "", keys);
    hear(&keys, "first");
    let begun = Instant::now();
    let until = |at: Duration| std::thread::sleep(at.saturating_sub(begun.elapsed()));

    until(DIES);
    assert_eq!(lte(&hosts), (0, 0), "asleep while WiFi works");
    let before = table(&hosts);
    // On a busy machine an answer may be late, and the pair may be watched for a moment.
    assert!(!health(&before, WIFI).contains("degraded"), "{before}");
    hosts.net.command("wifi", "down").expect("WiFi dies");

    until(OPENS);
    let during = table(&hosts);
    println!("{server:?}, WiFi silent:\n{during}");
    assert!(!health(&during, WIFI).contains("usable"), "{during}");
    assert!(health(&during, LTE).contains("usable"), "{during}");
    events.collect();
    let known = events.of("CREATED", "").len();
    let new_keys = hosts.role(Side::Client, "", new_keys);
    let new_sum = hear(&new_keys, "sum ");
    events.collect();
    let created: Vec<String> =
        events.of("CREATED", "")[known..].iter().map(|e| e.to_string()).collect();
    assert!(!created.is_empty() && created.iter().all(|e| e.contains(LTE)), "{created:?}");

    until(RETURNS);
    hosts.net.command("wifi", "up").expect("WiFi returns");
    events.collect_until_asleep(begun);
    std::thread::sleep(AT_REST);
    let (asleep, _) = lte(&hosts);
    let after = table(&hosts);
    println!("{server:?}, back on WiFi:\n{after}");
    assert!(health(&after, WIFI).contains("usable"), "{after}");
    let sum = hear(&keys, "sum ");
    let (packets, woken) = lte(&hosts);
    assert_eq!(packets, asleep, "LTE no longer carries data");
    assert_eq!(woken, 1, "LTE was woken once");

    events.collect();
    for (name, local) in
        [("SF_ESTABLISHED", LTE), ("SF_CLOSED", LTE), ("SF_ADDRESS_PAIR_USABLE", "")]
    {
        assert!(!events.of(name, local).is_empty(), "{name}: {:#?}", events.seen);
    }
    let numbers = |sum: &str| -> Vec<f64> {
        sum.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect()
    };
    let (longest_ms, new_ms) = (numbers(&sum)[1] / 1e3, numbers(&new_sum)[1] / 1e3);
    println!(
        "{server:?}: longest echo {longest_ms:.0} ms, of a connection opened meanwhile {new_ms:.0} ms"
    );
    assert!(longest_ms < HOLE_MS[usize::from(server == Server::Kernel)], "{longest_ms} ms");
    drop(hosts);
    read_captures(&dir.join("caps"), server);
}

/// Checks the client's captures: our checker verifies keys, HMACs, mappings and bytes, Wireshark the rest.
fn read_captures(dir: &Path, server: Server) {
    let files: Vec<_> = std::fs::read_dir(dir).expect("captures").flatten().collect();
    let bytes: Vec<_> = files.iter().map(|f| std::fs::read(f.path()).expect("read")).collect();
    assert_eq!(files.len(), 2, "a file for each path");
    let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    let findings = wiretap::check(&slices).expect("captures");
    println!("{server:?}: {findings}");
    assert!(findings.is_clean(), "{findings}: {:#?}", findings.faults);
    let Some(tshark) = need::program("tshark") else { return };
    for file in files {
        let mut command = Command::new(&tshark);
        command.args(["-d", "tcp.port==8080,data", "-d", "tcp.port==7777,data"]);
        command.args(["-Y", "_ws.malformed || tcp.checksum.status == \"Bad\""]);
        command.args(["-o", "tcp.check_checksum:TRUE", "-r"]).arg(file.path());
        let output = command.output().expect("tshark");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, "", "malformed in {:?}", file.file_name());
    }
}

#[test]
fn out_of_wifi_and_back_with_a_server_of_ours() {
    let _alone = support::lock_exclusively();
    if two_uplinks::possible(&[]) {
        let dir = tempfile::tempdir().expect("directory");
        run_outage(dir.path(), Server::Ours);
    }
}

#[test]
fn out_of_wifi_and_back_with_the_kernels_server() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&["mptcpize"]) {
        return;
    }
    if !Path::new("/proc/sys/net/mptcp/enabled").exists() {
        return need::skip("this kernel has no MPTCP");
    }
    let dir = tempfile::tempdir().expect("directory");
    run_outage(dir.path(), Server::Kernel);
}
