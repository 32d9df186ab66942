//! Tests in namespaces of a client whose cellular network has only IPv6 (NAT64 and DNS64), with a server that has
//! only IPv4: the paths of one session lead to different addresses. Needs root, nft, curl and python3.

use std::path::Path;
use std::time::{Duration, Instant};

use super::support::testbed::{Testbed, Until};
use super::support::{self, CURL, SERVICES};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/nat64/world.sh");
const FOUND: &str =
    "wwan0: IPv6 only; IPv4 servers are reached through NAT64 prefix 2001:db8:64::/96";
/// Size of the fetched file in bytes.
const LARGE: u64 = 4_000_000;
/// Ends of the WiFi link: namespace and interface.
const WIFI: [(&str, &str); 2] = [("net", "c0"), ("client", "wlan0")];
const ADVERTISE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/nat64/advertise.py");
/// Makes the network's resolver deaf.
const DEAF: &str = "nft add table ip6 deaf
    nft 'add chain ip6 deaf in { type filter hook input priority 0; }'
    nft add rule ip6 deaf in udp dport 53 drop";
/// Time limit for any expected state.
const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    testbed: Testbed,
    client: usize,
}

impl World {
    /// Returns the namespaces, a server with this public address, the services behind it, and a client that starts
    /// after `first` in its namespace.
    fn start(dir: &Path, public: &str, first: &str) -> Option<World> {
        World::start_where(dir, public, first, "true")
    }

    /// Like [`World::start`], after running `net` in the networks between.
    fn start_where(dir: &Path, public: &str, first: &str, net: &str) -> Option<World> {
        let mut testbed = Testbed::of_marline(dir, SCRIPT, &["nft", "curl", "python3"])?;
        let make = format!("head -c {LARGE} /dev/urandom > large; sha256sum large > sums");
        testbed.run("server", &make);
        testbed.start("server", SERVICES, Until::Says("ready"));
        let init = format!(
            "marline server --init --config s.toml --listen 9.9.9.1:7777 --public {public}:7777"
        );
        let word = testbed.run("server", &init);
        support::write_private(&dir.join("client/invite"), &word);
        let serve = "marline -v server --config s.toml --allow 127.0.0.0/8";
        testbed.start("server", serve, Until::Says("listening on"));
        testbed.run("client", first);
        testbed.run("net", net);
        let client = "marline -v client --invite-file invite --socks5 127.0.0.1:1080 \
                      --control ./control.sock";
        let client = testbed.start("client", client, Until::Says("socks5 listening"));
        Some(World { testbed, client })
    }

    /// Fetches 4 MB at this rate in bytes per second while `meanwhile` runs. The file must be complete.
    fn download(&self, rate: u32, meanwhile: impl FnOnce()) {
        support::download(&self.testbed, rate, meanwhile);
    }

    /// Makes the cellular network's router advertise a prefix for this many seconds.
    fn advertise(&self, prefix: &str, lifetime_s: u16) {
        let send = format!("python3 {ADVERTISE} c1 {prefix} {lifetime_s}");
        self.testbed.run("net", &send);
    }

