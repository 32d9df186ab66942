//! Ten connections on one WiFi. After one active connection finds the path silent, this measures how soon the nine
//! mostly idle ones move.

use anyhow::Context as _;
use marline::monitor::MonitorKind;
use marline_lab::figure::{Figure, Plot, cdf};
use marline_sim::{ExchangeSizes, Pace, Paths, ResponseServer, Units};
use marline_time::{Duration, Instant, Rng};
use serde::{Deserialize, Serialize};

use super::phone_scenario::{DrawnLinks, LTE, PhoneScenario, WIFI, ms};
use super::radios::cell;
use super::systems::{self, System};
use crate::estimate::{Estimate, Samples, pooled_quantile};
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const NEIGHBORS: Part = Part::new("neighbours", 40, 160);
/// Connections besides the active one.
const OTHER_CONNECTIONS: usize = 9;
/// Size of requests and answers.
const BYTES: u64 = 200;
/// Request interval of the active connection and of each of the others, which start at random times.
const BUSY: Duration = Duration::from_millis(100);
const REQUEST_INTERVAL: Duration = Duration::from_secs(9);
/// Start of the second within which WiFi goes silent.
const SILENT: Duration = Duration::from_secs(10);
const END: Instant = Instant::from_secs(40);

/// Reactions of the other connections, ms after WiFi went silent, ascending. A missing reaction counts as the end of
/// the run.
#[derive(Serialize, Deserialize)]
struct Moves {
    /// When the active connection had a cellular subflow.
    first_ms: f64,
    /// When each of the others had a cellular subflow.
    others_ms: Vec<f64>,
    /// Latency of each other connection's first request after the silence.
    delays_ms: Vec<f64>,
}

/// Results of a root, by each of [`contestants`].
type MovesBySystem = Vec<Moves>;
/// Selection of one of the two lists of [`Moves`].
type SelectTimes = fn(&Moves) -> &[f64];

fn contestants() -> Vec<System> {
    vec![
        systems::authors(),
        systems::tuned(),
        systems::tuned_uncoupled(),
        systems::vanilla_backup(),
    ]
}

/// Indexes into [`contestants`]: tuned, and tuned without a path health monitor.
const WITH_MONITOR: usize = 1;
const WITHOUT_MONITOR: usize = 2;

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let (moved, rows) = context.judge_part(NEIGHBORS, measure, |moved| Ok(verdicts(moved)))?;
    let title = "One affected connection and nine others on the same address pair (99 % intervals)";
    all.tables.push(Table::new("others", title, rows));
    all.grids.push(grid(&moved));
    all.figures.push(figure(&moved));
    Ok(())
}

fn measure(root: &Root) -> anyhow::Result<MovesBySystem> {
    contestants().iter().map(|system| measure_moves(system, root)).collect()
}

fn quantile(moved: &Samples<MovesBySystem>, place: usize, of: SelectTimes, share: f64) -> Estimate {
    moved.estimate(|picked| pooled_quantile(picked.iter().map(|root| of(&root[place])), share))
}

fn verdicts(moved: &Samples<MovesBySystem>) -> Vec<Row> {
    let row = |what: &str, of: SelectTimes| {
        let median = |picked: &[&MovesBySystem], place: usize| {
            pooled_quantile(picked.iter().map(|root| of(&root[place])), 0.5)
        };
        let ratio =
            moved.estimate(|picked| median(picked, WITH_MONITOR) / median(picked, WITHOUT_MONITOR));
        let of_each =
            [WITH_MONITOR, WITHOUT_MONITOR].map(|place| quantile(moved, place, of, 0.5).value);
        let what = format!("median {what}: ratio with to without a path health monitor");
        let row = Row::new(what).paper_claim("others react").estimate(&ratio, "").at_most(1.0);
        row.with_remark(format!("{:.0} and {:.0} ms", of_each[0], of_each[1]))
    };
    vec![
        row("time until the other connections moved", |moves| &moves.others_ms),
        row("next request on the other connections", |moves| &moves.delays_ms),
    ]
}

