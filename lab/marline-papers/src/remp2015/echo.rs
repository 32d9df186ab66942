//! Figure 1 of the paper, with plain TCP on each path alone, and the gain on the train when connections lose their
//! cells independently or at the same time.

use marline_lab::experiment::{Experiment, Message, Variant};
use marline_lab::figure::{Figure, Plot};
use serde::{Deserialize, Serialize};

use super::correlation::Pair;
use super::links::{self, Coincidence, TRAIN_PATHS};
use super::measure::{
    self, Echoes, Moments, Tail, bound_ms, map_roots, pooled_estimate, round_to_thousandth,
};
use super::published::Published;
use super::round_trips::{MEASURED, push_moments};
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::mechanism::Mechanism;
use crate::paper::Context;
use crate::plain::{mptcp, tcp};
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

/// Loss recovery of the study's Linux 3.14.
const STUDY_RECOVERY: &str = "rfc6675,pto=linux-3.10,fack=on,early-retransmit=on";

/// Plain TCP on each path, then redundancy on both.
pub(super) fn variants(paths: [&str; 2]) -> [Variant; 3] {
    // The scheduler is also of that time. A scheduler that suspects paths by probes (`min-rtt`) retries sooner on a
    // path that responds again, even if it is the only path.
    let alone = |path| tcp(path, path).scheduler("lowest-rtt").recovery(STUDY_RECOVERY);
    let both = mptcp("ReMP").scheduler(remp_scheduler()).recovery(STUDY_RECOVERY);
    [alone(paths[0]), alone(paths[1]), both]
}

/// ReMP's scheduler. Without its copies, it is the scheduler of its time.
pub(super) fn remp_scheduler() -> &'static str {
    if Mechanism::Redundancy.is_off() { "lowest-rtt" } else { "redundant" }
}

/// Number of roots whose round-trip times are kept for the figures and the tail.
const FIGURE_ROOTS: usize = 50;

/// One run.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    moments: Moments,
    /// Share of packets lost on the first path.
    lost: f64,
    /// Average, relative to the clairvoyant bound.
    over_bound: Option<f64>,
    /// Round-trip times, ms, sorted. Only for the first roots.
    latencies_ms: Vec<f64>,
}

/// Results of all three variants on a root.
#[derive(Debug, Serialize, Deserialize)]
struct Scene {
    /// Runs of [`variants`].
    runs: Vec<Run>,
    /// Comparison of the two single paths.
    pair: Pair,
    /// For the figures, only for the first root: when each message was sent, s, and its round-trip time with each
    /// variant, ms.
    course: Vec<(f64, [f64; 3])>,
}

impl Scene {
    fn new(experiment: &Experiment, paths: [&str; 2], root: &Root) -> anyhow::Result<Scene> {
        let (mut runs, mut messages) = (Vec::new(), Vec::new());
        for variant in &variants(paths) {
            let (of_run, echoes) = measure::run(experiment, variant, root)?;
            runs.push(echoes);
            messages.push(of_run);
        }
        let bound_ms = bound_ms(experiment, root, &messages[0])?;
        let run = |echoes: Echoes| {
            let moments = Moments::from_latencies(&echoes.latencies_ms);
            let drawn = if root.number < FIGURE_ROOTS { echoes.latencies_ms } else { Vec::new() };
            Run {
                moments,
                lost: echoes.lost.first().copied().unwrap_or(0.0),
                over_bound: bound_ms.map(|bound| moments.average() / bound),
                latencies_ms: drawn,
            }
        };
        let latencies =
            |run: &[Message]| run.iter().map(|message| message.latency_ms).collect::<Vec<f64>>();
        Ok(Scene {
            runs: runs.into_iter().map(run).collect(),
            pair: Pair::from_lists(&latencies(&messages[0]), &latencies(&messages[1])),
            course: if root.number == 0 { round_trip_course(&messages) } else { Vec::new() },
        })
    }

    fn moments(&self) -> [Moments; 3] {
        std::array::from_fn(|n| self.runs[n].moments)
    }
}

/// Round-trip times of several runs by send time, which is the same in all of them.
fn round_trip_course(runs: &[Vec<Message>]) -> Vec<(f64, [f64; 3])> {
    let at = |index: usize| {
        let of_each = std::array::from_fn(|run| round_to_thousandth(runs[run][index].latency_ms));
        (runs[0][index].sent_ms / 1e3, of_each)
    };
    (0..runs[0].len()).map(at).collect()
}

/// Longest possible round trip over LTE at home, ms: 154, twice the jitter, and the time to send two packets. A message
/// that is sent again over WiFi takes longer.
const LTE_LONGEST_MS: f64 = 221.0;

