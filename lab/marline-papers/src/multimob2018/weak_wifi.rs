//! Weak WiFi with a cellular path that is slow, lossy and has long queues. Tests whether a second path helps at all.

use marline_lab::figure::{Figure, Plot, cdf};
use marline_time::Rng;
use serde::{Deserialize, Serialize};

use super::loads::ASSISTANT;
use super::phone_scenario::{PhoneScenario, WorkloadResult};
use super::quantiles::{RankedSamples, count_where};
use super::radios::{CONSTANTS, cell};
use super::systems::{self, System};
use crate::estimate::Samples;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

const WEAK: Part = Part::fixed("weak", 60);

/// A longest delay of at least this multiple of WiFi alone's counts as no benefit.
const NO_BENEFIT: f64 = 0.99;

/// Results of a run, by each of [`systems::all`].
#[derive(Serialize, Deserialize)]
struct Run {
    systems: Vec<RunDelays>,
}

#[derive(Serialize, Deserialize)]
struct RunDelays {
    worst_ms: f64,
    /// Median of the delays.
    median_ms: f64,
    missed: u64,
    lte_j: f64,
}

impl RunDelays {
    fn from_talk(talk: WorkloadResult) -> RunDelays {
        let delays: Vec<f64> = talk.delays.iter().map(|(_, delay)| *delay).collect();
        RunDelays {
            worst_ms: talk.worst_ms(),
            median_ms: marline_sim::median(&delays),
            missed: talk.missed,
            lte_j: talk.metered.map_or(0.0, |lte| lte.model),
        }
    }
}

/// WiFi and LTE of a root. WiFi stalls (packets wait) for 0.2 to 0.5 s on average, every 4 to 10 s, as when a station
/// scans for a better access point. LTE has 0.3 to 3 Mbit/s (log-uniform), 40 to 150 ms one way, 0.5 to 5 % loss and a
/// queue of 1 to 4 s.
fn links(root: &Root) -> [String; 2] {
    let mut rng = root.rng("weak");
    let mut draw = |least: f64, most: f64| (most - least).mul_add(rng.unit(), least);
    let wifi = format!(
        "rate={:.0}k,delay=10ms,jitter=uniform:2ms,queue=100ms,flap={:.0}ms:{:.0}ms,outage=suspend,\
         radio=wifi",
        draw(5e3, 20e3),
        draw(4e3, 10e3),
        draw(200.0, 500.0)
    );
    let lte = format!(
        "rate={:.0}k,delay={:.1}ms,loss={:.2}%,queue={:.0}ms,radio=lte",
        300.0 * draw(0.0, 10.0_f64.ln()).exp(),
        draw(40.0, 150.0),
        draw(0.5, 5.0),
        draw(1e3, 4e3)
    );
    [wifi, lte]
}

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let runs = context.sample(WEAK, measure)?;
    all.grids.push(grid(&runs, context.master));
    all.figures.push(figure(&runs));
    Ok(())
}

fn measure(root: &Root) -> anyhow::Result<Run> {
    let [wifi, lte] = links(root);
    let scenario = PhoneScenario::experiment_over_links(&wifi, &lte, None, root.seed)?;
    let seen =
        |system: &System| scenario.talk(system, &ASSISTANT, root.seed).map(RunDelays::from_talk);
    Ok(Run { systems: systems::all().iter().map(seen).collect::<anyhow::Result<_>>()? })
}

fn grid(runs: &Samples<Run>, master: u64) -> Grid {
    let columns = [
        ("system", ""),
        ("longest delay, p10", "ms"),
        ("longest delay, p50", "ms"),
        ("longest delay, p90", "ms"),
        ("mean longest delay, ratio to WiFi alone", ""),
        ("runs without a shorter longest delay", "%"),
        ("median delay", "ms"),
        ("missed", "per run"),
        ("LTE", "J"),
    ];
    let title = format!("Intermittent WiFi and a poor LTE link; joules: {CONSTANTS}");
    let mut grid = Grid::new("weak-cellular", title, &columns);
    let alone = systems::index_of(&systems::plain_tcp());
    for (place, system) in systems::all().iter().enumerate() {
        let worst = RankedSamples::rank_samples(runs, |run| Some(run.systems[place].worst_ms));
        let mean = |of: fn(&RunDelays) -> f64| cell(runs.mean(|run| of(&run.systems[place])));
        let mut cells = vec![Value::Text(system.name.to_owned())];
        let decile = |share| cell(count_where(runs, master, |drawn| worst.quantile(drawn, share)));
        cells.extend([0.1, 0.5, 0.9].map(decile));
        let pair = |run: &Run| (run.systems[place].worst_ms, run.systems[alone].worst_ms);
        let useless = |run: &Run| pair(run).0 >= NO_BENEFIT * pair(run).1;
        let useless = runs.share(|run| (u64::from(useless(run)), 1)).percent();
        cells.extend([cell(runs.ratio(pair)), cell(useless)]);
        cells.extend([
            mean(|seen| seen.median_ms),
            mean(|seen| seen.missed as f64),
            mean(|seen| seen.lte_j),
        ]);
        grid.rows.push(cells);
    }
    grid
}

fn figure(runs: &Samples<Run>) -> Figure {
    let heading = "Intermittent WiFi and a poor LTE link";
    let mut plot = Plot::new(heading, "longest delay (ms)", "share of the runs").log_x();
    for (place, system) in systems::all().iter().enumerate() {
        let worst = RankedSamples::rank_samples(runs, |run| Some(run.systems[place].worst_ms));
        plot = plot.steps(system.name, &cdf(&worst.values()));
    }
    let caption = "Each system has the same WiFi pauses. WiFi alone waits until they end.";
    plot.figure("weak", caption)
}
