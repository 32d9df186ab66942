//! Laptop sleep: all paths are gone for a while and both addresses have changed when it wakes.

use crate::cases::oracle::stream;
use marline_core::Linger;
use marline_sim::{Echo, EchoServer, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

use super::{connection, link};

/// Observations of the session.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time from the return of a path to its first byte.
    pub resumed_after: Duration,
    /// Total number of answered messages.
    pub messages: usize,
}

/// An echo session of five messages per second. From 10 s on, all paths are gone for `gone`; then both addresses are
/// new.
///
/// # Panics
/// If the session does not continue, or bytes are wrong.
pub fn run(gone: Duration, scheduler: &str, seed: u64) -> Outcome {
    let links = ["rate=20M,delay=10ms", "rate=10M,delay=30ms"].map(link).to_vec();
    let mut config = connection(scheduler);
    config.linger = Linger::new(Duration::from_secs(3_600));
    let mut paths = Paths::new(&PathsConfig::new(links, config), SeedTree::new(seed));
    let (interval, length) = (Duration::from_millis(200), gone + Duration::from_secs(30));
    let messages = (length.as_millis() / interval.as_millis()) as u64;
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    paths.connect(0, Box::new(Echo::new(64, interval, messages, 7))).expect("a connection");
    let (away, back) = (Instant::from_secs(10), Instant::from_secs(10) + gone);
    for path in 0..2 {
        paths.schedule_path_change(away, path, false);
        paths.schedule_address_change(away, path, false);
        paths.schedule_path_change(back, path, true);
        paths.schedule_renumbering(back, path);
    }
    paths.world.run_until(back);
    let before = paths.client_report(0).expect("connected").read;
    let deadline = back + Duration::from_secs(60);
    let client = paths.client;
    let resumed = paths.world.run_while(deadline, |world| {
        world.node(client).report(0).is_some_and(|report| report.read == before)
    });
    let resumed_at = paths.world.now();
    let status = paths.client_report(0).map(|report| report.closed);
    assert!(resumed, "seed {seed}: no byte within a minute after {back}: {status:?}");
    paths.world.run_until(back + Duration::from_secs(120));
    let (client, server) = (paths.client_report(0), paths.server_report(0));
    let (client, server) = (client.expect("connected"), server.expect("accepted"));
    for (writer, reader) in [(client, server), (server, client)] {
        stream::complete(writer, reader).unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
    Outcome { resumed_after: resumed_at.since(back), messages: client.latencies.len() }
}
