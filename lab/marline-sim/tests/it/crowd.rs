//! A thousand connections in one world.

use marline_time::{Duration, Instant};

use crate::cases::crowd;

/// 20 MB in total over two bottlenecks with 120 Mbit/s together take at least 1.4 s, and losses delay no connection
/// much longer.
#[test]
fn a_thousand_connections_share_two_bottlenecks() {
    let links = ["rate=80M,delay=10ms,queue=50ms", "rate=40M,delay=30ms,queue=50ms"];
    let outcome = crowd::run(1_000, 20_000, &links, 1);
    assert_eq!(outcome.whole, 1_000, "{outcome:?}");
    assert!(outcome.dropped > 0, "the bottlenecks were full: {outcome:?}");
    let least = Instant::ZERO + Duration::from_millis(1_400);
    assert!(least < outcome.done && outcome.done < Instant::from_secs(20), "{outcome:?}");
    assert_eq!(crowd::run(1_000, 20_000, &links, 1), outcome);
}
