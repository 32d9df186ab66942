//! The study's four plots, and its statements about their curves.

use std::time::Duration;

use serde::Deserialize;

use super::curves::{
    CELLULAR, CODE, Cs244, Curve, Jobs, KERNEL, NONE, PAPER, Setting, WIDE, WIFI, measure,
    scaled_duration,
};
use super::density::{self, Runs, goodput_ratio, median_ratio, of_medians, of_peaks};
use super::{Published, PublishedAt};
use crate::estimate::{Estimate, RequiredRange};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;

/// End of the plot.
pub(super) const PLOT_ENDS_MS: f64 = 3_000.0;
pub(super) const RUN_DURATION: Duration = Duration::from_secs(40);
const PART: Part = Part::new("curves", 20, 70);
/// Curves of each jitter. TCP over WiFi is run only once, before them, because it does not use 3G.
pub(super) const STUDY_CURVES: [Curve; 6] = [CELLULAR, NONE, KERNEL, PAPER, CODE, WIDE];
/// Indexes into [`STUDY_CURVES`].
pub(super) const AT_CELLULAR: usize = 0;
pub(super) const AT_NONE: usize = 1;
pub(super) const AT_KERNEL: usize = 2;
/// Names of the jitters in tables.
const JITTERS: [&str; 4] = ["100 ms", "150 ms", "200 ms", "250 ms"];
pub(super) const ANY_JITTER: &str = "any";
/// Index of the job of TCP over WiFi.
pub(super) const AT_WIFI: usize = 0;
/// Jobs of figure 7, the plot with the least jitter.
const WITH: usize = job(0, AT_KERNEL);
const WITHOUT: usize = job(0, AT_NONE);
const ON_CELLULAR: usize = job(0, AT_CELLULAR);

/// Index of the job with this curve at this jitter, both by index.
pub(super) const fn job(jitter: usize, curve: usize) -> usize {
    1 + jitter * STUDY_CURVES.len() + curve
}

/// Peak, median and tail at one jitter, read from a plot.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
    pub(super) peak_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    /// Share of the blocks in the bin with the most blocks.
    pub(super) highest: f64,
    /// The last bin with more than 0.5 % of the blocks.
    pub(super) until_ms: f64,
}

/// A curve whose tail the published plots show completely.
pub(super) struct Plotted {
    pub(super) name: &'static str,
    pub(super) shape: fn(&PublishedAt) -> &Shape,
    /// Index of its job by that of the jitter.
    pub(super) job: fn(usize) -> usize,
    /// Statements about its peaks and its medians.
    statements: [&'static str; 2],
}

pub(super) const PLOTTED: [Plotted; 3] = [
    Plotted {
        name: WIFI.name,
        shape: |at| &at.wifi,
        job: |_| AT_WIFI,
        statements: ["wifi-peaks", "wifi-medians"],
    },
    Plotted {
        name: NONE.name,
        shape: |at| &at.none,
        job: |jitter| job(jitter, AT_NONE),
        statements: ["without-peaks", "without-medians"],
    },
    Plotted {
        name: KERNEL.name,
        shape: |at| &at.both,
        job: |jitter| job(jitter, AT_KERNEL),
        statements: ["with-peaks", "with-medians"],
    },
];

/// Results and the rows of each table.
pub(super) struct JudgedResults {
    pub(super) jobs: Jobs,
    pub(super) runs: Runs,
    pub(super) plots: Vec<Row>,
    pub(super) claims: Vec<Row>,
}

/// Inputs to the rows.
struct RowInputs<'a> {
    runs: &'a Runs,
    master: u64,
    file: &'a PaperFile<Published>,
}

