//! Runs that never leave WiFi range: the unnecessary cost of the cellular radio.

use marline_lab::figure::{Bars, Figure};
use marline_sim::mean;
use serde::{Deserialize, Serialize};

use super::loads::ASSISTANT;
use super::phone_scenario::{LTE, PhoneScenario, WIFI, WorkloadResult};
use super::published::Published;
use super::quantiles::{RankedSamples, count_where};
use super::radios::{self, CONSTANTS, Metered, cell};
use super::systems::{self, System};
use super::weak_wifi;
use crate::estimate::Samples;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// At least 105 roots are needed to distinguish a share of zero from one in twenty.
const STATIC: Part = Part::new("static", 120, 960);

/// Results of a run, by each of [`systems::all`].
#[derive(Serialize, Deserialize)]
struct StayResults {
    systems: Vec<Cost>,
}

/// Cost of a run.
#[derive(Serialize, Deserialize)]
struct Cost {
    wifi_j: f64,
    /// Energy of promotions, transfer, tails and idle time, J.
    lte_j: [f64; 4],
    wakes: u64,
    opened: usize,
    delay_ms: f64,
    worst_ms: f64,
    lte: Option<Metered>,
}

impl Cost {
    fn from_talk(talk: WorkloadResult) -> Cost {
        let delays: Vec<f64> = talk.delays.iter().map(|(_, delay)| *delay).collect();
        let lte = &talk.joules[LTE];
        let [promotions, transfer, tails] = lte.energy_by_state_j();
        Cost {
            wifi_j: talk.joules[WIFI].traffic_j(),
            lte_j: [promotions, transfer, tails, lte.idle_j()],
            wakes: lte.promotions,
            opened: talk.opened,
            delay_ms: mean(&delays),
            worst_ms: talk.worst_ms(),
            lte: talk.metered,
        }
    }

    fn cellular_j(&self) -> f64 {
        self.lte.as_ref().map_or(0.0, |lte| lte.model)
    }
}

fn cellular_usage(run: &StayResults, place: usize) -> Option<&Metered> {
    run.systems[place].lte.as_ref()
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let (runs, rows) =
        context.judge_part(STATIC, |root| measure(context, root), |runs| verdicts(runs, file))?;
    let title = "Runs of 80 s that never lose WiFi, one per root (99 % intervals)";
    all.tables.push(Table::new("static", title, rows));
    all.grids.push(energy(&runs, context.master));
    let title = "Runs that never lose WiFi: LTE energy by radio constants";
    all.grids.push(radios::sensitivity("static-constants", title, &runs, cellular_usage));
    all.figures.push(figure(&runs));
    Ok(())
}

fn measure(context: &Context<'_>, root: &Root) -> anyhow::Result<StayResults> {
    let scenario = PhoneScenario::walk(context.traces()?, root.seed, false)?;
    let cost = |system: &System| scenario.talk(system, &ASSISTANT, root.seed).map(Cost::from_talk);
    Ok(StayResults { systems: systems::all().iter().map(cost).collect::<anyhow::Result<_>>()? })
}

fn verdicts(runs: &Samples<StayResults>, file: &PaperFile<Published>) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for system in systems::multimob() {
        let place = systems::index_of(&system);
        let most = file.tolerance("cellular_energy")?;
        rows.extend(radios::rows(runs, cellular_usage, &system, Some(most)));
        let opened = runs.share(|run| (u64::from(run.systems[place].opened > 0), 1));
        let what = format!("{}: runs that open a cellular subflow", system.name);
        let row = Row::new(what).estimate(&opened.percent(), "%").at_most(5.0);
        let count: usize = runs.all().iter().map(|run| run.systems[place].opened).sum();
        rows.push(row.with_remark(format!("{count} subflows in all runs")));
    }
    let (mesh, alone) = (
        systems::index_of(&systems::vanilla_full_mesh()),
        systems::index_of(&systems::plain_tcp()),
    );
    let ratio = runs.ratio(|run| (run.systems[mesh].worst_ms, run.systems[alone].worst_ms));
    let row = Row::new("full mesh: mean longest delay, ratio to WiFi alone")
        .paper_claim("multiple paths are not always beneficial");
    let cost = runs.mean(|run| run.systems[mesh].cellular_j()).value;
    let least = 1.0 - file.tolerance("benefit")?;
    rows.push(row.estimate(&ratio, "").at_least(least).with_remark(format!(
        "no benefit above 1 %, at a cost of {cost:.1} J over LTE ({CONSTANTS})"
    )));
    let later = runs.share(|run| {
        let (mesh, alone) = (run.systems[mesh].worst_ms, run.systems[alone].worst_ms);
        (u64::from(mesh >= least * alone), 1)
    });
    rows.push(weak_wifi::not_always_row(&later));
    Ok(rows)
}

fn energy(runs: &Samples<StayResults>, master: u64) -> Grid {
    let columns = [
        ("system", ""),
        ("WiFi", "J"),
        ("LTE", "J"),
        ("LTE promotions", "J"),
        ("LTE transfer", "J"),
        ("LTE tails", "J"),
        ("LTE idle", "J"),
        ("LTE wakes", "per run"),
        ("cellular subflows", "per run"),
        ("mean delay", "ms"),
        ("median of the longest delays", "ms"),
    ];
    let title = format!(
        "Energy of a run that never loses WiFi (LTE idle: the consumption of an idle phone); \
         {CONSTANTS}"
    );
    let mut grid = Grid::new("energy", title, &columns);
    for (place, system) in systems::all().iter().enumerate() {
        let mean = |of: &dyn Fn(&Cost) -> f64| cell(runs.mean(|run| of(&run.systems[place])));
        let worst = RankedSamples::rank_samples(runs, |run| Some(run.systems[place].worst_ms));
        let mut cells = vec![Value::Text(system.name.to_owned())];
        cells.extend([mean(&|cost| cost.wifi_j), mean(&Cost::cellular_j)]);
        cells.extend((0..4).map(|part| mean(&|cost| cost.lte_j[part])));
        cells.extend([
            mean(&|cost| cost.wakes as f64),
            mean(&|cost| cost.opened as f64),
            mean(&|cost| cost.delay_ms),
            cell(count_where(runs, master, |drawn| worst.quantile(drawn, 0.5))),
        ]);
        grid.rows.push(cells);
    }
    grid
}

fn figure(runs: &Samples<StayResults>) -> Figure {
    let mut bars = Bars::new("Energy over 80 s in WiFi coverage", "J", &["WiFi", "LTE"]);
    for (place, system) in systems::all().iter().enumerate() {
        let bar = |of: &dyn Fn(&Cost) -> f64| {
            let joules = runs.mean(|run| of(&run.systems[place]));
            let known = joules.low.is_finite() && joules.high.is_finite();
            (joules.value, known.then_some((joules.low, joules.high)))
        };
        let both = [bar(&|cost| cost.wifi_j), bar(&Cost::cellular_j)];
        bars = bars.group(system.name, &both);
    }
    let caption = format!("Energy due to traffic: promotions, transfer and tails ({CONSTANTS}).");
    bars.figure("energy", &caption)
}
