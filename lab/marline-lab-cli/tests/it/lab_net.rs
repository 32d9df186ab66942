//! Tests of `marline-lab net` and `marline-lab link --between` as processes: traffic passes, commands
//! take effect, and nothing is left behind, even after SIGKILL.

use super::support;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use marline_emulator::netns;
use marline_testkit::need;
use serde_json::Value;

/// A process that is killed even if the test fails; its remains are swept.
struct Running {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Running {
    fn start(args: &[&str]) -> Running {
        let mut command = marline(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start");
        let said = BufReader::new(child.stderr.take().expect("standard error"));
        Running { child, said }
    }

    /// The first line on standard error that contains this word.
    fn wait_for(&mut self, word: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let length = self.said.read_line(&mut line).expect("a line");
            assert!(length > 0, "no `{word}` in {all}");
            if line.contains(word) {
                return line;
            }
            all += &line;
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("standard input"), "{line}").expect("tell");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = marline(&["net", "sweep"]).stdout(Stdio::null()).status();
    }
}

fn marline(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    command.args(args);
    command
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn namespaces() -> String {
    output(Command::new("ip").args(["netns", "list"]))
}

/// `None` if this network is not listed, otherwise true if its process is alive.
fn listed(name: &str) -> Option<bool> {
    let text = output(&mut marline(&["net", "status", "--json"]));
    let nets: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    nets.iter().find(|net| net["name"] == name).map(|net| net["alive"] == true)
}

fn socket(namespace: &str, address: &str) -> UdpSocket {
    let socket = netns::run_in(namespace, || UdpSocket::bind(address)).expect("bind");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    socket
}

fn scenario(name: &str) -> String {
    format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_remains_of_a_killed_net_are_swept() {
    let _others = support::among_others();
    if !need::root() || need::program("ip").is_none() {
        return;
    }
    let name = format!("cli-kill-{}", std::process::id());
    let mut net = Running::start(&["net", "up", &scenario("dual-stack"), "--name", &name]);
    assert!(net.wait_for("client").contains(&format!("ip netns exec ml-{name}-client")));
    net.wait_for("path lte");
    assert_eq!(listed(&name), Some(true));
    let (client, server) = (format!("ml-{name}-client"), format!("ml-{name}-server"));
    for (from, to) in [("10.0.1.2", "10.0.1.1"), ("[fd00:2::2]", "[fd00:2::1]")] {
        let there = socket(&server, &format!("{to}:5000"));
        let here = socket(&client, &format!("{from}:0"));
        // Links of this scenario lose some packets.
        let heard = (0..20).any(|_| {
            here.send_to(b"hello", format!("{to}:5000")).expect("send");
            there.set_read_timeout(Some(Duration::from_millis(500))).expect("timeout");
            there.recv(&mut [0; 16]).is_ok()
        });
        assert!(heard, "{from} to {to}");
    }
    let refused = marline(&["net", "up", &scenario("backup"), "--name", &name]).output();
    assert!(String::from_utf8_lossy(&refused.expect("run").stderr).contains("belongs to process"));
    net.child.kill().expect("kill");
    net.child.wait().expect("end");
    assert_eq!(listed(&name), Some(false));
    assert!(namespaces().contains(&name));
    assert!(output(&mut marline(&["net", "sweep"])).contains(&name));
    assert!(!namespaces().contains(&name));
    assert_eq!(listed(&name), None);
}

#[test]
fn a_net_obeys_commands_reports_and_ends_on_request() {
    let _others = support::among_others();
    if !need::root() || need::program("ip").is_none() {
        return;
    }
    let name = format!("cli-down-{}", std::process::id());
    let file = scenario("wifi-lte");
    let mut net = Running::start(&["net", "up", &file, "--name", &name, "--json"]);
    net.wait_for("path lte");
    let here = socket(&format!("ml-{name}-client"), "10.0.1.2:0");
    let there = socket(&format!("ml-{name}-server"), "10.0.1.1:5000");
    here.send_to(b"one", "10.0.1.1:5000").expect("send");
    assert_eq!(there.recv(&mut [0; 16]).expect("through the link"), 3);
    net.tell("down wifi uplink");
    net.tell("set lte rate=1M");
    net.tell("set umts rate=1M");
    assert!(net.wait_for("umts").contains("known: wifi, lte"));
    here.send_to(b"two", "10.0.1.1:5000").expect("send");
    output(&mut marline(&["net", "down", &name]));
    assert!(net.child.wait().expect("end").success());
    assert!(!namespaces().contains(&name));
    let out = net.child.stdout.take().expect("standard output");
    let report: Value = serde_json::from_reader(out).expect("JSON");
    let count = |what: &str| report[0]["up"][what].as_u64().expect(what);
    assert!(count("delivered_packets") >= 1 && count("dropped_outage") >= 1, "{report}");
    let unknown = marline(&["net", "down", &name]).output().expect("run");
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no network"));
}

/// Namespaces that are removed even if the test fails.
struct Namespaces([String; 2]);

impl Namespaces {
    fn new() -> Namespaces {
        let names = ["c", "s"].map(|side| format!("cli-{}-{side}", std::process::id()));
        for name in &names {
            output(Command::new("ip").args(["netns", "add", name]));
        }
        Namespaces(names)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

#[test]
fn a_link_between_namespaces_obeys_and_reports_per_path() {
    let _others = support::among_others();
    if !need::root() || need::program("ip").is_none() {
        return;
    }
    let made = Namespaces::new();
    let [client, server] = &made.0;
    let mut link = Running::start(&[
        "link",
        "--between",
        client,
        server,
        "--path",
        "wifi,10.7.1.2/24,10.7.1.1/24,fd00:7::2/64,fd00:7::1/64,delay=2ms",
        "--path",
        "lte,10.7.2.2/24,10.7.2.1/24,mtu=1400,rate=1M",
        "--at",
        "0s down lte",
        "--json",
    ]);
    link.wait_for("wifi, lte");
    let there = socket(server, "[fd00:7::1]:5000");
    let here = socket(client, "[fd00:7::2]:0");
    let mut buffer = [0; 16];
    there.set_read_timeout(Some(Duration::from_secs(2))).expect("timeout");
    // The first packets may be lost: neighbor discovery gives up early on a busy machine.
    let (length, from) = (0..10)
        .find_map(|_| {
            here.send_to(b"hello", "[fd00:7::1]:5000").expect("send");
            there.recv_from(&mut buffer).ok()
        })
        .expect("up");
    there.send_to(&buffer[..length], from).expect("send");
    assert_eq!(here.recv(&mut buffer).expect("down"), 5);
    let lost = socket(client, "10.7.2.2:0");
    lost.send_to(&[0; 1_000], "10.7.2.1:5000").expect("send");
    link.tell("rebind wifi");
    assert!(link.wait_for("rebind").contains("no ports"));
    link.tell("quit");
    assert!(link.child.wait().expect("end").success());
    let out = link.child.stdout.take().expect("standard output");
    let report: Value = serde_json::from_reader(out).expect("JSON");
    assert_eq!((&report[0]["name"], &report[1]["name"]), (&"wifi".into(), &"lte".into()));
    // The kernel sends router solicitations by itself.
    let count = |path: usize, way: &str, what: &str| report[path][way][what].as_u64().expect(what);
    assert!(count(1, "up", "dropped_outage") >= 1, "{report}");
    assert!(count(1, "up", "offered_bytes") >= 1_028, "{report}");
    assert_eq!(count(1, "up", "delivered_packets"), 0, "{report}");
    assert!(count(0, "down", "delivered_bytes") >= 53, "{report}");
    // Interfaces disappear with the process, even if it is killed.
    let mut link = Running::start(&["link", "--between", client, server, "--path", "wifi"]);
    link.wait_for("link between");
    let interfaces = || output(Command::new("ip").args(["-n", client, "-brief", "link"]));
    assert!(interfaces().contains("wifi"));
    link.child.kill().expect("kill");
    link.child.wait().expect("end");
    assert!(!interfaces().contains("wifi"));
}
