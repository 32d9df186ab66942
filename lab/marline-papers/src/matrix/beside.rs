//! Shares of a bottleneck: one flow of the default against one CUBIC flow, with one subflow and with two.

use anyhow::Context as _;
use marline::advanced::ConnectionConfig;
use marline_lab::experiment::Variant;
use marline_sim::{Amount, Bulk, Paths, PathsConfig, median};
use marline_time::{Duration, Instant, SeedTree};
use serde::{Deserialize, Serialize};

use crate::download::link;
use crate::estimate::{RequiredRange, Samples};
use crate::judge::Row;
use crate::paper::{Context, Effort};
use crate::plain::mptcp;
use crate::roots::{Part, Root};
use crate::table::Grid;

const PART: Part = Part::fixed("beside", 20);
const RUN_DURATION: Duration = Duration::from_secs(40);
/// Start of the evaluated time.
const EVALUATION_START: Duration = Duration::from_secs(10);
const RATES_MBIT: [u32; 2] = [10, 50];
const RTTS_MS: [u32; 2] = [20, 80];
/// Buffer sizes, in bandwidth-delay products.
const BUFFERS: [u32; 3] = [1, 2, 4];

/// A bottleneck.
#[derive(Copy, Clone, Debug)]
struct Bottleneck {
    mbit: u32,
    rtt_ms: u32,
    buffer: u32,
}

impl Bottleneck {
    fn all() -> impl Iterator<Item = Bottleneck> {
        RATES_MBIT.into_iter().flat_map(|mbit| {
            RTTS_MS.into_iter().flat_map(move |rtt_ms| {
                BUFFERS.into_iter().map(move |buffer| Bottleneck { mbit, rtt_ms, buffer })
            })
        })
    }

    /// Description of the bottleneck link. The jitter prevents flows from losing packets in lockstep.
    fn link(self) -> String {
        let Bottleneck { mbit, rtt_ms, buffer } = self;
        let (delay_ms, queue_ms) = (f64::from(rtt_ms) / 2.0, rtt_ms * buffer);
        format!("rate={mbit}M,delay={delay_ms}ms,queue={queue_ms}ms,jitter=500us")
    }
}

/// Share of the default relative to the fair share at each bottleneck. 1 is fair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Shares {
    /// With one subflow.
    one: Vec<f64>,
    /// With two subflows, both through the bottleneck, with the first buffer size for each rate and round-trip time.
    two: Vec<f64>,
}

/// Rows, and the shares at each bottleneck. `fair` is the required range of the medians, `ever` of all shares.
pub(super) fn judge_shares(
    context: &Context<'_>,
    judged: &Variant,
    fair: RequiredRange,
    ever: RequiredRange,
) -> anyhow::Result<(Vec<Row>, Grid)> {
    let part = if context.effort == Effort::Quick { Part::fixed(PART.name, 2) } else { PART };
    let lasts = context.length(RUN_DURATION);
    let samples = context.sample(part, |root| measure(judged, lasts, root))?;
    let over = |of: fn(&Shares) -> &Vec<f64>, sum: fn(&[f64]) -> f64| {
        let flat = move |picked: &[&Shares]| {
            sum(&picked.iter().flat_map(|root| of(root).iter().copied()).collect::<Vec<f64>>())
        };
        samples.estimate(flat)
    };
    let smallest = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    let words = format!("{} to {}", fair.least, fair.most);
    let row = |name: &str| Row::new(format!("{name}, ratio to fair share"));
    let middle = over(|root| &root.one, median);
    let rows = vec![
        row("against one CUBIC flow, median")
            .estimate(&middle, "")
            .require_range(fair, words.clone()),
        row("against one CUBIC flow, minimum")
            .estimate(&over(|root| &root.one, smallest), "")
            .at_least(ever.least),
        row("against one CUBIC flow, maximum")
            .estimate(&over(|root| &root.one, largest), "")
            .at_most(ever.most),
        row("two subflows through the bottleneck against one CUBIC flow, median")
            .estimate(&over(|root| &root.two, median), "")
            .require_range(fair, words),
    ];
    Ok((rows, grid(&samples)))
}

fn measure(judged: &Variant, lasts: Duration, root: &Root) -> anyhow::Result<Shares> {
    let share = |place: Bottleneck, subflows: usize| {
        measure_share(judged, place, subflows, lasts, root.seed)
    };
    let one = Bottleneck::all().map(|place| share(place, 1));
    let two =
        Bottleneck::all().filter(|place| place.buffer == BUFFERS[0]).map(|place| share(place, 2));
    Ok(Shares {
        one: one.collect::<anyhow::Result<_>>()?,
        two: two.collect::<anyhow::Result<_>>()?,
    })
}

/// Rate of `judged` with this number of subflows against one CUBIC TCP, relative to half of the bottleneck rate.
fn measure_share(
    judged: &Variant,
    place: Bottleneck,
    subflows: usize,
    lasts: Duration,
    seed: u64,
) -> anyhow::Result<f64> {
    let links = vec![link(&place.link())?; subflows];
    let mut paths = Paths::new(&PathsConfig::new(links, judged.connection()?), SeedTree::new(seed));
    for path in 1..subflows {
        paths.share_link(path, 0);
    }
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    let endless = || Box::new(Bulk::new(Amount::Endless, 1, 2));
    paths.connect(0, endless()).context("cannot open the judged connection")?;
    let cubic = ConnectionConfig { mptcp: false, ..mptcp("CUBIC").connection()? };
    paths.connect_as(cubic, 0, endless()).context("cannot open the CUBIC flow")?;
    let end = Instant::ZERO + lasts;
    paths.world.run_until(end);
    let from = Instant::ZERO + EVALUATION_START.min(lasts / 4);
    let goodput = |index| -> anyhow::Result<f64> {
        let report =
            paths.server_report(index).context("the server did not accept the connection")?;
        if let Some(byte) = report.wrong_at {
            anyhow::bail!("received data differs from sent data at byte {byte}");
        }
        Ok(report.goodput(from, end).bits_per_s() as f64)
    };
    let (ours, other) = (goodput(0)?, goodput(1)?);
    Ok(2.0 * ours / (ours + other))
}

fn grid(samples: &Samples<Shares>) -> Grid {
    let columns = [
        ("rate", "Mbit/s"),
        ("RTT", "ms"),
        ("buffer, bandwidth-delay products", ""),
        ("ratio to fair share, median", ""),
        ("minimum", ""),
        ("most", ""),
    ];
    let mut grid = Grid::new("shares", "One flow of the default against one CUBIC flow", &columns);
    for (number, place) in Bottleneck::all().enumerate() {
        let all: Vec<f64> = samples.all().iter().map(|root| root.one[number]).collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        let Bottleneck { mbit, rtt_ms, buffer } = place;
        let numbers = [mbit, rtt_ms, buffer].map(f64::from);
        grid.push(&[], &[&numbers[..], &[median(&all), least, most]].concat());
    }
    grid
}
