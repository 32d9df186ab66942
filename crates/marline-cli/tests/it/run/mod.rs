//! Tests of `marline run` as users run it: an ordinary user's programs in namespaces of their own, a server at the
//! far end of two emulated links, and targets behind it. Needs root, for the hosts.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it run:: -- --nocapture
//! ```

mod datagrams;
mod endings;
mod names;
mod reloading;
mod streams;
pub(crate) mod targets;

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};
use marline_lab::scenario::Side;
use marline_testkit::need;

const SCENARIO: &str = include_str!("../support/phone.toml");

/// Addresses of the targets behind the server.
pub(crate) const TARGET_V4: &str = "203.0.113.7";
pub(crate) const TARGET_V6: &str = "2001:db8:7::1";
pub(crate) const OTHER_V4: &str = "203.0.113.8";
/// Addresses that are also public according to the registries, in worlds that have them.
pub(crate) const PUBLIC_V4: &str = "9.9.9.9";
pub(crate) const PUBLIC_V6: &str = "2620:fe::9";

/// An ordinary user.
const USER: u32 = 1_000;

/// Becomes that user, with a TUN device that users may open, as on most systems. If users cannot execute the
/// program where it was built, it runs as root.
const AS_USER: &str = r#"#!/bin/bash
set -eu
[ -e tun ] || mknod tun c 10 200
chmod 666 tun
exec unshare --mount bash -euc '
    mount --bind tun /dev/net/tun
    [ ! -e resolv.conf ] || mount --bind resolv.conf /etc/resolv.conf
    as_user="setpriv --reuid 1000 --regid 1000 --clear-groups"
    $as_user test -x "$(command -v marline)" || as_user=
    exec $as_user "$@"
' _ "$@"
"#;

/// Two hosts, a server with its targets, and the user's home.
pub(crate) struct World {
    pub(crate) hosts: TwoUplinks,
    _dir: tempfile::TempDir,
}

impl World {
    /// Returns `None` if this machine does not support it.
    pub(crate) fn set(name: &str, programs: &[&str]) -> Option<World> {
        if !two_uplinks::possible(&["setpriv", "unshare"]) {
            return None;
        }
        for program in programs {
            need::program(program)?;
        }
        let dir = tempfile::tempdir().expect("directory");
        // The home of the user and also of root.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("mode");
        let mut hosts = TwoUplinks::set(SCENARIO, name, dir.path());
        hosts.shell(
            Side::Server,
            &format!(
                "ip link set lo up; ip addr add {TARGET_V4}/32 dev lo; ip addr add {OTHER_V4}/32 dev lo
                 ip -6 addr add {TARGET_V6}/128 dev lo nodad
                 ip route add unreachable 203.0.113.98; ip route add throw 203.0.113.99"
            ),
        );
        hear(&hosts.role(Side::Server, "", targets::targets), "ready");
        hosts.marline_server("udp --allow 203.0.113.0/24 --allow 2001:db8::/32");
        write_script(&dir.path().join("as-user"), AS_USER);
        std::fs::create_dir(dir.path().join("runtime")).expect("directory");
        for own in ["invite", "runtime"] {
            chown(dir.path().join(own), Some(USER), Some(USER)).expect("root");
        }
        Some(World { hosts, _dir: dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.hosts.dir
    }

    /// Returns a shell command of the user, with `marline run` and its options in `$run`, in a process group of its
    /// own.
    pub(crate) fn command(&self, text: &str) -> Command {
        let options = "--invite-file invite --path wifi --path lte";
        self.command_with(&format!("{options} --dns {TARGET_V4}"), text)
    }

    pub(crate) fn command_with(&self, options: &str, text: &str) -> Command {
        let mut command = self.hosts.command("exec ./as-user bash -euc \"$script\"");
        command.env("run", format!("marline run {options} --"));
        command.env("script", text).env("XDG_RUNTIME_DIR", self.dir().join("runtime"));
        command
    }

    /// Runs a command to its end.
    pub(crate) fn output(&self, text: &str) -> Output {
        self.output_of(&mut self.command(text))
    }

    fn output_of(&self, command: &mut Command) -> Output {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.hosts.net.spawn(Side::Client, command).expect("spawn");
        child.wait_with_output().expect("output")
    }

    /// Runs a command, which must succeed. Returns its output.
    pub(crate) fn run(&self, text: &str) -> String {
        let output = self.output(text);
        let (out, err) = support::texts(&output);
        assert!(output.status.success(), "{text}: {}\n{out}\n{err}", output.status);
        out
    }

    /// Returns the tunnel processes in this world: those with the invite among their arguments.
    fn carriers(&self) -> Vec<PathBuf> {
        let here = |process: &PathBuf| {
            let read = |name| std::fs::read(process.join(name)).unwrap_or_default();
            let run = read("cmdline").windows(12).any(|words| words == b"marline\0run\0");
            run && std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == self.dir())
        };
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten().map(|e| e.path());
        processes.filter(here).collect()
    }

    /// Waits until this many processes carry programs. At first the half of `marline run` that sets up the namespace
    /// still exists, too.
    pub(crate) fn wait_for_carriers(&self, count: usize) {
        let begun = Instant::now();
        while self.carriers().len() != count {
            assert!(begun.elapsed() < PATIENCE, "not {count} processes: {:?}", self.carriers());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no process of a program is left.
    pub(crate) fn wait_for_nothing(&self) {
        self.wait_for_carriers(0);
    }
}

pub(crate) fn write_script(path: &Path, text: &str) {
    std::fs::write(path, text).expect("write");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("mode");
}
