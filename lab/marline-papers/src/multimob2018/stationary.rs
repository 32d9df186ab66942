//! Runs that never leave WiFi range: the unnecessary cost of the cellular radio.

use marline_lab::figure::{Bars, Figure};
use marline_sim::mean;
use serde::{Deserialize, Serialize};

use super::loads::ASSISTANT;
use super::ours::ParameterComparison;
use super::phone_scenario::{LTE, PhoneScenario, WIFI, WorkloadResult};
use super::published::Published;
use super::quantiles::{RankedSamples, count_where};
use super::radios::{self, CONSTANTS, Metered, cell};
use super::systems::{self, System};
use crate::estimate::{Estimate, Samples};
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

    const fn has_opened(&self) -> bool {
        self.opened > 0
    }

    fn has_unused_subflow(&self) -> bool {
        self.has_opened() && self.lte.as_ref().is_some_and(|lte| lte.payload_bytes == 0)
    }
}

fn cellular_usage(run: &StayResults, place: usize) -> Option<&Metered> {
    run.systems[place].lte.as_ref()
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
    ours: &mut ParameterComparison,
) -> anyhow::Result<()> {
    let (runs, rows) =
        context.judge_part(STATIC, |root| measure(context, root), |runs| verdicts(runs, file))?;
    let title = "Runs of 80 s that never lose WiFi, one per root (99 % intervals)";
    all.tables.push(Table::new("static", title, rows));
    all.grids.push(energy(&runs, context.master));
    compare_parameters(&runs, ours);
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

/// Share of the runs with this property of a system's cost.
fn share_of_runs(
    runs: &Samples<StayResults>,
    place: usize,
    is_met: impl Fn(&Cost) -> bool,
) -> Estimate {
    runs.share(|run| (u64::from(is_met(&run.systems[place])), 1)).percent()
}

fn verdicts(runs: &Samples<StayResults>, file: &PaperFile<Published>) -> anyhow::Result<Vec<Row>> {
    let much = 100.0 * file.tolerance("cellular_energy")?;
    let [authors, mesh, backup] =
        [systems::authors(), systems::vanilla_full_mesh(), systems::vanilla_backup()]
            .map(|system| systems::index_of(&system));
    let unused = Row::new("vanilla, backup flag: runs whose LTE subflow carries no data")
        .statement("backup-waits-for-failure")
        .paper_claim("non-backup paths are used unless they all failed")
        .estimate(&share_of_runs(runs, backup, Cost::has_unused_subflow), "%")
        .at_least(95.0);
    let most = Row::new("vanilla, full mesh: runs whose LTE subflow carries no data")
        .statement("cellular-subflows-see-no-data")
        .paper_claim("most")
        .estimate(&share_of_runs(runs, mesh, Cost::has_unused_subflow), "%")
        .at_least(50.0);
    let wasted = runs.ratio(|run| {
        let backup = &run.systems[backup];
        let unused = if backup.has_unused_subflow() { backup.cellular_j() } else { 0.0 };
        (unused, backup.wifi_j)
    });
    let wasted = Row::new("vanilla, backup flag: joules of unused LTE subflows, ratio to WiFi's")
        .statement("unused-subflows-waste-energy")
        .paper_claim("a lot of energy wasted")
        .estimate(&wasted.percent(), "%")
        .at_least(much)
        .with_remark("a lot: more than what counts as much less below; WiFi carries all data");
    let opened = Row::new("authors' parameters: runs that open an LTE subflow")
        .statement("no-lte-unless-needed")
        .paper_claim("none")
        .estimate(&share_of_runs(runs, authors, Cost::has_opened), "%")
        .at_most(5.0);
    let what = "authors' parameters: cellular joules, ratio to full mesh";
    let energy = radios::row(runs, cellular_usage, authors, what)
        .statement("much-less-cellular-energy")
        .paper_claim("much less")
        .at_most(much);
    let benefit = judge_benefit(runs, 1.0 - file.tolerance("benefit")?);
    Ok(vec![unused, most, wasted, opened, benefit, energy])
}

/// "Not always beneficial" implies that a second path is beneficial in some runs and of no use in others.
fn judge_benefit(runs: &Samples<StayResults>, less: f64) -> Row {
    let [mesh, alone] = [systems::vanilla_full_mesh(), systems::plain_tcp()]
        .map(|system| systems::index_of(&system));
    let useless = runs.share(|run| {
        let (mesh, alone) = (run.systems[mesh].worst_ms, run.systems[alone].worst_ms);
        (u64::from(mesh >= less * alone), 1)
    });
    let ratio = runs.ratio(|run| (run.systems[mesh].worst_ms, run.systems[alone].worst_ms));
    Row::new("full mesh: runs whose longest delay is no shorter than that of WiFi alone")
        .statement("not-always-beneficial")
        .paper_claim("multiple paths are not always beneficial")
        .estimate(&useless.percent(), "%")
        .at_least(5.0)
        .at_most(95.0)
        .with_remark(format!(
            "mean longest delay, ratio to WiFi alone: {:.2} [{:.2}, {:.2}]",
            ratio.value, ratio.low, ratio.high
        ))
}

fn compare_parameters(runs: &Samples<StayResults>, ours: &mut ParameterComparison) {
    ours.push("within WiFi: runs that open an LTE subflow", "%", |place| {
        share_of_runs(runs, place, Cost::has_opened)
    });
    ours.push("within WiFi: cellular joules, ratio to full mesh", "%", |place| {
        radios::ratio_to_mesh(runs, cellular_usage, place, |lte| lte.model).percent()
    });
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
        ("LTE payload", "B"),
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
            mean(&|cost| cost.lte.as_ref().map_or(0.0, |lte| lte.payload_bytes as f64)),
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
