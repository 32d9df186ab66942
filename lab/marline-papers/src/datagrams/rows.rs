//! Rows and lists of the recorded pairs, for each half separately, and of paths that die.

use marline_lab::figure::number;

use super::cell::{Cell, RecordedPairResult};
use super::setup::{DUPLICATION, JUDGED_INDEX, Limits, MIN_RTT, ONE_PATH, Pulses, Setup};
use crate::auto::recorded::PairSubset;
use crate::auto::violations::percent;
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::judge::Row;
use crate::recorded::pairs::Pair;
use crate::table::Grid;

/// Results of every pair from one root.
pub(super) type Cells = Vec<RecordedPairResult>;

/// A call or a game: name, plan and results.
type Kind = (&'static str, Pulses, fn(&RecordedPairResult) -> &[Cell]);

/// Inputs to the judgment of one half.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) setup: &'a Setup,
    pub(super) limits: &'a Limits,
    pub(super) pairs: &'a [Pair],
    pub(super) half: PairSubset,
}

impl View<'_> {
    fn cases<'a>(&'a self, root: &'a Cells) -> impl Iterator<Item = &'a RecordedPairResult> {
        let mine =
            |(pair, _): &(&Pair, &RecordedPairResult)| PairSubset::of_pair(&pair.name) == self.half;
        self.pairs.iter().zip(root).filter(mine).map(|(_, of)| of)
    }

    fn median(
        &self,
        samples: &Samples<Cells>,
        of: impl Fn(&RecordedPairResult) -> f64,
    ) -> Estimate {
        let numbers = samples.map(|root| self.cases(root).map(&of).collect::<Vec<f64>>());
        let all = |roots: &[&Vec<f64>]| roots.iter().flat_map(|r| r.iter().copied()).collect();
        numbers.estimate(|roots| {
            let all: Vec<f64> = all(roots);
            marline_sim::median(&all)
        })
    }

    /// Ratio of two sums over all cases.
    fn ratio(
        &self,
        samples: &Samples<Cells>,
        of: impl Fn(&RecordedPairResult) -> (u64, u64),
    ) -> Estimate {
        samples.ratio(|root| {
            let each = self.cases(root).map(&of);
            let (above, below) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (above as f64, below as f64)
        })
    }

    fn kinds(&self) -> [Kind; 2] {
        [("call", self.setup.call, |of| &of.call), ("game", self.setup.game, |of| &of.game)]
    }

    /// Rows of this half. Rows of the tuned half are not judged.
    pub(super) fn rows(&self, samples: &Samples<Cells>) -> Vec<Row> {
        let mut rows = Vec::new();
        for kind in self.kinds() {
            rows.extend(self.tail(samples, kind));
            rows.extend(self.misses(samples, kind));
        }
        rows.extend(self.quic(samples));
        self.half.mark_fitted_rows(rows)
    }

    fn tail(&self, samples: &Samples<Cells>, (name, pulses, of): Kind) -> Vec<Row> {
        let p99 = |case: &RecordedPairResult| {
            ratio(of(case)[JUDGED_INDEX].p99_ms(), of(case)[DUPLICATION].p99_ms())
        };
        let limit = self.limits.duplication;
        let above = percent(samples, |root| {
            let above = self.cases(root).filter(|case| p99(case) > limit).count();
            (above as u64, self.cases(root).count() as u64)
        });
        let extra = self.ratio(samples, |case| {
            let cell = &of(case)[JUDGED_INDEX];
            (100 * cell.extra_bytes, cell.first_bytes)
        });
        let allowed = self.limits.extra_percent(pulses);
        vec![
            Row::new(format!("{name}: p99, ratio to full duplication, median"))
                .estimate(&self.median(samples, p99), "")
                .at_most(limit),
            Row::new(format!(
                "{name}: cases with p99 above {} times full duplication",
                number(limit)
            ))
            .estimate(&above, "%"),
            Row::new(format!("{name}: extra bytes")).estimate(&extra, "%").require_range(
                RequiredRange::at_most(allowed),
                format!("at most {} %", number(allowed)),
            ),
        ]
    }

    fn misses(&self, samples: &Samples<Cells>, (name, _, of): Kind) -> Vec<Row> {
        let mut rows = Vec::new();
        for (index, deadline) in self.setup.deadlines_ms.iter().enumerate() {
            let all = self.ratio(samples, |case| {
                (of(case)[JUDGED_INDEX].missed[index], of(case)[MIN_RTT].missed[index])
            });
            let avoidable = self.ratio(samples, |case| {
                let missed = |place: usize| of(case)[place].missed_avoidably[index];
                (missed(JUDGED_INDEX), missed(MIN_RTT))
            });
            let what = format!("{name}: missed {deadline} ms deadlines, ratio to min-rtt");
            let row = Row::new(what).estimate(&all, "");
            // Only the first deadline has a limit.
            rows.push(if index == 0 { row.at_most(self.limits.misses) } else { row });
            let what =
                format!("{name}: avoidably missed {deadline} ms deadlines, ratio to min-rtt");
            rows.push(Row::new(what).estimate(&avoidable, ""));
        }
        rows
    }

    fn quic(&self, samples: &Samples<Cells>) -> Vec<Row> {
        let best = |case: &RecordedPairResult| case.quic.iter().copied().fold(0.0, f64::max);
        let gain = |case: &RecordedPairResult| ratio(case.quic[JUDGED_INDEX], best(case));
        let median = self.median(samples, gain);
        let below = percent(samples, |root| {
            let below = self.cases(root).filter(|case| gain(case) < self.limits.quic).count();
            (below as u64, self.cases(root).count() as u64)
        });
        vec![
            Row::new("quic: goodput, ratio to the best of all settings, median")
                .estimate(&median, "")
                .at_least(self.limits.quic),
            Row::new(format!(
                "quic: cases with goodput below {} times the best of all settings",
                number(self.limits.quic)
            ))
            .estimate(&below, "%"),
        ]
    }

    /// Comparison of all contestants.
    pub(super) fn contestants(&self, samples: &Samples<Cells>) -> Grid {
        let columns = [
            ("contestant", ""),
            ("call p50, median", "ms"),
            ("call: p99, median", "ms"),
            ("call: p99, ratio to full duplication, median", ""),
            ("call: lost", "%"),
            ("call: later than 100 ms", "%"),
            ("call: later than 150 ms", "%"),
            ("call: extra bytes", "%"),
            ("game: p99, median", "ms"),
            ("game: lost", "%"),
            ("game: later than 100 ms", "%"),
            ("game: extra bytes", "%"),
            ("ACKs and probes of the call", "%"),
            ("quic, ratio to the best of all settings, median", ""),
        ];
        let name = self.half.name();
        let title = format!("Every contestant on the {name} half (not judged)");
        let mut grid = Grid::new(&format!("contestants-{name}"), title, &columns);
        let all: Vec<&RecordedPairResult> =
            samples.all().iter().flat_map(|root| self.cases(root)).collect();
        let median = |of: &dyn Fn(&RecordedPairResult) -> f64| {
            marline_sim::median(&all.iter().map(|case| of(case)).collect::<Vec<f64>>())
        };
        let share = |above: &dyn Fn(&RecordedPairResult) -> u64,
                     below: &dyn Fn(&RecordedPairResult) -> u64| {
            let sum = |of: &dyn Fn(&RecordedPairResult) -> u64| {
                all.iter().map(|case| of(case)).sum::<u64>()
            };
            100.0 * sum(above) as f64 / sum(below) as f64
        };
        for (place, contestant) in self.setup.contestants().enumerate() {
            let best = |case: &RecordedPairResult| case.quic.iter().copied().fold(0.0, f64::max);
            let numbers = [
                median(&|case| case.call[place].p50_ms()),
                median(&|case| case.call[place].p99_ms()),
                median(&|case| ratio(case.call[place].p99_ms(), case.call[DUPLICATION].p99_ms())),
                share(&|case| case.call[place].lost, &|case| case.call[place].datagrams),
                share(&|case| case.call[place].missed[0], &|case| case.call[place].datagrams),
                share(&|case| case.call[place].missed[1], &|case| case.call[place].datagrams),
                share(&|case| case.call[place].extra_bytes, &|case| case.call[place].first_bytes),
                median(&|case| case.game[place].p99_ms()),
                share(&|case| case.game[place].lost, &|case| case.game[place].datagrams),
                share(&|case| case.game[place].missed[0], &|case| case.game[place].datagrams),
                share(&|case| case.game[place].extra_bytes, &|case| case.game[place].first_bytes),
                share(&|case| case.call[place].control_bytes, &|case| case.call[place].first_bytes),
                median(&|case| ratio(case.quic[place], best(case))),
            ];
            grid.push(&[&contestant.name], &numbers);
        }
        let nothing = f64::NAN;
        let bound = [
            nothing,
            median(&|case| case.call_bound.p99_ms()),
            median(&|case| ratio(case.call_bound.p99_ms(), case.call[DUPLICATION].p99_ms())),
            nothing,
            share(&|case| case.call_bound.missed[0], &|case| case.call[JUDGED_INDEX].datagrams),
            share(&|case| case.call_bound.missed[1], &|case| case.call[JUDGED_INDEX].datagrams),
            nothing,
            median(&|case| case.game_bound.p99_ms()),
            nothing,
            share(&|case| case.game_bound.missed[0], &|case| case.game[JUDGED_INDEX].datagrams),
            nothing,
            nothing,
            nothing,
        ];
        grid.push(&["clairvoyant bound"], &bound);
        grid
    }
}

