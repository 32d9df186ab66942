//! Tests of `marline up` as users run it: a machine with WiFi and LTE whose routes, names and datagrams are
//! redirected, and restored at any kind of end. Needs root, for the hosts.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it up:: -- --nocapture
//! ```

mod changed_interface;
mod endings;
mod exceptions;
mod kill_switch;
mod names;
mod ping;
mod portal;
mod reloading;
mod router;
mod sweep;
mod whole_machine;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::run::targets::{self, HTTP, MIRRORS};
use super::run::{OTHER_V4, PUBLIC_V4, PUBLIC_V6, TARGET_V4, TARGET_V6};
use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};
use marline_lab::scenario::Side;
use marline_testkit::need;
use rustix::process::{Pid, Signal, kill_process};

const SCENARIO: &str = include_str!("../support/phone.toml");

/// A machine in the local network: the server's end of the WiFi link.
const NEIGHBOR: &str = "10.0.1.1";
/// The machine's own address on that link.
const WIFI: &str = "10.0.1.2";

/// Runs a command with a separate `resolv.conf`, because both hosts share one file system.
const ON: &str = r#"#!/bin/bash
set -eu
resolv_conf=$1; shift
exec unshare --mount bash -euc 'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"' _ "$resolv_conf" "$@"
"#;

/// Prints the source address at which a UDP packet to ADDRESS PORT, sent from an optional address, arrives.
const SEEN_FROM: &str = r#"#!/usr/bin/env python3
import socket, sys, time
to = (sys.argv[1], int(sys.argv[2]))
s = socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET, socket.SOCK_DGRAM)
if len(sys.argv) > 3:
    s.bind((sys.argv[3], 0))
s.settimeout(0.5)
end = time.monotonic() + float(sys.argv[4] if len(sys.argv) > 4 else 20)
while time.monotonic() < end:
    try:
        s.sendto(b"?", to)
        print(s.recv(200).decode().rsplit(":", 1)[0])
        sys.exit(0)
    except OSError:
        time.sleep(0.05)
sys.exit("no answer")
"#;

/// The machine, the server and the targets behind it.
pub(crate) struct World {
    pub(crate) hosts: TwoUplinks,
    /// Output of the server.
    server: Receiver<String>,
    _dir: tempfile::TempDir,
}

