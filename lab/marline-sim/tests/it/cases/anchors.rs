//! Published schedulers compared with ours: small messages from a server over a path with bad periods and a path with
//! costs, and a download.

use marline_core::ConnectionConfig;
use marline_sim::{Amount, Bulk, Paths, quantile};
use marline_time::{Duration, Instant};

use super::bursts::latencies;

/// Our schedulers, and published ones from 2020 to 2026.
pub const SCHEDULERS: [&str; 9] = [
    "lowest-rtt",
    "min-rtt",
    "hedged",
    "auto-redundant",
    "redundant",
    "xlink",
    "peekaboo",
    "paaf",
    "augur",
];

/// Paths. The first one is faster but sometimes worse.
pub const SCENES: [(&str, [&str; 2]); 4] = [
    ("steady", ["rate=30M,delay=10ms", FAR]),
    ("bursts of loss", ["rate=30M,delay=10ms,down.ge=2s:60ms:60%:0", FAR]),
    ("fades", ["rate=30M,delay=10ms,down.rate=0s:30M+2s:150k+2400ms:30M/3s", FAR]),
    ("1 % loss", ["rate=30M,delay=10ms,down.loss=1%", FAR]),
];
const FAR: &str = "rate=20M,delay=30ms";

const MESSAGE_BYTES: u64 = 3_000;
const INTERVAL_MS: u64 = 50;

/// Results of messages.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Times from writing to reading, ms.
    pub delays_ms: Vec<f64>,
    /// Bytes that the server sent on each path, per byte written.
    pub shares: [f64; 2],
}

impl Outcome {
    /// A quantile of the delays.
    pub fn delay_ms(&self, share: f64) -> f64 {
        quantile(&self.delays_ms, share)
    }
}

fn scene(links: &[&str], scheduler: &str, seed: u64) -> Paths {
    let set = marline_research::registry().policy_set(scheduler, "full-mesh", "cubic", "rack-tlp");
    super::scene(links, ConnectionConfig::new(set.expect("known names")), seed)
}

/// This many messages of 3 kB, one every 50 ms.
pub fn messages(links: &[&str; 2], scheduler: &str, count: u64, seed: u64) -> Outcome {
    let mut paths = scene(links, scheduler, seed);
    let at_ms: Vec<u64> = (0..count).map(|n| n * INTERVAL_MS).collect();
    let delays = latencies(&mut paths, MESSAGE_BYTES, &at_ms);
    let written = (count * MESSAGE_BYTES) as f64;
    let offered = |path: usize| paths.world.link(paths.down[path]).stats().offered_bytes as f64;
    Outcome {
        delays_ms: delays.iter().map(|delay| delay.as_secs_f64() * 1e3).collect(),
        shares: [offered(0) / written, offered(1) / written],
    }
}

/// Duration of a download of this many bytes.
pub fn download(links: &[&str; 2], scheduler: &str, bytes: u64, seed: u64) -> Duration {
    let mut paths = scene(links, scheduler, seed);
    paths.listen(Box::new(move |_| Box::new(Bulk::new(Amount::Bytes(bytes), 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    let client = paths.client;
    paths.world.run_while(Instant::from_secs(300), |world| {
        world.node(client).report(0).is_none_or(|report| report.read < bytes)
    });
    let report = paths.client_report(0).expect("connected");
    assert_eq!((report.read, report.wrong_at), (bytes, None));
    report.arrived.expect("bytes arrived").1.since(Instant::ZERO)
}
