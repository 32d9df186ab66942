//! Tests of the privileges that network commands keep when started by root: almost none, on every thread. Needs
//! root, for the hosts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear, wifi_and_lte};
use marline_lab::scenario::Side;

const LINK: &str = "rate=50M,delay=1ms,queue=100ms";
const NONE: u64 = 0;
const NET_ADMIN: u64 = 1 << 12;
const NET_BIND_SERVICE: u64 = 1 << 10;

struct World {
    hosts: TwoUplinks,
    _dir: tempfile::TempDir,
}

impl World {
    fn set(name: &str) -> Option<World> {
        if !two_uplinks::possible(&["unshare"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("directory");
        let hosts = TwoUplinks::set(&wifi_and_lte(LINK, LINK), name, dir.path());
        hosts.shell(
            Side::Server,
            "ip link set lo up; umask 077
             marline server --init --config marline.toml --listen 10.0.1.1:7777 \
             --public 10.0.1.1:7777 > invite 2> /dev/null",
        );
        hosts.shell(
            Side::Client,
            "ip link set lo up; ip route add default via 10.0.1.1 dev wifi metric 100",
        );
        Some(World { hosts, _dir: dir })
    }

    /// Starts a command, and waits until it has printed `ready`.
    fn start(&mut self, side: Side, command: &str, ready: &str) {
        let lines = self.hosts.program(side, command);
        hear(&lines, ready);
        std::thread::spawn(move || for _ in lines {});
    }

    /// Returns the processes of the program under test in this world with this argument.
    fn processes(&self, subcommand: &str) -> Vec<PathBuf> {
        let here = |process: &PathBuf| {
            let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0);
            let program = words.next().is_some_and(|word| word.ends_with(b"marline"));
            program
                && words.next() == Some(subcommand.as_bytes())
                && std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == self.hosts.dir)
        };
        let all = std::fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
        all.filter(here).collect()
    }

    /// Checks all threads of each process of this command.
    fn check(&self, subcommand: &str, kept: u64) {
        let processes = self.processes(subcommand);
        assert!(!processes.is_empty(), "no `marline {subcommand}` runs");
        for process in processes {
            for task in std::fs::read_dir(process.join("task")).expect("its threads").flatten() {
                let found = privileges(&task.path());
                let expected: Vec<(String, u64)> = [
                    ("CapInh", NONE),
                    ("CapPrm", kept),
                    ("CapEff", kept),
                    ("CapBnd", kept),
                    ("CapAmb", NONE),
                    ("NoNewPrivs", 1),
                ]
                .map(|(name, value)| (name.to_owned(), value))
                .into();
                assert_eq!(found, expected, "{subcommand}: {}", task.path().display());
            }
        }
    }
}

fn threads(process: &Path) -> usize {
    std::fs::read_dir(process.join("task")).map_or(0, Iterator::count)
}

/// Returns the privileges of a thread, from its status.
fn privileges(task: &Path) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(task.join("status")).expect("its status");
    let found = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(":\t")?;
        let radix = if name == "NoNewPrivs" { 10 } else { 16 };
        let wanted = name.starts_with("Cap") || name == "NoNewPrivs";
        wanted.then(|| (name.to_owned(), u64::from_str_radix(value.trim(), radix).expect("number")))
    });
    found.collect()
}

#[test]
fn programs_started_by_root_keep_no_privileges() {
    let _others = support::among_others();
    let Some(mut world) = World::set("root") else { return };
    world.start(
        Side::Server,
        "marline server --config marline.toml --allow 127.0.0.0/8 --metrics 127.0.0.1:0 --dashboard 127.0.0.1:0",
        "listening on 10.0.1.1",
    );
    world.check("server", NONE);
    let client = "marline client --invite-file invite --path wifi --socks5 127.0.0.1:1080 \
                  --metrics 127.0.0.1:0";
    world.start(Side::Client, client, "socks5 listening");
    world.check("client", NONE);
    world.start(
        Side::Server,
        "marline serve --listen 10.0.1.1:8000 --to 127.0.0.1:8080",
        "listening on",
    );
    world.check("serve", NONE);
    world.start(Side::Server, "marline doctor --listen 10.0.1.1:8001", "listening on");
    world.check("doctor", NONE);
    // A command that waits for an answer from its target.
    let silent = "import socket, time; s = socket.create_server((\"127.0.0.1\", 8080)); \
                  print(\"ready\", flush=True); time.sleep(100)";
    world.start(Side::Server, &format!("python3 -c '{silent}'"), "ready");
    world.start(
        Side::Client,
        "bash -c 'echo begun; sleep 60 | marline connect --invite-file invite --path wifi 127.0.0.1 8080'",
        "begun",
    );
    let begun = Instant::now();
    // Its threads exist once it is connected.
    while !world.processes("connect").iter().any(|process| threads(process) > 1) {
        assert!(begun.elapsed() < PATIENCE, "it does not begin");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    world.check("connect", NONE);
    world.start(Side::Client, "marline up --invite-file invite --path wifi", "goes through");
    world.check("up", NET_ADMIN);
}

#[test]
fn a_server_that_needs_a_low_port_keeps_that_right_alone() {
    let _others = support::among_others();
    let Some(mut world) = World::set("root-low") else { return };
    world.start(
        Side::Server,
        "marline server --config marline.toml --listen 10.0.1.1:443 --allow-remote 127.0.0.1:80",
        "listening on 10.0.1.1:443",
    );
    world.check("server", NET_BIND_SERVICE);
}

#[test]
fn a_wrapped_program_keeps_its_privileges_and_its_carrier_has_none() {
    let _others = support::among_others();
    let Some(mut world) = World::set("root-run") else { return };
    world.start(Side::Server, "marline server --config marline.toml", "listening on");
    let script = "cat /proc/self/status > inside; echo inside; (sleep 3; echo > left) & sleep 2";
    let run = format!(
        "marline run --invite-file invite --path wifi --dns 10.0.1.1 -- bash -c \"{script}\""
    );
    std::fs::write(world.hosts.dir.join("run.sh"), run).expect("write");
    world.start(Side::Client, "bash run.sh", "inside");
    let inside = std::fs::read_to_string(world.hosts.dir.join("inside")).expect("its status");
    let own = std::fs::read_to_string("/proc/self/status").expect("ours");
    let lines = |text: &str| -> BTreeSet<String> {
        let of = |line: &&str| line.starts_with("Cap") || line.starts_with("NoNewPrivs");
        text.lines().filter(of).map(str::to_owned).collect()
    };
    assert_eq!(lines(&inside), lines(&own), "as outside");
    world.check("run", NONE);
    // The carrier process stays for processes that the program left behind, and then ends.
    let dir = world.hosts.dir.clone();
    let begun = Instant::now();
    let mut seen_left_behind = false;
    while !world.processes("run").is_empty() {
        seen_left_behind |= !dir.join("left").exists();
        assert!(begun.elapsed() < PATIENCE, "the carrier stays");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(seen_left_behind && dir.join("left").exists(), "the carrier ended too early");
}
