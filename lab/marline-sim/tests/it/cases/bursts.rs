//! Bursts from a server, and the packets offered to each link over time.

use std::sync::{Arc, Mutex};

use marline_sim::{Pace, Paths, Units};
use marline_time::{Duration, Instant};

/// Earliest time of a burst, when all paths are joined.
pub const START: Instant = Instant::from_secs(1);

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The server writes bursts of `bytes` at these times after the start. Checks that all arrive intact within a minute.
/// Returns the time from writing to reading for each burst.
pub fn latencies(paths: &mut Paths, bytes: u64, at_ms: &[u64]) -> Vec<Duration> {
    let times: Vec<Instant> = at_ms.iter().map(|at| START + ms(*at)).collect();
    let count = times.len();
    let mut pace = Some(Pace::At { bytes, times });
    paths.listen(Box::new(move |_| {
        Box::new(Units::new(pace.take().unwrap_or(Pace::Never), 1, 7, 8))
    }));
    paths.connect(0, Box::new(Units::new(Pace::Never, bytes, 8, 7))).expect("a connection");
    paths.world.run_until(START + ms(at_ms[count - 1]) + Duration::from_secs(60));
    let client = paths.client_report(0).expect("connected");
    let server = paths.server_report(0).expect("accepted");
    assert_eq!((client.received.len(), client.wrong_at), (count, None));
    let pairs = server.sent.iter().zip(&client.received);
    pairs.map(|(sent, received)| received.since(*sent)).collect()
}

/// Number of packets offered to the first path from the server by these times after the start, in a run of such
/// bursts.
pub fn offered_by(paths: &mut Paths, bytes: u64, at_ms: &[u64], when_ms: &[u64]) -> Vec<u64> {
    let (down, counts) = (paths.down[0], Arc::new(Mutex::new(Vec::new())));
    for when in when_ms {
        let counts = Arc::clone(&counts);
        paths.world.run_at(START + ms(*when), move |world| {
            counts.lock().expect("one thread").push(world.link(down).stats().offered_packets);
        });
    }
    latencies(paths, bytes, at_ms);
    let counts = counts.lock().expect("one thread");
    counts.clone()
}