/// Results of every pair: means over the positions.
pub(super) fn grid_by_pair(samples: &Samples<Cells>, pairs: &[Pair]) -> Grid {
    let columns = [
        ("pair", ""),
        ("half", ""),
        ("call: p99, ratio to full duplication", ""),
        ("call: later than 100 ms", "%"),
        ("call: later than 100 ms, min-rtt", "%"),
        ("call: later than 100 ms, full duplication", "%"),
        ("call: extra bytes", "%"),
        ("quic on the first path", "Mbit/s"),
        ("quic on the second path", "Mbit/s"),
        ("quic with auto", "Mbit/s"),
    ];
    let mut grid = Grid::new("pairs", "Every recorded pair: means over its positions", &columns);
    for (number, pair) in pairs.iter().enumerate() {
        let mean = |of: &dyn Fn(&RecordedPairResult) -> f64| {
            let numbers: Vec<f64> = samples.all().iter().map(|root| of(&root[number])).collect();
            marline_sim::mean(&numbers)
        };
        let missed = |place: usize| {
            mean(&|case| {
                let cell = &case.call[place];
                100.0 * cell.missed[0] as f64 / cell.datagrams as f64
            })
        };
        let numbers = [
            mean(&|case| ratio(case.call[JUDGED_INDEX].p99_ms(), case.call[DUPLICATION].p99_ms())),
            missed(JUDGED_INDEX),
            missed(MIN_RTT),
            missed(DUPLICATION),
            mean(&|case| {
                let cell = &case.call[JUDGED_INDEX];
                100.0 * cell.extra_bytes as f64 / cell.first_bytes as f64
            }),
            mean(&|case| case.quic[ONE_PATH]),
            mean(&|case| case.quic[ONE_PATH + 1]),
            mean(&|case| case.quic[JUDGED_INDEX]),
        ];
        grid.push(&[&pair.name, PairSubset::of_pair(&pair.name).name()], &numbers);
    }
    grid
}

/// Rows of the longest gaps in the runs of each root.
pub(super) fn deaths(samples: &Samples<Vec<f64>>, limits: &Limits) -> Vec<Row> {
    let median = samples.mean(|gaps| marline_sim::median(gaps));
    let worst = samples.mean(|gaps| gaps.iter().copied().fold(0.0, f64::max));
    let worst_of_all = samples.all().iter().flatten().copied().fold(0.0, f64::max);
    vec![
        Row::new("longest gap: median over a root's runs, mean over roots")
            .estimate(&median, "ms")
            .at_most(limits.death_median_ms),
        Row::new("longest gap: worst of a root's runs, mean over roots")
            .estimate(&worst, "ms")
            .at_most(limits.death_worst_ms),
        Row::new("longest gap: worst of all runs").measured(worst_of_all, "ms"),
    ]
}

/// Ratio of two values. It is 1 if both are zero or both are infinite (no datagram arrived).
pub(super) fn ratio(ours: f64, other: f64) -> f64 {
    if ours == other { 1.0 } else { ours / other }
}