impl World {
    /// Returns `None` if this machine does not support it.
    pub(crate) fn set(name: &str, programs: &[&str]) -> Option<World> {
        if !two_uplinks::possible(&["unshare", "python3", "curl", "dig"]) {
            return None;
        }
        for program in programs {
            need::program(program)?;
        }
        let dir = tempfile::tempdir().expect("directory");
        let mut hosts = TwoUplinks::set(SCENARIO, name, dir.path());
        hosts.shell(
            Side::Server,
            &format!(
                "ip link set lo up
                 ip addr add {TARGET_V4}/32 dev lo; ip addr add {OTHER_V4}/32 dev lo
                 ip -6 addr add {TARGET_V6}/128 dev lo nodad
                 ip addr add {PUBLIC_V4}/32 dev lo; ip -6 addr add {PUBLIC_V6}/128 dev lo nodad"
            ),
        );
        hosts.shell(
            Side::Client,
            "ip link set lo up
             ip route add default via 10.0.1.1 dev wifi metric 100
             ip route add default via 10.0.2.1 dev lte metric 200",
        );
        let write = |name: &str, text: &str| {
            super::run::write_script(&dir.path().join(name), text);
        };
        write("on", ON);
        write("seen-from", SEEN_FROM);
        // The machine's resolver is its network's router, which does not answer.
        write("machine.conf", &format!("nameserver {NEIGHBOR}\n"));
        write("server.conf", &format!("nameserver {TARGET_V4}\n"));
        hear(&hosts.role(Side::Server, "", targets::targets), "ready");
        let server = serve(&mut hosts);
        Some(World { hosts, server, _dir: dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.hosts.dir
    }

    /// Starts `marline up` with these options. Returns its output and process id.
    fn start(&mut self, options: &str) -> (Receiver<String>, u32) {
        let text =
            format!("echo $$; exec ./on machine.conf marline up --invite-file invite {options}");
        let lines = self.hosts.program(Side::Client, &format!("bash -euc '{text}'"));
        let pid = hear(&lines, "").parse().expect("its process id");
        (lines, pid)
    }

    /// Starts `marline up`, and waits until the machine's traffic goes through it.
    pub(crate) fn up(&mut self, options: &str) -> u32 {
        let (lines, pid) = self.start(options);
        hear(&lines, "goes through the server");
        // The rest of the output must be read, or the program would block.
        std::thread::spawn(move || {
            for line in lines {
                eprintln!("up: {line}");
            }
        });
        pid
    }

    /// Returns a shell command on the machine.
    fn command(&self, text: &str) -> Command {
        let mut command = self.hosts.command("exec ./on machine.conf bash -euc \"$script\"");
        command.env("script", text).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn spawn(&self, text: &str) -> Child {
        self.hosts.net.spawn(Side::Client, &mut self.command(text)).expect("spawn")
    }

    fn output(&self, text: &str) -> Output {
        self.spawn(text).wait_with_output().expect("output")
    }

    /// Runs a command, which must succeed. Returns its output.
    pub(crate) fn run(&self, text: &str) -> String {
        let output = self.output(text);
        let (out, err) = support::texts(&output);
        assert!(output.status.success(), "{text}: {}\n{out}\n{err}", output.status);
        out.trim().to_owned()
    }

    /// Returns the source address of datagrams at the far end.
    fn seen_from(&self, to: &str) -> String {
        self.run(&format!("./seen-from {to} {}", MIRRORS[0]))
    }

    /// Returns true if the machine's traffic bypasses the tunnel, as without `marline up`.
    fn goes_directly(&self) -> bool {
        self.seen_from(TARGET_V4) == WIFI
    }

    /// Returns the remaining rules and routes.
    fn left(&self) -> String {
        self.run(
            "ip rule show; ip -6 rule show; ip route show table all; ip -6 route show table all",
        )
        .lines()
        .filter(|line| line.contains("proto 109"))
        .map(|line| format!("{line}\n"))
        .collect()
    }

    /// Captures packets on both links that match this filter.
    pub(crate) fn watch(&self, filter: &str) -> Child {
        let watch = self.spawn(&format!(
            "exec tshark -q -f '{filter}' -i wifi -i lte -w around.pcapng 2> watching"
        ));
        self.wait_until("tshark", || {
            std::fs::read_to_string(self.dir().join("watching"))
                .is_ok_and(|text| text.contains("Capturing"))
        });
        watch
    }

    /// Returns the captured packets, one per line.
    pub(crate) fn seen_by(&self, mut watch: Child) -> String {
        let _ = kill_process(Pid::from_child(&watch), Signal::INT);
        watch.wait().expect("ended");
        self.run("tshark -r around.pcapng")
    }

    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < PATIENCE, "{what}: {}", self.left());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn fetches(&self, url: &str) -> bool {
        self.output(&format!("curl -sf -m 20 -o /dev/null {url}")).status.success()
    }
}

/// Starts the server. Returns its output.
fn serve(hosts: &mut TwoUplinks) -> Receiver<String> {
    hosts.shell(
        Side::Server,
        "umask 077; marline server --init --config marline.toml --listen 10.0.1.1:7777 \
         --public 10.0.1.1:7777 > invite 2> /dev/null",
    );
    let server = "./on server.conf marline server --config marline.toml --allow 203.0.113.0/24 \
                  --allow 2001:db8::/32 --allow 9.9.9.0/24 --allow 2620:fe::/64";
    let lines = hosts.program(Side::Server, server);
    hear(&lines, "listening on");
    lines
}

fn page(host: &str, bytes: usize) -> String {
    format!("http://{host}:{HTTP}/{bytes}")
}
