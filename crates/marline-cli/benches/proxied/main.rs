//! Benchmark of the proxy under load, compared with proxies without Multipath TCP, alternating in one run: `cargo
//! bench -p marline-cli --bench proxied [-- PART ...]`.
//!
//! `relay`: a bulk transfer in each direction through client and server, compared with TCP - QUIC (quinn, TLS) -
//! TCP.
//!
//! `requests`: redis, WebSocket messages, HTTP with and without keep-alive (wrk), compared with two chained stream
//! proxies of nginx (Debian: libnginx-mod-stream), and directly.
//!
//! `churn`: a connection for each request through `marline serve`, from the kernel's Multipath TCP, compared with a
//! stream proxy of nginx, and one with Multipath TCP.
//!
//! `served`: a bulk transfer in each direction between the kernel's Multipath TCP and a target of `marline serve`,
//! compared with the kernel at both ends, over a wire between two network namespaces and over loopback.
//! `served=--no-offload` adds further flags of `serve`.
//!
//! `crowd`: echoes on 1,000 streams of one client, alone and with a concurrent bulk transfer of another.
//!
//! `silent`: memory of 10,000 idle streams at each end. `silent=100000` uses that many, through four clients, or
//! through as many servers as the limit on descriptors requires. They are opened, echo a message each and are
//! closed, three times. `silent=N,ROUNDS` sets the number of rounds.
//!
//! `closing`: 12,000 streams whose applications all close at the same moment, with four busy threads: datagrams per
//! stream, the time until all are gone, and the effect on new streams. `closing=N` uses that many, `closing=N,0`
//! without busy threads.
//!
//! A part whose programs are missing is skipped with a message.

mod beside;
mod closing;
mod crowd;
#[path = "../../../marline/examples/quic/mod.rs"]
mod quic;
mod relay;
mod requests;
mod served;
mod silent;
#[path = "../connections/spread.rs"]
mod spread;
#[path = "../../tests/it/support/mod.rs"]
mod support;

fn main() {
    if let Ok(role) = std::env::var(beside::ROLE) {
        return beside::play(&role);
    }
    // `cargo bench` adds a flag.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    if wanted("relay") {
        relay::measure();
    }
    if wanted("requests") {
        requests::measure();
    }
    if wanted("churn") {
        requests::measure_churn();
    }
    let flags = words.iter().find_map(|word| word.strip_prefix("served="));
    if wanted("served") || flags.is_some() {
        served::measure(flags.unwrap_or_default());
    }
    if wanted("crowd") {
        crowd::measure();
    }
    let count = words.iter().find_map(|word| word.strip_prefix("silent="));
    if wanted("silent") || count.is_some() {
        silent::measure(count.unwrap_or("10000"));
    }
    let what = words.iter().find_map(|word| word.strip_prefix("closing="));
    if wanted("closing") || what.is_some() {
        closing::measure(what.unwrap_or("12000,4"));
    }
}

/// Number of rounds per case.
const ROUNDS: usize = 5;

/// Returns the value below which this percentage of the values lies.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}
