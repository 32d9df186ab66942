//! Computation of what-if values from captures, as the paper did for its single-path rows, and the reverse.
//!
//! The authors ran only redundancy and captured both interfaces. From the differences between the arrivals of the same
//! packet on both subflows they computed the results of one path alone ([`single_path_round_trips`]). Plain TCP gives
//! other results. A lagging path never sends data that was already delivered over the other path and acknowledged. This
//! data is missing in the computation. The reverse takes the captures of two single-path runs with the same messages
//! and computes the results of redundancy ([`redundant_round_trips`]).
//!
//! Both computations use only [`Arrivals`], which come from the segments on the wire ([`SegmentLog`]), not from
//! the program. The computed cases are also run on the same links, to show the error of the computation.

use std::collections::BTreeMap;

use marline_lab::experiment::{Experiment, START, Variant, stage};
use marline_lab::figure::{Delivery, Segment, SegmentLog};
use marline_time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::links::{self, BYTES, Coincidence, TRAIN_PATHS};
use super::measure::{Moments, STATISTICS, Statistic, map_roots, pooled_estimate};
use super::published::{Published, RoundTrips};
use super::round_trips::{ALL, COMPUTED, Line, WITHOUT_AVERAGE, push_moments, push_published};
use crate::estimate::Samples;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::Grid;

/// Times at which each message was complete at the other end over one path, ms after the start of the workload.
/// `None`: that path never carried it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arrivals {
    /// Times of the requests at the server.
    up: Vec<Option<f64>>,
    /// Times of the answers at the client.
    down: Vec<Option<f64>>,
}

impl Arrivals {
    /// Arrivals of a path in a log of one connection whose messages and answers have `bytes` bytes.
    pub(super) fn from_segments(
        segments: &[Segment],
        path: usize,
        bytes: u32,
        count: usize,
    ) -> Arrivals {
        let way = |from_client| {
            let of_way = |segment: &&Segment| {
                segment.path == path && segment.from_client == from_client && segment.payload > 0
            };
            in_order_arrivals(segments.iter().filter(of_way), u64::from(bytes), count)
        };
        Arrivals { up: way(true), down: way(false) }
    }
}

/// Times at which the last byte of each message and all earlier bytes of the subflow had arrived.
fn in_order_arrivals<'a>(
    segments: impl Iterator<Item = &'a Segment>,
    bytes: u64,
    count: usize,
) -> Vec<Option<f64>> {
    let mut arrived: Vec<(Instant, &Segment)> = segments
        .filter_map(|segment| match segment.delivery {
            Delivery::Arrived(at) => Some((at, segment)),
            Delivery::Lost => None,
        })
        .collect();
    arrived.sort_by_key(|(at, _)| *at);
    let mut messages = vec![None; count];
    // Segments that wait for an earlier one, by their offset in the subflow.
    let mut waiting: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut next = 0;
    for (at, segment) in arrived {
        let offset = u64::from(segment.subflow_offset);
        // Plain TCP has no mapping. The subflow's stream is the connection's.
        let stream = segment.stream_offset.unwrap_or(offset);
        waiting.insert(offset, (stream, u64::from(segment.payload)));
        while let Some((offset, (stream, len))) = waiting.pop_first() {
            if offset > next {
                waiting.insert(offset, (stream, len));
                break;
            }
            next = next.max(offset + len);
            let at_ms = (at.as_nanos() as f64 - START.as_nanos() as f64) / 1e6;
            // Messages whose last byte is in this segment.
            let ends = stream / bytes..(stream + len) / bytes;
            for message in ends {
                if let Some(slot) = messages.get_mut(message as usize) {
                    slot.get_or_insert(at_ms);
                }
            }
        }
    }
    messages
}

