//! Runs that never leave WiFi range: the unnecessary cost of the cellular radio.

use marline_lab::figure::Bars;
use marline_link::Direction;
use marline_link::radio::{RadioKind, RadioParameters, Sensitivity};
use marline_sim::{LinkId, Observer, Packet, Paths, Sighting};
use marline_time::Instant;

use super::loads::ASSISTANT;
use super::phone_scenario::{LTE, PhoneScenario, Talk, WIFI};
use super::published::Published;
use super::systems::{self, System};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

const RUNS: usize = 30;

/// What a system's runs cost.
struct Cost {
    system: System,
    talks: Vec<Talk>,
}

impl Cost {
    fn mean(&self, of: impl Fn(&Talk) -> f64) -> f64 {
        self.talks.iter().map(of).sum::<f64>() / self.talks.len().max(1) as f64
    }

    fn joules(&self, path: usize) -> f64 {
        self.mean(|talk| talk.joules[path].traffic_j())
    }
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let seeds: Vec<u64> = (0..context.runs(RUNS) as u64).map(|run| context.master + run).collect();
    let systems = systems::all();
    let items: Vec<(usize, u64)> =
        (0..systems.len()).flat_map(|s| seeds.iter().map(move |seed| (s, *seed))).collect();
    let talks = context.parallel("static", &items, |(system, seed)| {
        let scenario = PhoneScenario::walk(context.traces()?, *seed, false)?;
        scenario.talk(&systems[*system], &ASSISTANT, *seed)
    })?;
    let mut talks = talks.into_iter();
    let mut cost = |system| Cost { system, talks: talks.by_ref().take(seeds.len()).collect() };
    let costs: Vec<Cost> = systems.into_iter().map(&mut cost).collect();
    let swings = swings(context, &seeds)?;
    all.tables.push(verdicts(&costs, &swings, file)?);
    all.grids.push(energy(&costs));
    all.grids.push(sensitivity(&swings));
    all.figures.push(figure(&costs));
    Ok(())
}

fn verdicts(
    costs: &[Cost],
    swings: &[Varied],
    file: &PaperFile<Published>,
) -> anyhow::Result<Table> {
    let mut rows = Vec::new();
    let vanilla = systems::vanilla();
    let theirs = costs.iter().find(|cost| cost.system.name == vanilla.name);
    let theirs = theirs.map_or(f64::NAN, |cost| cost.joules(LTE));
    for cost in costs.iter().filter(|cost| cost.system.multimob) {
        let what = format!("{}: cellular energy of full-mesh vanilla's", cost.system.name);
        let range = |of: fn(f64, f64) -> f64, start| {
            swings.iter().flat_map(|s| [s.low_j, s.high_j]).fold(start, of)
        };
        let (low, high) = (range(f64::min, f64::INFINITY), range(f64::max, 0.0));
        let row = Row::new(what)
            .paper_says("far lower")
            .ours(100.0 * cost.joules(LTE) / theirs, "%")
            .remark(format!(
                "{:.2} and {theirs:.1} J; with each parameter of the radio at 80 and 120 % vanilla's \
                 lie between {low:.1} and {high:.1} J",
                cost.joules(LTE)
            ));
        let most = 100.0 * file.tolerance("cellular_energy")?;
        rows.push(if cost.system.judged { row.at_most(most) } else { row });
        let opened: usize = cost.talks.iter().map(|talk| talk.opened).sum();
        let what = format!("{}: cellular subflows opened in all runs", cost.system.name);
        let row = Row::new(what).ours(opened as f64, "");
        rows.push(if cost.system.judged { row.at_most(0.0) } else { row });
    }
    let title = format!("Runs that never lose WiFi: {} of 80 s", costs[0].talks.len());
    Ok(Table::new("static", title, rows))
}

