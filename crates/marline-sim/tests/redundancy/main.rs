//! Redundant schedulers, segment by segment: what is sent on which path at which time, and that none
//! of the faults is here that users report of other implementations: half the goodput on a single
//! path (multipath-tcp/mptcp issues 435 and 467), 1 of 90 Mbit/s and a hundred times the bytes on two
//! (474), copies only in the beginning (476), the last segment not copied (246).

mod faults;
mod hedging;
mod log;

use std::sync::{Arc, Mutex};

use marline_algos::Registry;
use marline_core::ConnectionConfig;
use marline_link::DuplexSpec;
use marline_sim::{Pace, Paths, PathsConfig, Units};
use marline_time::{Duration, Instant, SeedTree};

use log::{Log, Sent};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// When the workload starts: by then both paths are joined.
const START: Instant = Instant::from_secs(1);

/// Two hosts with these links between them; both sides run this scheduler.
fn scene(links: &[&str], scheduler: &str, seed: u64) -> Paths {
    let set = Registry::default().policy_set(scheduler, "full-mesh", "cubic", "rack-tlp");
    let connection = ConnectionConfig::new(set.expect("built-in names"));
    let resolve = |text: &&str| {
        let spec: DuplexSpec = text.parse().expect("a link");
        spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no traces")
    };
    let config = PathsConfig::new(links.iter().map(resolve).collect(), connection);
    Paths::new(&config, SeedTree::new(seed))
}

/// What came of bursts from the server.
struct Bursts {
    /// From each burst's writing to its being read.
    latencies: Vec<Duration>,
    /// Data the server sent.
    sent: Vec<Sent>,
}

/// The server writes bursts of `bytes` at these times after the start; all come within a minute.
fn bursts(paths: &mut Paths, bytes: u64, at_ms: &[u64]) -> Bursts {
    let times: Vec<Instant> = at_ms.iter().map(|at| START + ms(*at)).collect();
    let count = times.len();
    let mut pace = Some(Pace::At { bytes, times });
    paths.listen(Box::new(move |_| {
        Box::new(Units::new(pace.take().unwrap_or(Pace::Never), 1, (7, 8)))
    }));
    paths.connect(0, Box::new(Units::new(Pace::Never, bytes, (8, 7)))).expect("a connection");
    let log = Log::of(paths.server, &paths.down);
    paths.world.observe(Box::new(log));
    paths.world.run_until(START + ms(at_ms[count - 1]) + Duration::from_secs(60));
    let client = paths.client_report(0).expect("connected");
    let server = paths.server_report(0).expect("accepted");
    assert_eq!((client.received.len(), client.wrong_at), (count, None));
    let pairs = server.sent.iter().zip(&client.received);
    let latencies = pairs.map(|(sent, received)| received.since(*sent)).collect();
    let log = paths.world.observer::<Log>().expect("ours");
    Bursts { latencies, sent: log.sent() }
}

/// How many packets the first path from the server had been offered a time after the start, in a
/// run of these bursts.
fn offered_by(paths: &mut Paths, bytes: u64, at_ms: &[u64], when_ms: &[u64]) -> Vec<u64> {
    let (down, counts) = (paths.down[0], Arc::new(Mutex::new(Vec::new())));
    for when in when_ms {
        let counts = Arc::clone(&counts);
        paths.world.at(START + ms(*when), move |world| {
            counts.lock().expect("one thread").push(world.link(down).stats().offered_packets);
        });
    }
    bursts(paths, bytes, at_ms);
    let counts = counts.lock().expect("one thread");
    counts.clone()
}
