//! Tests of middleboxes of many sizes that split and merge segments, on the only path: they remove
//! mappings from the stream, and data that lost its mapping is sent again. No connection ends, and
//! nothing waits for long.

use marline_sim::{EchoServer, Pace, Paths, PathsConfig, Units};
use marline_time::{Duration, Instant, Rng, SeedTree};

use super::world::{Outcome, config, link, outcome};

/// Messages of a world, each echoed.
const COUNT: usize = 300;
/// Maximum delay of an echo: the sender's data-level timer backs off a few times before a retransmission passes
/// intact.
const WORST: Duration = Duration::from_secs(8);

/// A middlebox and the messages that pass through it.
#[derive(Debug)]
struct Reshaper {
    link: String,
    bytes: u64,
    gap_ms: u64,
}

impl Reshaper {
    fn draw(seed: u64) -> Self {
        let mut rng = SeedTree::new(seed).stream("reshape");
        let bytes = 40 + rng.below(1_400);
        let first = if rng.chance(0.5) { ":first" } else { "" };
        let cuts = rng.chance(0.7);
        let split = if cuts { format!("split={bytes}B{first},") } else { String::new() };
        let (rate, wait) = (1 + rng.below(20), 1 + rng.below(9));
        let loss = if rng.chance(0.3) { ",loss=1%" } else { "" };
        let link = format!("rate={rate}M,{split}coalesce={wait}ms{loss}");
        Reshaper { link, bytes: 1 + rng.below(3_000), gap_ms: 1 + rng.below(50) }
    }

    /// Outcome, number of echoed messages, and time of the slowest.
    fn run(&self, seed: u64, checksum: bool) -> (Outcome, usize, Duration) {
        let setup = PathsConfig::new(vec![link(&self.link)], config(true, checksum));
        let mut paths = Paths::new(&setup, SeedTree::new(seed));
        let at = |number| Instant::from_millis(200 + self.gap_ms * number);
        let times: Vec<Instant> = (0..COUNT as u64).map(at).collect();
        paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
        let pace = Pace::At { bytes: self.bytes, times: times.clone() };
        let units = Units::new(pace, self.bytes, 7, 7);
        paths.connect(0, Box::new(units)).expect("a connection");
        paths.world.run_until(Instant::from_secs(60));
        let client = paths.client_report(0).expect("it connected");
        let late = client.received.iter().zip(&times).map(|(came, went)| came.since(*went));
        (outcome(&paths), client.received.len(), late.max().unwrap_or_default())
    }
}

#[test]
fn data_unmapped_by_a_middlebox_is_resent_and_connections_survive() {
    let mut complaints = Vec::new();
    for seed in 1..=150 {
        let reshaper = Reshaper::draw(seed);
        let (end, back, slowest) = reshaper.run(seed, seed % 2 == 0);
        let alive = end.closed == [None, None] && end.wrong.is_none();
        // A subflow may be abandoned once, if the middlebox has damaged every retransmission of a gap.
        if !alive || back < COUNT || slowest > WORST || end.lost.len() > 1 {
            complaints.push(format!(
                "seed {seed}, {reshaper:?}: {back} echoed, slowest {slowest:?}: {end:?}"
            ));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}