fn grid(moved: &Samples<MovesBySystem>) -> Grid {
    let columns = [
        ("system", ""),
        ("affected connection moved, mean", "ms"),
        ("other connections moved, median", "ms"),
        ("other connections moved, last", "ms"),
        ("median next request on the other connections", "ms"),
        ("worst next request on the other connections", "ms"),
    ];
    let title = "One affected connection and nine others on the same address pair: times after WiFi went silent";
    let mut grid = Grid::new("neighbours", title, &columns);
    for (place, system) in contestants().iter().enumerate() {
        let lists: [SelectTimes; 2] = [|moves| &moves.others_ms, |moves| &moves.delays_ms];
        let mut cells = vec![Value::Text(system.name.to_owned())];
        cells.push(cell(moved.mean(|root| root[place].first_ms)));
        for of in lists {
            let worst = moved.all().iter().filter_map(|root| of(&root[place]).last());
            cells.push(cell(quantile(moved, place, of, 0.5)));
            cells.push(Value::new(worst.copied().fold(0.0, f64::max), ""));
        }
        grid.rows.push(cells);
    }
    grid
}

fn figure(moved: &Samples<MovesBySystem>) -> Figure {
    let mut plot =
        Plot::new("When the other nine moved", "time after WiFi went silent (ms)", "share").log_x();
    for (place, system) in contestants().iter().enumerate().filter(|(_, s)| s.multimob) {
        let roots = moved.all().iter();
        let all: Vec<f64> = roots.flat_map(|root| root[place].others_ms.iter().copied()).collect();
        plot = plot.steps(system.name, &cdf(&all));
    }
    let caption = "Each of the nine sends a request every 9 s; without a path health monitor, each detects the failure \
                   separately.";
    plot.figure("neighbours", caption)
}

/// Requests every `gap` from a start time on.
fn request_units(from: Instant, gap: Duration) -> Box<Units> {
    let times = (0..).map(|n| from + gap * n).take_while(|at| *at < END).collect();
    Box::new(Units::new(Pace::At { bytes: BYTES, times }, BYTES, 5, 6))
}

fn measure_moves(system: &System, root: &Root) -> anyhow::Result<Moves> {
    let links = DrawnLinks::draw(root);
    let scenario = PhoneScenario::experiment_over_links(&links.wifi, &links.lte, None, root.seed)?;
    let mut paths = scenario.stage(system, root.seed)?;
    let mut rng = root.rng("neighbours");
    let start = Instant::from_secs(1);
    let sizes = ExchangeSizes { request_bytes: BYTES, answer_bytes: BYTES };
    paths.listen(Box::new(move |_| Box::new(ResponseServer::new(sizes, 6, 5))));
    let mut ids = vec![paths.connect(WIFI, request_units(start, BUSY)).context("cannot connect")?];
    for _ in 0..OTHER_CONNECTIONS {
        let from = start + REQUEST_INTERVAL.mul_f64(rng.unit());
        ids.push(
            paths.connect(WIFI, request_units(from, REQUEST_INTERVAL)).context("cannot connect")?,
        );
    }
    let silent = Instant::ZERO + SILENT + Duration::from_secs(1).mul_f64(rng.unit());
    paths.at_set_path_up(silent, WIFI, false);
    paths.world.run_until(END);
    let lte = Paths::address(LTE, 0);
    let monitor = paths.world.node(paths.client).monitor();
    let moved = |id| {
        let event = monitor.iter().find(|event| {
            event.connection == id
                && event.at > silent
                && match &event.kind {
                    MonitorKind::SubflowEstablished { path, .. } => path.local.ip() == lte,
                    _ => false,
                }
        });
        ms(event.map_or(END, |event| event.at).since(silent))
    };
    let delay = |number: usize| {
        let report = paths.client_report(number)?;
        let index = report.sent.iter().position(|at| *at > silent)?;
        let came = report.received.get(index).copied().unwrap_or(END);
        Some(ms(came.since(report.sent[index])))
    };
    let ascending = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    Ok(Moves {
        first_ms: moved(ids[0]),
        others_ms: ascending(ids[1..].iter().map(|id| moved(*id)).collect()),
        delays_ms: ascending((1..=OTHER_CONNECTIONS).filter_map(delay).collect()),
    })
}