fn earlier_of(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Computes the round-trip times of redundancy from two runs on one path each. The request and its answer each arrive
/// over the faster path, with their times in the two runs. Data is read in order. Messages that neither path carried
/// are left out.
pub(super) fn redundant_round_trips(sent_ms: &[f64], runs: [&Arrivals; 2]) -> Vec<f64> {
    let (mut asked, mut read) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    let mut round_trips = Vec::new();
    for (message, sent_ms) in sent_ms.iter().enumerate() {
        let Some(request) = earlier_of(runs[0].up[message], runs[1].up[message]) else { continue };
        asked = asked.max(request);
        let takes = |run: &Arrivals| Some(run.down[message]? - run.up[message]?);
        let Some(answer) = earlier_of(takes(runs[0]), takes(runs[1])) else { continue };
        read = read.max(asked + answer);
        round_trips.push(read - sent_ms);
    }
    round_trips
}

/// Computes the round-trip times of one path alone from a redundant run, as the sum of the times of both
/// directions on that path. The answer starts when the request has arrived over the faster path. `None`: the path did
/// not carry both.
pub(super) fn single_path_round_trips(
    sent_ms: &[f64],
    path: &Arrivals,
    other: &Arrivals,
) -> Vec<Option<f64>> {
    let round_trip = |(message, sent_ms): (usize, &f64)| {
        let (up, down) = (path.up[message]?, path.down[message]?);
        let asked = earlier_of(Some(up), other.up[message])?;
        Some(up - sent_ms + (down - asked))
    };
    sent_ms.iter().enumerate().map(round_trip).collect()
}

/// Results and capture of a run.
struct CapturedRun {
    sent_ms: Vec<f64>,
    latencies_ms: Vec<f64>,
    segments: Vec<Segment>,
}

impl CapturedRun {
    fn run(experiment: &Experiment, variant: &Variant, root: &Root) -> anyhow::Result<CapturedRun> {
        const STEP: Duration = Duration::from_millis(500);
        const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
        let mut paths = stage(experiment, variant, root.seed)?;
        let log = SegmentLog::for_paths(&paths);
        paths.world.observe(Box::new(log));
        let count = experiment.workload().count().unwrap_or(0) as usize;
        let end = START + experiment.workload().duration(root.seed);
        paths.world.run_until(end);
        let read = |paths: &marline_sim::Paths| {
            paths.client_report(0).map_or(0, |report| report.received.len())
        };
        while read(&paths) < count && paths.world.now() < end + ANSWER_TIMEOUT {
            let next = paths.world.now() + STEP;
            paths.world.run_until(next);
        }
        anyhow::ensure!(read(&paths) == count, "{}: messages did not arrive", variant.name);
        let Some((report, log)) = paths.client_report(0).zip(paths.world.observer::<SegmentLog>())
        else {
            anyhow::bail!("{}: nothing was captured", variant.name)
        };
        let ms = |at: &Instant| (at.as_nanos() as f64 - START.as_nanos() as f64) / 1e6;
        let sent_ms: Vec<f64> = report.sent.iter().map(ms).collect();
        let latencies = report.received.iter().zip(&sent_ms).map(|(at, sent)| ms(at) - sent);
        let latencies_ms = latencies.collect();
        Ok(CapturedRun { sent_ms, latencies_ms, segments: log.segments().to_vec() })
    }

    fn arrivals(&self, path: usize) -> Arrivals {
        Arrivals::from_segments(&self.segments, path, BYTES, self.sent_ms.len())
    }
}

/// Measured and computed results.
#[derive(Debug, Serialize, Deserialize)]
struct ComparedResults {
    /// Measured: plain TCP on each path, and redundancy.
    run: [Moments; 3],
    /// Computed: each path alone from the capture of redundancy, and redundancy from the captures of the two.
    what_if: [Moments; 3],
    /// Messages that are missing on each path in the capture of redundancy.
    missing: [u64; 2],
    messages: u64,
}

impl ComparedResults {
    fn measure(
        experiment: &Experiment,
        paths: [&str; 2],
        root: &Root,
    ) -> anyhow::Result<ComparedResults> {
        let [first, second, both] = super::echo::variants(paths);
        let singles = [
            CapturedRun::run(experiment, &first, root)?,
            CapturedRun::run(experiment, &second, root)?,
        ];
        let both = CapturedRun::run(experiment, &both, root)?;
        let of_both = [both.arrivals(0), both.arrivals(1)];
        // A single-path run has one path, index 0.
        let of_singles = [singles[0].arrivals(0), singles[1].arrivals(0)];
        let computed = [(0, 1), (1, 0)].map(|(path, other): (usize, usize)| {
            single_path_round_trips(&both.sent_ms, &of_both[path], &of_both[other])
        });
        let missing = [0, 1].map(|path: usize| {
            computed[path].iter().filter(|round_trip| round_trip.is_none()).count() as u64
        });
        let known = |path: usize| computed[path].iter().copied().flatten().collect::<Vec<f64>>();
        let together = redundant_round_trips(&both.sent_ms, [&of_singles[0], &of_singles[1]]);
        Ok(ComparedResults {
            run: [&singles[0], &singles[1], &both]
                .map(|run| Moments::from_latencies(&run.latencies_ms)),
            what_if: [
                Moments::from_latencies(&known(0)),
                Moments::from_latencies(&known(1)),
                Moments::from_latencies(&together),
            ],
            missing,
            messages: both.sent_ms.len() as u64,
        })
    }
}

/// Index of the first computed contestant. Redundancy is the last one of three.
const COMPUTED_FROM: usize = 3;
const REMP: usize = 2;

/// Measured and computed moments of all contestants.
fn all_moments(samples: &Samples<ComparedResults>, master: u64) -> Samples<[Moments; 6]> {
    map_roots(samples, master, |root| {
        let ([a, b, c], [d, e, f]) = (root.run, root.what_if);
        [a, b, c, d, e, f]
    })
}

/// Rows of experiment 1, and before them the rows of the paper's principle.
pub(super) struct HomeRows {
    pub(super) principle: Vec<Row>,
    pub(super) home: Vec<Row>,
}

/// Experiment 1, computed as in the paper.
pub(super) fn run_home(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    grid: &mut Grid,
) -> anyhow::Result<HomeRows> {
    let home = links::home_experiment(links::WIFI, links::LTE, context.count(links::MESSAGES));
    let (samples, mut principle) = context.judge_part(
        Part::new("what-if-home", 60, 6_000),
        |root| ComparedResults::measure(&home, ["wifi", "lte"], root),
        |samples| {
            let mut rows = principle_rows(file, samples, context.master)?;
            rows.extend(home_rows(file, samples, context.master)?);
            Ok(rows)
        },
    )?;
    let home = principle.split_off(PRINCIPLES);
    let paper = &file.published;
    let lines = [("WiFi", paper.wifi), ("LTE", paper.lte), ("ReMP", paper.remp)];
    push_lines(grid, "home", lines, &samples, context.master);
    Ok(HomeRows { principle, home })
}

/// Experiment 2, computed as in the paper.
pub(super) fn run_train(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    grid: &mut Grid,
) -> anyhow::Result<Vec<Row>> {
    let count = context.count(links::MESSAGES);
    let (samples, rows) = context.judge_part(
        Part::new("what-if-train", 60, 6_000),
        |root| {
            let train = links::train_experiment(Coincidence::Never, count, root.seed);
            ComparedResults::measure(&train, TRAIN_PATHS, root)
        },
        |samples| train_rows(file, samples, context.master),
    )?;
    let paper = &file.published;
    let lines =
        [("LTE 1", paper.train_lte1), ("LTE 2", paper.train_lte2), ("ReMP", paper.train_remp)];
    push_lines(grid, "train", lines, &samples, context.master);
    Ok(rows)
}

/// Number of [`principle_rows`].
const PRINCIPLES: usize = 2;

/// What the paper says that redundancy does, judged at home.
fn principle_rows(
    file: &PaperFile<Published>,
    samples: &Samples<ComparedResults>,
    master: u64,
) -> anyhow::Result<Vec<Row>> {
    let on_both = samples.mean(|root| {
        let missing: u64 = root.missing.iter().sum();
        100.0 * (1.0 - missing as f64 / root.messages.max(1) as f64)
    });
    let largest = pooled_estimate(&all_moments(samples, master), |all| {
        let ratio = |(_, of): Statistic| of(&all[REMP]) / of(&all[COMPUTED_FROM + REMP]);
        STATISTICS.map(|of| 100.0 * (ratio(of) - 1.0).abs()).into_iter().fold(0.0, f64::max)
    });
    let most = 100.0 * file.tolerance("what_if")?;
    Ok(vec![
        Row::new("ReMP at home: messages that both paths carried")
            .statement("copies-on-all-paths")
            .paper(100.0, "%")
            .estimate(&on_both, "%")
            .within_of_paper(file.tolerance("average")?),
        Row::new("ReMP at home: largest difference of average, worst and deviation from the faster path's")
            .statement("fastest-path-decides")
            .paper_claim("none")
            .estimate(&largest, "%")
            .at_most(most)
            .with_remark("the faster path's: from captures of plain TCP on each path"),
    ])
}

/// Reduction of one value relative to another, percent.
fn reduction_percent(mine: f64, other: f64) -> f64 {
    100.0 * (1.0 - mine / other)
}

fn home_rows(
    file: &PaperFile<Published>,
    samples: &Samples<ComparedResults>,
    master: u64,
) -> anyhow::Result<Vec<Row>> {
    let (paper, share) = (&file.published, file.tolerance("average")?);
    let moments = all_moments(samples, master);
    let line = |statement, name, paper, index, fitted| {
        Line { statement, name, paper, index, columns: ALL, fitted }.row(&moments, share)
    };
    let wifi = Some("WiFi's delay, jitter and bad periods");
    let lte = Some("LTE's delay and jitter, and that it loses nothing");
    let reduction = |statement, what: &str, paper: f64, of: fn(&[Moments; 6]) -> f64| {
        Row::new(format!("ReMP: reduction of {what}"))
            .statement(statement)
            .paper(paper, "%")
            .estimate(&pooled_estimate(&moments, |all| of(&all)), "%")
    };
    let (remp, from_wifi, from_lte) = (paper.remp.worst, paper.wifi.worst, paper.lte.worst);
    Ok(vec![
        line("home-wifi", "WiFi", paper.wifi, COMPUTED_FROM, wifi),
        line("home-lte", "LTE", paper.lte, COMPUTED_FROM + 1, lte),
        line("home-remp", "ReMP", paper.remp, REMP, None),
        reduction("home-average", "WiFi's average", paper.cut_against_wifi, |all| {
            reduction_percent(all[REMP].average(), all[COMPUTED_FROM].average())
        })
        .within_of_paper(share),
        reduction(
            "home-worst-of-wifi",
            "WiFi's worst RTT",
            reduction_percent(remp, from_wifi),
            |all| reduction_percent(all[REMP].worst(), all[COMPUTED_FROM].worst()),
        )
        .at_least(paper.worst_cut_against_wifi_said),
        reduction(
            "home-worst-of-lte",
            "LTE's worst RTT",
            reduction_percent(remp, from_lte),
            |all| reduction_percent(all[REMP].worst(), all[COMPUTED_FROM + 1].worst()),
        )
        .at_least(paper.worst_cut_against_lte_said),
    ])
}

fn train_rows(
    file: &PaperFile<Published>,
    samples: &Samples<ComparedResults>,
    master: u64,
) -> anyhow::Result<Vec<Row>> {
    let (paper, share) = (&file.published, file.tolerance("average")?);
    let moments = all_moments(samples, master);
    let line = |statement, name, paper, index, columns, fitted| {
        Line { statement, name, paper, index, columns, fitted }.row(&moments, share)
    };
    let gaps = Some("number and lengths of the gaps");
    let alone = |all: &[Moments; 6], of: fn(&Moments) -> f64| {
        of(&all[COMPUTED_FROM]).min(of(&all[COMPUTED_FROM + 1]))
    };
    let left = pooled_estimate(&moments, |all| {
        100.0 * all[REMP].average() / alone(&all, Moments::average)
    });
    let factor = pooled_estimate(&moments, |all| alone(&all, Moments::sigma) / all[REMP].sigma());
    let published_factor =
        paper.train_lte1.sigma.min(paper.train_lte2.sigma) / paper.train_remp.sigma;
    Ok(vec![
        line("train-lte1", "LTE 1", paper.train_lte1, COMPUTED_FROM, ALL, gaps),
        line("train-lte2", "LTE 2", paper.train_lte2, COMPUTED_FROM + 1, ALL, gaps),
        line("train-remp", "ReMP", paper.train_remp, REMP, WITHOUT_AVERAGE, None),
        Row::new("ReMP: average relative to the better connection's")
            .statement("train-average")
            .paper(paper.train_share_left, "%")
            .estimate(&left, "%")
            .within_of_paper(share)
            .mark_fitted("the cells' delays and the gaps, from both averages"),
        Row::new("ReMP: reduction factor of the standard deviation")
            .statement("train-deviation")
            .paper(published_factor, "")
            .estimate(&factor, "")
            .within_of_paper(share)
            .with_remark("by Table 1; the text has 19"),
    ])
}

/// Adds the published, computed and measured lines of an experiment to the grid.
fn push_lines(
    grid: &mut Grid,
    scene: &str,
    lines: [(&str, RoundTrips); 3],
    samples: &Samples<ComparedResults>,
    master: u64,
) {
    let moments = all_moments(samples, master);
    for (index, (path, paper)) in lines.into_iter().enumerate() {
        push_published(grid, scene, path, paper);
        let missing = |root: &ComparedResults| {
            100.0 * root.missing[index] as f64 / root.messages.max(1) as f64
        };
        let left_out = if index == REMP { f64::NAN } else { samples.mean(missing).value };
        let words = [scene, path, COMPUTED];
        push_moments(grid, words, &moments, COMPUTED_FROM + index, [f64::NAN, left_out]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(up: &[f64], down: &[f64]) -> Arrivals {
        let some = |list: &[f64]| list.iter().map(|ms| Some(*ms)).collect();
        Arrivals { up: some(up), down: some(down) }
    }

    #[test]
    fn redundancy_uses_the_earlier_arrival_in_each_direction_and_reads_in_order() {
        // The first path is slow with the request, the second with the answer.
        let first = arrivals(&[90.0, 140.0], &[100.0, 150.0]);
        let second = arrivals(&[20.0, 115.0], &[80.0, 175.0]);
        // First message: 20 up (second path), 10 down (first path). Second message: 115 up, 10 down.
        assert_eq!(redundant_round_trips(&[0.0, 100.0], [&first, &second]), [30.0, 25.0]);
        // The second message arrives before the first and waits for it.
        let late = arrivals(&[500.0, 110.0], &[510.0, 120.0]);
        assert_eq!(redundant_round_trips(&[0.0, 100.0], [&late, &late]), [510.0, 410.0]);
        let none = Arrivals { up: vec![None; 2], down: vec![None; 2] };
        assert_eq!(redundant_round_trips(&[0.0, 100.0], [&first, &none]), [100.0, 50.0]);
        assert!(redundant_round_trips(&[0.0, 100.0], [&none, &none]).is_empty());
    }

    #[test]
    fn a_path_alone_has_its_own_times_in_both_directions() {
        let first = arrivals(&[20.0], &[50.0]);
        let second = arrivals(&[70.0], &[90.0]);
        // The server answers at 20. The times are 20 up and 30 down, and 70 up and 70 down.
        assert_eq!(single_path_round_trips(&[0.0], &first, &second), [Some(50.0)]);
        assert_eq!(single_path_round_trips(&[0.0], &second, &first), [Some(140.0)]);
        let none = Arrivals { up: vec![None], down: vec![Some(9.0)] };
        assert_eq!(single_path_round_trips(&[0.0], &none, &first), [None]);
    }

    #[test]
    fn captures_of_runs_match_the_latencies_of_the_program() {
        let root = Root { number: 0, seed: 11 };
        let experiment = links::home_experiment(links::WIFI_INDEPENDENT, links::LTE, 200);
        let [wifi, _, both] = super::super::echo::variants(["wifi", "lte"]);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-3;
        let one = CapturedRun::run(&experiment, &wifi, &root).expect("a run");
        let path = one.arrivals(0);
        let computed = redundant_round_trips(&one.sent_ms, [&path, &path]);
        assert_eq!(computed.len(), 200);
        assert!(computed.iter().zip(&one.latencies_ms).all(|(a, b)| near(*a, *b)));
        // In a redundant run, the earlier arrivals determine the program's latencies.
        let both = CapturedRun::run(&experiment, &both, &root).expect("a run");
        let (first, second) = (both.arrivals(0), both.arrivals(1));
        let mut read = f64::NEG_INFINITY;
        for (message, latency) in both.latencies_ms.iter().enumerate() {
            let came =
                earlier_of(first.down[message], second.down[message]).expect("the answer arrived");
            read = read.max(came);
            assert!(near(read - both.sent_ms[message], *latency), "{message}");
        }
    }
}
