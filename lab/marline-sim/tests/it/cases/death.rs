//! Death of one of two paths in the middle of a transfer, without notification.

use crate::cases::oracle::stream;
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

use super::{connection, link};

/// Observations of the application.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Longest time without arrivals around and after the death.
    pub hole: Duration,
    /// Allowed gap: SRTT of the dying path + 200 ms + 1 RTT of the other.
    pub allowed: Duration,
    /// Smoothed RTTs (dying, other) just before.
    pub srtt: (Duration, Duration),
    /// When all bytes had arrived.
    pub finished: Instant,
}

/// Direction of the transfer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// To the server.
    Upload,
    /// To the client.
    Download,
}

/// The two links, path 0 first.
pub const LINKS: [&str; 2] = ["rate=20M,delay=10ms,queue=20ms", "rate=20M,delay=30ms,queue=60ms"];

/// Sends 20 MB over both links; path `dying` dies at `at`.
///
/// # Panics
/// If bytes are wrong or do not all arrive within two minutes.
pub fn run(way: Transfer, dying: usize, at: Instant, scheduler: &str, seed: u64) -> Outcome {
    let amounts = match way {
        Transfer::Upload => (Amount::Bytes(20_000_000), Amount::Nothing),
        Transfer::Download => (Amount::Nothing, Amount::Bytes(20_000_000)),
    };
    let links = LINKS.map(link).to_vec();
    let mut paths =
        Paths::new(&PathsConfig::new(links, connection(scheduler)), SeedTree::new(seed));
    paths.listen(Box::new(move |_| Box::new(Bulk::new(amounts.1, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(amounts.0, 2, 1))).expect("a connection");
    paths.world.run_until(at);
    let sender = if way == Transfer::Upload { paths.client } else { paths.server };
    let host = paths.world.node(sender);
    let (id, _) = host.connections().next().expect("one connection");
    let info = host.endpoint().info(id).expect("it is open");
    let srtt = |path: usize| {
        let address = Paths::address(path, 0);
        let on_path = |ip| ip == address;
        let mut subflows = info.subflows.iter();
        let subflow = subflows
            .find(|s| on_path(s.path.local.ip()) || on_path(s.path.remote.ip()))
            .unwrap_or_else(|| panic!("no subflow on path {path}"));
        subflow.srtt.expect("measured")
    };
    let srtt = (srtt(dying), srtt(1 - dying));
    paths.set_path_up(dying, false);
    let limit = at + Duration::from_secs(120);
    let finished = paths.world.run_while(limit, |world| {
        let eof = |node| {
            let report = world.node(node).report(0);
            report.is_some_and(|report: &marline_sim::Report| report.eof_at.is_some())
        };
        !(eof(paths.client) && eof(paths.server))
    });
    let reports = (paths.client_report(0), paths.server_report(0));
    let (client, server) = (reports.0.expect("connected"), reports.1.expect("accepted"));
    let (writer, reader) =
        if way == Transfer::Upload { (client, server) } else { (server, client) };
    let complete = stream::complete(writer, reader);
    assert!(finished && complete.is_ok(), "{way:?}, path {dying}, seed {seed}: {complete:?}");
    let finished = reader.arrived.expect("bytes arrived").1;
    Outcome {
        hole: reader.longest_gap_within(at, finished).length,
        allowed: srtt.0 + Duration::from_millis(200) + srtt.1,
        srtt,
        finished,
    }
}