/// Plain TCP on each path at home, and redundancy: rows, figures, and what the paper says about the links.
pub(super) fn run_home(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    grid: &mut Grid,
    result: &mut Reproduction,
) -> anyhow::Result<Vec<Row>> {
    let home = links::home_experiment(links::WIFI, links::LTE, context.count(links::MESSAGES));
    let (samples, rows) = context.judge_part(
        Part::new("home", 100, 1200),
        |root| Scene::new(&home, ["wifi", "lte"], root),
        |samples| Ok(home_rows(samples, context.master)),
    )?;
    let names = ["WiFi", "LTE", "ReMP"];
    result.figures.push(course_figure("home-course", "RTTs at home", names, &samples));
    result.figures.push(cdf_figure("home-cdf", "RTTs at home, cumulative", names, &samples));
    let moments = map_roots(&samples, context.master, Scene::moments);
    push_measured(grid, "home", names, &samples, &moments);
    result.grids.push(links_grid(&file.published, &samples, &moments));
    Ok(rows)
}

/// Plain TCP on each connection on the train, and redundancy, by percentage of shared outages.
pub(super) fn run_train(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    grid: &mut Grid,
    result: &mut Reproduction,
) -> anyhow::Result<Vec<Row>> {
    let count = context.count(links::MESSAGES);
    let train = |coincidence| {
        move |root: &Root| {
            let experiment = links::train_experiment(coincidence, count, root.seed);
            Scene::new(&experiment, TRAIN_PATHS, root)
        }
    };
    let (samples, rows) = context.judge_part(
        Part::new("train", 100, 20_000),
        train(Coincidence::Never),
        |samples| Ok(vec![repeated_row(file, samples, context.master)?]),
    )?;
    let names = ["LTE 1", "LTE 2", "ReMP"];
    let title = "RTTs on the train";
    result.figures.push(course_figure("train-course", title, names, &samples));
    let title = "RTTs on the train, cumulative";
    result.figures.push(cdf_figure("train-cdf", title, names, &samples));
    let moments = map_roots(&samples, context.master, Scene::moments);
    push_measured(grid, "train", names, &samples, &moments);

    let mut coincidences = coincidence_grid();
    coincidence_row(&mut coincidences, "outages never overlap", &samples, context.master);
    for (part, roots, name, share) in [
        ("train-independent", 100, "independent", 0.0),
        ("train-common-25", 60, "25 % of outages shared", 0.25),
        ("train-common-50", 60, "50 % of outages shared", 0.5),
        ("train-common-100", 60, "all outages shared", 1.0),
    ] {
        let part = Part::fixed(part, roots);
        let samples = context.sample(part, train(Coincidence::Share(share)))?;
        coincidence_row(&mut coincidences, name, &samples, context.master);
    }
    result.grids.push(coincidences);
    Ok(rows)
}

/// Adds the measured values of all three variants to the grid of Table 1.
fn push_measured(
    grid: &mut Grid,
    scene: &str,
    names: [&str; 3],
    samples: &Samples<Scene>,
    moments: &Samples<[Moments; 3]>,
) {
    for (index, name) in names.into_iter().enumerate() {
        let bounded = samples.all().iter().filter_map(|root| root.runs[index].over_bound);
        let over_bound = marline_sim::mean(&bounded.collect::<Vec<f64>>());
        push_moments(grid, [scene, name, MEASURED], moments, index, [over_bound, f64::NAN]);
    }
}

fn home_rows(samples: &Samples<Scene>, master: u64) -> Vec<Row> {
    let compensates = |root: &Scene| root.runs[2].moments.worst() <= LTE_LONGEST_MS;
    let share = samples.share(|root| (u64::from(compensates(root)), 1));
    let tail = |index: usize| {
        let drawn = samples.all().iter().take(FIGURE_ROOTS);
        Tail::new(drawn.map(|root| root.runs[index].latencies_ms.as_slice()))
    };
    let [wifi, lte, remp] = [tail(0), tail(1), tail(2)];
    let p99 = [&wifi, &lte, &remp].map(|tail| tail.quantile(0.99));
    let better = if p99[0] < p99[1] { &wifi } else { &lte };
    vec![
        Row::new("ReMP: runs without a message that takes longer than LTE's longest RTT (221 ms)")
            .statement("home-drops-compensated")
            .paper_claim("all drops are compensated")
            .estimate(&share.percent(), "%")
            .require(samples.all().iter().all(compensates), "every run"),
        Row::new("ReMP: p99, ratio to that of the better path alone")
            .statement("home-tail")
            .paper_claim("tremendous improvement of the tail")
            .estimate(&remp.ratio(better, master, 0.99), "")
            .at_most(1.0)
            .with_remark(format!("{:.0} ms; WiFi {:.0} ms; LTE {:.0} ms", p99[2], p99[0], p99[1])),
    ]
}

/// What the paper says about the links at home, from which they were chosen.
fn links_grid(
    paper: &Published,
    samples: &Samples<Scene>,
    moments: &Samples<[Moments; 3]>,
) -> Grid {
    let lost = |index: usize| samples.mean(move |root| 100.0 * root.runs[index].lost);
    let later = pooled_estimate(moments, |[wifi, lte, _]| lte.average() - wifi.average());
    let first = samples.share(|root| root.pair.first_sooner_counts());
    let correlation = samples.mean(|root| root.pair.correlation());
    let title = "The links at home, plain TCP on each alone (99 % intervals)";
    let mut grid = Grid::new("links", title, &[("what", ""), ("paper", ""), ("ours", "")]);
    let number = |value| Value::new(value, "");
    let text = |text: &str| Value::Text(text.to_owned());
    for (what, paper, ours) in [
        ("packets lost on WiFi (%)", number(paper.wifi_loss_percent), lost(0)),
        ("packets lost on LTE (%)", number(paper.lte_loss_percent), lost(1)),
        ("LTE's average minus WiFi's (ms)", number(paper.lte_later_ms), later),
        ("messages sooner over WiFi (%)", text("almost always"), first.percent()),
        ("correlation of the RTTs", text("very low"), correlation),
    ] {
        grid.rows.push(vec![text(what), paper, Value::from_estimate(&ours, "")]);
    }
    grid
}

