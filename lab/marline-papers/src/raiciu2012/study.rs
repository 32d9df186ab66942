//! The study's four curves by the jitter of 3G, and its statements about them.

use std::time::Duration;

use serde::Deserialize;

use super::curves::{
    CELLULAR, CODE, Cs244, Curve, Jobs, KERNEL, NONE, PAPER, Setting, WIDE, WIDE_FITTED, WIFI,
    measure, scaled_duration,
};
use super::density::{self, Runs, median_ratio, peak_ratio};
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
const RULES: [usize; 4] = [AT_KERNEL, 3, 4, 5];
/// Index of the job of TCP over WiFi.
pub(super) const AT_WIFI: usize = 0;

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

/// Results and the rows of each table.
pub(super) struct JudgedResults {
    pub(super) runs: Runs,
    pub(super) peaks: Vec<Row>,
    pub(super) medians: Vec<Row>,
    pub(super) claims: Vec<Row>,
}

/// Inputs to the rows.
struct RowInputs<'a> {
    runs: &'a Runs,
    master: u64,
    file: &'a PaperFile<Published>,
}

/// Measures and judges the curves.
pub(super) fn judge_study(
    context: &Context<'_>,
    file: &PaperFile<Published>,
) -> anyhow::Result<JudgedResults> {
    let mut jobs: Jobs =
        vec![(Setting::cs244(Cs244::with_jitter(file.published.at[0].jitter_ms)), WIFI)];
    for at in &file.published.at {
        let setting = Setting::cs244(Cs244::with_jitter(at.jitter_ms));
        jobs.extend(STUDY_CURVES.map(|curve| (setting.clone(), curve)));
    }
    let long = scaled_duration(context, RUN_DURATION);
    let tables = |runs: &Runs| -> anyhow::Result<[Vec<Row>; 3]> {
        let made = RowInputs { runs, master: context.master, file };
        Ok([made.peaks()?, made.medians()?, made.claim_rows()?])
    };
    let (runs, _) = context.judge_part(
        PART,
        |root| measure(&jobs, long, root.seed),
        |runs| Ok(tables(runs)?.concat()),
    )?;
    let [peaks, medians, claims] = tables(&runs)?;
    Ok(JudgedResults { runs, peaks, medians, claims })
}

