//! Test of a 20 MB download through `marline client` and `marline server`, over WiFi and a sleeping LTE radio. WiFi
//! loses everything after 1.5 s. The client, which only receives, opens LTE because it receives nothing. Prints the
//! length of the stall and its parts. Needs root.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it dead_download -- --nocapture
//! ```

use super::support;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};
use marline_lab::scenario::Side;

const WIFI: &str = "rate=20M,delay=10ms,queue=50ms";
const LTE: &str = "rate=20M,delay=30ms,queue=100ms,radio=lte";

const BYTES: usize = 20_000_000;
const DIES_AFTER: Duration = Duration::from_millis(1_500);
/// Promotion time of the LTE radio, and its round-trip time, both in milliseconds. A Fast JOIN takes two round
/// trips until the missing data has arrived.
const PROMOTION_MS: f64 = 260.1;
const LTE_RTT_MS: f64 = 60.0;
/// Allowance for a busy machine.
const SLACK_MS: f64 = 500.0;

/// Sends the bytes to any client that connects.
#[test]
fn source() {
    if two_uplinks::plays(source) {
        two_uplinks::pour(BYTES);
    }
}

/// Receives the bytes: reports the first arrival and, at the end, the position of the longest pause.
#[test]
fn sink() {
    if !two_uplinks::plays(sink) {
        return;
    }
    let mut stream = TcpStream::connect("127.0.0.1:9000").expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
    let (mut first, mut last, mut longest) = (None, Instant::now(), Duration::ZERO);
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        let now = Instant::now();
        match first {
            None => {
                first = Some(now);
                println!("first");
            }
            Some(_) => longest = longest.max(now - last),
        }
        last = now;
        count += n;
    }
    let whole = first.map_or(Duration::ZERO, |first| last - first);
    println!("sum {count} {} {}", longest.as_micros(), whole.as_micros());
}

/// Returns the time of an event in a line of `marline monitor --json`.
fn at_us(line: &str) -> f64 {
    let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
    event["at_us"].as_f64().expect("a time")
}

/// Longest pause, and its part from the verdict to the established subflow, in milliseconds.
struct Hole {
    total_ms: f64,
    open_ms: f64,
    reason: String,
}

fn download(dir: &Path, options: &str) -> Hole {
    let mut hosts = TwoUplinks::set(&two_uplinks::wifi_and_lte(WIFI, LTE), "idle", dir);
    hear(&hosts.role(Side::Server, "", source), "ready");
    hosts.marline_server("udp");
    let client = format!(
        "marline client --invite-file invite --path wifi --path lte,backup \
         -L 9000:127.0.0.1:8080 --warm 0 --control client.sock {options}"
    );
    hear(&hosts.program(Side::Client, &client), "listening on");
    let events = hosts.program(Side::Client, "marline monitor --json --control client.sock");
    std::thread::sleep(Duration::from_millis(300));
    let sink = hosts.role(Side::Client, "", sink);
    hear(&sink, "first");
    std::thread::sleep(DIES_AFTER);
    hosts.net.command("wifi", "down").expect("WiFi dies");
    let silent = hear(&events, "SF_SILENT");
    let opened = hear(&events, "SF_ESTABLISHED");
    let sum = hear(&sink, "sum ");
    let figures: Vec<f64> =
        sum.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
    assert_eq!(figures[0] as usize, BYTES, "{sum}");
    let event: serde_json::Value = serde_json::from_str(&silent).expect("JSON");
    let hole = Hole {
        total_ms: figures[1] / 1e3,
        open_ms: (at_us(&opened) - at_us(&silent)) / 1e3,
        reason: event["reason"].as_str().unwrap_or_default().to_owned(),
    };
    println!(
        "{options}: gap {:.0} ms ({}; from the verdict to the subflow {:.0} ms), 20 MB in {:.1} s",
        hole.total_ms,
        hole.reason,
        hole.open_ms,
        figures[2] / 1e6
    );
    hole
}

#[test]
fn a_download_continues_over_lte_although_wifi_dies() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&[]) {
        return;
    }
    for (timer, wait_ms, reason) in
        [("multimob", 500.0, "receive timer"), ("probing", 350.0, "unanswered probes")]
    {
        let dir = tempfile::tempdir().expect("directory");
        let options = format!("--mode interactive --receive-timer {timer}");
        let hole = download(dir.path(), &options);
        assert_eq!(hole.reason, reason);
        let allowed = wait_ms + PROMOTION_MS + 2.0 * LTE_RTT_MS + SLACK_MS;
        assert!(hole.total_ms <= allowed, "{timer}: {} ms, {allowed} allowed", hole.total_ms);
    }
}
