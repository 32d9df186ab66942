//! toxiproxy damages the connections of the TCP carrier in turn: downloads through it stay complete.

use std::time::{Duration, Instant};

use marline_testkit::need;

use super::super::support::two_uplinks::{self, TwoUplinks, hear, wifi_and_lte};
use super::super::{SOCKS, Side, TARGET_V4, support};
use super::spawn;

/// Size of a download.
const BYTES: usize = 8_000_000;
/// Port of toxiproxy, in front of the server's.
const PORT: u16 = 7_778;
/// A fault: name, toxiproxy's type and attributes, and seconds until it is removed.
const FAULTS: [(&str, &str, &str, u64); 5] = [
    ("slices of 97 bytes", "slicer", r#""average_size": 97, "size_variation": 90, "delay": 10"#, 8),
    ("delays of 10 to 70 ms", "latency", r#""latency": 40, "jitter": 30"#, 8),
    ("resets", "reset_peer", r#""timeout": 500"#, 2),
    ("silence", "timeout", r#""timeout": 0"#, 5),
    ("ends after 3 MB", "limit_data", r#""bytes": 3000000"#, 5),
];

#[test]
#[ignore = "nightly: needs toxiproxy-server"]
fn downloads_over_tcp_stay_complete_through_a_faulty_proxy() {
    let _others = support::among_others();
    if !two_uplinks::possible(&["curl", "python3"]) || need::program("toxiproxy-server").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let links = wifi_and_lte("rate=20M,delay=10ms,queue=100ms", "rate=20M,delay=30ms,queue=200ms");
    let mut hosts = TwoUplinks::set(&links, "toxiproxy", dir.path());
    hosts.shell(Side::Client, "ip link set lo up; ip route add default via 10.0.2.1 dev lte");
    hosts.shell(
        Side::Server,
        &format!(
            "ip link set lo up; ip addr add {TARGET_V4}/32 dev lo
             mkdir web; head -c {BYTES} /dev/urandom > web/file"
        ),
    );
    let web = format!("python3 -u -m http.server --bind {TARGET_V4} --directory web 8080");
    hear(&hosts.program(Side::Server, &web), "Serving HTTP");
    hosts.marline_server("tcp --allow 203.0.113.0/24");
    let server = hosts.program(Side::Server, "toxiproxy-server -host 127.0.0.1 -port 8474");
    hear(&server, "HTTP server on endpoint");
    let proxy = format!(
        r#"{{"name": "proxy", "listen": "10.0.1.1:{PORT}", "upstream": "10.0.1.1:7777", "enabled": true}}"#
    );
    control(&hosts, "POST proxies", &proxy);
    let client = format!(
        "marline client --invite-file invite --carrier tcp --path wifi=10.0.1.1:{PORT} \
         --path lte=10.0.1.1:{PORT} --socks5 {SOCKS}"
    );
    hear(&hosts.program(Side::Client, &client), "socks5 listening on");
    for (name, kind, attributes, seconds) in FAULTS {
        let begun = Instant::now();
        let url = format!("http://{TARGET_V4}:8080/file");
        let fetch = spawn(
            &hosts,
            &format!("curl -sSf -m 90 --socks5-hostname {SOCKS} {url} -o got; cmp got web/file"),
        );
        std::thread::sleep(Duration::from_secs(1));
        let toxic =
            format!(r#"{{"name": "toxic", "type": "{kind}", "attributes": {{{attributes}}}}}"#);
        control(&hosts, "POST proxies/proxy/toxics", &toxic);
        std::thread::sleep(Duration::from_secs(seconds));
        control(&hosts, "DELETE proxies/proxy/toxics/toxic", "");
        let output = fetch.wait_with_output().expect("output");
        let (out, err) = support::texts(&output);
        assert!(output.status.success(), "{name}: {out}{err}");
        println!("{name} for {seconds} s: equal after {} ms", begun.elapsed().as_millis());
    }
}

/// Calls toxiproxy's interface.
fn control(hosts: &TwoUplinks, call: &str, body: &str) {
    let (method, path) = call.split_once(' ').expect("a method and a path");
    hosts.shell(
        Side::Server,
        &format!("curl -sf -m 20 -X {method} http://127.0.0.1:8474/{path} -d '{body}'"),
    );
}
