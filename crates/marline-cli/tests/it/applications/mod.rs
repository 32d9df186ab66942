//! Tests of common programs through every kind of port: STUN through SOCKS5's UDP ASSOCIATE, DNS and WireGuard through
//! `-U`, mosh and browsers inside `marline run`, browsers and WebRTC on a machine with `marline up`. WiFi fails during
//! each.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it applications:: -- --nocapture
//! ```
//! The tests print the longest time without an answer (`gap:`), for docs/operate/applications.md.

mod browser;
mod calls;
mod crowd;
mod dns;
mod http3;
mod mosh;
mod stun;
mod tools;
mod webrtc;
mod wireguard;

use std::path::Path;
use std::time::{Duration, Instant};

use super::run::{self, OTHER_V4, TARGET_V4};
use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};
use super::up;
use marline_lab::scenario::Side;

/// The server's own address, which is the source of its clients' datagrams.
const SERVER: &str = "10.0.1.1";
/// SOCKS5 address of a client.
const SOCKS: &str = "127.0.0.1:1080";

/// Starts `marline client` on the user's machine, and waits until it has printed `ready`.
fn client(hosts: &mut TwoUplinks, flags: &str, ready: &str) {
    hosts.shell(Side::Client, "ip link set lo up");
    let text = format!("marline client --invite-file invite --path wifi --path lte {flags}");
    let lines = hosts.program(Side::Client, &text);
    hear(&lines, ready);
}

/// Makes the server's datagrams to its targets come from its own address. The targets are on the same machine,
/// where the system would otherwise use the target's address for both ends.
fn seen_from_outside(hosts: &TwoUplinks) {
    let route = |ip| format!("ip route replace local {ip} dev lo table local src {SERVER}\n");
    hosts.shell(Side::Server, &[TARGET_V4, OTHER_V4].map(route).concat());
}

/// Returns the number of packets that were on a link, or were sent to it, while it was down.
fn lost_to_outages(hosts: &TwoUplinks) -> u64 {
    let links = hosts.net.report().expect("report");
    links.iter().map(|link| link.up.stats.dropped_outage + link.down.stats.dropped_outage).sum()
}

/// Waits until the file exists.
fn wait_for_file(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < PATIENCE, "there is no {}", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}
