//! Ten connections on one WiFi: when one active connection finds the path silent, how soon the nine
//! mostly idle ones move.

use anyhow::Context as _;
use marline::MonitorKind;
use marline_lab::figure::{Plot, cdf};
use marline_sim::{Pace, Paths, ResponseServer, Units, median};
use marline_time::{Duration, Instant};

use super::phone_scenario::{LTE, PhoneScenario, WIFI, ms};
use super::systems::{self, System};
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

/// Connections beside the one that suffers.
const OTHERS: usize = 9;
const RUNS: usize = 20;
/// Of requests and answers.
const BYTES: u64 = 200;
/// The one asks this often, each of the others that often.
const BUSY: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(9);
/// WiFi goes silent within a second from then on.
const SILENT: Duration = Duration::from_secs(10);
const END: Instant = Instant::from_secs(40);

/// What became of the others.
#[derive(Clone, Debug, Default)]
struct Moves {
    /// When the one that suffered had a cellular subflow, after WiFi's silence, ms.
    first_ms: Vec<f64>,
    /// When each of the others had one; infinite if it never did.
    others_ms: Vec<f64>,
    /// How long the others' first request after the silence took.
    delays_ms: Vec<f64>,
}

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let mut systems = vec![systems::tuned_alone(), systems::vanilla_backup()];
    systems.splice(0..0, systems::multimob());
    let runs = context.runs(RUNS) as u64;
    let items: Vec<(usize, u64)> = (0..systems.len())
        .flat_map(|s| (0..runs).map(move |run| (s, context.master + run)))
        .collect();
    let moves =
        context.parallel("neighbours", &items, |(system, seed)| moves(&systems[*system], *seed))?;
    let pooled: Vec<Moves> = moves.chunks(runs as usize).map(pool).collect();
    let columns = [
        ("system", ""),
        ("the one moved", "ms"),
        ("others moved, median", "ms"),
        ("others moved, last", "ms"),
        ("their next request, median", "ms"),
        ("their next request, worst", "ms"),
    ];
    let title = "One connection suffers, nine others on the same netpath: after WiFi's silence";
    let mut grid = Grid::new("neighbours", title, &columns);
    let last = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let mut plot =
        Plot::new("When the other nine moved", "after WiFi's silence (ms)", "share").log_x();
    for (system, moves) in systems.iter().zip(&pooled) {
        let numbers = [
            median(&moves.first_ms),
            median(&moves.others_ms),
            last(&moves.others_ms),
            median(&moves.delays_ms),
            last(&moves.delays_ms),
        ];
        grid.push(&[system.name], &numbers);
        if system.multimob {
            plot = plot.steps(system.name, &cdf(&moves.others_ms));
        }
    }
    let of = |name: &str| systems.iter().zip(&pooled).find(|(s, _)| s.name == name).map(|(_, m)| m);
    let mut rows = Vec::new();
    if let (Some(with), Some(without)) =
        (of(systems::tuned().name), of(systems::tuned_alone().name))
    {
        let (ours, theirs) = (median(&with.others_ms), median(&without.others_ms));
        let (hole, alone) = (median(&with.delays_ms), median(&without.delays_ms));
        let row = Row::new("others moved after WiFi's silence, median").ours(ours, "ms");
        rows.push(
            row.holds(ours < theirs, format!("sooner than without an oracle ({theirs:.0} ms)")),
        );
        let row = Row::new("their next request, median").ours(hole, "ms");
        rows.push(row.holds(hole < alone, format!("less than without an oracle ({alone:.0} ms)")));
    }
    let title = "One connection suffers, nine others on the same netpath";
    all.tables.push(Table::new("others", title, rows));
    all.grids.push(grid);
    let caption =
        "Every 9 s each of them asks something; without an oracle each finds out by itself.";
    all.figures.push(plot.figure("neighbours", caption));
    Ok(())
}

fn pool(moves: &[Moves]) -> Moves {
    let mut all = Moves::default();
    for one in moves {
        all.first_ms.extend(&one.first_ms);
        all.others_ms.extend(&one.others_ms);
        all.delays_ms.extend(&one.delays_ms);
    }
    all
}

/// Asks every `gap` from a time on.
fn asks(from: Instant, gap: Duration) -> Box<Units> {
    let times = (0..).map(|n| from + gap * n).take_while(|at| *at < END).collect();
    Box::new(Units::new(Pace::At { bytes: BYTES, times }, BYTES, (5, 6)))
}

fn moves(system: &System, seed: u64) -> anyhow::Result<Moves> {
    let wifi = "rate=20M,delay=10ms,queue=100ms,radio=wifi";
    let scenario =
        PhoneScenario::of(wifi, "rate=15M,delay=25ms,queue=300ms,radio=lte", None, seed)?;
    let mut paths = scenario.stage(system, seed)?;
    paths.listen(Box::new(|_| Box::new(ResponseServer::new((BYTES, BYTES), (6, 5)))));
    let mut ids = vec![paths.connect(WIFI, asks(Instant::from_secs(1), BUSY)).context("connect")?];
    for other in 0..OTHERS as u32 {
        let from = Instant::from_secs(1) + SELDOM * other / OTHERS as u32;
        ids.push(paths.connect(WIFI, asks(from, SELDOM)).context("connect")?);
    }
    // Anywhere between two requests of the others.
    let silent = Instant::ZERO + SILENT + Duration::from_millis(seed * 137 % 1_000);
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
        event.map_or(f64::INFINITY, |event| ms(event.at.since(silent)))
    };
    let delay = |number: usize| {
        let report = paths.client_report(number)?;
        let index = report.sent.iter().position(|at| *at > silent)?;
        let came = report.received.get(index).copied().unwrap_or(END);
        Some(ms(came.since(report.sent[index])))
    };
    Ok(Moves {
        first_ms: vec![moved(ids[0])],
        others_ms: ids[1..].iter().map(|id| moved(*id)).collect(),
        delays_ms: (1..=OTHERS).filter_map(delay).collect(),
    })
}