/// TCP over WiFi, then these curves at each jitter, on the study's links.
pub(super) fn jobs_by_jitter(published: &Published, curves: &[Curve]) -> Jobs {
    let setting = |at: &PublishedAt, name| {
        let links = Cs244::with_jitter(at.jitter_ms);
        Setting { name, ..Setting::cs244(links) }
    };
    let mut jobs: Jobs = vec![(setting(&published.at[0], ANY_JITTER), WIFI)];
    for (at, name) in published.at.iter().zip(JITTERS) {
        jobs.extend(curves.iter().map(|curve| (setting(at, name), *curve)));
    }
    jobs
}

/// Measures and judges the curves.
pub(super) fn judge_study(
    context: &Context<'_>,
    file: &PaperFile<Published>,
) -> anyhow::Result<JudgedResults> {
    let jobs = jobs_by_jitter(&file.published, &STUDY_CURVES);
    let long = scaled_duration(context, RUN_DURATION);
    let tables = |runs: &Runs| -> anyhow::Result<[Vec<Row>; 2]> {
        let inputs = RowInputs { runs, master: context.master, file };
        Ok([inputs.plot_rows()?, inputs.claim_rows()?])
    };
    let (runs, _) = context.judge_part(
        PART,
        |root| measure(&jobs, long, root.seed),
        |runs| Ok(tables(runs)?.concat()),
    )?;
    let [plots, claims] = tables(&runs)?;
    Ok(JudgedResults { jobs, runs, plots, claims })
}