    /// Waits until the client's output about its paths contains these words.
    fn wait_for(&self, words: &[&str]) {
        let begun = Instant::now();
        loop {
            let said = self.testbed.run("client", "marline path --control ./control.sock");
            if words.iter().all(|word| said.contains(word)) {
                return;
            }
            let log = self.testbed.log(self.client);
            assert!(begun.elapsed() < PATIENCE, "{said} lacks one of {words:?}\n{log}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn wifi_with_ipv4_dies_and_a_cellular_network_with_only_ipv6_carries_on() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(world) = World::start(dir.path(), "9.9.9.1", "true") else { return };
    world.testbed.log_with(world.client, FOUND);
    world.download(500_000, || {
        world.wait_for(&[
            "wlan0  9.9.9.1:7777",
            "wwan0  [2001:db8:64::909:901]:7777",
            "wwan0: IPv6 only, with NAT64 prefix 2001:db8:64::/96",
        ]);
        support::under_way(&dir.path().join("client/large"), 1, LARGE);
        // From now on, the link drops everything in both directions, but stays up.
        for (role, interface) in WIFI {
            let dies = format!(
                "nft add table netdev dead
                nft 'add chain netdev dead in \
                     {{ type filter hook ingress device {interface} priority 0; policy drop; }}'"
            );
            world.testbed.run(role, &dies);
        }
    });
    // New connections work as well, and so does a program that resolves names.
    world.download(20_000_000, || {});
    let status = world.testbed.run("client", "marline status --control ./control.sock");
    assert!(status.contains("IPv6 only, with NAT64 prefix 2001:db8:64::/96"), "{status}");
    for (role, _) in WIFI {
        world.testbed.run(role, "nft delete table netdev dead");
    }
    world.wait_for(&["wlan0  9.9.9.1:7777"]);
}

#[test]
fn without_any_ipv4_a_server_is_reached_by_address_and_by_name_over_udp_and_over_tcp() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let first = "ip link set wlan0 down";
    let Some(mut world) = World::start(dir.path(), "9.9.9.1", first) else { return };
    world.download(20_000_000, || {});
    let probe_server = |server: &str| {
        let text = format!("marline doctor --server {server}:7777 2>&1 || true");
        world.testbed.run("client", &text)
    };
    for server in ["9.9.9.1", "server.example"] {
        let said = probe_server(server);
        let prefix = "wwan0: IPv6 only, with NAT64 prefix 2001:db8:64::/96";
        assert!(said.contains("answers in") && said.contains(prefix), "{server}: {said}");
    }
    // A connection that started through NAT64 is joined over IPv4 at the server's public address.
    world.download(500_000, || {
        let back =
            "ip link set wlan0 up; ip route add default via 192.168.1.1 dev wlan0 metric 100";
        world.testbed.run("client", back);
        world.wait_for(&["wlan0  9.9.9.1:7777", "wwan0  [2001:db8:64::909:901]:7777"]);
    });
    // From now on, only TCP passes.
    world.testbed.run(
        "net",
        "nft add table ip way
        nft 'add chain ip way pass { type filter hook forward priority 0; }'
        nft add rule ip way pass meta l4proto udp drop",
    );
    world.testbed.signal(world.client, "TERM");
    world.testbed.wait(world.client);
    let client =
        "marline -v client --invite-file invite --socks5 127.0.0.1:1080 --control ./control.sock";
    world.client = world.testbed.start("client", client, Until::Says("socks5 listening"));
    world.download(20_000_000, || {});
    world.wait_for(&["over TCP"]);
}

#[test]
fn a_network_without_nat64_is_distinguished_from_a_dead_server() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let first = "ip link set wlan0 down";
    let Some(world) = World::start(dir.path(), "9.9.9.1", first) else { return };
    world.testbed.run("net", DEAF);
    let said = world.testbed.run("client", "marline doctor --server 9.9.9.1:7777 2>&1 || true");
    assert!(said.contains("and this path has no IPv4 address and no NAT64 prefix"), "{said}");
    let known =
        "marline doctor --server 9.9.9.1:7777 --path wwan0,nat64=2001:db8:64::/96 2>&1 || true";
    let said = world.testbed.run("client", known);
    assert!(said.contains("answers in"), "{said}");
}

#[test]
fn the_prefix_of_a_router_advertisement_comes_before_the_resolvers() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let first = "ip link set wlan0 down";
    let Some(world) = World::start(dir.path(), "9.9.9.1", first) else { return };
    world.wait_for(&["wwan0: IPv6 only, with NAT64 prefix 2001:db8:64::/96"]);
    world.advertise("2001:db8:65::/96", 600);
    world.wait_for(&["wwan0: IPv6 only, with NAT64 prefix 2001:db8:65::/96"]);
    // After the prefix is withdrawn, the resolver's answer is used again, without a restart.
    world.advertise("2001:db8:65::/96", 0);
    world.wait_for(&["wwan0: IPv6 only, with NAT64 prefix 2001:db8:64::/96"]);
    world.download(20_000_000, || {});
}

#[test]
fn a_router_advertisement_is_enough_where_no_resolver_answers() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let first = "ip link set wlan0 down";
    let Some(world) = World::start_where(dir.path(), "9.9.9.1", first, DEAF) else { return };
    let page = format!("{CURL} --max-time 2 http://127.0.0.1:8080/sums && exit 1; true");
    world.testbed.run("client", &page);
    world.advertise("2001:db8:64::/96", 600);
    world.testbed.log_with(world.client, FOUND);
    world.download(20_000_000, || {});
    world.advertise("2001:db8:64::/96", 0);
    let gone = "wwan0: IPv6 only, and the network no longer provides NAT64";
    world.testbed.log_with(world.client, gone);
    world.advertise("2001:db8:64::/96", 8);
    world.wait_for(&["wwan0: IPv6 only, with NAT64 prefix 2001:db8:64::/96"]);
    // The lifetime expires.
    let begun = Instant::now();
    let log = || world.testbed.log(world.client).matches(gone).count();
    while log() < 2 {
        assert!(begun.elapsed() < PATIENCE, "the lifetime never expires");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(begun.elapsed() > Duration::from_secs(7), "{:?}", begun.elapsed());
}
