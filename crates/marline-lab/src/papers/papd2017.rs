//! PAPD (IETF 100, 2017): two tables of throughputs with a large and a small buffer, five mobile
//! scenarios, and the argument of the slides that bonding cannot win below RTT_max x best rate.

mod cells;
mod mobile;
mod sweep;

use marline_time::Duration;
use serde::Deserialize;

use super::{Context, Paper, PaperFile, Reproduction};
use crate::experiment::Variant;

const TEXT: &str = include_str!("../../../../papers/papd2017.toml");

/// The kernel's scheduler of the time.
const MIN_RTT: &str = "lowest-rtt+orp";
const PAPD: &str = "lowest-rtt+orp+papd";
/// 100 Mbit/s of Ethernet in IP packets of 1500 bytes.
const LINK: &str = "rate=97.5M,queue=1200kB";
/// Bytes of payload, of both buffers.
const SMALL_BUFFER: u64 = 700_000;
const LARGE_BUFFER: u64 = 8_000_000;
/// The paths, by the names that their losses are drawn by.
const NAMES: [&str; 2] = ["first", "second"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    large_buffer: Vec<Cell>,
    small_buffer: Vec<Cell>,
    mobile: Vec<Scenario>,
}

/// A row of the two tables.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    rtt_ms: [f64; 2],
    loss: [f64; 2],
    min_rtt: f64,
    papd: f64,
    best: f64,
}

/// A mobile scenario; RTTs as least, mean, most.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    wifi_rtt_ms: [f64; 3],
    wifi_loss: f64,
    lte_rtt_ms: [f64; 3],
    lte_loss: f64,
}

/// The key.
pub(super) struct Papd;

impl Paper for Papd {
    fn key(&self) -> &'static str {
        "papd2017"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Published>::parse(TEXT)?;
        let mut all = Reproduction::default();
        cells::run(context, &file, &mut all)?;
        mobile::run(context, &file, &mut all)?;
        sweep::run(context, &file, &mut all)?;
        Ok(all)
    }
}

/// Who takes part: minRTT, PAPD, and each path alone, all over BBR with this buffer.
fn contestants(buffer: u64, paths: [&str; 2]) -> [Variant; 4] {
    let with = |variant: Variant| variant.congestion("bbr").buffers(Some(buffer), Some(buffer));
    [
        with(Variant::new("minRTT").scheduler(MIN_RTT)),
        with(Variant::new("PAPD").scheduler(PAPD)),
        with(Variant::alone(paths[0], paths[0])),
        with(Variant::alone(paths[1], paths[1])),
    ]
}

/// Mbit/s of a case.
#[derive(Copy, Clone, Debug)]
struct Measured {
    min_rtt: f64,
    papd: f64,
    /// The better of the two paths alone.
    best: f64,
}

impl Measured {
    /// From the runs of the four contestants, seed after seed.
    fn of(runs: &[f64]) -> Measured {
        let seeds = (runs.len() / 4).max(1) as f64;
        let mean = |number: usize| runs.iter().skip(number).step_by(4).sum::<f64>() / seeds;
        Measured { min_rtt: mean(0), papd: mean(1), best: mean(2).max(mean(3)) }
    }
}

/// A duration of the file.
fn ms(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6) as u64)
}
