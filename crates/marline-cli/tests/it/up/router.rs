//! Tests of a router: `marline client --transparent` behind nftables' redirect and tproxy, and `marline up` for
//! forwarded devices.

use super::super::run::targets::{GREET, MIRRORS};
use super::{TARGET_V4, TARGET_V6, WIFI, World, hear, page, support};
use marline_lab::scenario::Side;
use std::process::Child;

/// A device of the local network, in a namespace of its own behind the machine.
struct Device {
    process: Child,
}

impl Device {
    fn behind(world: &World) -> Device {
        let process = world.spawn("exec unshare --net sleep 300");
        let pid = process.id();
        world.run(&format!(
            "own=$(readlink /proc/self/ns/net)
             until [ \"$(readlink /proc/{pid}/ns/net)\" != $own ]; do sleep 0.02; done
             ip link add lan0 type veth peer name eth0 netns {pid}
             ip addr add 192.168.7.1/24 dev lan0; ip -6 addr add fd00:7::1/64 dev lan0 nodad; ip link set lan0 up
             on() {{ nsenter --target {pid} --net \"$@\"; }}
             on ip link set lo up; on ip link set eth0 up
             on ip addr add 192.168.7.2/24 dev eth0; on ip -6 addr add fd00:7::2/64 dev eth0 nodad
             on ip route add default via 192.168.7.1; on ip -6 route add default via fd00:7::1
             echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
        ));
        Device { process }
    }

    fn run(&self, world: &World, text: &str) -> String {
        world.run(&format!("exec nsenter --target {} --net bash -euc '{text}'", self.process.id()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn client(world: &mut World) {
    let text = "./on machine.conf marline client --invite-file invite --path wifi --path lte --transparent 9999";
    let lines = world.hosts.program(Side::Client, text);
    hear(&lines, "transparent listening on 0.0.0.0:9999");
    std::thread::spawn(move || lines.iter().for_each(|line| eprintln!("client: {line}")));
}

#[test]
fn redirected_connections_go_through_the_client() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-redirect", &["nft"]) else { return };
    client(&mut world);
    world.run(
        "nft -f - <<'RULES'
table inet marline {
    chain output {
        type nat hook output priority -100
        ip daddr 203.0.113.0/24 meta l4proto tcp redirect to :9999
        ip6 daddr 2001:db8:7::/64 meta l4proto tcp redirect to :9999
    }
}
RULES",
    );
    world.run("ip -6 route add 2001:db8:7::/64 dev lo");
    for host in [TARGET_V4, &format!("[{TARGET_V6}]")] {
        assert_eq!(world.run(&format!("curl -sf -m 20 {} | wc -c", page(host, 3_000))), "3000");
    }
    // Many concurrently, like a browser.
    let many = format!(
        "seq 100 | xargs -P 100 -I% curl -sf -m 30 -o /dev/null {}",
        page(TARGET_V4, 2_000)
    );
    world.run(&many);
    // A connection to the port itself is not relayed back to it.
    let itself = world.output("curl -s -m 10 http://127.0.0.1:9999/");
    assert!(!itself.status.success());
    // A closed port: established, and then reset.
    let refused = world.output(&format!("curl -s -m 10 http://{TARGET_V4}:9/"));
    assert!(matches!(refused.status.code(), Some(52 | 56)), "{refused:?}");
}

#[test]
fn tproxy_connections_go_through_the_client() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-tproxy", &["nft"]) else { return };
    client(&mut world);
    let device = Device::behind(&world);
    // The rules in docs/operate/router.md.
    world.run(
        "nft -f - <<'RULES'
table inet marline {
    chain prerouting {
        type filter hook prerouting priority mangle
        iifname lan0 fib daddr type != local meta l4proto tcp tproxy to :9999 meta mark set 0x6d61 accept
    }
}
RULES
ip rule add fwmark 0x6d61 lookup 28002; ip route add local default dev lo table 28002
ip -6 rule add fwmark 0x6d61 lookup 28002; ip -6 route add local default dev lo table 28002",
    );
    for host in [TARGET_V4, &format!("[{TARGET_V6}]")] {
        let text = format!("curl -sf -m 20 {} | wc -c", page(host, 3_000));
        assert_eq!(device.run(&world, &text), "3000");
    }
    // A target that sends first, and the port that the client itself uses.
    let text = format!("exec 3<> /dev/tcp/{TARGET_V4}/{GREET}; head -n 1 <&3");
    assert_eq!(device.run(&world, &text), "hello");
}

#[test]
fn forwarded_traffic_goes_through_the_tunnel_of_a_router() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-router", &[]) else { return };
    let device = Device::behind(&world);
    world.up("--path wifi --path lte");
    for host in [TARGET_V4, &format!("[{TARGET_V6}]")] {
        let text = format!("curl -sf -m 20 {} | wc -c", page(host, 3_000));
        assert_eq!(device.run(&world, &text), "3000");
    }
    let seen = device.run(&world, &format!("./seen-from {TARGET_V4} {}", MIRRORS[0]));
    assert!(seen != WIFI && !seen.starts_with("192.168."), "{seen}");
    assert_eq!(device.run(&world, "dig +short +time=5 @192.168.9.9 v4.example.test A"), TARGET_V4);
    let local = device.run(&world, "ping -c 1 -W 2 192.168.7.1 | grep -c ttl");
    assert_eq!(local, "1");
}
