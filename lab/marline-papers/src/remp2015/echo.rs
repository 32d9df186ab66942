//! Table 1 and Figure 1 of the paper, and the gain in the train when connections lose their cells independently or at
//! the same time.

use marline_lab::experiment::{Experiment, Message, Variant};
use marline_lab::figure::{Figure, Plot};
use serde::{Deserialize, Serialize};

use super::correlation::Pair;
use super::links::{self, Coincidence, TRAIN_PATHS};
use super::measure::{
    self, Echoes, Moments, STATISTICS, bound_ms, map_roots, pooled_estimate, round_to_thousandth,
};
use super::published::{Published, RoundTrips};
use crate::estimate::{RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::plain::{mptcp, tcp};
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// Loss recovery of the study's Linux 3.14.
const STUDY_RECOVERY: &str = "rfc6675,pto=linux-3.10,fack=on,early-retransmit=on";

/// Plain TCP on each path, then redundancy on both.
pub(super) fn variants(paths: [&str; 2]) -> [Variant; 3] {
    // The scheduler is also of that time. A scheduler that suspects paths by probes (`min-rtt`) retries sooner on a
    // path that responds again, even if it is the only path.
    let alone = |path| tcp(path, path).scheduler("lowest-rtt").recovery(STUDY_RECOVERY);
    let both = mptcp("ReMP").scheduler("redundant").recovery(STUDY_RECOVERY);
    [alone(paths[0]), alone(paths[1]), both]
}

/// Number of roots whose round-trip times are kept for the figures.
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

/// Round-trip times of several runs by the time of sending, which is equal in all of them.
fn round_trip_course(runs: &[Vec<Message>]) -> Vec<(f64, [f64; 3])> {
    let at = |index: usize| {
        let of_each = std::array::from_fn(|run| round_to_thousandth(runs[run][index].latency_ms));
        (runs[0][index].sent_ms / 1e3, of_each)
    };
    (0..runs[0].len()).map(at).collect()
}

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let count = context.count(links::MESSAGES);
    let home = links::home_experiment(links::WIFI, links::LTE, count);
    let (samples, rows) = context.judge_part(
        Part::new("home", 100, 1200),
        |root| Scene::new(&home, ["wifi", "lte"], root),
        |samples| home_rows(file, samples, context.master),
    )?;
    result.tables.push(Table::new("home", "Experiment 1: WiFi and LTE at home", rows));
    let names = ["WiFi", "LTE", "ReMP"];
    result.figures.push(course_figure("home-course", "RTTs at home", names, &samples));
    result.figures.push(cdf_figure("home-cdf", "RTTs at home, cumulative", names, &samples));

    let train = |coincidence| {
        move |root: &Root| {
            let experiment = links::train_experiment(coincidence, count, root.seed);
            Scene::new(&experiment, TRAIN_PATHS, root)
        }
    };
    let (samples, rows) = context.judge_part(
        Part::new("train", 100, 20_000),
        train(Coincidence::Never),
        |samples| train_rows(file, samples, context.master),
    )?;
    result.tables.push(Table::new("train", "Experiment 2: two LTE connections in a train", rows));
    let names = ["LTE 1", "LTE 2", "ReMP"];
    let title = "RTTs in the train";
    result.figures.push(course_figure("train-course", title, names, &samples));
    let title = "RTTs in the train, cumulative";
    result.figures.push(cdf_figure("train-cdf", title, names, &samples));

    let mut grid = coincidence_grid();
    coincidence_row(&mut grid, "never both at once", &samples, context.master);
    let (samples, rows) = context.judge_part(
        Part::new("train-independent", 100, 20_000),
        train(Coincidence::Share(0.0)),
        |samples| independent_rows(file, samples, context.master),
    )?;
    let title = "The train with independent connections";
    result.tables.push(Table::new("train-independent", title, rows));
    coincidence_row(&mut grid, "independent", &samples, context.master);
    for (part, share) in
        [("train-common-25", 0.25), ("train-common-50", 0.5), ("train-common-100", 1.0)]
    {
        let part = Part::fixed(part, 60);
        let samples = context.sample(part, train(Coincidence::Share(share)))?;
        let name = format!("{:.0} % common failures", 100.0 * share);
        coincidence_row(&mut grid, &name, &samples, context.master);
    }
    result.grids.push(grid);
    Ok(())
}

/// Name of a variant in its rows, the paper's numbers, and the reasons why some of ours are fitted.
struct NamedVariant<'a> {
    name: &'a str,
    index: usize,
    paper: RoundTrips,
    /// Fitted parameters of average, worst and deviation.
    fitted: [Option<&'a str>; 3],
}