impl RowInputs<'_> {
    fn at(&self) -> &[PublishedAt] {
        &self.file.published.at
    }

    /// Peaks and medians of the curves in all plots.
    fn plot_rows(&self) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for curve in &PLOTTED {
            let jobs: Vec<usize> = (0..self.at().len()).map(curve.job).collect();
            let published = |of: fn(&Shape) -> f64| -> Vec<f64> {
                self.at().iter().map(|at| of((curve.shape)(at))).collect()
            };
            let row = |what: &str, published_ms: &[f64], deviation: &Estimate| {
                Row::new(format!("{}: {what}, largest deviation in the four plots", curve.name))
                    .paper_claim(format!("{} ms", list(published_ms)))
                    .estimate(deviation, "%")
            };
            let (peaks, medians) =
                (published(|shape| shape.peak_ms), published(|shape| shape.p50_ms));
            let peak_deviation =
                of_peaks(self.runs, self.master, &jobs, |ours| largest_deviation(ours, &peaks));
            let median_deviation = of_medians(self.runs, |median| {
                let ours: Vec<f64> = jobs.iter().map(|job| median(*job)).collect();
                largest_deviation(&ours, &medians)
            });
            let [of_peak, of_median] = curve.statements;
            let most = 100.0 * self.file.tolerance("peak")?;
            rows.push(row("peak", &peaks, &peak_deviation).at_most(most).statement(of_peak));
            let most = 100.0 * self.file.tolerance("median")?;
            rows.push(row("p50", &medians, &median_deviation).at_most(most).statement(of_median));
        }
        rows.push(self.cellular_row()?);
        Ok(rows)
    }

    /// Medians of TCP over 3G. The plots show the first, and that the others are beyond their end.
    fn cellular_row(&self) -> anyhow::Result<Row> {
        let median = |place| density::median(self.runs, job(place, AT_CELLULAR));
        let first = &self.at()[0];
        let mut row =
            Row::new(format!("{}: p50 at {} ms of jitter", CELLULAR.name, first.jitter_ms))
                .paper(first.cellular.p50_ms.unwrap_or(f64::NAN), "ms")
                .estimate(&median(0), "ms")
                .within_of_paper(self.file.tolerance("median")?);
        let beyond = RequiredRange::at_least(PLOT_ENDS_MS);
        for (place, at) in self.at().iter().enumerate().skip(1) {
            let requirement = format!("at {} ms at least {PLOT_ENDS_MS} ms", at.jitter_ms);
            row = row.require_also(&median(place), beyond, requirement);
        }
        Ok(row.statement("cellular-medians"))
    }

    fn claim_rows(&self) -> anyhow::Result<Vec<Row>> {
        let mut rows = vec![self.throughput_with(), self.single_paths()];
        rows.extend([self.throughput_without(), self.latency_without()?]);
        rows.extend(self.compare_with_wifi()?);
        rows.extend(self.with_jitter()?);
        Ok(rows)
    }

    /// A row on figure 7.
    fn row(&self, what: impl std::fmt::Display) -> Row {
        Row::new(format!("jitter {} ms: {what}", self.at()[0].jitter_ms))
    }

    /// "A well-designed MPTCP implementation will have obvious benefits to overall throughput."
    fn throughput_with(&self) -> Row {
        self.row(format!("{} vs. TCP WiFi, goodput", KERNEL.name))
            .paper_claim("obvious benefits")
            .estimate(&goodput_ratio(self.runs, WITH, AT_WIFI), "")
            .at_least(1.0)
            .statement("throughput-benefit")
    }

    /// "TCP over Wifi alone has a narrow, low-latency distribution, while TCP over 3g alone has a higher-latency,
    /// wider, more uniform distribution."
    fn single_paths(&self) -> Row {
        let wider = self.runs.ratio(|root| {
            let spread = |job: usize| root[job].p95_ms - root[job].p5_ms;
            (spread(ON_CELLULAR), spread(AT_WIFI))
        });
        let slower = median_ratio(self.runs, ON_CELLULAR, AT_WIFI);
        let lower = density::height_ratio(self.runs, self.master, ON_CELLULAR, AT_WIFI);
        self.row("TCP 3G vs. TCP WiFi, p95 - p5")
            .paper_claim("wider, higher latency, more uniform")
            .estimate(&wider, "")
            .at_least(1.0)
            .require_also(&slower, RequiredRange::at_least(1.0), "p50 at least 1")
            .require_also(&lower, RequiredRange::at_most(1.0), "fullest bin at most 1")
            .statement("single-paths")
    }

    /// "MPTCP without the optimization mechanisms is able to gain throughput by utilizing both links".
    fn throughput_without(&self) -> Row {
        let remark = format!(
            "A send buffer that is always full takes its size divided by the goodput to drain. With the published \
             mean latencies, no M has {} of WiFi's goodput.",
            marline_lab::figure::number(self.at()[0].mean_wifi_over_none),
        );
        self.row("no M vs. TCP WiFi, goodput")
            .paper_claim("gains throughput from both links")
            .estimate(&goodput_ratio(self.runs, WITHOUT, AT_WIFI), "")
            .at_least(1.0)
            .with_remark(remark)
            .statement("without-throughput")
    }

    /// "... but suffers from the additional latency of 3g."
    fn latency_without(&self) -> anyhow::Result<Row> {
        let at = &self.at()[0];
        let jobs = [WITHOUT, WITH];
        let ratio = of_peaks(self.runs, self.master, &jobs, |peaks| peaks[0] / peaks[1]);
        let below = median_ratio(self.runs, ON_CELLULAR, WITHOUT);
        Ok(self
            .row(format!("no M vs. {}, peak", KERNEL.name))
            .paper(rounded(at.none.peak_ms / at.both.peak_ms), "")
            .estimate(&ratio, "")
            .within_of_paper(self.file.tolerance("peak")?)
            .require_also(&below, RequiredRange::at_least(1.0), "p50 of TCP 3G vs. no M at least 1")
            .statement("without-latency"))
    }

    /// "Essentially the same distribution as TCP over Wifi", "slightly better than Wifi".
    fn compare_with_wifi(&self) -> anyhow::Result<[Row; 2]> {
        let at = &self.at()[0];
        let most = 1.0 + self.file.tolerance("same")?;
        let row = |what: &str| {
            self.row(format!("{} vs. TCP WiFi, {what}", KERNEL.name))
                .paper(rounded(at.both.p50_ms / at.wifi.p50_ms), "")
                .estimate(&median_ratio(self.runs, WITH, AT_WIFI), "")
        };
        let tails = self.runs.ratio(|root| (root[WITH].p95_ms, root[AT_WIFI].p95_ms));
        let same = RequiredRange::at_most(most);
        Ok([
            row("p50")
                .require_range(same, format!("at most {most} (about as fast, or faster)"))
                .require_also(&tails, same, format!("p95 at most {most}"))
                .statement("same-as-wifi"),
            row("p50 (slightly better)")
                .within_of_paper(self.file.tolerance("median")?)
                .statement("slightly-better"),
        ])
    }

    /// With more jitter, M1 and M2 avoid increases of latency. Without them latencies are "closer to 3G latencies as 3G
    /// jitter increases", or increase as 3G's do.
    fn with_jitter(&self) -> anyhow::Result<[Row; 3]> {
        let share = self.file.tolerance("with_jitter")?;
        let all = self.at();
        let last = all.len() - 1;
        let (from, to) = (all[0].jitter_ms, all[last].jitter_ms);
        let largest = |ratio: &dyn Fn(usize) -> f64| {
            (1..=last).map(ratio).max_by(f64::total_cmp).unwrap_or(f64::NAN)
        };
        let increase = of_medians(self.runs, |median| {
            largest(&|place| median(job(place, AT_KERNEL)) / median(WITH))
        });
        let published = largest(&|place| all[place].both.p50_ms / all[0].both.p50_ms);
        let relative = |curve| {
            of_medians(self.runs, |median| {
                let over = |place| median(job(place, curve)) / median(job(place, AT_CELLULAR));
                over(last) / over(0)
            })
        };
        let (without, with) = (relative(AT_NONE), relative(AT_KERNEL));
        let smaller = RequiredRange::at_most(1.0 - share);
        let row = |what: &str, claim: &str| {
            Row::new(format!("no M vs. TCP 3G: {to} vs. {from} ms, {what}"))
                .paper_claim(claim)
                .estimate(&without, "")
        };
        Ok([
            Row::new(format!("{}: more jitter vs. {from} ms, largest ratio of p50", KERNEL.name))
                .paper(rounded(published), "")
                .estimate(&increase, "")
                .within_of_paper(share)
                .statement("jitter-with"),
            row("p50", "closer to 3G as the jitter increases")
                .at_least(1.0)
                .statement("jitter-without"),
            row("p50 (similar increases)", "similar increases")
                .within_of(share, 1.0, "3G's increase")
                .require_also(&with, smaller, format!("with M1+M2 at most {}", smaller.most))
                .statement("readers-increases"),
        ])
    }
}

