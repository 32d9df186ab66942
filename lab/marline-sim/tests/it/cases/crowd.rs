//! Many concurrent connections of one client and one server over the same links, which are shared bottlenecks.

use marline_sim::{Amount, Bulk};
use marline_time::{Duration, Instant};

use super::{connection, scene};

/// Results of the crowd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Connections whose bytes all arrived intact.
    pub whole: usize,
    /// Time at which the last one completed.
    pub done: Instant,
    /// Number of delivered packets.
    pub packets: u64,
    /// Number of packets that the links dropped.
    pub dropped: u64,
    /// Digest of the run.
    pub digest: u64,
}

/// Runs this many connections over these links, each with this many bytes to the client. They start within a second.
pub fn run(connections: u64, bytes: u64, links: &[&str], seed: u64) -> Outcome {
    let mut paths = scene(links, connection("min-rtt"), seed);
    paths.listen(Box::new(move |_| Box::new(Bulk::new(Amount::Bytes(bytes), 1, 2))));
    let between = Duration::from_secs(1) / connections as u32;
    for number in 0..connections {
        paths.world.run_until(Instant::ZERO + between * number as u32);
        let reads = Bulk::new(Amount::Nothing, 2, 1);
        paths.connect(number as usize % links.len(), Box::new(reads)).expect("a connection");
    }
    paths.world.run_to_idle(Instant::from_secs(120));
    let reports = (0..connections as usize).filter_map(|number| paths.client_report(number));
    let whole = reports.filter(|report| report.read == bytes && report.wrong_at.is_none());
    let last = |report: &marline_sim::Report| report.arrived.map(|(_, last)| last);
    let done = whole.clone().filter_map(last).max().unwrap_or(Instant::FAR_FUTURE);
    let dropped = paths.up.iter().chain(&paths.down);
    Outcome {
        whole: whole.count(),
        done,
        packets: paths.world.stats().delivered,
        dropped: dropped.map(|link| paths.world.link(*link).stats().dropped_queue).sum(),
        digest: paths.world.digest(),
    }
}
