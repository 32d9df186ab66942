//! Tests of redundant schedulers, segment by segment: the path and time of each segment, and the absence of faults
//! reported for other implementations: half the goodput on a single path (multipath-tcp/mptcp issues 435 and 467), 1
//! of 90 Mbit/s and a hundred times the bytes on two paths (474), copies only at the start (476), the last segment not
//! copied (246).

mod faults;
mod hedging;
mod log;
mod repairs;

use crate::cases;
use crate::cases::bursts::{START, latencies, ms, offered_by};
use log::{Log, Sent};
use marline_core::ConnectionConfig;
use marline_sim::Paths;
use marline_time::Duration;

/// Two hosts with these links between them; both sides run this scheduler.
fn scene(links: &[&str], scheduler: &str, seed: u64) -> Paths {
    let set = marline_research::registry().policy_set(scheduler, "full-mesh", "cubic", "rack-tlp");
    cases::scene(links, ConnectionConfig::new(set.expect("built-in names")), seed)
}

/// Results of bursts from the server.
struct Bursts {
    /// Time from writing to reading of each burst.
    latencies: Vec<Duration>,
    /// Data sent by the server.
    sent: Vec<Sent>,
}

fn bursts(paths: &mut Paths, bytes: u64, at_ms: &[u64]) -> Bursts {
    let log = Log::of(paths.server, &paths.down);
    paths.world.observe(Box::new(log));
    let latencies = latencies(paths, bytes, at_ms);
    let log = paths.world.observer::<Log>().expect("ours");
    Bursts { latencies, sent: log.sent() }
}
