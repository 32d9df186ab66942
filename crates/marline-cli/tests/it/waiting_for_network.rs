//! Tests of commands that start before there is a network, like services at boot: they wait for it, and report
//! this. Needs root, for the hosts.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear, wifi_and_lte};
use marline_lab::scenario::Side;

const LINK: &str = "rate=50M,delay=1ms,queue=100ms";

struct World {
    hosts: TwoUplinks,
    _dir: tempfile::TempDir,
}

impl World {
    /// Returns a server, and a machine whose interfaces have no address.
    fn set(name: &str) -> Option<World> {
        if !two_uplinks::possible(&["curl", "unshare"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("directory");
        let mut hosts = TwoUplinks::set(&wifi_and_lte(LINK, LINK), name, dir.path());
        hosts.shell(Side::Server, "ip link set lo up");
        hosts.marline_server("auto");
        hosts.shell(
            Side::Client,
            "ip link set lo up; ip addr flush dev wifi; ip addr flush dev lte",
        );
        Some(World { hosts, _dir: dir })
    }

    fn connect_machine(&self) {
        self.hosts.shell(
            Side::Client,
            "ip addr add 10.0.1.2/24 dev wifi; ip route add default via 10.0.1.1 dev wifi",
        );
    }

    /// Starts a command like a service manager.
    fn start(&mut self, command: &str) -> (std::sync::mpsc::Receiver<String>, UnixDatagram) {
        let path = self.hosts.dir.join("notify");
        let _ = std::fs::remove_file(&path);
        let manager = UnixDatagram::bind(&path).expect("a socket");
        manager.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
        let notify = path.display();
        (
            self.hosts.program(Side::Client, &format!("env NOTIFY_SOCKET={notify} {command}")),
            manager,
        )
    }
}

/// Waits until the manager has received all of these. Other messages are collected.
fn hears(manager: &UnixDatagram, wanted: &[&str], heard: &mut String) {
    let begun = Instant::now();
    while !wanted.iter().all(|word| heard.contains(word)) {
        assert!(begun.elapsed() < PATIENCE, "not all of {wanted:?} in {heard}");
        let mut bytes = [0; 1_024];
        if let Ok(length) = manager.recv(&mut bytes) {
            heard.push_str(&String::from_utf8_lossy(&bytes[..length]));
            heard.push('\n');
        }
    }
}

#[test]
fn up_waits_for_a_network_and_is_up_when_there_is_one() {
    let _others = support::among_others();
    for (name, path) in [("wait-up", ""), ("wait-up-path", "--path wifi")] {
        let Some(mut world) = World::set(name) else { return };
        let (lines, manager) = world.start(&format!("marline up --invite-file invite {path}"));
        let line = hear(&lines, "waiting for");
        assert!(line.contains("network") || line.contains("wifi"), "{line}");
        let mut heard = String::new();
        hears(&manager, &["STATUS=", "EXTEND_TIMEOUT_USEC="], &mut heard);
        std::thread::sleep(Duration::from_secs(10));
        assert!(!heard.contains("READY=1"), "{heard}");
        world.connect_machine();
        hear(&lines, "goes through the server");
        hears(&manager, &["READY=1"], &mut heard);
    }
}

#[test]
fn a_client_waits_for_a_network_and_works_when_there_is_one() {
    let _others = support::among_others();
    for (name, path) in [("wait-client", ""), ("wait-client-path", "--path wifi")] {
        let Some(mut world) = World::set(name) else { return };
        let page = "python3 -m http.server --bind 127.0.0.1 8080";
        world.hosts.program(Side::Server, page);
        let (lines, manager) = world
            .start(&format!("marline client --invite-file invite --socks5 127.0.0.1:1080 {path}"));
        hear(&lines, "waiting for");
        let mut heard = String::new();
        hears(&manager, &["STATUS="], &mut heard);
        std::thread::sleep(Duration::from_secs(2));
        world.connect_machine();
        hears(&manager, &["READY=1"], &mut heard);
        let curl = "for try in {1..60}; do curl -sf -m 10 -o page --socks5-hostname 127.0.0.1:1080 \
                    http://127.0.0.1:8080/invite && exit 0; sleep 0.2; done; exit 1";
        world.hosts.shell(Side::Client, curl);
    }
}

#[test]
fn a_wrong_key_and_a_refused_credential_end_it_immediately() {
    let _others = support::among_others();
    let Some(mut world) = World::set("wait-refused") else { return };
    world.connect_machine();
    world.hosts.shell(
        Side::Server,
        "umask 077; marline server --config marline.toml credential add second > second 2> /dev/null
         marline server --init --config other.toml --listen 10.0.1.1:7778 --public 10.0.1.1:7777 \
         > other 2> /dev/null
         marline server --config marline.toml credential revoke second",
    );
    let (lines, _) = world.start("marline up --invite-file other");
    let line = hear(&lines, "this machine's routing was not changed");
    assert!(line.contains("key differs"), "{line}");
    std::thread::sleep(Duration::from_secs(2));
    let (lines, _) = world.start("marline up --invite-file second");
    let line = hear(&lines, "this machine's routing was not changed");
    assert!(!line.contains("key differs"), "{line}");
}
