//! Bulk transfer to the client over links that do not change.

use crate::cases::oracle::stream;
use marline_core::ConnectionConfig;
use marline_link::DuplexConfig;
use marline_sim::{Amount, Bulk, Paths, PathsConfig, link_goodput};
use marline_time::{Duration, Instant, Rate, SeedTree};

use super::connection;

/// Results of a bulk transfer.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Goodput from the first SYN to the end.
    pub goodput: Rate,
    /// Goodput after the first fifth of the time.
    pub steady: Rate,
    /// Payload bytes of a full segment on each subflow.
    pub mss: Vec<u32>,
    /// Payload bytes sent on each subflow, including retransmissions.
    pub sent: Vec<u64>,
    /// Retransmitted and reinjected bytes among these.
    pub again: Vec<u64>,
    /// Packets handled in the world.
    pub packets: u64,
    /// Digest of the run.
    pub digest: u64,
}

/// Payload of plain TCP's full segment with timestamps, in a packet of 1,500 bytes: the capacity of a link without
/// Multipath TCP options.
const PLAIN_PAYLOAD: u64 = 1_500 - 20 - 20 - 12;

impl Outcome {
    /// Goodput of the whole transfer, relative to plain TCP segments on always busy links of `rates`.
    pub fn share(&self, rates: &[Rate]) -> f64 {
        share_of(self.goodput, rates)
    }

    /// Relative goodput after the first fifth of the time, without slow start.
    pub fn steady_share(&self, rates: &[Rate]) -> f64 {
        share_of(self.steady, rates)
    }
}

fn share_of(goodput: Rate, rates: &[Rate]) -> f64 {
    let goodputs = rates.iter().map(|rate| link_goodput(*rate, PLAIN_PAYLOAD, 1_500));
    let possible: u64 = goodputs.map(Rate::bits_per_s).sum();
    goodput.bits_per_s() as f64 / possible as f64
}

/// Sends for `length` over these links. The connection starts on the first link.
///
/// # Panics
/// If a byte is wrong.
pub fn run(links: Vec<DuplexConfig>, scheduler: &str, length: Duration, seed: u64) -> Outcome {
    run_with(links, connection(scheduler), length, seed)
}

/// Sends with plain TCP over one link.
///
/// # Panics
/// If a byte is wrong.
pub fn run_plain(link: DuplexConfig, length: Duration, seed: u64) -> Outcome {
    let plain = ConnectionConfig { mptcp: false, ..connection("min-rtt") };
    run_with(vec![link], plain, length, seed)
}

fn run_with(
    links: Vec<DuplexConfig>,
    connection: ConnectionConfig,
    length: Duration,
    seed: u64,
) -> Outcome {
    let end = Instant::ZERO + length;
    let mut paths = Paths::new(&PathsConfig::new(links, connection), SeedTree::new(seed));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Endless, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    paths.world.run_until(end);
    let (server, client) = (paths.server_report(0), paths.client_report(0));
    let (server, client) = (server.expect("accepted"), client.expect("connected"));
    stream::prefix(server, client).unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    let host = paths.world.node(paths.server);
    let (id, _) = host.connections().next().expect("one connection");
    let info = host.endpoint().info(id).expect("it is open");
    Outcome {
        goodput: client.goodput(Instant::ZERO, end),
        steady: client.goodput(Instant::ZERO + length / 5, end),
        mss: info.subflows.iter().map(|subflow| subflow.mss).collect(),
        sent: info.subflows.iter().map(|subflow| subflow.bytes_sent).collect(),
        again: info
            .subflows
            .iter()
            .map(|subflow| subflow.bytes_retransmitted + subflow.bytes_reinjected)
            .collect(),
        packets: paths.world.stats().delivered,
        digest: paths.world.digest(),
    }
}
