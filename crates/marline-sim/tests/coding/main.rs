//! Repair by coding, segment by segment and end to end: what is lost on one path is computed from the
//! rest of its burst and a sum that came by the other.

mod bursts;
mod faults;

use std::sync::{Arc, Mutex};

use marline_algos::Registry;
use marline_core::{ConnectionConfig, Counters, Extensions};
use marline_link::DuplexSpec;
use marline_sim::{Pace, Paths, PathsConfig, Units};
use marline_time::{Duration, Instant, SeedTree};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// When the workload starts: by then both paths are joined.
const START: Instant = Instant::from_secs(1);

/// Both sides with this scheduler.
fn config(scheduler: &str) -> ConnectionConfig {
    let set = Registry::default().policy_set(scheduler, "full-mesh", "cubic", "rack-tlp");
    let mut connection = ConnectionConfig::new(set.expect("built-in names"));
    connection.extensions = Extensions::REPAIR;
    // A burst leaves at once: then times say what happened.
    connection.pacing = false;
    connection
}

/// Two hosts with these links between them.
fn scene(links: &[&str], connection: ConnectionConfig, seed: u64) -> Paths {
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
    server: Counters,
    client: Counters,
}

/// The server writes bursts of `bytes` at these times after the start; all come, and unharmed, within two
/// minutes.
fn bursts(paths: &mut Paths, bytes: u64, at_ms: &[u64]) -> Bursts {
    let times: Vec<Instant> = at_ms.iter().map(|at| START + ms(*at)).collect();
    let count = times.len();
    let mut pace = Some(Pace::At { bytes, times });
    paths.listen(Box::new(move |_| {
        Box::new(Units::new(pace.take().unwrap_or(Pace::Never), 1, (7, 8)))
    }));
    paths.connect(0, Box::new(Units::new(Pace::Never, bytes, (8, 7)))).expect("a connection");
    paths.world.run_until(START + ms(at_ms[count - 1]) + Duration::from_secs(120));
    let client = paths.client_report(0).expect("connected");
    let server = paths.server_report(0).expect("accepted");
    assert_eq!((client.received.len(), client.wrong_at), (count, None));
    let pairs = server.sent.iter().zip(&client.received);
    let latencies = pairs.map(|(sent, received)| received.since(*sent)).collect();
    let counters = |node| paths.world.node(node).endpoint().counters();
    Bursts { latencies, server: counters(paths.server), client: counters(paths.client) }
}

/// How many packets the first path from the server was offered by a time after the start.
fn offered_by(paths: &mut Paths, bytes: u64, at_ms: &[u64], when_ms: u64) -> u64 {
    let (down, count) = (paths.down[0], Arc::new(Mutex::new(0)));
    let seen = Arc::clone(&count);
    paths.world.at(START + ms(when_ms), move |world| {
        *seen.lock().expect("one thread") = world.link(down).stats().offered_packets;
    });
    bursts(paths, bytes, at_ms);
    let count = count.lock().expect("one thread");
    *count
}
