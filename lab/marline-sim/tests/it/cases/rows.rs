//! Side-by-side table in virtual time: the links and workloads on which the kernel's Multipath TCP
//! was measured, and Marline's targets on them. Both ends are Marline, default settings, in the mode
//! `redundant` where a row says so. `marline-lab compare` runs the same live.

pub mod echo;
pub mod failure;
pub mod stream;

use std::ops::RangeInclusive;

use marline_algos::Registry;
use marline_core::ConnectionConfig;
use marline_sim::{App, Pace, Paths, PathsConfig, Units, median, quantile};
use marline_time::{Duration, Instant, Rng, SeedTree};

use super::link;

/// Start of the workload, when all paths are joined.
pub const START: Instant = Instant::from_secs(1);

/// A metric and its limit.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Row and measure.
    pub what: String,
    /// Measured value, in the unit of `what`.
    pub value: f64,
    /// Lower or upper limit; `None`: only shown.
    pub limit: Option<Limit>,
}

/// A bound.
#[derive(Copy, Clone, Debug)]
pub enum Limit {
    /// At most this.
    Most(f64),
    /// At least this.
    Least(f64),
}

impl Claim {
    /// A metric with an upper limit.
    pub fn at_most(what: impl Into<String>, value: f64, limit: f64) -> Self {
        Claim { what: what.into(), value, limit: Some(Limit::Most(limit)) }
    }

    /// A metric with a lower limit.
    pub fn at_least(what: impl Into<String>, value: f64, limit: f64) -> Self {
        Claim { what: what.into(), value, limit: Some(Limit::Least(limit)) }
    }

    /// A metric that is only shown.
    pub fn shown(what: impl Into<String>, value: f64) -> Self {
        Claim { what: what.into(), value, limit: None }
    }

    /// Returns true if the limit is met.
    pub fn holds(&self) -> bool {
        match self.limit {
            None => true,
            Some(Limit::Most(limit)) => self.value <= limit,
            Some(Limit::Least(limit)) => self.value >= limit,
        }
    }
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, limit) = match self.limit {
            None => return write!(f, "{:62} {:9.1}", self.what, self.value),
            Some(Limit::Most(limit)) => ("<=", limit),
            Some(Limit::Least(limit)) => (">=", limit),
        };
        let verdict = if self.holds() { "holds" } else { "DOES NOT HOLD" };
        write!(f, "{:62} {:9.1} {sign} {limit:8.1}  {verdict}", self.what, self.value)
    }
}

/// A value that is uniform between two values.
fn between(rng: &mut impl Rng, least_ms: f64, most_ms: f64) -> Duration {
    let ms = (most_ms - least_ms).mul_add(rng.unit(), least_ms);
    Duration::from_nanos((ms * 1e6) as u64)
}

/// `count` times at this interval, starting at [`START`].
fn schedule(seed: u64, gap_ms: &RangeInclusive<f64>, count: usize) -> Vec<Instant> {
    let mut rng = SeedTree::new(seed).stream("workload");
    let mut at = START;
    (0..count)
        .map(|_| {
            let this = at;
            at += between(&mut rng, *gap_ms.start(), *gap_ms.end());
            this
        })
        .collect()
}

/// The scene of a row.
fn scene(links: [&str; 2], config: ConnectionConfig, backup: bool, seed: u64) -> Paths {
    let mut scene = PathsConfig::new(links.map(link).to_vec(), config);
    scene.backup = vec![false, backup];
    Paths::new(&scene, SeedTree::new(seed))
}

/// The server writes units of `bytes` at a pace, the client reads them.
fn download(paths: &mut Paths, pace: Pace, bytes: u64) {
    let mut pace = Some(pace);
    paths.listen(Box::new(move |_| -> Box<dyn App> {
        Box::new(Units::new(pace.take().unwrap_or(Pace::Never), 1, 7, 8))
    }));
    let client = Units::new(Pace::Never, bytes, 8, 7);
    paths.connect(0, Box::new(client)).expect("a connection");
}

fn default_connection() -> ConnectionConfig {
    ConnectionConfig::new(marline_algos::default_policies())
}

/// The mode `redundant`.
fn redundant_connection() -> ConnectionConfig {
    let mut connection = default_connection();
    let scheduler = Registry::default().scheduler("auto,budget=unlimited");
    connection.policies.scheduler = scheduler.expect("built in");
    connection
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Time from writing to reading of each unit, ms, for units written after a start time.
fn latencies(sent: &[Instant], received: &[Instant], from: Instant) -> Vec<f64> {
    let pairs = sent.iter().zip(received).filter(|(sent, _)| **sent >= from);
    pairs.map(|(sent, received)| ms(received.since(*sent))).collect()
}

/// Bytes that the links carried in both directions.
fn carried(paths: &Paths) -> u64 {
    let links = paths.up.iter().chain(&paths.down);
    links.map(|link| paths.world.link(*link).stats().delivered_bytes).sum()
}