/// Rows of average, worst and deviation of a variant.
fn round_trips(
    named: &NamedVariant<'_>,
    samples: &Samples<Scene>,
    moments: &Samples<[Moments; 3]>,
    share: f64,
) -> Vec<Row> {
    let NamedVariant { name, index, paper, fitted } = *named;
    let bounded = samples.all().iter().filter_map(|root| root.runs[index].over_bound);
    let bounded: Vec<f64> = bounded.collect();
    let mut rows = Vec::new();
    for ((paper, (what, of)), fitted) in paper.columns().into_iter().zip(STATISTICS).zip(fitted) {
        let estimate = pooled_estimate(moments, |all| of(&all[index]));
        let row = Row::new(format!("{name}: {what}"))
            .paper(paper, "ms")
            .estimate(&estimate, "ms")
            .within_of_paper(share);
        rows.push(match fitted {
            Some(what) => row.mark_fitted(what),
            None => row,
        });
    }
    let average = rows.remove(0).bound_ratio(marline_sim::mean(&bounded));
    rows.insert(0, average);
    rows
}

/// Reduction of one value relative to another, percent.
fn reduction_percent(mine: f64, other: f64) -> f64 {
    100.0 * (1.0 - mine / other)
}

fn home_rows(
    file: &PaperFile<Published>,
    samples: &Samples<Scene>,
    master: u64,
) -> anyhow::Result<Vec<Row>> {
    let (paper, share) = (&file.published, file.tolerance("average")?);
    let moments = map_roots(samples, master, Scene::moments);
    let wifi = Some(
        "WiFi's delay, jitter and bad periods, set to match its average, deviation and worst case",
    );
    let lte = Some("LTE's delay and jitter, set to match its average and deviation");
    let mut rows = Vec::new();
    for named in [
        NamedVariant { name: "WiFi alone", index: 0, paper: paper.wifi, fitted: [wifi; 3] },
        NamedVariant { name: "LTE alone", index: 1, paper: paper.lte, fitted: [lte, None, lte] },
        NamedVariant { name: "ReMP", index: 2, paper: paper.remp, fitted: [None; 3] },
    ] {
        rows.extend(round_trips(&named, samples, &moments, share));
    }
    let average = pooled_estimate(&moments, |[wifi, _, remp]| {
        reduction_percent(remp.average(), wifi.average())
    });
    let worst =
        pooled_estimate(&moments, |[wifi, _, remp]| reduction_percent(remp.worst(), wifi.worst()));
    let worst_of_lte =
        pooled_estimate(&moments, |[_, lte, remp]| reduction_percent(remp.worst(), lte.worst()));
    rows.push(
        Row::new("ReMP: reduction of WiFi's average")
            .paper(paper.cut_against_wifi, "%")
            .estimate(&average, "%")
            .at_least(file.tolerance("cut_against_wifi_percent")?),
    );
    rows.push(
        Row::new("ReMP: reduction of WiFi's worst RTT")
            .paper(reduction_percent(paper.remp.worst, paper.wifi.worst), "%")
            .estimate(&worst, "%")
            .at_least(paper.worst_cut_against_wifi_said),
    );
    rows.push(
        Row::new("ReMP: reduction of LTE's worst RTT")
            .paper(reduction_percent(paper.remp.worst, paper.lte.worst), "%")
            .estimate(&worst_of_lte, "%")
            .at_least(paper.worst_cut_against_lte_said),
    );
    rows.extend(link_rows(paper, samples, &moments));
    Ok(rows)
}

/// Claims of the paper about the links at home, from which the link model was chosen.
fn link_rows(
    paper: &Published,
    samples: &Samples<Scene>,
    moments: &Samples<[Moments; 3]>,
) -> Vec<Row> {
    let lost = |index: usize| samples.mean(move |root| 100.0 * root.runs[index].lost);
    let later = pooled_estimate(moments, |[wifi, lte, _]| lte.average() - wifi.average());
    let first = samples.share(|root| root.pair.first_sooner_counts());
    let correlation = samples.mean(|root| root.pair.correlation());
    vec![
        Row::new("WiFi alone: packets lost")
            .paper(paper.wifi_loss_percent, "%")
            .estimate(&lost(0), "%")
            .mark_fitted(
                "the losses in bad and good periods were set close to the values that the paper cites",
            ),
        Row::new("LTE alone: packets lost")
            .paper(paper.lte_loss_percent, "%")
            .estimate(&lost(1), "%")
            .mark_fitted("set to the value that the paper cites"),
        Row::new("LTE's average minus WiFi's")
            .paper(paper.lte_later_ms, "ms")
            .estimate(&later, "ms")
            .mark_fitted("both averages were fitted")
            .with_remark(format!(
                "the paper's table has {:.1} ms; without losses ours are 59 ms apart",
                paper.lte.average - paper.wifi.average
            )),
        Row::new("messages that arrive sooner over WiFi than over LTE")
            .paper_claim("almost always")
            .estimate(&first.percent(), "%"),
        Row::new("correlation of WiFi's and LTE's RTTs")
            .paper_claim("very low")
            .estimate(&correlation, "")
            .with_remark("the model's links are independent"),
    ]
}