fn energy(costs: &[Cost]) -> Grid {
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
    let title =
        "Energy of a run that never loses WiFi (LTE idle: what a phone draws that does nothing)";
    let mut grid = Grid::new("energy", title, &columns);
    for cost in costs {
        let part = |index: usize| cost.mean(|talk| talk.joules[LTE].parts_j()[index]);
        let mean_delay = |talk: &Talk| {
            talk.delays.iter().map(|(_, delay)| delay).sum::<f64>() / talk.delays.len() as f64
        };
        let worst: Vec<f64> = cost.talks.iter().map(Talk::worst_ms).collect();
        let numbers = [
            cost.joules(WIFI),
            cost.joules(LTE),
            part(0),
            part(1),
            part(2),
            cost.mean(|talk| talk.joules[LTE].idle_j()),
            cost.mean(|talk| talk.joules[LTE].promotions as f64),
            cost.mean(|talk| talk.opened as f64),
            cost.mean(mean_delay),
            marline_sim::median(&worst),
        ];
        grid.push(&[cost.system.name], &numbers);
    }
    grid
}

fn figure(costs: &[Cost]) -> marline_lab::figure::Figure {
    let mut bars = Bars::new("Energy of 80 s within WiFi", "J", &["WiFi", "LTE"]);
    for cost in costs {
        bars = bars.group(cost.system.name, &[(cost.joules(WIFI), None), (cost.joules(LTE), None)]);
    }
    let caption = "What traffic drew: promotions, transfer and tails. MultiMob leaves LTE asleep.";
    bars.figure("energy", caption)
}

/// What a parameter of the LTE radio does to vanilla's joules, on average over the runs.
struct Varied {
    parameter: &'static str,
    low_j: f64,
    high_j: f64,
}

/// Vanilla's packets through radios of which each has one parameter at 80 or 120 %.
fn swings(context: &Context<'_>, seeds: &[u64]) -> anyhow::Result<Vec<Varied>> {
    let runs = context.parallel("static, sensitivity", seeds, |seed| {
        let scenario = PhoneScenario::walk(context.traces()?, *seed, false)?;
        let mut varied = Vec::new();
        scenario.watched(
            &systems::vanilla(),
            &ASSISTANT,
            *seed,
            Meter::of,
            |meter: &Meter, end| {
                varied = meter.radio.swings(end);
            },
        )?;
        Ok(varied)
    })?;
    let mut all: Vec<Varied> = Vec::new();
    let share = 1.0 / runs.len().max(1) as f64;
    for swing in runs.iter().flatten() {
        let (low_j, high_j) = (swing.low_j * share, swing.high_j * share);
        match all.iter_mut().find(|varied| varied.parameter == swing.parameter) {
            Some(varied) => {
                varied.low_j += low_j;
                varied.high_j += high_j;
            }
            None => all.push(Varied { parameter: swing.parameter, low_j, high_j }),
        }
    }
    Ok(all)
}

fn sensitivity(swings: &[Varied]) -> Grid {
    let columns = [("parameter", ""), ("at 80 %", "J"), ("at 120 %", "J")];
    let title = "LTE energy of vanilla's runs within WiFi, by parameter of the radio";
    let mut grid = Grid::new("sensitivity", title, &columns);
    for swing in swings {
        grid.push(&[swing.parameter], &[swing.low_j, swing.high_j]);
    }
    grid
}

/// Feeds LTE's packets to radios with other parameters.
#[derive(Debug)]
pub(super) struct Meter {
    up: LinkId,
    down: LinkId,
    radio: Sensitivity,
}

impl Meter {
    fn of(paths: &Paths) -> Meter {
        let parameters = RadioParameters::of(RadioKind::Lte);
        let radio = Sensitivity::new(parameters, Instant::ZERO);
        Meter { up: paths.up[LTE], down: paths.down[LTE], radio }
    }
}

impl Observer for Meter {
    fn on_packet(&mut self, now: Instant, sighting: Sighting, packet: &Packet) {
        let bytes = packet.segment.len() as u64 + u64::from(packet.overhead);
        match sighting {
            Sighting::Sent { link: Some(link), .. } if link == self.up => {
                self.radio.packet(now, Direction::Up, bytes);
            }
            Sighting::Delivered { link, .. } if link == self.down => {
                self.radio.packet(now, Direction::Down, bytes);
            }
            _ => {}
        }
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
