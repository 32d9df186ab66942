//! Tests of common path configurations in namespaces: two phones with identical addresses, address families that differ
//! between paths, changing names, a VPN next to the client, interfaces that appear and disappear. Needs root, nft, curl
//! and python3.

mod lan;
mod limits;
mod names;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use marline_testkit::need;
use serde_json::Value;

use super::support::testbed::{Testbed, Until};
use super::support::{self, SERVICES};

const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/paths/world.sh");
const HOTSPOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/paths/hotspots.sh");
const TALK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/paths/talk.py");
/// Time limit for any expected state.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of answers that show that an exchange continues.
const GOES_ON: u64 = 20;
/// An address behind the server, and the port there of a TCP and UDP echo service.
const TARGET: &str = "203.0.113.7";
const ECHO: &str = "python3 -u -c '
import socketserver, threading
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while part := self.request.recv(4096):
            self.request.sendall(part)
class Datagram(socketserver.BaseRequestHandler):
    def handle(self):
        self.request[1].sendto(self.request[0], self.client_address)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
datagrams = socketserver.UDPServer((\"203.0.113.7\", 7007), Datagram)
threading.Thread(target=datagrams.serve_forever, daemon=True).start()
server = Server((\"203.0.113.7\", 7007), Echo)
print(\"ready\")
server.serve_forever()
'";

/// Program that uses the paths.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Program {
    Client,
    /// Also changes the routes and name resolution of the machine.
    Up,
}

struct World {
    testbed: Testbed,
    client: usize,
    program: Program,
}

impl World {
    /// Returns the namespaces, a server that listens at one address and is reached at another, and the services behind
    /// it.
    fn set(dir: &Path, script: &str, listen: &str, public: &str) -> Option<Testbed> {
        let mut testbed = Testbed::of_marline(dir, script, &["nft", "curl", "python3"])?;
        testbed.run("server", &format!("ip addr add {TARGET}/32 dev lo"));
        testbed.start("server", SERVICES, Until::Says("ready"));
        testbed.start("server", ECHO, Until::Says("ready"));
        let init = format!(
            "marline server --init --config s.toml --listen {listen}:7777 --public {public}:7777"
        );
        let word = testbed.run("server", &init);
        support::write_private(&dir.join("client/invite"), &word);
        let serve = "marline server --config s.toml --allow 127.0.0.0/8 --allow 203.0.113.7/32";
        testbed.start("server", serve, Until::Says("listening on"));
        Some(testbed)
    }

    /// Starts a client with a forward to the echo services.
    fn join(mut testbed: Testbed, program: Program, carrier: &str) -> World {
        let (name, word) = match program {
            Program::Client => (
                "client --socks5 127.0.0.1:1080 -L 127.0.0.1:7007:203.0.113.7:7007 \
                 -U 127.0.0.1:7007:203.0.113.7:7007",
                "socks5 listening",
            ),
            Program::Up => ("up", "goes through the server"),
        };
        let client = format!(
            "marline -v {name} --invite-file invite --carrier {carrier} --warm 0 --control ./control.sock"
        );
        let client = testbed.start("client", &client, Until::Says(word));
        World { testbed, client, program }
    }

    /// Starts TCP and UDP exchanges, and waits for answers.
    fn talk(&mut self) {
        let address = match self.program {
            Program::Client => "127.0.0.1",
            Program::Up => TARGET,
        };
        for protocol in ["tcp", "udp"] {
            self.testbed.start(
                "client",
                &format!("python3 -u {TALK} {protocol} {address} 7007"),
                Until::Says(""),
            );
        }
        self.goes_on();
    }

    fn answered(&self, protocol: &str) -> u64 {
        let file = self.testbed.dir.join("client").join(protocol);
        std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// Waits until both exchanges have continued.
    fn goes_on(&self) {
        for protocol in ["tcp", "udp"] {
            let before = self.answered(protocol);
            self.wait_until(&format!("{protocol} to go on after {before}"), || {
                self.answered(protocol) >= before + GOES_ON
            });
        }
    }

    fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds() {
            let log = self.testbed.log(self.client);
            let paths = self.testbed.run("client", "marline path --control ./control.sock");
            assert!(Instant::now() < until, "timed out waiting for {what}\n{paths}\n{log}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn ask(&self, command: &str) -> String {
        self.testbed.run("client", &format!("marline {command} --control ./control.sock"))
    }

    /// Returns the paths as listed by the client: name, and whether each is usable.
    fn paths(&self) -> Vec<(String, bool)> {
        let paths: Value = serde_json::from_str(&self.ask("path --json")).expect("JSON");
        let paths = paths.as_array().expect("a list").iter();
        let of = |path: &Value| {
            let name = path["name"].as_str().expect("a name").to_owned();
            (name, path["health"].as_str() == Some("usable"))
        };
        paths.map(of).collect()
    }

    /// Local addresses of the existing subflows, without ports.
    fn local_ends(&self) -> BTreeSet<String> {
        let said = self.ask("monitor --table --once --json");
        let line = said.lines().next().expect("a line");
        let connections: Vec<Value> = serde_json::from_str(line).expect("a list");
        let subflows = connections.iter().filter_map(|c| c["subflows"].as_array()).flatten();
        let local = |subflow: &Value| {
            let end = subflow["local"].as_str()?.parse::<std::net::SocketAddr>().ok()?;
            Some(end.ip().to_string())
        };
        subflows.filter_map(local).collect()
    }
}

/// The server's addresses, of which the phones reach one family.
const HOTSPOT_SERVERS: [&str; 2] = ["9.9.9.1", "[2001:db8:9::1]"];

fn two_hotspots(program: Program, carrier: &str, server: &str) {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(testbed) = World::set(dir.path(), HOTSPOTS, server, server) else { return };
    let mut world = World::join(testbed, program, carrier);
    world.talk();
    let two_ways = |world: &World| world.paths().iter().filter(|(_, usable)| *usable).count() == 2;
    world.wait_until("both phones to be usable", || two_ways(&world));
    for phone in ["phone0", "phone1"] {
        let pass = |rule: &str| world.testbed.run(phone, &format!("nft {rule}"));
        pass("add rule inet share pass drop");
        world.goes_on();
        pass("flush chain inet share pass");
        world.wait_until("both to be usable", || {
            let paths = world.paths();
            paths.len() == 2 && paths.iter().all(|(_, usable)| *usable)
        });
    }
}

#[test]
fn two_phones_with_the_same_address_are_two_paths() {
    two_hotspots(Program::Client, "auto", HOTSPOT_SERVERS[0]);
}

#[test]
fn two_phones_with_the_same_address_are_two_paths_over_tcp() {
    two_hotspots(Program::Client, "tcp", HOTSPOT_SERVERS[0]);
}

#[test]
fn two_phones_with_the_same_address_are_two_paths_of_the_whole_machine() {
    two_hotspots(Program::Up, "auto", HOTSPOT_SERVERS[0]);
}

/// Their routers also have the same link-local address.
#[test]
fn two_phones_with_the_same_address_of_ipv6_are_two_paths() {
    two_hotspots(Program::Client, "auto", HOTSPOT_SERVERS[1]);
}

#[test]
fn two_phones_with_the_same_address_of_ipv6_are_two_paths_of_the_whole_machine() {
    two_hotspots(Program::Up, "auto", HOTSPOT_SERVERS[1]);
}

/// Removes address families from the client's interfaces, and checks that an exchange survives the failure of
/// either network.
fn mixed_families(without: &[(&str, &str)], ends: [&str; 2]) {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(testbed) = World::set(dir.path(), WORLD, "[::]", "marline.test") else { return };
    let zone = "marline.test 9.9.9.1\nmarline.test 2001:db8:9::1\n";
    std::fs::write(dir.path().join("zone"), zone).expect("a zone");
    for (interface, family) in without {
        testbed.run("client", &format!("ip {family} addr flush dev {interface} scope global"));
    }
    let mut world = World::join(testbed, Program::Client, "auto");
    world.talk();
    let ends: BTreeSet<String> = ends.map(str::to_owned).into();
    // The family with which a connection starts depends on which one answers first.
    let networks = |ends: &BTreeSet<String>| -> BTreeSet<bool> {
        let is_wifi =
            |end: &String| end.starts_with("192.168.1.") || end.starts_with("2001:db8:1:");
        ends.iter().map(is_wifi).collect()
    };
    world.wait_until("one subflow over each path", || {
        let now = world.local_ends();
        now.len() == ends.len() && networks(&now) == networks(&ends)
    });
    for network in ["c0", "c1"] {
        world.testbed.run("net", &format!("dead {network}"));
        world.goes_on();
        world.testbed.run("net", "alive");
        world.wait_until("both to be usable", || world.paths().iter().all(|(_, usable)| *usable));
    }
}

#[test]
fn a_path_without_ipv6_carries_a_connection_that_began_with_it() {
    mixed_families(&[("wwan0", "-6")], ["2001:db8:1::2", "10.70.0.2"]);
}

#[test]
fn a_path_without_ipv4_carries_a_connection_that_began_with_it() {
    mixed_families(&[("wlan0", "-6"), ("wwan0", "-4")], ["192.168.1.2", "2001:db8:70::2"]);
}

/// Both families of both networks: a radio is one path.
#[test]
fn the_two_families_of_a_network_are_one_path() {
    mixed_families(&[], ["2001:db8:1::2", "2001:db8:70::2"]);
}

/// Adds an interface with a default route whose other end is in another namespace.
const TETHER: &str = "
tether() {
    ip link add $1 type veth peer name $1-peer
    ip addr add 10.99.0.2/24 dev $1
    ip link set $1-peer up
    ip link set $1 up
    ip route add default via 10.99.0.1 dev $1 metric 300
}";

#[test]
fn a_vpn_is_not_a_path_and_vanished_interfaces_leave_the_list() {
    vpn_beside("\"route add default dev vpn0 metric 50\"");
}

/// Like `wg-quick`: a separate routing table for all unmarked packets.
#[test]
fn a_vpn_with_its_own_routing_table_is_not_a_path() {
    vpn_beside(
        "\"route add default dev vpn0 table 51820\", \"rule add not fwmark 51820 table 51820\", \
         \"rule add table main suppress_prefixlength 0\"",
    );
}

/// `routes`: `ip` commands of a VPN's program, as strings in a Python list.
fn vpn_beside(routes: &str) {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(testbed) = World::set(dir.path(), WORLD, "9.9.9.1", "9.9.9.1") else { return };
    if !Path::new("/dev/net/tun").exists() {
        need::skip("there is no /dev/net/tun");
        return;
    }
    let mut world = World::join(testbed, Program::Client, "auto");
    let names = |world: &World| -> Vec<String> {
        world.paths().into_iter().map(|(name, _)| name).collect()
    };
    // Open while the VPN's program runs.
    let vpn = format!(
        "python3 -u -c '
import fcntl, os, struct, subprocess, time
tun = os.open(\"/dev/net/tun\", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack(\"16sH\", b\"vpn0\", 0x1001))
for command in [\"addr add 10.8.0.2/24 dev vpn0\", \"link set vpn0 up\", {routes}]:
    subprocess.run([\"ip\"] + command.split(), check=True)
print(\"ready\")
time.sleep(600)
'"
    );
    world.testbed.start("client", &vpn, Until::Says("ready"));
    for number in 0..6 {
        let tether = format!("usb{number}");
        world.testbed.run("client", &format!("{TETHER}\ntether {tether}"));
        world.wait_until("the new interface", || names(&world).contains(&tether));
        assert!(!names(&world).contains(&"vpn0".to_owned()), "{:?}", names(&world));
        world.testbed.run("client", &format!("ip link del {tether}"));
        world.wait_until("the interface to leave", || !names(&world).contains(&tether));
    }
    assert_eq!(names(&world), ["wlan0", "wwan0"]);
    // The tunnel becomes a path if there is no other.
    world.testbed.run("client", "ip route del default dev wlan0; ip route del default dev wwan0");
    world.testbed.run("client", "ip -6 route flush default");
    world.wait_until("the tunnel to be the path", || names(&world).contains(&"vpn0".to_owned()));
}

/// Interfaces on top of a path, which send through its wire. A bridge is a path instead of its port.
#[test]
fn only_one_of_the_interfaces_sharing_a_wire_is_a_path() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(testbed) = World::set(dir.path(), WORLD, "9.9.9.1", "9.9.9.1") else { return };
    let mut world = World::join(testbed, Program::Client, "auto");
    // Names of the paths that are up, as listed by the client. Former paths stay in its list.
    let names = |world: &World| -> BTreeSet<String> {
        let up = |line: &str| {
            let mut row = line.split_whitespace().skip(1);
            let (name, state) = (row.next()?, row.next()?);
            state.starts_with("up").then(|| name.to_owned())
        };
        world.ask("path").lines().filter_map(up).collect()
    };
    let are = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    // Once another new interface is listed, the client has seen this one as well.
    let is_none = |world: &World, name: &str| {
        world.testbed.run("client", &format!("{TETHER}\ntether usb0"));
        world.wait_until("the other interface", || names(world).contains("usb0"));
        assert!(!names(world).contains(name), "{:?}", names(world));
        world.testbed.run("client", "ip link del usb0");
        world.wait_until("the other interface to leave", || !names(world).contains("usb0"));
    };
    for (name, kind) in [("mac0", "macvlan mode bridge"), ("vlan7", "vlan id 7")] {
        let made = world.testbed.run(
            "client",
            &format!("ip link add link wlan0 name {name} type {kind} && echo made || echo unknown"),
        );
        if made.trim() != "made" {
            println!("this kernel has no {kind}");
            continue;
        }
        let routes = "ip addr add 192.168.9.2/24 dev NAME; ip link set NAME up
                      ip route add default via 192.168.9.1 dev NAME metric 350";
        world.testbed.run("client", &routes.replace("NAME", name));
        is_none(&world, name);
        world.testbed.run("client", &format!("ip link del {name}"));
    }
    assert_eq!(names(&world), are(&["wlan0", "wwan0"]));
    world.testbed.run(
        "client",
        "ip link add br0 type bridge; ip link set br0 up; ip addr flush dev wwan0
         ip link set wwan0 master br0; ip addr add 10.70.0.2/24 dev br0
         ip route add default via 10.70.0.1 dev br0 metric 200",
    );
    world.wait_until("the bridge", || names(&world) == are(&["br0", "wlan0"]));
    world.testbed.run(
        "client",
        "ip addr add 10.70.0.9/24 dev wwan0; ip route add default via 10.70.0.1 dev wwan0 metric 400",
    );
    is_none(&world, "wwan0");
    world.talk();
    world.testbed.run("net", "dead c0");
    world.goes_on();
}
