//! Tests of networks that drop UDP, in namespaces: `marline client` as an ordinary user reaches its server over TCP,
//! path by path, and returns to UDP when that passes again. Needs root, nft and curl.

use std::path::Path;
use std::time::{Duration, Instant};

use marline_testkit::need;

use super::ssh_hole::{SSHD, SSHD_FILES};
use super::support::cgroup::ProcessorCgroup;
use super::support::testbed::{Testbed, Until};
use super::support::{self, CURL, SERVICES};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/udp_blocked_world.sh");
/// The client needs no privilege.
const NOBODY: &str = "setpriv --reuid nobody --regid nogroup --clear-groups";
/// Time limit for a route to return to UDP once that passes again.
const RETURN: Duration = Duration::from_secs(45);

/// Sends a datagram repeatedly until it is echoed.
const DATAGRAM: &str = "python3 -c '
import socket
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.settimeout(0.5)
for attempt in range(20):
    port.sendto(b\"over there\", (\"127.0.0.1\", 5353))
    try:
        print(port.recv(2048).decode())
        break
    except TimeoutError:
        pass
'";

struct World {
    testbed: Testbed,
    client: usize,
}

impl World {
    /// Returns the namespaces, a server, the services behind it, and a client that is started in the state `udp`.
    fn start(dir: &Path, udp: &str, server: &str) -> Option<World> {
        let mut testbed = Testbed::of_marline(dir, SCRIPT, &["nft", "curl", "python3", "setpriv"])?;
        testbed.run("net", &format!("udp {udp}"));
        testbed.run("server", "head -c 6000000 /dev/urandom > large; sha256sum large > sums");
        testbed.start("server", SERVICES, Until::Says("ready"));
        let init =
            "marline server --init --config s.toml --listen 9.9.9.1:7777 --public 9.9.9.1:7777";
        let word = testbed.run("server", init);
        support::write_private(&dir.join("client/invite"), &word);
        let serve = format!("marline -v server --config s.toml --allow 127.0.0.0/8 {server}");
        testbed.start("server", &serve, Until::Says("listening on"));
        testbed.run("net", &format!("chown -R nobody {}", dir.join("client").display()));
        let client = format!(
            "{NOBODY} marline -v client --invite-file invite --socks5 127.0.0.1:1080 --warm 0 \
             -U 127.0.0.1:5353:127.0.0.1:8053 --control ./control.sock"
        );
        let client = testbed.start("client", &client, Until::Says("socks5 listening"));
        Some(World { testbed, client })
    }

    fn udp(&self, what: &str) {
        self.testbed.run("net", &format!("udp {what}"));
    }

    /// Returns the state of the paths, as listed by the client.
    fn paths(&self) -> Vec<(String, bool)> {
        let command = format!("{NOBODY} marline path --json --control ./control.sock");
        let said = self.testbed.run("client", &command);
        let paths: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let of = |path: &serde_json::Value| {
            let by_tcp = |server: &serde_json::Value| server["by_tcp"].as_bool() == Some(true);
            let servers = path["servers"].as_array().cloned().unwrap_or_default();
            let name = path["name"].as_str().expect("a name").to_owned();
            (name, servers.iter().any(by_tcp))
        };
        paths.as_array().expect("a list").iter().map(of).collect()
    }

    /// Waits for these carriers of the paths: by name, true for TCP.
    fn wait_for(&self, wanted: &[(&str, bool)]) {
        let deadline = Instant::now() + RETURN;
        loop {
            let paths = self.paths();
            let is = |(name, by_tcp): &(&str, bool)| {
                paths.iter().any(|path| path.0 == *name && path.1 == *by_tcp)
            };
            if wanted.iter().all(is) {
                return;
            }
            let log = self.testbed.log(self.client);
            assert!(Instant::now() < deadline, "{paths:?}, not {wanted:?}\n{log}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Fetches 6 MB at this rate in bytes per second while `meanwhile` runs. The file must be complete.
    fn download(&self, rate: u32, meanwhile: impl FnOnce()) {
        support::download(&self.testbed, rate, meanwhile);
    }
}

/// Requests of a client without CPU time: number of rounds, and concurrent requests per round.
const STARVED_ROUNDS: usize = 4;
const STARVED_AT_ONCE: usize = 8;

const TO_TCP: &str = "no answer over UDP; connections use TCP until UDP is answered";
const TO_UDP: &str = "UDP is answered again";

/// Bytes that would take five minutes at the rate to which datagrams are limited.
const POLICED_BYTES: u32 = 40_000_000;

/// Limits UDP to 1 Mbit/s on both of the client's networks.
fn police(world: &World) {
    for way in ["iifname", "oifname"] {
        for network in ["c0", "c1"] {
            let rule = format!(
                "nft add rule ip way pass {way} {network} meta l4proto udp limit rate over \
                 125 kbytes/second burst 16 kbytes drop"
            );
            world.testbed.run("net", &rule);
        }
    }
}

/// Checks that the client detects that TCP is faster, and reports it.
fn goes_by_tcp_as_that_is_faster(world: &World) {
    // This is logged at the end of the comparison, which may take longer than the transfer.
    let log = world.testbed.log_with(world.client, "UDP is rate-limited and slower than TCP");
    assert!(!log.contains(TO_TCP), "{log}");
    let status = format!("{NOBODY} marline status --control ./control.sock");
    let said = world.testbed.run("client", &status);
    assert!(said.contains("over TCP, as UDP is slower ("), "{said}");
}

#[test]
fn where_udp_is_policed_a_transfer_goes_over_tcp_and_status_says_why() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(world) = World::start(dir.path(), "pass", "") else { return };
    police(&world);
    world.testbed.run("server", &format!("head -c {POLICED_BYTES} /dev/zero > long"));
    let fetch = "curl -sS --fail --max-time 150 -o /dev/null --socks5-hostname 127.0.0.1:1080 \
                 http://127.0.0.1:8080/long";
    let mut command = world.testbed.command("client", fetch, "160");
    assert!(command.status().expect("curl").success(), "{}", world.testbed.log(world.client));
    goes_by_tcp_as_that_is_faster(&world);
}

/// Datagrams at 6 Mbit/s for a minute, with echoes.
const VIDEO: &str = "python3 -u -c '
import socket, threading, time
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.connect((\"127.0.0.1\", 5353))
threading.Thread(target=lambda: [port.recv(2048) for _ in iter(int, 1)], daemon=True).start()
begun = time.monotonic()
print(\"ready\")
for number in range(36000):
    time.sleep(max(0, begun + number / 600 - time.monotonic()))
    try:
        port.send(bytes(1200))
    except OSError:
        pass
'";

#[test]
fn where_udp_is_policed_datagrams_alone_find_that_out_too() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = World::start(dir.path(), "pass", "") else { return };
    police(&world);
    world.testbed.start("client", VIDEO, Until::Says("ready"));
    goes_by_tcp_as_that_is_faster(&world);
}

/// Keeps processes from running for most of the time, until dropped.
enum Starvation {
    Quota {
        _group: ProcessorCgroup,
    },
    /// A shell stops and continues the processes.
    Signals {
        _shell: support::Running,
    },
}

impl Starvation {
    /// With a quota of the system: this many milliseconds of every 100.
    fn by_quota(percent: u64, processes: [u32; 2]) -> Option<Starvation> {
        let group = ProcessorCgroup::with_percent(percent)?;
        processes.into_iter().for_each(|process| group.take(process));
        Some(Starvation::Quota { _group: group })
    }

    /// Like [`by_quota`](Self::by_quota), with signals, which work on every machine: 3 ms of every 100.
    fn by_signals(processes: [u32; 2]) -> Starvation {
        let [one, other] = processes;
        let mut shell = std::process::Command::new("bash");
        let turns = format!(
            "while kill -STOP {one} {other}; do sleep 0.097; kill -CONT {one} {other}; sleep 0.003; done"
        );
        shell.args(["-c", &turns]);
        Starvation::Signals { _shell: support::Running::start_command(shell, "turns") }
    }
}

/// A client with hardly any CPU time sees the answer and its own timeout at the same time.
fn does_not_take_its_own_delay_for_blocked_udp(
    starve: impl FnOnce([u32; 2]) -> Option<Starvation>,
) {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let target = "127.0.0.1:9".parse().expect("an address");
    let mut server = support::start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let flags = ["--path", &path, "--warm", "0"];
    let (mut client, socks) = support::start_client(dir.path(), &server.invite_file, &flags);
    let processes = [client.id(), server.process.id()];
    let Some(starvation) = starve(processes) else { return };
    for _ in 0..STARVED_ROUNDS {
        std::thread::scope(|all| {
            // Port 9 refuses: each request is answered, and nothing is relayed.
            (0..STARVED_AT_ONCE)
                .for_each(|_| drop(all.spawn(|| support::socks::open(socks, target).err())));
        });
    }
    let said = client.said();
    // A group can be removed only when it is empty.
    for process in [&mut client, &mut server.process] {
        process.signal("KILL");
        process.end();
    }
    drop(starvation);
    assert!(!said.iter().any(|line| line.contains("no answer over UDP")), "{said:#?}");
}

#[test]
fn a_client_with_three_percent_of_a_processor_does_not_take_its_own_delay_for_blocked_udp() {
    does_not_take_its_own_delay_for_blocked_udp(|processes| Starvation::by_quota(3, processes));
}

#[test]
fn a_client_that_is_stopped_for_most_of_the_time_does_not_take_that_for_blocked_udp() {
    does_not_take_its_own_delay_for_blocked_udp(|processes| {
        Some(Starvation::by_signals(processes))
    });
}

#[test]
fn without_any_udp_streams_and_datagrams_go_over_tcp_and_back_when_it_passes() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(world) = World::start(dir.path(), "drop c0 c1", "") else { return };
    // curl's own limit is the requirement: a page within 5 s.
    let page = "curl -sS --fail --max-time 5 --socks5-hostname 127.0.0.1:1080 \
                http://127.0.0.1:8080/sums";
    assert!(world.testbed.run("client", page).contains("large"));
    assert_eq!(world.testbed.run("client", DATAGRAM), "over there\n");
    world.download(20_000_000, || {});
    world.wait_for(&[("wlan0", true), ("wwan0", true)]);
    let log = world.testbed.log(world.client);
    assert_eq!(log.matches(TO_TCP).count(), 2, "once for each path: {log}");
    world.udp("pass");
    world.download(1_000_000, || world.wait_for(&[("wlan0", false), ("wwan0", false)]));
    let log = world.testbed.log(world.client);
    assert_eq!(log.matches(TO_UDP).count(), 2, "{log}");
    assert_eq!(log.matches(TO_TCP).count(), 2, "{log}");
    assert_eq!(world.testbed.run("client", DATAGRAM), "over there\n");
}

#[test]
fn where_one_path_drops_udp_it_alone_goes_over_tcp_and_no_stream_is_lost() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(world) = World::start(dir.path(), "pass", "") else { return };
    world.download(600_000, || {
        std::thread::sleep(Duration::from_secs(1));
        assert!(world.paths().iter().all(|(_, by_tcp)| !by_tcp), "{:?}", world.paths());
        world.udp("drop c0");
        world.wait_for(&[("wlan0", true), ("wwan0", false)]);
    });
    world.udp("pass");
    world.wait_for(&[("wlan0", false), ("wwan0", false)]);
    // A network that rejects UDP instead of dropping it.
    world.udp("reject c0 c1");
    world.download(600_000, || world.wait_for(&[("wlan0", true), ("wwan0", true)]));
}

/// Text typed into an `ssh` session until the file `over` exists arrives complete and in order.
const SSH: &str = "rm -f over
    (n=0; until test -e over; do n=$((n+1)); echo $n; sleep 0.1; done) |
        ssh -F ../server/ssh_config 127.0.0.1 cat > heard
    seq $(wc -l < heard) | cmp - heard
    wc -l < heard";

/// WiFi, then a network without UDP under the same name, and WiFi again: one stream and a shell survive it.
#[test]
fn a_long_stream_and_an_ssh_session_outlive_a_network_without_udp() {
    let _others = support::among_others();
    if ["ssh", "sshd", "ssh-keygen"].iter().any(|program| need::program(program).is_none()) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = World::start(dir.path(), "pass", "") else { return };
    world.testbed.run("server", SSHD_FILES);
    world.testbed.start("server", SSHD, Until::Says("Server listening"));
    let world = world;
    world.testbed.run("client", "ip link set wwan0 down");
    std::thread::scope(|scope| {
        let typing = scope.spawn(|| world.testbed.run("client", SSH));
        world.download(400_000, || {
            std::thread::sleep(Duration::from_secs(1));
            world.udp("drop c0 c1");
            let moved =
                "ip addr del 192.168.1.2/24 dev wlan0; ip addr add 192.168.1.77/24 dev wlan0
                         ip route replace default via 192.168.1.1 dev wlan0";
            world.testbed.run("client", moved);
            world.wait_for(&[("wlan0", true)]);
            world.udp("pass");
            let back = "ip addr del 192.168.1.77/24 dev wlan0; ip addr add 192.168.1.2/24 dev wlan0
                        ip route replace default via 192.168.1.1 dev wlan0";
            world.testbed.run("client", back);
            world.wait_for(&[("wlan0", false)]);
        });
        world.testbed.run("client", "touch over");
        let lines: u32 = typing.join().expect("no panic").trim().parse().expect("a count");
        assert!(lines > 20, "{lines} lines");
    });
}

#[test]
fn a_server_that_does_not_listen_on_tcp_is_named_as_such() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(world) = World::start(dir.path(), "drop c0 c1", "--carrier udp") else { return };
    let said = world.testbed.run("client", &format!("{CURL} http://127.0.0.1:8080/ 2>&1 || true"));
    assert!(said.contains("curl:"), "{said}");
    let why = "no answer over UDP; the server does not listen on TCP";
    assert!(world.testbed.log_with(world.client, why).contains("WARN"));
    let paths = format!("{NOBODY} marline path --control ./control.sock");
    let said = world.testbed.run("client", &paths);
    assert!(said.contains("the server does not listen on TCP"), "{said}");
    // UDP alone works with an old server as before.
    world.udp("pass");
    world.download(20_000_000, || {});
}
