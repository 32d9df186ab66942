//! Tests of repair by coding, segment by segment and end to end: data lost on one path is recovered from the rest of
//! its burst and a repair from the other path.

mod bursts;
mod faults;

use crate::cases::bursts::{START, latencies, ms, offered_by};
use crate::cases::scene;
use marline_algos::Registry;
use marline_core::{ConnectionConfig, Counters, Extensions};
use marline_sim::Paths;
use marline_time::Duration;

/// Both sides with this scheduler.
fn config(scheduler: &str) -> ConnectionConfig {
    let set = Registry::default().policy_set(scheduler, "full-mesh", "cubic", "rack-tlp");
    let mut connection = ConnectionConfig::new(set.expect("built-in names"));
    connection.extensions = Extensions::REPAIR;
    // A burst is sent immediately, so that times are meaningful.
    connection.pacing = false;
    connection
}

/// Results of bursts from the server.
struct Bursts {
    /// Time from writing to reading of each burst.
    latencies: Vec<Duration>,
    server: Counters,
    client: Counters,
}

fn bursts(paths: &mut Paths, bytes: u64, at_ms: &[u64]) -> Bursts {
    let latencies = latencies(paths, bytes, at_ms);
    let counters = |node| paths.world.node(node).endpoint().counters();
    Bursts { latencies, server: counters(paths.server), client: counters(paths.client) }
}
