//! Tests that a server's clients cannot reach the server's own addresses, including those that the kernel does not
//! send from, and even if the server has no file descriptor left to ask the kernel. Needs root, for the hosts.

use std::time::{Duration, Instant};

use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear, wifi_and_lte};
use super::support::{self};
use marline_lab::scenario::Side;

/// Addresses of the server: a first one, a second one of the same subnet (which the kernel never sends from by
/// itself), one of a subnet that is routed to the server as a whole (AnyIP), and one of IPv6.
const PRIMARY: &str = "9.9.9.77";
const SECONDARY: &str = "9.9.9.78";
const WHOLE_SUBNET: &str = "9.9.10.5";
const IPV6: &str = "2620:fe::77";
/// A public address that does not belong to the server.
const ELSEWHERE: &str = "9.9.11.5";
const SERVICE: u16 = 8_000;

const LINK: &str = "rate=50M,delay=1ms,queue=100ms";

/// Sends a line to every client, and records each datagram in a file.
const SERVICE_PROGRAM: &str = r#"
import socket, threading
def tcp(s):
    while True:
        c, _ = s.accept()
        c.sendall(b"inside\n")
        c.close()
s = socket.create_server(("::", 8000), family=socket.AF_INET6, dualstack_ipv6=True)
threading.Thread(target=tcp, args=(s,), daemon=True).start()
u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
u.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
u.bind(("::", 8000))
print("ready", flush=True)
while True:
    payload, _ = u.recvfrom(2000)
    with open("delivered", "a") as f:
        f.write(payload.decode() + "\n")
"#;

/// Sends lines of standard input, `ADDRESS TEXT`, as datagrams of one SOCKS5 association.
const DATAGRAMS: &str = r#"
import socket, struct, sys
t = socket.create_connection(("127.0.0.1", 1080))
t.sendall(b"\5\1\0"); t.recv(2)
t.sendall(b"\5\3\0\1" + bytes(6))
relay = t.recv(10)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to = ("127.0.0.1", struct.unpack("!H", relay[8:10])[0])
for line in sys.stdin:
    address, text = line.split()
    u.sendto(b"\0\0\0\1" + socket.inet_aton(address) + struct.pack("!H", 8000) + text.encode(), to)
"#;

/// Smallest unused descriptor number of a process.
const FIRST_FREE: &str = "n=0; while [ -e /proc/$pid/fd/$n ]; do n=$((n + 1)); done";

struct World {
    hosts: TwoUplinks,
    _dir: tempfile::TempDir,
}

