//! Many connections at once of one client and one server, over the same links: bottlenecks that all of them share.

use marline_sim::{Amount, Bulk};
use marline_time::{Duration, Instant};

use super::{connection, scene};

/// What a crowd reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Connections whose bytes all came, as they were written.
    pub whole: usize,
    /// When the last of them had come.
    pub done: Instant,
    /// Packets that were delivered.
    pub packets: u64,
    /// Packets that the links dropped.
    pub dropped: u64,
    /// Of all that happened.
    pub digest: u64,
}

/// Each of so many connections brings so many bytes to the client, over these links; they begin within a second.
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
