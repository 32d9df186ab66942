//! Benchmark of the proxy at work, beside what carries the same without Multipath TCP, by turns in one run: `cargo
//! bench -p marline-cli --bench proxied [-- PART ...]`.
//!
//! `relay`: a bulk transfer each way through client and server, beside TCP - QUIC (quinn, TLS) - TCP.
//!
//! `requests`: redis, WebSocket messages, HTTP with and without keep-alive (wrk), beside two chained stream proxies of
//! nginx (Debian: libnginx-mod-stream), and directly.
//!
//! `churn`: a connection for each request through `marline serve`, from the kernel's Multipath TCP, beside a stream
//! proxy of nginx, and one that speaks Multipath TCP itself.
//!
//! `served`: a bulk transfer each way between the kernel's Multipath TCP and a target of `marline serve`, beside the
//! kernel's at both ends, over a wire between two network namespaces and over loopback; `served=--no-offload` with
//! further flags of `serve`.
//!
//! `crowd`: echoes on 1,000 streams of one client, alone and beside a bulk transfer of another.
//!
//! `silent`: what 10,000 silent streams take at each end; `silent=100000` as many, through four clients, or through
//! as many servers as the descriptors of a process demand. They are opened, echo a message each and are closed, three
//! times; `silent=N,ROUNDS` so often.
//!
//! `closing`: 12,000 streams whose applications all close in the same moment, beside four threads that compute:
//! datagrams for each stream, until when all are gone, and what new streams see meanwhile; `closing=N` as many,
//! `closing=N,0` with nothing beside.
//!
//! Where a program that a part needs is missing, the part says so and is left out.

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
    // `cargo bench` adds one.
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

/// Turns that each case has.
const ROUNDS: usize = 5;

/// The value below which so many of a hundred lie.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}