impl World {
    /// Returns a server that also allows these blocks, and a client with a SOCKS5 port.
    fn set(name: &str, allow: &str) -> Option<World> {
        if !two_uplinks::possible(&["python3", "curl", "prlimit"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("directory");
        let mut hosts = TwoUplinks::set(&wifi_and_lte(LINK, LINK), name, dir.path());
        hosts.shell(
            Side::Server,
            &format!(
                "ip link set lo up
                 ip addr add {PRIMARY}/24 dev lo; ip addr add {SECONDARY}/24 dev lo
                 ip route add local 9.9.10.0/24 dev lo
                 ip -6 addr add {IPV6}/64 dev lo nodad
                 ip route add default via 10.0.1.2 dev wifi"
            ),
        );
        hosts.shell(Side::Client, "ip link set lo up");
        std::fs::write(dir.path().join("service.py"), SERVICE_PROGRAM).expect("write");
        std::fs::write(dir.path().join("datagrams.py"), DATAGRAMS).expect("write");
        hear(&hosts.program(Side::Server, "python3 service.py"), "ready");
        hosts.shell(
            Side::Server,
            "umask 077; marline server --init --config marline.toml --listen 10.0.1.1:7777 \
             --public 10.0.1.1:7777 > invite 2> /dev/null",
        );
        let server = format!("marline server --config marline.toml {allow}");
        let server = format!("bash -c 'echo $$ > server.pid; exec {server}'");
        hear(&hosts.program(Side::Server, &server), "listening on");
        let client = "marline client --invite-file invite --path wifi --socks5 127.0.0.1:1080";
        hear(&hosts.program(Side::Client, client), "socks5 listening");
        Some(World { hosts, _dir: dir })
    }

    /// Returns curl's exit status and the SOCKS5 error, if any, for a connection to the service at this address.
    fn connect(&self, address: &str) -> (String, String) {
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let text = self.hosts.shell(
            Side::Client,
            &format!(
                "curl -sS -m 20 --http0.9 --socks5-hostname 127.0.0.1:1080 http://{host}:{SERVICE}/ \
                 2>&1 || true"
            ),
        );
        (address.to_owned(), text)
    }

    fn delivered(&self) -> String {
        std::fs::read_to_string(self.hosts.dir.join("delivered")).unwrap_or_default()
    }
}

#[test]
fn every_address_of_the_server_is_its_own_unless_it_is_allowed() {
    let _others = support::among_others();
    let Some(world) = World::set("own", "") else { return };
    for address in [PRIMARY, SECONDARY, WHOLE_SUBNET, IPV6] {
        let (_, said) = world.connect(address);
        assert!(!said.contains("inside"), "{address} is reached past the firewall: {said}");
    }
    drop(world);
    let Some(world) = World::set("own-ok", &format!("--allow {SECONDARY} --allow {IPV6}")) else {
        return;
    };
    for address in [SECONDARY, IPV6] {
        let (_, said) = world.connect(address);
        assert!(said.contains("inside"), "the owner allows {address}: {said}");
    }
    assert!(!world.connect(PRIMARY).1.contains("inside"));
}

#[test]
fn own_addresses_are_recognized_without_a_free_descriptor() {
    let _others = support::among_others();
    let Some(mut world) = World::set("own-emfile", &format!("--allow {WHOLE_SUBNET}")) else {
        return;
    };
    let mut command = world.hosts.command("exec python3 datagrams.py");
    command.stdin(std::process::Stdio::piped());
    let mut sender =
        world.hosts.spawn(Side::Client, &mut command).stdin.take().expect("standard input");
    let mut send = |address: &str, text: &str| {
        use std::io::Write;
        writeln!(sender, "{address} {text}").expect("the sender runs");
        sender.flush().expect("flush");
    };
    let begun = Instant::now();
    // Once a datagram has arrived, the server's socket for this application is open.
    while !world.delivered().contains("before") {
        assert!(begun.elapsed() < PATIENCE, "no datagram arrives");
        send(ELSEWHERE, "lost");
        send(WHOLE_SUBNET, "before");
        std::thread::sleep(Duration::from_millis(100));
    }
    world.hosts.shell(
        Side::Server,
        &format!("pid=$(cat server.pid); {FIRST_FREE}; prlimit --pid $pid --nofile=$n:"),
    );
    for _ in 0..20 {
        send(SECONDARY, "exhausted");
        send(PRIMARY, "exhausted");
        send(WHOLE_SUBNET, "allowed");
        std::thread::sleep(Duration::from_millis(50));
    }
    let begun = Instant::now();
    while !world.delivered().contains("allowed") {
        assert!(begun.elapsed() < PATIENCE, "the association works: {}", world.delivered());
        send(WHOLE_SUBNET, "allowed");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!world.delivered().contains("exhausted"), "{}", world.delivered());
    // When descriptors are available again, the addresses are still the server's own.
    world.hosts.shell(Side::Server, "prlimit --pid $(cat server.pid) --nofile=1024:");
    for _ in 0..5 {
        send(SECONDARY, "exhausted");
        std::thread::sleep(Duration::from_millis(50));
    }
    send(WHOLE_SUBNET, "last");
    let begun = Instant::now();
    while !world.delivered().contains("last") {
        assert!(begun.elapsed() < PATIENCE, "{}", world.delivered());
        send(WHOLE_SUBNET, "last");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!world.delivered().contains("exhausted"), "{}", world.delivered());
}