/// Average of redundancy, as a percentage of the better connection's.
fn remaining_percent(all: [Moments; 3]) -> f64 {
    100.0 * all[2].average() / all[0].average().min(all[1].average())
}

/// Smaller deviation of the two connections alone, divided by the deviation of redundancy.
fn sigma_factor(all: [Moments; 3]) -> f64 {
    all[0].sigma().min(all[1].sigma()) / all[2].sigma()
}

/// The authors' repetition with plain TCP on each connection, of which they print no number.
fn repeated_row(
    file: &PaperFile<Published>,
    samples: &Samples<Scene>,
    master: u64,
) -> anyhow::Result<Row> {
    let moments = map_roots(samples, master, Scene::moments);
    let factor = pooled_estimate(&moments, sigma_factor);
    let least = file.tolerance("train_sigma_factor")?;
    let row = Row::new("ReMP: average relative to the better connection's with plain TCP")
        .statement("train-repeated")
        .paper_claim("similar behavior")
        .estimate(&pooled_estimate(&moments, remaining_percent), "%")
        .at_most(50.0)
        .require_also(
            &factor,
            RequiredRange::at_least(least),
            format!("deviation smaller by a factor of at least {least}"),
        );
    let Estimate { value, low, high, .. } = factor;
    Ok(row.with_remark(format!("factor {value:.1} [{low:.1}, {high:.1}]")))
}

fn coincidence_grid() -> Grid {
    let columns = [
        ("connections", ""),
        ("correlation of RTTs", ""),
        ("correlation of late messages", ""),
        ("LTE 1, average", "ms"),
        ("LTE 2, average", "ms"),
        ("ReMP, average", "ms"),
        ("ReMP, worst", "ms"),
        ("average / the better path's", "%"),
        ("reduction factor of the standard deviation", ""),
    ];
    let title = "Redundancy on the train, by percentage of shared outages (99 % intervals)";
    Grid::new("coincidence", title, &columns)
}

fn coincidence_row(grid: &mut Grid, name: &str, samples: &Samples<Scene>, master: u64) {
    let moments = map_roots(samples, master, Scene::moments);
    let late = |picked: &[&Scene]| Pair::lateness_correlation(picked.iter().map(|root| &root.pair));
    let estimates = [
        samples.mean(|root| root.pair.correlation()),
        samples.estimate(late),
        pooled_estimate(&moments, |all| all[0].average()),
        pooled_estimate(&moments, |all| all[1].average()),
        pooled_estimate(&moments, |all| all[2].average()),
        pooled_estimate(&moments, |all| all[2].worst()),
        pooled_estimate(&moments, remaining_percent),
        pooled_estimate(&moments, sigma_factor),
    ];
    let cell = |estimate: &Estimate| Value::from_estimate(estimate, "");
    let words = [Value::Text(name.to_owned())];
    grid.rows.push(words.into_iter().chain(estimates.iter().map(cell)).collect());
}

/// Every round-trip time over time, on one root.
fn course_figure(name: &str, title: &str, of: [&str; 3], samples: &Samples<Scene>) -> Figure {
    let course = samples.all().first().map_or(&[][..], |root| &root.course);
    let plot = Plot::new(title, "time (s)", "RTT (ms)").log_y();
    let plot = of.iter().enumerate().fold(plot, |plot, (run, name)| {
        let points: Vec<_> = course.iter().map(|(at_s, ms)| (*at_s, ms[run])).collect();
        plot.line(name, &points)
    });
    plot.figure(name, "First root: every variant runs over the same links.")
}

/// Distribution of the round-trip times of all roots.
fn cdf_figure(name: &str, title: &str, of: [&str; 3], samples: &Samples<Scene>) -> Figure {
    const CDF_POINTS: usize = 1_000;
    let plot = Plot::new(title, "RTT (ms)", "share of messages").log_x();
    let plot = of.iter().enumerate().fold(plot, |plot, (run, name)| {
        let runs = samples.all().iter().map(|root| &root.runs[run].latencies_ms);
        let mut all: Vec<f64> = runs.flatten().copied().collect();
        all.sort_by(f64::total_cmp);
        let point = |index: usize| {
            let rank = (index * all.len()).div_ceil(CDF_POINTS).max(1);
            (all[rank - 1], index as f64 / CDF_POINTS as f64)
        };
        plot.steps(name, &(0..=CDF_POINTS).map(point).collect::<Vec<_>>())
    });
    plot.figure(name, "Plain TCP on each path alone, and redundantly on both; the first 50 roots.")
}
