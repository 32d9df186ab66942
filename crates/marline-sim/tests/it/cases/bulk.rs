//! Bulk transfer to the client over links that do not change.

use marline_link::DuplexConfig;
use marline_sim::{Amount, Bulk, Paths, PathsConfig, link_goodput, oracle::stream};
use marline_time::{Duration, Instant, Rate, SeedTree};

use super::connection;

/// What a bulk transfer reached.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Goodput from the first SYN to the end.
    pub goodput: Rate,
    /// Goodput after the first fifth of the time.
    pub steady: Rate,
    /// Payload bytes of a full segment on each subflow.
    pub mss: Vec<u32>,
    /// Payload bytes sent on each subflow, repeats included.
    pub sent: Vec<u64>,
    /// Of these, repeats and reinjections.
    pub again: Vec<u64>,
    /// Packets handled in the world.
    pub packets: u64,
    /// Digest of the run.
    pub digest: u64,
}

impl Outcome {
    /// Share of the goodput that links of `rates` have.
    pub fn share(&self, rates: &[Rate]) -> f64 {
        let payload = u64::from(self.mss.first().copied().unwrap_or(1));
        let possible: u64 =
            rates.iter().map(|rate| link_goodput(*rate, payload, 1_500).bits_per_s()).sum();
        self.goodput.bits_per_s() as f64 / possible as f64
    }
}

/// Sends for `length` over these links; the connection begins on the first.
///
/// # Panics
/// If a byte is wrong.
pub fn run(links: Vec<DuplexConfig>, scheduler: &str, length: Duration, seed: u64) -> Outcome {
    let end = Instant::ZERO + length;
    let mut paths =
        Paths::new(&PathsConfig::new(links, connection(scheduler)), SeedTree::new(seed));
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
