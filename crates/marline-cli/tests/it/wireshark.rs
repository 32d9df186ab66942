//! Test of the dissector for Wireshark: tshark finds frames, and Multipath TCP in them, in the packets of a client
//! and a server over UDP and TCP. Needs root, tcpdump and tshark.

use super::support::{self, SERVICES};
use std::collections::BTreeMap;
use std::path::Path;

use super::support::two_uplinks::{self, TwoUplinks, hear};
use marline_lab::scenario::Side;

const DISSECTOR: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/wireshark/marline.lua");
const SCENARIO: &str = include_str!("support/phone.toml");

/// Captures the packets of a client with this carrier on WiFi while a page is fetched and datagrams are echoed.
fn capture(carrier: &str, dir: &Path) -> TwoUplinks {
    let mut hosts = TwoUplinks::set(SCENARIO, "shark", dir);
    std::fs::write(dir.join("page"), vec![7; 200_000]).expect("write");
    hear(&hosts.program(Side::Server, SERVICES), "ready");
    hosts.marline_server("auto");
    let watch = "tcpdump -i wifi -U -w wifi.pcap port 7777";
    let watching = hosts.program(Side::Client, watch);
    hear(&watching, "listening on");
    let client = format!(
        "marline client --invite-file invite --carrier {carrier} --path wifi --path lte --warm 0 \
         --socks5 127.0.0.1:1080 -U 5353:127.0.0.1:8053"
    );
    hear(&hosts.program(Side::Client, &client), "socks5 listening on");
    hosts.shell(
        Side::Client,
        "curl -sS --fail --max-time 30 --socks5-hostname 127.0.0.1:1080 -o got http://127.0.0.1:8080/page
         cmp got page
         for n in $(seq 20); do echo over there > /dev/udp/127.0.0.1/5353; sleep 0.05; done
         sleep 1.5",
    );
    hosts
}

/// Returns the fields of the captured packets that match a filter, one row per packet, from tshark.
fn fields(hosts: &TwoUplinks, filter: &str, names: &[&str]) -> Vec<Vec<String>> {
    let wanted: Vec<String> = names.iter().map(|name| format!("-e {name}")).collect();
    let command = format!(
        "tshark -X lua_script:{DISSECTOR} -r wifi.pcap -Y '{filter}' -T fields -E separator=/t {} 2> said \
         || (cat said; false); ! grep -i lua said | grep -vi 'running as user' >&2",
        wanted.join(" ")
    );
    let said = hosts.shell(Side::Client, &command);
    said.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Returns the number of frames of each type. A packet may contain several.
fn types(hosts: &TwoUplinks) -> BTreeMap<u8, usize> {
    let mut counts = BTreeMap::new();
    for row in fields(hosts, "marline", &["marline.type"]) {
        for word in row[0].split(',') {
            *counts.entry(word.parse().expect("a type")).or_default() += 1;
        }
    }
    counts
}

fn check(carrier: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let hosts = capture(carrier, dir.path());
    let types = types(&hosts);
    println!("{carrier}: frames by type {types:?}");
    let of = |kind: u8| types.get(&kind).copied().unwrap_or_default();
    assert!(of(0) > 100 && of(1) >= 2 && of(8) > 10, "{types:?}");
    assert!(types.keys().all(|kind| *kind <= 8), "{types:?}");
    // Handshake, join and mappings of Multipath TCP, as decoded by Wireshark itself.
    for subtype in [0, 2] {
        let filter = format!("marline and tcp.options.mptcp.subtype == {subtype}");
        assert!(!fields(&hosts, &filter, &["frame.number"]).is_empty(), "subtype {subtype}");
    }
    let broken = fields(&hosts, "_ws.malformed or marline.short", &["frame.number"]);
    assert_eq!(broken, Vec::<Vec<String>>::new(), "malformed");
    // No packet of the carrier is left over. Datagrams of UDP probes are frames, too.
    let other = match carrier {
        "tcp" => {
            "tcp.len > 0 and tcp.port == 7777 and not marline and not marline_tcp \
                  and not tcp.segment_data and not tcp.reassembled_in"
        }
        _ => "udp and not marline and not icmp",
    };
    let left = fields(&hosts, other, &["frame.number", "frame.len"]);
    assert_eq!(left, Vec::<Vec<String>>::new(), "not recognized");
}

#[test]
fn tshark_reads_the_frames_of_both_carriers() {
    let _others = support::among_others();
    if !two_uplinks::possible(&["tshark", "tcpdump", "curl", "python3"]) {
        return;
    }
    check("udp");
    check("tcp");
}
