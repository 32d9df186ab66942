//! Tests of `marline doctor --server` against middleboxes between two namespaces. It must name the behavior of
//! each, and a connection must deliver the right bytes or an error. Native TCP. Needs root.

use super::support;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use marline_testkit::need;

const PROGRAM: &str = env!("CARGO_BIN_EXE_marline");
/// Number of concurrent diagnoses, which mostly wait.
const CONCURRENT_DIAGNOSES: usize = 8;
/// Numbers of concurrent diagnoses in further attempts. Some middleboxes act at random, and a busy machine changes
/// their timing, so a diagnosis that failed is repeated with less load and another seed.
const AGAIN: [usize; 2] = [2, 1];

/// Two namespaces, the link between them, and the doctor's other end. Dropping this ends all of it.
struct NamespacePair {
    names: [String; 2],
    children: Vec<Child>,
}

impl Drop for NamespacePair {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).status().is_ok_and(|status| status.success())
}

impl NamespacePair {
    fn new(number: usize, boxes: &str, seed: usize) -> NamespacePair {
        let name = |side| format!("dp{}-{number}{side}", std::process::id());
        let mut namespaces = NamespacePair { names: ["c", "s"].map(name), children: Vec::new() };
        for name in &namespaces.names {
            assert!(ip(&["netns", "add", name]), "a namespace");
            assert!(ip(&["-n", name, "link", "set", "lo", "up"]));
        }
        let path = format!("wifi,10.93.1.2/24,10.93.1.1/24,rate=20M,delay=10ms{boxes}");
        let [client, server] = namespaces.names.clone();
        let seed = seed.to_string();
        let between = ["link", "--between", &client, &server, "--path", &path];
        namespaces.start(&[&between[..], &["--for", "120", "--seed", &seed]].concat());
        for (name, address) in [(&client, "10.93.1.2"), (&server, "10.93.1.1")] {
            wait_for("the link", || {
                let words = ["-n", name, "-o", "addr", "show", "dev", "wifi", "up"];
                let output = Command::new("ip").args(words).output().expect("ip");
                String::from_utf8_lossy(&output.stdout).contains(address)
            });
        }
        let responder = ["netns", "exec", &server, PROGRAM, "doctor", "--listen", "10.93.1.1:7000"];
        let mut command = Command::new("ip");
        command.args(responder).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the responder");
        let out = child.stdout.take().expect("its output");
        namespaces.children.push(child);
        let mut line = String::new();
        let read = std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line);
        assert!(read.is_ok() && line.contains("listening on"), "{line}");
        namespaces
    }

    fn start(&mut self, words: &[&str]) {
        let mut command = support::marline_lab(Path::new("."), words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.children.push(command.spawn().expect("the program starts"));
    }

    /// Returns the output of the doctor.
    fn examine(&self) -> String {
        let words = ["netns", "exec", &self.names[0], "timeout", "100", PROGRAM, "doctor"];
        let mut command = Command::new("ip");
        command.args(words).args(["--server", "10.93.1.1:7000", "--path", "10.93.1.2"]);
        let output = command.stdin(Stdio::null()).output().expect("the doctor");
        let err = String::from_utf8_lossy(&output.stderr);
        format!("{}{err}", String::from_utf8_lossy(&output.stdout))
    }
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(15);
    while !ready() {
        assert!(Instant::now() < until, "no {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

const RIGHT: &str = "157200 bytes echoed correctly";

/// Middleboxes, and all texts that the doctor's output must contain.
const BOXES: &[(&str, &[&str])] = &[
    ("", &["Multipath TCP, 157200", "no middlebox interferes with Multipath TCP"]),
    (
        ",up.strip=mptcp:syn",
        &[RIGHT, "strips the options of Multipath TCP from SYNs", "UDP carrier"],
    ),
    (",down.strip=mptcp:synack", &[RIGHT, "strips the options of Multipath TCP from SYN/ACKs"]),
    (",strip=mptcp:rest", &[RIGHT, "strips the options of Multipath TCP after the handshake"]),
    (",up.strip=mptcp:rest", &[RIGHT, "after the handshake, toward the server"]),
    (",down.strip=mptcp:rest", &[RIGHT, "after the handshake, from the server"]),
    // Starts while messages are exchanged, when RFC 8684 has no fallback, so the result is a clear error.
    (",strip=mptcp:rest@2s", &["FAILS", "strips the options of Multipath TCP in mid-stream"]),
    (",up.strip=mptcp:rest@2s", &["FAILS", "in mid-stream, toward the server"]),
    (",down.strip=mptcp:rest@2s", &["FAILS", "in mid-stream, from the server"]),
    (",strip=dss:rest@2s", &["FAILS", "strips the options of Multipath TCP in mid-stream"]),
    (
        ",strip=mptcp+sack_permitted+sack+timestamps+window_scale",
        &[RIGHT, "strips the options of Multipath TCP from SYNs"],
    ),
    (
        ",up.block=mptcp:syn",
        &[RIGHT, "drops SYNs with the options of Multipath TCP", "seven seconds"],
    ),
    (",down.block=mptcp:synack", &[RIGHT, "drops SYN/ACKs with the options of Multipath TCP"]),
    (",block=mptcp:rest", &[RIGHT, "drops segments with the options of Multipath TCP"]),
    (",down.block=mptcp:rest", &[RIGHT, "drops segments with the options", "from the server"]),
    (",up.block=mptcp:rest", &[RIGHT, "drops segments with the options", "toward the server"]),
    (",block=mptcp:rest@2s", &["FAILS", "drops segments with the options", "in mid-stream"]),
    (",renumber=yes", &["Multipath TCP, 157200", "rewrites sequence numbers: harmless to"]),
    (",renumber=not-sack,loss=3%", &[RIGHT, "not those in selective acknowledgments"]),
    (",split=500B", &["Multipath TCP, 157200", "splits segments"]),
    (",split=500B:first", &["Multipath TCP, 157200", "splits segments"]),
    (",split=90B:first", &["Multipath TCP, 157200", "splits segments"]),
    (",split=700B,coalesce=3ms", &[RIGHT, "splits segments", "coalesces segments"]),
    (",split=700B:first,coalesce=3ms", &[RIGHT, "splits segments", "coalesces segments"]),
    (",coalesce=3ms", &[RIGHT, "coalesces segments"]),
    (",thin=8", &["Multipath TCP, 157200", "thins out acknowledgments"]),
    (",thin=8,loss=1%", &["Multipath TCP, 157200", "thins out acknowledgments"]),
    (",rebind=2s", &["Multipath TCP, 157200", "drops NAT mappings"]),
    (",up.swallow=2%", &[RIGHT, "acknowledges data that it does not deliver"]),
    (",swallow=2%", &["acknowledges data that it does not deliver"]),
    (",swallow=100%", &["FAILS", "data is acknowledged, but nothing comes back"]),
    (",up.rewrite=5%", &["FAILS", "changes payload", "DSS checksums"]),
];

#[test]
fn each_box_is_named_and_bytes_are_right_or_an_error_is_said() {
    let _alone = support::lock_exclusively();
    if !need::root() || need::program("ip").is_none() || !Path::new("/dev/net/tun").exists() {
        return;
    }
    let all: Vec<usize> = (0..BOXES.len()).collect();
    let mut complaints = examine_all(&all, CONCURRENT_DIAGNOSES, 1);
    for (at_once, seed) in AGAIN.into_iter().zip(2..) {
        let missed: Vec<usize> = complaints.iter().map(|(number, _)| *number).collect();
        for (_, words) in &complaints {
            eprintln!("again: {words}");
        }
        complaints = examine_all(&missed, at_once, seed);
    }
    let words: Vec<String> = complaints.into_iter().map(|(_, words)| words).collect();
    assert!(words.is_empty(), "{}", words.join("\n"));
}

/// Diagnoses these middleboxes. Returns those whose output lacked an expected text.
fn examine_all(numbers: &[usize], at_once: usize, seed: usize) -> Vec<(usize, String)> {
    let next = Mutex::new(numbers.iter());
    let complaints = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(&number) = next.lock().expect("unpoisoned").next() else { return };
            let (boxes, words) = BOXES[number];
            let namespaces = NamespacePair::new(number, boxes, seed);
            let mut said = namespaces.examine();
            if boxes.is_empty() {
                // On an immediate second diagnosis, the other end must not report the first one.
                said = namespaces.examine();
            }
            let missing: Vec<&&str> = words.iter().filter(|word| !said.contains(**word)).collect();
            if !missing.is_empty() {
                let words = format!("`{boxes}`: {missing:?} is missing in\n{said}");
                complaints.lock().expect("unpoisoned").push((number, words));
            }
        }
    };
    std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
    complaints.into_inner().expect("unpoisoned")
}
