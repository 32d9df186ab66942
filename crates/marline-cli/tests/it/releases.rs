//! Tests of this program together with the last release (the newest tag), in namespaces, each of them as the
//! client, over each carrier. `cargo xtask nightly releases` builds the released program and passes its path in the
//! environment. Needs root, nft, curl and python3.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::support::testbed::{Testbed, Until};
use super::support::{self, CURL, SERVICES};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/udp_blocked_world.sh");
/// Time limit for any expected state.
const PATIENCE: Duration = Duration::from_secs(40);
const LARGE: u64 = 4_000_000;
/// Rate of the download that loses a path, in bytes per second: it takes seven seconds.
const RATE: u32 = 600_000;
/// Number of bytes received on a path at which it counts as used: more than opening it needs.
const USED: u64 = 4_000;

/// Names of the programs in the testbed.
const NEW: &str = "marline";
const OLD: &str = "marline-released";

/// Transport between client and server.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Transport {
    /// Frames over UDP, sealed.
    Udp,
    /// The same frames over TCP, in a network that drops UDP.
    Tcp,
    /// The proxy over native Multipath TCP.
    Raw,
    /// `client --direct` to `serve`: native Multipath TCP alone.
    Front,
}

/// Requests a SOCKS5 association, and sends a datagram over it, and over the client's `-U` port, until both are
/// echoed.
const DATAGRAMS: &str = "python3 -c '
import socket, struct
control = socket.create_connection((\"127.0.0.1\", 1080))
control.sendall(bytes([5, 1, 0]))
assert control.recv(2) == bytes([5, 0])
control.sendall(bytes([5, 3, 0, 1]) + bytes(6))
answer = control.recv(10, socket.MSG_WAITALL)
assert answer[:4] == bytes([5, 0, 0, 1]), answer
relay = (socket.inet_ntoa(answer[4:8]), struct.unpack(\"!H\", answer[8:])[0])
header = bytes([0, 0, 0, 1, 127, 0, 0, 1]) + struct.pack(\"!H\", 8053)
for way, to, before in [(\"associated\", relay, header), (\"forwarded\", (\"127.0.0.1\", 5353), b\"\")]:
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.settimeout(0.5)
    for attempt in range(60):
        try:
            port.sendto(before + b\"there\", to)
            back = port.recv(2048)
            assert back == before + b\"there\", back
            print(way)
            break
        except (TimeoutError, ConnectionRefusedError):
            pass
'";

/// The client's service behind a remote forward.
const CLIENTS_PAGE: &str =
    "python3 -m http.server --bind 127.0.0.1 --directory page 8090 2> /dev/null";

/// Ends of the path that fails silently while its link stays up: namespace and interface.
const WIFI: [(&str, &str); 2] = [("net", "c0"), ("client", "wlan0")];

struct World {
    testbed: Testbed,
    way: Transport,
    server: usize,
    client: usize,
}

impl World {
    /// Installs both programs in all PATHs, and starts a server that one of them set up and runs, and the other as its
    /// client.
    fn start(dir: &Path, way: Transport, client: &str, server: &str) -> Option<World> {
        let released = released();
        let mut testbed = Testbed::of_marline(dir, SCRIPT, &["nft", "curl", "python3"])?;
        std::fs::copy(released, dir.join("bin").join(OLD)).expect("the released program");
        let said = testbed.run("client", &format!("{OLD} --version"));
        let commit = std::env::var("MARLINE_RELEASED_COMMIT").expect("the commit's name");
        assert!(said.contains(&commit), "{said} is not of {commit}");
        let make = format!("head -c {LARGE} /dev/urandom > large; sha256sum large > sums");
        testbed.run("server", &make);
        testbed.start("server", SERVICES, Until::Says("ready"));
        testbed.run("client", "mkdir page; echo a page > page/page");
        testbed.start("client", CLIENTS_PAGE, Until::Listens(8090));
        testbed.run("net", if way == Transport::Tcp { "udp drop c0 c1" } else { "udp pass" });
        let mut world = World { testbed, way, server: 0, client: 0 };
        if way != Transport::Front {
            let init = format!(
                "{server} server --init --config s.toml --listen 9.9.9.1:7777 --public 9.9.9.1:7777"
            );
            let word = world.testbed.run("server", &init);
            support::write_private(&dir.join("client/invite"), &word);
        }
        world.serve(server);
        let to = match way {
            Transport::Udp | Transport::Tcp => {
                "--invite-file invite -U 127.0.0.1:5353:127.0.0.1:8053 -R 9000:127.0.0.1:8090"
            }
            Transport::Raw => "--invite-file invite --carrier raw -R 9000:127.0.0.1:8090",
            Transport::Front => "--direct",
        };
        let command = format!(
            "{client} -v client {to} --path wlan0 --path wwan0 --socks5 127.0.0.1:1080 --control ./c.sock"
        );
        world.client = world.testbed.start("client", &command, Until::Says("socks5 listening"));
        Some(world)
    }

    /// Starts this program as the server, with the existing configuration.
    fn serve(&mut self, program: &str) {
        let command = match self.way {
            Transport::Front => "serve --listen 9.9.9.1:8080 --to 127.0.0.1:8080".to_owned(),
            way => format!(
                "server --config s.toml --allow 127.0.0.0/8 --allow-remote 127.0.0.1:9000{}",
                if way == Transport::Raw { " --carrier raw" } else { "" }
            ),
        };
        let command = format!("{program} -v {command} --control ./s.sock");
        self.server = self.testbed.start("server", &command, Until::Says("listening on"));
    }

    /// Replaces the server by this program. Returns the time until a connection by the running client succeeded.
    fn replace(&mut self, program: &str) -> Duration {
        self.testbed.signal(self.server, "TERM");
        assert!(self.testbed.wait(self.server), "an orderly end");
        self.serve(program);
        let begun = Instant::now();
        let page = format!("{} --max-time 5 {}/sums", CURL, self.host());
        loop {
            let page = self.testbed.command("client", &page, "10").output().expect("timeout");
            if page.status.success() {
                return begun.elapsed();
            }
            let log = self.testbed.log(self.client);
            assert!(begun.elapsed() < PATIENCE, "no connection to {program}:\n{log}");
        }
    }

    fn host(&self) -> &'static str {
        if self.way == Transport::Front { "http://9.9.9.1:8080" } else { "http://127.0.0.1:8080" }
    }

    /// Returns the fetched file at the client.
    fn large(&self) -> PathBuf {
        self.testbed.dir.join("client/large")
    }

    /// Returns the number of bytes received on a path of the client.
    fn received(&self, path: &str) -> u64 {
        let command = format!("awk '$1 == \"{path}:\" {{ print $2 }}' /proc/net/dev");
        self.testbed.run("client", &command).trim().parse().expect("a count")
    }

    /// Fetches the file at this rate in bytes per second while `meanwhile` runs. The file must be complete.
    fn download(&self, rate: u32, meanwhile: impl FnOnce()) {
        support::download_from(&self.testbed, self.host(), rate, meanwhile);
    }

    /// A download over both paths that loses the first one in the middle. Returns the longest time without a byte,
    /// and the number of bytes lost in transit.
    fn lose_wifi(&self) -> (Duration, u64) {
        let paths = ["wlan0", "wwan0"];
        let before = paths.map(|path| self.received(path));
        let mut gap = Duration::ZERO;
        self.download(RATE, || {
            let until = Instant::now() + PATIENCE;
            while paths.iter().zip(before).any(|(path, was)| self.received(path) < was + USED) {
                let now = paths.map(|path| self.received(path));
                assert!(Instant::now() < until, "{before:?}, {now:?}: {}", self.client_log());
            }
            let had = support::under_way(&self.large(), 1, LARGE);
            for (role, interface) in WIFI {
                let dies = format!(
                    "nft add table netdev dead
                    nft 'add chain netdev dead in \
                         {{ type filter hook ingress device {interface} priority 0; }}'
                    nft add rule netdev dead in counter drop"
                );
                self.testbed.run(role, &dies);
            }
            gap = self.longest_gap((had + 2 * u64::from(RATE)).min(LARGE));
        });
        let lost = WIFI.map(|(role, _)| {
            let rules = "nft -j list table netdev dead; nft delete table netdev dead";
            let rules = self.testbed.run(role, rules);
            let rules: serde_json::Value = serde_json::from_str(&rules).expect("JSON");
            let rules = rules["nftables"].as_array().expect("a list");
            let counted =
                |rule: &serde_json::Value| rule["rule"]["expr"][0]["counter"]["bytes"].as_u64();
            rules.iter().find_map(counted).expect("a counter")
        });
        let [_, to_client] = lost;
        assert!(to_client > 1_000, "WiFi carried nothing when it died: {lost:?}");
        (gap, to_client)
    }

    /// Returns the longest time without data until this many bytes have been received.
    fn longest_gap(&self, enough: u64) -> Duration {
        let (mut had, mut since, mut longest) = (0, Instant::now(), Duration::ZERO);
        while had < enough {
            let now = support::length(&self.large());
            longest = longest.max(since.elapsed());
            if now > had {
                (had, since) = (now, Instant::now());
            }
            assert!(longest < PATIENCE, "no data arrives: {}", self.client_log());
            std::thread::sleep(Duration::from_millis(5));
        }
        longest
    }

    /// Checks everything that a client carries: streams, datagrams through both kinds of ports, and remote streams.
    fn carries_everything(&self) {
        self.download(20_000_000, || {});
        if matches!(self.way, Transport::Udp | Transport::Tcp) {
            let came = self.testbed.run("client", DATAGRAMS);
            assert_eq!(came, "associated\nforwarded\n", "{}", self.client_log());
        }
        if self.way != Transport::Front {
            let visit = "for attempt in {1..80}; do
                    curl -sS --fail --max-time 5 http://127.0.0.1:9000/page && exit
                    sleep 0.25
                done
                exit 1";
            assert!(self.testbed.run("server", visit).ends_with("a page\n"));
        }
    }

    fn client_log(&self) -> String {
        self.testbed.log(self.client)
    }
}

/// Returns the path of the last release's program.
fn released() -> PathBuf {
    let named = std::env::var_os("MARLINE_RELEASED");
    named.expect("MARLINE_RELEASED: `cargo xtask nightly releases` runs this").into()
}

fn together(way: Transport, client: &str, server: &str) {
    let _alone = support::lock_exclusively();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = World::start(dir.path(), way, client, server) else { return };
    world.carries_everything();
    let (gap, lost) = world.lose_wifi();
    // From one version to the other with the same files and the same client, and back.
    let other = if server == NEW { OLD } else { NEW };
    let there = world.replace(other);
    world.carries_everything();
    let back = world.replace(server);
    world.carries_everything();
    println!(
        "{way:?}: client {client}, server {server}: the longest gap as WiFi died with {lost} bytes {:.2} s; a \
         connection {:.2} s after the server was {other}, {:.2} s after it was {server} again",
        gap.as_secs_f64(),
        there.as_secs_f64(),
        back.as_secs_f64()
    );
}

macro_rules! both {
    ($($name:ident $way:ident)*) => { $(mod $name {
        use super::*;

        #[test]
        #[ignore = "the last release is to be built: cargo xtask nightly releases"]
        fn the_last_releases_client_works_with_this_server() {
            together(Transport::$way, OLD, NEW);
        }

        #[test]
        #[ignore = "the last release is to be built: cargo xtask nightly releases"]
        fn this_client_works_with_the_last_releases_server() {
            together(Transport::$way, NEW, OLD);
        }
    })* };
}
both! { by_udp Udp by_tcp Tcp by_native_tcp Raw straight_to_a_front Front }
