//! Tests of echo requests through the tunnel: the far host's answer, errors of routers behind the server, and
//! destinations that the server forbids.

use super::{OTHER_V4, TARGET_V4, TARGET_V6, World, hear, support};
use marline_lab::scenario::Side;

/// A router behind the server, and hosts without a route from there.
const ROUTER: &str = "203.0.113.129";
const BEHIND: &str = "203.0.113.200";
const NOWHERE: &str = "203.0.113.201";

/// Lets the server open ICMP sockets, as distributions do, and adds a router behind it.
const WORLD: &str = r#"
sysctl -qw net.ipv4.ping_group_range='0 2147483647'
unshare --net sleep 60 > /dev/null 2>&1 < /dev/null & router=$!
until [ "$(readlink /proc/$router/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add behind type veth peer name inner netns $router
ip addr add 203.0.113.130/30 dev behind; ip link set behind up
ip route add 203.0.113.192/27 via 203.0.113.129
ip -6 addr add 2001:db8:9::2/64 dev behind nodad; ip -6 route add 2001:db8:99::/64 via 2001:db8:9::1
nsenter -t $router -n bash -euc '
    sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    ip addr add 203.0.113.129/30 dev inner; ip -6 addr add 2001:db8:9::1/64 dev inner nodad; ip link set inner up
    ip route add default via 203.0.113.130; ip -6 route add default via 2001:db8:9::2
    ip route add unreachable 203.0.113.201'
"#;

impl World {
    /// Returns the output of ping.
    fn ping(&self, options: &str, to: &str) -> String {
        let output = self.output(&format!("ping -n -W 10 {options} {to} 2>&1"));
        support::texts(&output).0
    }
}

/// Returns the round-trip time of an answer in ping's output, in ms.
fn rtt_ms(text: &str) -> f64 {
    let times = text.lines().filter_map(|line| line.split_once("time=")?.1.split(' ').next());
    let times = times.filter_map(|time| time.parse().ok());
    times.reduce(f64::min).unwrap_or_else(|| panic!("no answer: {text}"))
}

#[test]
fn ping_gets_echo_replies_and_router_errors() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-ping", &["ping", "sysctl", "nsenter"]) else { return };
    world.up("--path wifi --path lte --block 203.0.113.210");
    // Without permission for the server's group, the program gets an error, and the server logs this once.
    for _ in 0..2 {
        let refused = world.ping("-c 1", TARGET_V4);
        assert!(refused.contains("Packet filtered"), "{refused}");
    }
    hear(&world.server, "ping_group_range");
    world.hosts.shell(Side::Server, WORLD);
    let sizes = [
        (TARGET_V4, ""),
        (TARGET_V6, ""),
        (OTHER_V4, "-s 1000"),
        (TARGET_V4, "-s 1472 -M do"),
        (TARGET_V6, "-s 4000"),
    ];
    for (host, options) in sizes {
        let text = world.ping(&format!("-c 3 -i 0.2 {options}"), host);
        // Both links are crossed twice. WiFi takes 10 ms in each direction.
        assert!(rtt_ms(&text) >= 20.0, "{text}");
    }
    for (options, to, says) in [
        ("-t 1", BEHIND, "From 198.18.0.1 icmp_seq=1 Time to live exceeded"),
        ("-t 2", BEHIND, &*format!("From {ROUTER} icmp_seq=1 Time to live exceeded")),
        ("-t 2", "2001:db8:99::1", "From 2001:db8:9::1 icmp_seq=1 Time exceeded"),
        ("", NOWHERE, &*format!("From {ROUTER} icmp_seq=1 Destination Host Unreachable")),
        // The server's rules.
        ("", "192.168.77.1", "Packet filtered"),
        ("", "fd00:77::1", "Administratively prohibited"),
        // The machine's own rules.
        ("", "203.0.113.210", "Packet filtered"),
        ("-s 9000 -M do", TARGET_V4, "Message too long"),
    ] {
        // The second request is checked against the MTU that the first one found.
        let count = if says == "Message too long" { "-c 3 -i 0.5" } else { "-c 1" };
        let text = world.ping(&format!("{count} {options}"), to);
        let says_mtu =
            says == "Message too long" && text.to_lowercase().contains("message too long");
        assert!(text.contains(says) || says_mtu, "{options} {to}: {text}");
    }
    // Many concurrent requests.
    let flood =
        world.run(&format!("for i in $(seq 100); do ping -n -c 1 -W 20 {TARGET_V4} & done; wait"));
    assert!(flood.matches("bytes from").count() >= 64, "{flood}");
}
