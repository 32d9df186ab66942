//! Computation of what-if values from captures, as the paper did for its single-path rows, and the reverse.
//!
//! The authors ran only redundancy and captured both interfaces. From the differences between the arrivals of the
//! same packet on both subflows they computed the results of one path alone ([`alone`]). Plain TCP gives other
//! results. A lagging path never sends data that was already delivered over the other path and acknowledged. This data
//! is missing in the computation. The reverse takes the captures of two single-path runs with the same messages and
//! computes the results of redundancy ([`redundant`]).
//!
//! Both computations use only [`Arrivals`], which come from the segments on the wire ([`SegmentLog`]), not from
//! the program. The computed cases are also run on the same links, to show the error of the computation.

use std::collections::BTreeMap;

use marline_lab::experiment::{Experiment, START, Variant, stage};
use marline_lab::figure::{Delivery, Segment, SegmentLog};
use marline_time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::links::{self, BYTES, Coincidence, TRAIN_PATHS};
use super::measure::{Moments, STATISTICS, map_roots, pooled_estimate};
use super::published::{Published, RoundTrips};
use crate::estimate::Samples;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Reproduction, Table};

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
pub(super) fn redundant(sent_ms: &[f64], runs: [&Arrivals; 2]) -> Vec<f64> {
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
pub(super) fn alone(sent_ms: &[f64], path: &Arrivals, other: &Arrivals) -> Vec<Option<f64>> {
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
            alone(&both.sent_ms, &of_both[path], &of_both[other])
        });
        let missing = [0, 1].map(|path: usize| {
            computed[path].iter().filter(|round_trip| round_trip.is_none()).count() as u64
        });
        let known = |path: usize| computed[path].iter().copied().flatten().collect::<Vec<f64>>();
        let together = redundant(&both.sent_ms, [&of_singles[0], &of_singles[1]]);
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

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let count = context.count(links::MESSAGES);
    let paper = &file.published;
    let home = links::home_experiment(links::WIFI, links::LTE, count);
    let wifi = Some("the links at home, set to match plain TCP's results");
    let names = ["WiFi", "LTE", "ReMP"];
    let published = [paper.wifi, paper.lte, paper.remp];
    let fitted = [[wifi; 3], [wifi, None, wifi]];
    let (_, rows) = context.judge_part(
        Part::new("what-if-home", 60, 6_000),
        |root| ComparedResults::measure(&home, ["wifi", "lte"], root),
        |samples| rows(file, samples, context.master, names, published, fitted),
    )?;
    let title = "What-if values from captures at home: computed as in the paper, and compared with measured runs";
    result.tables.push(Table::new("what-if-home", title, rows));
    let names = ["LTE 1", "LTE 2", "ReMP"];
    let published = [paper.train_lte1, paper.train_lte2, paper.train_remp];
    let cells = Some("the cells, set to match plain TCP's averages");
    let fitted = [[cells, None, None]; 2];
    let (_, rows) = context.judge_part(
        Part::new("what-if-train", 60, 6_000),
        |root| {
            let train = links::train_experiment(Coincidence::Never, count, root.seed);
            ComparedResults::measure(&train, TRAIN_PATHS, root)
        },
        |samples| self::rows(file, samples, context.master, names, published, fitted),
    )?;
    let title = "What-if values from captures in the train";
    result.tables.push(Table::new("what-if-train", title, rows));
    Ok(())
}

fn rows(
    file: &PaperFile<Published>,
    samples: &Samples<ComparedResults>,
    master: u64,
    names: [&str; 3],
    published: [RoundTrips; 3],
    fitted: [[Option<&str>; 3]; 2],
) -> anyhow::Result<Vec<Row>> {
    let share = file.tolerance("average")?;
    let moments = map_roots(samples, master, |root| {
        let ([a, b, c], [d, e, f]) = (root.run, root.what_if);
        [a, b, c, d, e, f]
    });
    let mut rows = Vec::new();
    for (path, fitted) in fitted.iter().enumerate() {
        let (name, paper) = (names[path], published[path]);
        for ((paper, (kind, of)), fitted) in paper.columns().into_iter().zip(STATISTICS).zip(fitted)
        {
            let row = Row::new(format!("{name} alone, computed from ReMP's capture: {kind}"))
                .paper(paper, "ms")
                .estimate(&pooled_estimate(&moments, |all| of(&all[3 + path])), "ms")
                .within_of_paper(share);
            rows.push(match fitted {
                Some(what) => row.mark_fitted(*what),
                None => row,
            });
        }
        for (kind, of) in STATISTICS {
            let difference = pooled_estimate(&moments, |all| of(&all[3 + path]) - of(&all[path]));
            let what = format!("{name} alone, computed minus plain TCP's: {kind}");
            rows.push(Row::new(what).estimate(&difference, "ms"));
        }
        let missing =
            samples.mean(|root| 100.0 * root.missing[path] as f64 / root.messages.max(1) as f64);
        let what = format!("{name}: messages missing from ReMP's capture on this path");
        rows.push(Row::new(what).estimate(&missing, "%"));
    }
    let most = file.tolerance("what_if")?;
    for (kind, of) in STATISTICS {
        let difference = pooled_estimate(&moments, |all| of(&all[5]) - of(&all[2]));
        let ratio = pooled_estimate(&moments, |all| of(&all[5]) / of(&all[2]));
        let what = format!(
            "ReMP, computed from the single paths' captures, ratio to the measured value: {kind}"
        );
        let remark = format!(
            "difference {:.1} ms [{:.1}, {:.1}]",
            difference.value, difference.low, difference.high
        );
        let row = Row::new(what).estimate(&ratio, "").within_of(most, 1.0, "the measured value");
        rows.push(row.with_remark(remark));
    }
    Ok(rows)
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
        assert_eq!(redundant(&[0.0, 100.0], [&first, &second]), [30.0, 25.0]);
        // The second message arrives before the first and waits for it.
        let late = arrivals(&[500.0, 110.0], &[510.0, 120.0]);
        assert_eq!(redundant(&[0.0, 100.0], [&late, &late]), [510.0, 410.0]);
        let none = Arrivals { up: vec![None; 2], down: vec![None; 2] };
        assert_eq!(redundant(&[0.0, 100.0], [&first, &none]), [100.0, 50.0]);
        assert!(redundant(&[0.0, 100.0], [&none, &none]).is_empty());
    }

    #[test]
    fn a_path_alone_has_its_own_times_in_both_directions() {
        let first = arrivals(&[20.0], &[50.0]);
        let second = arrivals(&[70.0], &[90.0]);
        // The server answers at 20. The times are 20 up and 30 down, and 70 up and 70 down.
        assert_eq!(alone(&[0.0], &first, &second), [Some(50.0)]);
        assert_eq!(alone(&[0.0], &second, &first), [Some(140.0)]);
        let none = Arrivals { up: vec![None], down: vec![Some(9.0)] };
        assert_eq!(alone(&[0.0], &none, &first), [None]);
    }

    #[test]
    fn captures_of_runs_match_the_latencies_of_the_program() {
        let root = Root { number: 0, seed: 11 };
        let experiment = links::home_experiment(links::WIFI_INDEPENDENT, links::LTE, 200);
        let [wifi, _, both] = super::super::echo::variants(["wifi", "lte"]);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-3;
        let one = CapturedRun::run(&experiment, &wifi, &root).expect("a run");
        let path = one.arrivals(0);
        let computed = redundant(&one.sent_ms, [&path, &path]);
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