/// Largest deviation from the published values, %.
fn largest_deviation(ours: &[f64], published: &[f64]) -> f64 {
    let pairs = ours.iter().zip(published);
    let deviations = pairs.map(|(ours, published)| 100.0 * (ours / published - 1.0).abs());
    deviations.max_by(f64::total_cmp).unwrap_or(f64::NAN)
}

fn list(numbers: &[f64]) -> String {
    numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")
}

fn rounded(ratio: f64) -> f64 {
    (100.0 * ratio).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitters_have_the_names_of_the_file() {
        let file = PaperFile::<Published>::parse(super::super::TEXT).unwrap();
        let for_file = file.published.at.iter().map(|at| format!("{} ms", at.jitter_ms));
        assert_eq!(for_file.collect::<Vec<_>>(), JITTERS);
    }

    #[test]
    fn a_deviation_has_no_direction_and_a_missing_value_is_the_largest() {
        assert!((largest_deviation(&[80.0, 110.0], &[100.0, 100.0]) - 20.0).abs() < 1e-9);
        assert!((largest_deviation(&[90.0, 130.0], &[100.0, 100.0]) - 30.0).abs() < 1e-9);
        assert!(largest_deviation(&[f64::NAN, 110.0], &[100.0, 100.0]).is_nan());
    }
}