fn smaller_average(first: f64, second: f64) -> f64 {
    first.min(second)
}

/// Average of redundancy, as a percentage of the better connection's.
fn remaining_percent(all: [Moments; 3]) -> f64 {
    100.0 * all[2].average() / smaller_average(all[0].average(), all[1].average())
}

/// Smaller deviation of the two connections alone, divided by the deviation of redundancy.
fn sigma_factor(all: [Moments; 3]) -> f64 {
    smaller_average(all[0].sigma(), all[1].sigma()) / all[2].sigma()
}

fn train_rows(
    file: &PaperFile<Published>,
    samples: &Samples<Scene>,
    master: u64,
) -> anyhow::Result<Vec<Row>> {
    let (paper, share) = (&file.published, file.tolerance("average")?);
    let moments = map_roots(samples, master, Scene::moments);
    let cells = Some("cells and their gaps, set to match the averages of the three rows");
    let fitted = [cells, None, None];
    let mut rows = Vec::new();
    for named in [
        NamedVariant { name: "LTE 1 alone", index: 0, paper: paper.train_lte1, fitted },
        NamedVariant { name: "LTE 2 alone", index: 1, paper: paper.train_lte2, fitted },
        NamedVariant { name: "ReMP", index: 2, paper: paper.train_remp, fitted },
    ] {
        rows.extend(round_trips(&named, samples, &moments, share));
    }
    rows.push(
        Row::new("ReMP: average relative to the better connection's")
            .paper(paper.train_share_left, "%")
            .estimate(&pooled_estimate(&moments, remaining_percent), "%")
            .at_most(100.0 - file.tolerance("train_cut_percent")?)
            .mark_fitted("both averages were fitted; judged below, with independent connections")
            .with_remark("the text has \"more than halves (48.8 %)\": the remaining share"),
    );
    let factor = pooled_estimate(&moments, sigma_factor);
    let papers =
        smaller_average(paper.train_lte1.sigma, paper.train_lte2.sigma) / paper.train_remp.sigma;
    rows.push(
        Row::new("ReMP: reduction factor of the standard deviation")
            .paper(papers, "")
            .estimate(&factor, "")
            .at_least(file.tolerance("train_sigma_factor")?),
    );
    rows.push(
        Row::new("the factor stated in the paper's text")
            .paper(paper.train_sigma_factor_said, "")
            .estimate(&factor, "")
            .with_remark("shown only: the paper's table contradicts its text"),
    );
    rows.extend(correlation_rows(samples, None));
    Ok(rows)
}

/// Correlation of the two connections alone. Judged only if `most` is given.
fn correlation_rows(samples: &Samples<Scene>, most: Option<f64>) -> Vec<Row> {
    let round_trips = samples.mean(|root| root.pair.correlation());
    let late =
        samples.estimate(|picked| Pair::lateness_correlation(picked.iter().map(|r| &r.pair)));
    let rows = [
        ("correlation of the connections' RTTs", round_trips),
        ("correlation of late messages (more than twice the median)", late),
    ];
    let row = |(what, estimate)| {
        let row = Row::new(what).paper_claim("nearly none").estimate(&estimate, "");
        match most {
            Some(most) => row.require_range(
                RequiredRange { least: -most, most },
                format!("between -{most} and {most}"),
            ),
            None => row.with_remark("imposed: the connections never fail at the same time"),
        }
    };
    rows.into_iter().map(row).collect()
}

/// Claims about the train, when both connections may fail at the same time.
fn independent_rows(
    file: &PaperFile<Published>,
    samples: &Samples<Scene>,
    master: u64,
) -> anyhow::Result<Vec<Row>> {
    let (paper, share) = (&file.published, file.tolerance("average")?);
    let moments = map_roots(samples, master, Scene::moments);
    let mut rows = correlation_rows(samples, Some(file.tolerance("correlation")?));
    let fitted = [None; 3];
    let named = NamedVariant { name: "ReMP", index: 2, paper: paper.train_remp, fitted };
    rows.extend(round_trips(&named, samples, &moments, share));
    rows.push(
        Row::new("ReMP: average relative to the better connection's")
            .paper(paper.train_share_left, "%")
            .estimate(&pooled_estimate(&moments, remaining_percent), "%")
            .at_most(50.0)
            .with_remark(
                "the goal is the text's \"more than halves\"; the cells are those fitted above",
            ),
    );
    rows.push(
        Row::new("ReMP: reduction factor of the standard deviation")
            .paper_claim("11.5 in its table, 19 in its text")
            .estimate(&pooled_estimate(&moments, sigma_factor), "")
            .at_least(file.tolerance("train_sigma_factor")?),
    );
    Ok(rows)
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
        ("share of the better average", "%"),
        ("reduction factor of the standard deviation", ""),
    ];
    let title = "Redundancy in the train, by share of common failures (99 % intervals)";
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
    let cell = |estimate: &crate::estimate::Estimate| Value::from_estimate(estimate, "");
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
