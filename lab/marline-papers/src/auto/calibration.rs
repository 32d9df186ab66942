//! Calibration of the judged contestant's answer-time forecasts on the recorded pairs.
//!
//! The answers of a case (both paths, both ends) are pooled, because the requirement applies to cases, as
//! elsewhere. The tables also show how many cases pass on each path and in each workload separately, so that a low
//! share on one path is not hidden by a high share on the other. The reliability of every pair, path and workload is
//! listed.

use marline_lab::experiment::Calibration;
use marline_lab::figure::number;

use super::cell::{Forecasts, RecordedPairResult};
use super::recorded::{Cells, PairSubset, View, judged_cell};
use crate::estimate::Samples;
use crate::judge::Row;
use crate::recorded::pairs::Pair;
use crate::table::{Grid, Table};

/// A workload: its name and the calibrations of both paths.
type Workload = (&'static str, fn(&Forecasts) -> [Calibration; 2]);
/// A scope: its name and its pooled calibration (all workloads, or one of them).
type Scope = (&'static str, fn(&Forecasts) -> Calibration);

const WORKLOADS: [Workload; 3] = [
    ("echo", |forecasts| forecasts.echo),
    ("small", |forecasts| forecasts.small),
    ("burst", |forecasts| forecasts.burst),
];
const SCOPES: [Scope; 4] = [
    ("", |forecasts| Calibration::sum(&all_calibrations(forecasts))),
    ("echo: ", |forecasts| Calibration::sum(&forecasts.echo)),
    ("small: ", |forecasts| Calibration::sum(&forecasts.small)),
    ("burst: ", |forecasts| Calibration::sum(&forecasts.burst)),
];
/// Columns of a reliability table, after the columns that identify the row.
const RELIABILITY: [(&str, &str); 11] = [
    ("answers", ""),
    ("within p50", "%"),
    ("within p90", "%"),
    ("within p99", "%"),
    ("within the p90 computed when the answer arrived", "%"),
    ("within the p99 computed when the answer arrived", "%"),
    ("mean deviation from nominal coverage", "%"),
    ("within SRTT + 4 RTTVAR", "%"),
    ("pinball loss of p90, ratio to SRTT + 4 RTTVAR", ""),
    ("lost segments", ""),
    ("answers without a forecast", ""),
];

/// Calibrations of each workload on each path.
fn all_calibrations(forecasts: &Forecasts) -> Vec<Calibration> {
    WORKLOADS.iter().flat_map(|(_, of)| of(forecasts)).collect()
}

fn of_case(case: &RecordedPairResult) -> Forecasts {
    judged_cell(case).forecasts.unwrap_or_default()
}

/// Rows of a half. Rows of the tuned half are not judged.
pub(super) fn rows(view: &View<'_>, samples: &Samples<Cells>) -> Vec<Row> {
    let (least, most) = view.limits.p90;
    let holds = |calibration: &Calibration| (least..=most).contains(&calibration.shares()[1]);
    let between = format!("p90 covers {} to {} %", number(100.0 * least), number(100.0 * most));
    let mut rows = Vec::new();
    for (name, of) in SCOPES {
        let share = view.percent(samples, |case| holds(&of(&of_case(case))));
        let ratio = view.median(samples, |case| of(&of_case(case)).pinball_ratio());
        rows.push(
            Row::new(format!("{name}cases in which {between} of answers"))
                .estimate(&share, "%")
                .at_least(100.0 * view.limits.calibrated),
        );
        let what = format!("{name}pinball loss at p90, ratio to SRTT + 4 RTTVAR, median");
        rows.push(Row::new(what).estimate(&ratio, "").at_most(view.limits.pinball));
    }
    let strictly = view.percent(samples, |case| all_calibrations(&of_case(case)).iter().all(holds));
    let what = format!("cases in which {between} of answers on each path in each workload");
    rows.push(Row::new(what).estimate(&strictly, "%"));
    view.half.mark_fitted_rows(rows)
}

/// Table of a half.
pub(super) fn table(view: &View<'_>, rows: Vec<Row>) -> Table {
    let (name, of) = match view.half {
        PairSubset::Judged => ("calibration", "held-out recorded pairs"),
        PairSubset::Tuned => ("calibration-tuned", "recorded pairs used for tuning"),
    };
    Table::new(name, format!("Answer-time forecasts on the {of}"), rows)
}

/// Values of the columns of [`RELIABILITY`].
fn reliability(calibration: &Calibration) -> [f64; 11] {
    let [_, latest_p90, latest_p99] = calibration.latest_shares().map(|share| 100.0 * share);
    let [p50, p90, p99] = calibration.shares().map(|share| 100.0 * share);
    [
        calibration.answers as f64,
        p50,
        p90,
        p99,
        latest_p90,
        latest_p99,
        100.0 * calibration.distance(),
        100.0 * calibration.srtt_4var_share(),
        calibration.pinball_ratio(),
        calibration.lost_segments as f64,
        calibration.unforecast as f64,
    ]
}

fn grid(name: &str, title: &str, words: &[(&str, &str)]) -> Grid {
    Grid::new(name, title, &[words, &RELIABILITY].concat())
}

/// Table of every pair, with the answers of all its positions pooled.
pub(super) fn grid_by_pair(samples: &Samples<Cells>, pairs: &[Pair]) -> Grid {
    let title = "Answer-time forecasts for every recorded pair, with all paths, workloads and positions pooled";
    let mut grid = grid("reliability", title, &[("pair", ""), ("half", "")]);
    for (number, pair) in pairs.iter().enumerate() {
        let cases = samples.all().iter().map(|root| of_case(&root[number]));
        let all: Vec<Calibration> =
            cases.flat_map(|forecasts| all_calibrations(&forecasts)).collect();
        let words = [&*pair.name, PairSubset::of_pair(&pair.name).name()];
        grid.push(&words, &reliability(&Calibration::sum(&all)));
    }
    grid
}

/// Table of every pair by path and workload, with the answers of all its positions pooled.
pub(super) fn list(samples: &Samples<Cells>, pairs: &[Pair]) -> Grid {
    let title = "Answer-time forecasts for every recorded pair, by path and workload";
    let words = [("pair", ""), ("half", ""), ("path", ""), ("workload", "")];
    let mut grid = grid("reliability-paths", title, &words);
    for (number, pair) in pairs.iter().enumerate() {
        for (path, path_name) in pair.paths.iter().enumerate() {
            for (workload, of) in WORKLOADS {
                let cases = samples.all().iter().map(|root| of_case(&root[number]));
                let all: Vec<Calibration> = cases.map(|forecasts| of(&forecasts)[path]).collect();
                let words =
                    [&*pair.name, PairSubset::of_pair(&pair.name).name(), path_name, workload];
                grid.push(&words, &reliability(&Calibration::sum(&all)));
            }
        }
    }
    grid
}

#[cfg(test)]
mod tests {
    use marline::monitor::ForecastScore;

    use super::*;

    #[test]
    fn every_answer_is_in_its_workload_and_in_the_whole() {
        let of = |answers, p90| {
            Calibration(ForecastScore {
                answers,
                within: [answers / 2, p90, answers],
                pinball_ns: [0, 9, 0],
                pinball_srtt_4var_ns: 10,
                ..ForecastScore::default()
            })
        };
        let forecasts = Forecasts {
            echo: [of(100, 90), of(100, 50)],
            small: [of(200, 180), of(200, 180)],
            burst: [of(400, 380), of(0, 0)],
        };
        let answers = SCOPES.map(|(_, scope)| scope(&forecasts).answers);
        assert_eq!((answers, all_calibrations(&forecasts).len()), ([1_000, 200, 400, 400], 6));
        let [answers, p50, p90, p99, ..] = reliability(&Calibration::sum(&forecasts.echo));
        assert_eq!([answers, p50, p90, p99], [200.0, 50.0, 70.0, 100.0]);
        let ratios = SCOPES.map(|(_, scope)| scope(&forecasts).pinball_ratio());
        assert_eq!(ratios, [0.9; 4]);
    }
}
