//! WireGuard through a forwarded UDP port (`-U`): a ping and a TCP transfer inside its tunnel continue when WiFi
//! fails. Both ends use its user-space program, because the machine's kernel may have no module.

use std::time::Duration;

use ring::digest::{SHA256, digest};

use super::super::end_to_end::{hex, pattern};
use super::run::World;
use super::run::targets::HTTP;
use super::{Side, TARGET_V4, TwoUplinks, client, hear, lost_to_outages, support};

/// Size of the transfer in bytes.
const LARGE: usize = 8 << 20;
/// Addresses inside the tunnel.
pub(super) const FAR: &str = "10.9.0.1";
pub(super) const NEAR: &str = "10.9.0.2";
/// Port of WireGuard.
pub(super) const PORT: u16 = 51_820;

/// Brings up `wg0` of NAME with an ADDRESS and a peer, with a key and a socket of its own.
const WIREGUARD: &str = r#"#!/bin/bash
set -eu
name=$1 address=$2; shift 2
mount -t tmpfs none /run
mkdir /run/wireguard
{
    for _ in {1..200}; do [ -S /run/wireguard/wg0.sock ] && break; sleep 0.05; done
    wg set wg0 private-key "$name.key" "$@"
    ip addr add "$address/24" dev wg0
    # Maximum datagram of Marline minus WireGuard's headers.
    ip link set wg0 mtu 1280 up
    echo "wireguard is up"
} &
exec wireguard-go --foreground wg0 > "$name.log" 2>&1
"#;

/// Starts WireGuard at both ends. The near end sends to a port of its own machine, routes these networks to the far
/// end, and has completed the handshake.
pub(super) fn tunnel(hosts: &mut TwoUplinks, networks: &str) {
    super::run::write_script(&hosts.dir.join("wireguard"), WIREGUARD);
    let keys =
        "umask 077; for n in near far; do wg genkey > $n.key; wg pubkey < $n.key > $n.pub; done";
    hosts.shell(Side::Client, keys);
    let key = |name: &str| std::fs::read_to_string(hosts.dir.join(name)).expect("a key");
    let (near, far) = (key("near.pub"), key("far.pub"));
    let far_end = format!(
        "unshare --mount ./wireguard far {FAR} listen-port {PORT} peer {} allowed-ips {NEAR}/32",
        near.trim()
    );
    hear(&hosts.program(Side::Server, &far_end), "wireguard is up");
    let near_end = format!(
        "unshare --mount ./wireguard near {NEAR} peer {} endpoint 127.0.0.1:{PORT} \
         allowed-ips {networks} persistent-keepalive 25",
        far.trim()
    );
    hear(&hosts.program(Side::Client, &near_end), "wireguard is up");
    hosts.shell(Side::Client, &format!("ping -q -c 1 -w 20 {FAR}"));
}

#[test]
fn a_wireguard_tunnel_over_a_forwarded_port_survives_wifi() {
    let _others = support::among_others();
    let programs = ["wireguard-go", "wg", "ping", "curl", "sha256sum", "unshare"];
    let Some(mut world) = World::set("app-wg", &programs) else { return };
    let hosts = &mut world.hosts;
    client(hosts, &format!("-U 127.0.0.1:{PORT}:{TARGET_V4}:{PORT}"), "udp forward listening on");
    // The target's own address is routed into the tunnel, like a home network.
    tunnel(hosts, &format!("{FAR}/32,{TARGET_V4}/32"));
    hosts.shell(Side::Client, &format!("ip route add {TARGET_V4}/32 dev wg0"));

    let mut content = vec![0; LARGE];
    pattern(0, &mut content);
    let expected = hex(digest(&SHA256, &content).as_ref());
    let mut fetch = hosts.command(&format!(
        "curl -sS -m 40 --noproxy '' --limit-rate 2M http://{TARGET_V4}:{HTTP}/{LARGE} \
         | (head -c 1000000; touch begun; cat) | sha256sum"
    ));
    let fetch = hosts.net.spawn(Side::Client, fetch.stdout(std::process::Stdio::piped()));
    let fetch = fetch.expect("curl");
    let pings = hosts.program(Side::Client, &format!("ping -D -n -i 0.05 -w 8 {FAR}"));
    super::wait_for_file(&hosts.dir.join("begun"));
    hosts.net.command("wifi", "down").expect("WiFi dies");
    let output = fetch.wait_with_output().expect("output");
    assert_eq!(support::texts(&output).0.split(' ').next(), Some(expected.as_str()));
    assert!(lost_to_outages(hosts) > 0, "it was over before WiFi died");
    let gap = longest_gap(pings.iter());
    println!("gap: {} ms between answers to ping inside WireGuard over -U", gap.as_millis());
}

/// Returns the longest time between two answers in the output of `ping -D`.
fn longest_gap(lines: impl Iterator<Item = String>) -> Duration {
    let at = |line: String| {
        let time = line.strip_prefix('[')?.split(']').next()?.parse::<f64>().ok()?;
        line.contains("bytes from").then_some(time)
    };
    let times: Vec<f64> = lines.filter_map(at).collect();
    assert!(times.len() > 20, "{} answers", times.len());
    let gaps = times.windows(2).map(|pair| Duration::from_secs_f64(pair[1] - pair[0]));
    gaps.max().expect("two answers")
}
