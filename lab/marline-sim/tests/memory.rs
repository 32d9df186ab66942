//! Memory of a world: the peak for two hosts and a bulk transfer over 50 Mbit/s.
//!
//! Environments for learning are such worlds, with many on a thread that run in turns, so their total memory should
//! fit into the processor's caches. This is a separate program, because it counts all allocations of its process.

#[path = "../../../crates/marline-core/benches/counting.rs"]
mod counting;

use std::sync::atomic::Ordering::Relaxed;

use counting::LIVE_BYTES;
use marline_core::ConnectionConfig;
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

/// Limit for a world. Most of it is data that waits for its position in the stream or on a subflow, and unused memory
/// of that kind. With copies of unacknowledged payloads and payloads in flight, it was 5.1 MB.
const MOST: u64 = 2_200_000;
const STEP: Duration = Duration::from_millis(10);
const END: Instant = Instant::from_secs(5);

fn link(text: &str) -> DuplexConfig {
    let spec: DuplexSpec = text.parse().expect("a link");
    spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no trace is needed")
}

/// Builds a world and runs it. Returns the peak of additionally allocated memory after a step, and the received bytes.
fn most_of_a_world() -> (u64, u64) {
    let before = LIVE_BYTES.load(Relaxed);
    let links = ["rate=30M,delay=10ms,queue=50ms", "rate=20M,delay=30ms,queue=50ms"].map(link);
    let connection = ConnectionConfig::new(marline_algos::reference_policies());
    let mut paths = Paths::new(&PathsConfig::new(links.to_vec(), connection), SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Endless, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    let mut most = 0;
    while paths.world.now() < END {
        paths.world.run_until(paths.world.now() + STEP);
        most = most.max(LIVE_BYTES.load(Relaxed) - before);
    }
    let report = paths.client_report(0).expect("an application");
    assert_eq!(report.wrong_at, None);
    (most, report.read)
}

#[test]
fn a_world_holds_no_copies_of_payloads() {
    // The first world creates the shared data: the table of content, and its index.
    most_of_a_world();
    let (most, received) = most_of_a_world();
    println!("{most} bytes at most, for {received} bytes received");
    assert!(received > 25_000_000, "{received} bytes in {END:?}: both links were not busy");
    assert!(most <= MOST, "{most} bytes");
}
