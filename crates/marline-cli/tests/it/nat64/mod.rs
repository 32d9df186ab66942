//! Tests of a client whose cellular network has only IPv6 (NAT64 and DNS64), and whose server has only IPv4, in
//! namespaces: the paths of one session lead to different addresses. Needs root, nft, curl and python3.

use std::path::Path;
use std::time::{Duration, Instant};

use super::support::testbed::{Testbed, Until};
use super::support::{self, SERVICES};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/nat64/world.sh");
const FOUND: &str = "wwan0: IPv6 only, IPv4 servers are reached by NAT64 prefix 2001:db8:64::/96";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    testbed: Testbed,
    client: usize,
}

impl World {
    /// The namespaces, a server whose invite says so, what is behind it, and a client after `first` in its namespace.
    fn start(dir: &Path, public: &str, first: &str) -> Option<World> {
        let mut testbed = Testbed::of_marline(dir, SCRIPT, &["nft", "curl", "python3"])?;
        testbed.run("server", "head -c 4000000 /dev/urandom > large; sha256sum large > sums");
        testbed.start("server", SERVICES, Until::Says("ready"));
        let init = format!(
            "marline server --init --config s.toml --listen 9.9.9.1:7777 --public {public}:7777"
        );
        let word = testbed.run("server", &init);
        support::write_private(&dir.join("client/invite"), &word);
        let serve = "marline -v server --config s.toml --allow 127.0.0.0/8";
        testbed.start("server", serve, Until::Says("listening on"));
        testbed.run("client", first);
        let client = "marline -v client --invite-file invite --socks5 127.0.0.1:1080 \
                      --control ./control.sock";
        let client = testbed.start("client", client, Until::Says("socks5 listening"));
        Some(World { testbed, client })
    }

    /// Fetches 4 MB at so many bytes per second while `meanwhile` happens; it must come whole.
    fn download(&self, rate: u32, meanwhile: impl FnOnce()) {
        support::download(&self.testbed, rate, meanwhile);
    }

    /// Waits until this is among what the client says of its paths.
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
fn wifi_with_ipv4_dies_and_a_cellular_network_with_ipv6_alone_carries_on() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(world) = World::start(dir.path(), "9.9.9.1", "true") else { return };
    world.testbed.log_with(world.client, FOUND);
    world.download(500_000, || {
        world.wait_for(&[
            "wlan0  9.9.9.1:7777",
            "wwan0  [2001:db8:64::909:901]:7777",
            "wwan0: IPv6 only, by NAT64 prefix 2001:db8:64::/96",
        ]);
        // Nothing is said any more, and the link stays up.
        world.testbed.run("net", "nft add table netdev dead
            nft 'add chain netdev dead in { type filter hook ingress device c0 priority 0; policy drop; }'");
    });
    // New connections, too, and a program that asks for names.
    world.download(20_000_000, || {});
    let status = world.testbed.run("client", "marline status --control ./control.sock");
    assert!(status.contains("IPv6 only, by NAT64 prefix 2001:db8:64::/96"), "{status}");
    world.testbed.run("net", "nft delete table netdev dead");
    world.wait_for(&["wlan0  9.9.9.1:7777"]);
}

#[test]
fn without_any_ipv4_a_server_is_reached_by_address_and_by_name_by_udp_and_by_tcp() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let first = "ip link set wlan0 down";
    let Some(mut world) = World::start(dir.path(), "9.9.9.1", first) else { return };
    world.download(20_000_000, || {});
    let knock = |server: &str| {
        let text = format!("marline doctor --server {server}:7777 2>&1 || true");
        world.testbed.run("client", &text)
    };
    for server in ["9.9.9.1", "server.example"] {
        let said = knock(server);
        let prefix = "wwan0: IPv6 only, by NAT64 prefix 2001:db8:64::/96";
        assert!(said.contains("answers in") && said.contains(prefix), "{server}: {said}");
    }
    // A connection that began by translation is joined over IPv4 at the address that the rest of the world has.
    world.download(500_000, || {
        let back =
            "ip link set wlan0 up; ip route add default via 192.168.1.1 dev wlan0 metric 100";
        world.testbed.run("client", back);
        world.wait_for(&["wlan0  9.9.9.1:7777", "wwan0  [2001:db8:64::909:901]:7777"]);
    });
    // Only TCP passes from now on.
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
    world.wait_for(&["by TCP"]);
}

#[test]
fn a_network_that_does_not_translate_is_told_from_a_server_that_is_gone() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let first = "ip link set wlan0 down";
    let Some(world) = World::start(dir.path(), "9.9.9.1", first) else { return };
    // Its resolver is silent.
    let deaf = "nft add table ip6 deaf
        nft 'add chain ip6 deaf in { type filter hook input priority 0; }'
        nft add rule ip6 deaf in udp dport 53 drop";
    world.testbed.run("net", deaf);
    let said = world.testbed.run("client", "marline doctor --server 9.9.9.1:7777 2>&1 || true");
    assert!(said.contains("its resolver names no NAT64 prefix"), "{said}");
    let known =
        "marline doctor --server 9.9.9.1:7777 --path wwan0,nat64=2001:db8:64::/96 2>&1 || true";
    let said = world.testbed.run("client", known);
    assert!(said.contains("answers in"), "{said}");
}