impl RowInputs<'_> {
    fn at(&self) -> impl Iterator<Item = (usize, &PublishedAt)> {
        self.file.published.at.iter().enumerate()
    }

    /// Published shape of a job at one jitter.
    fn shape<'a>(&self, at: &'a PublishedAt, curve: usize) -> Option<&'a Shape> {
        match curve {
            AT_CELLULAR => None,
            AT_NONE => Some(&at.none),
            _ => Some(&at.both),
        }
    }

    fn mean_bound(&self, job: usize) -> f64 {
        self.runs.mean(|root| root[job].bound_ratio).value
    }

    fn peaks(&self) -> anyhow::Result<Vec<Row>> {
        let share = self.file.tolerance("peak")?;
        let mut rows = Vec::new();
        for (place, at) in self.at() {
            let row = |name: &str, job: usize| {
                let peak = density::peak(self.runs, self.master, job);
                Row::new(format!("jitter {} ms: {name}", at.jitter_ms)).estimate(&peak, "ms")
            };
            rows.push(row(WIFI.name, AT_WIFI).paper(at.wifi.peak_ms, "ms").within_of_paper(share));
            for (curve, contestant) in STUDY_CURVES.iter().enumerate() {
                let row = row(contestant.name, job(place, curve));
                rows.push(match self.shape(at, curve) {
                    Some(shape) => {
                        let row = row.paper(shape.peak_ms, "ms").within_of_paper(share);
                        if curve == 5 { row.mark_fitted(WIDE_FITTED) } else { row }
                    }
                    None => row.paper_claim(&at.cellular.peak),
                });
            }
        }
        Ok(rows)
    }

    fn medians(&self) -> anyhow::Result<Vec<Row>> {
        let share = self.file.tolerance("median")?;
        let mut rows = Vec::new();
        for (place, at) in self.at() {
            let row = |name: &str, job: usize| {
                Row::new(format!("jitter {} ms: {name}, p50", at.jitter_ms))
                    .estimate(&density::median(self.runs, job), "ms")
                    .bound_ratio(self.mean_bound(job))
            };
            rows.push(row(WIFI.name, AT_WIFI).paper(at.wifi.p50_ms, "ms").within_of_paper(share));
            for curve in [AT_NONE, AT_KERNEL] {
                let published = self.shape(at, curve).map_or(f64::NAN, |shape| shape.p50_ms);
                let row = row(STUDY_CURVES[curve].name, job(place, curve));
                rows.push(row.paper(published, "ms").within_of_paper(share));
            }
            let cellular = job(place, AT_CELLULAR);
            let row = row(CELLULAR.name, cellular);
            rows.push(match at.cellular.p50_ms {
                Some(published) => row.paper(published, "ms").within_of_paper(share),
                None => row.paper_claim("beyond the end of the plot").at_least(PLOT_ENDS_MS),
            });
            let within = density::share_within(self.runs, cellular, PLOT_ENDS_MS);
            let what = format!("jitter {} ms: {}, blocks within 3 s", at.jitter_ms, CELLULAR.name);
            rows.push(
                Row::new(what)
                    .paper(100.0 * at.cellular.within_3_s, "%")
                    .estimate(&within.percent(), "%"),
            );
        }
        Ok(rows)
    }

    fn claim_rows(&self) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (place, at) in self.at() {
            rows.extend(self.compare_with_wifi(place, at)?);
        }
        for (place, at) in self.at() {
            rows.extend(self.rows_without_mechanisms(place, at)?);
        }
        rows.extend(self.with_jitter()?);
        rows.extend(self.cellular()?);
        Ok(rows)
    }

    /// Judged rules at a jitter: all of them at the first and last, only the study's own in between.
    fn rules(&self, place: usize) -> Vec<usize> {
        let last = self.file.published.at.len() - 1;
        if place == 0 || place == last { RULES.to_vec() } else { vec![AT_KERNEL] }
    }

    fn finish_row(row: Row, curve: usize) -> Row {
        if STUDY_CURVES[curve].name == WIDE.name { row.mark_fitted(WIDE_FITTED) } else { row }
    }

    /// "Essentially the same distribution as TCP over Wifi", "slightly better than Wifi".
    fn compare_with_wifi(&self, place: usize, at: &PublishedAt) -> anyhow::Result<Vec<Row>> {
        let about = 1.0 + self.file.tolerance("same")?;
        let mut rows = Vec::new();
        for curve in self.rules(place) {
            let (name, job) = (STUDY_CURVES[curve].name, job(place, curve));
            let row = |what: &str, published: f64, ratio: &Estimate| {
                Row::new(format!("jitter {} ms: {name} vs. TCP WiFi, {what}", at.jitter_ms))
                    .paper(rounded(published), "")
                    .estimate(ratio, "")
            };
            let ratio = median_ratio(self.runs, job, AT_WIFI);
            let published = at.both.p50_ms / at.wifi.p50_ms;
            let same = row("p50", published, &ratio)
                .require_range(RequiredRange::at_most(about), approximate_requirement(about));
            rows.push(RowInputs::finish_row(same, curve));
            if place > 0 {
                continue;
            }
            let better = row("p50 (slightly better)", published, &ratio).at_most(1.0);
            rows.push(RowInputs::finish_row(better, curve));
            let tails = self.runs.ratio(|root| (root[job].p95_ms, root[AT_WIFI].p95_ms));
            let published = at.both.p95_ms / at.wifi.p95_ms;
            let tail = row("p95", published, &tails)
                .require_range(RequiredRange::at_most(about), approximate_requirement(about));
            rows.push(RowInputs::finish_row(tail, curve));
        }
        Ok(rows)
    }

    /// "MPTCP without the optimization mechanisms is able to gain throughput by utilizing both
    /// links, but suffers from the additional latency of 3g."
    fn rows_without_mechanisms(&self, place: usize, at: &PublishedAt) -> anyhow::Result<Vec<Row>> {
        let least = self.file.tolerance("without_over_with")?;
        let none = job(place, AT_NONE);
        let row = |what: String| Row::new(format!("jitter {} ms: {what}", at.jitter_ms));
        let gain = self
            .runs
            .ratio(|root| (root[none].goodput_mbit_per_s, root[AT_WIFI].goodput_mbit_per_s));
        let held = format!(
            "{} of {} Mbit/s; with the published means and a send buffer that is always full, the study would have {}",
            marline_lab::figure::number(self.goodput(none)),
            marline_lab::figure::number(self.goodput(AT_WIFI)),
            marline_lab::figure::number(at.mean_wifi_over_none),
        );
        let mut rows = vec![
            row("no M vs. TCP WiFi, goodput".to_owned())
                .paper_claim("gains throughput from both links")
                .estimate(&gain, "")
                .at_least(1.0)
                .with_remark(held),
            row("no M vs. TCP WiFi, p50".to_owned())
                .paper(rounded(at.none.p50_ms / at.wifi.p50_ms), "")
                .estimate(&median_ratio(self.runs, none, AT_WIFI), "")
                .at_least(1.0),
            row("TCP 3G vs. no M, p50".to_owned())
                .paper_claim("WiFi and M1+M2, no M, 3G: in this order")
                .estimate(&median_ratio(self.runs, job(place, AT_CELLULAR), none), "")
                .at_least(1.0),
        ];
        for curve in self.rules(place) {
            let ratio = peak_ratio(self.runs, self.master, none, job(place, curve));
            let over = row(format!("no M vs. {}, peak", STUDY_CURVES[curve].name))
                .paper(rounded(at.none.peak_ms / at.both.peak_ms), "")
                .estimate(&ratio, "")
                .at_least(least);
            rows.push(RowInputs::finish_row(over, curve));
        }
        Ok(rows)
    }

    fn goodput(&self, job: usize) -> f64 {
        self.runs.mean(|root| root[job].goodput_mbit_per_s).value
    }

    /// "Even as jitter increases significantly" M1 and M2 avoid increases; without them latencies
    /// are "closer to 3G latencies as 3G jitter increases".
    fn with_jitter(&self) -> anyhow::Result<Vec<Row>> {
        let share = 1.0 + self.file.tolerance("with_jitter")?;
        let all = &self.file.published.at;
        let mut rows = Vec::new();
        for (place, at) in self.at().skip(1) {
            for curve in self.rules(place) {
                let ratio = median_ratio(self.runs, job(place, curve), job(0, curve));
                let (name, from) = (STUDY_CURVES[curve].name, all[0].jitter_ms);
                let row = Row::new(format!("{name}: {} vs. {from} ms, p50", at.jitter_ms))
                    .paper(rounded(at.both.p50_ms / all[0].both.p50_ms), "")
                    .estimate(&ratio, "")
                    .at_most(share);
                rows.push(RowInputs::finish_row(row, curve));
            }
        }
        for (place, at) in self.at().skip(1) {
            let before = &all[place - 1];
            let (job, job_before) = (job(place, AT_NONE), job(place - 1, AT_NONE));
            rows.push(
                Row::new(format!("no M: {} vs. {} ms, p50", at.jitter_ms, before.jitter_ms))
                    .paper(rounded(at.none.p50_ms / before.none.p50_ms), "")
                    .estimate(&median_ratio(self.runs, job, job_before), "")
                    .at_least(1.0),
            );
        }
        let last = all.len() - 1;
        let closer = |roots: &[&Vec<super::curves::RunResult>]| {
            let sum = |job: usize| roots.iter().map(|root| root[job].p50_ms).sum::<f64>();
            let over = |place| sum(job(place, AT_NONE)) / sum(job(place, AT_CELLULAR));
            over(last) / over(0)
        };
        let what =
            format!("no M vs. TCP 3G: {} vs. {} ms, p50", all[last].jitter_ms, all[0].jitter_ms);
        rows.push(
            Row::new(what)
                .paper_claim("closer to 3G as the jitter increases")
                .estimate(&self.runs.estimate(closer), "")
                .at_least(1.0),
        );
        Ok(rows)
    }

    /// "TCP over 3g alone has a higher-latency, wider, more uniform distribution."
    fn cellular(&self) -> anyhow::Result<Vec<Row>> {
        let share = self.file.tolerance("median")?;
        let mut rows = Vec::new();
        for (place, at) in self.at() {
            let ratio = median_ratio(self.runs, job(place, AT_CELLULAR), AT_WIFI);
            let row = Row::new(format!("jitter {} ms: TCP 3G vs. TCP WiFi, p50", at.jitter_ms));
            let row = row.estimate(&ratio, "");
            rows.push(match at.cellular.p50_ms {
                Some(published) => {
                    row.paper(rounded(published / at.wifi.p50_ms), "").within_of_paper(share)
                }
                None => {
                    let least = rounded(PLOT_ENDS_MS / at.wifi.p50_ms);
                    row.paper_claim(format!("more than {least}")).at_least(least)
                }
            });
        }
        let wider = self.runs.ratio(|root| {
            let spread = |job: usize| root[job].p95_ms - root[job].p5_ms;
            (spread(job(0, AT_CELLULAR)), spread(AT_WIFI))
        });
        let jitter = self.file.published.at[0].jitter_ms;
        rows.push(
            Row::new(format!("jitter {jitter} ms: TCP 3G vs. TCP WiFi, p95 - p5"))
                .paper_claim("wider")
                .estimate(&wider, "")
                .at_least(1.0),
        );
        Ok(rows)
    }
}

fn approximate_requirement(about: f64) -> String {
    format!("at most {about} (about as fast, or faster)")
}

fn rounded(ratio: f64) -> f64 {
    (100.0 * ratio).round() / 100.0
}
