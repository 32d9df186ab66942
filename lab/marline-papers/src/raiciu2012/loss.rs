//! The study's statement on losses: on either link, they only amplify the gain of Multipath TCP.

use std::time::Duration;

use super::curves::{
    CELLULAR, CODE, Cs244, Curve, Jobs, KERNEL, NONE, PAPER, RunResult, Setting, WIFI, measure,
    scaled_duration,
};
use super::density::{Runs, median_ratio};
use super::{Published, shown};
use crate::estimate::Estimate;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::Grid;

const RUN_DURATION: Duration = Duration::from_secs(30);
const PART: Part = Part::new("loss", 20, 70);
/// Losses of WiFi and 3G, percent, and their names in tables. The first pair is the study's. The study states no
/// high loss.
const LOSSES: [([f64; 2], &str); 3] =
    [([0.75, 0.1], "as in the study"), ([3.0, 0.1], "WiFi 3 %"), ([0.75, 3.0], "3G 3 %")];
const LOSS_CURVES: [Curve; 6] = [WIFI, CELLULAR, NONE, KERNEL, PAPER, CODE];
const AT_NONE: usize = 2;
const RULES: [usize; 3] = [3, 4, 5];

const fn job(losses: usize, curve: usize) -> usize {
    losses * LOSS_CURVES.len() + curve
}

/// Rows on both kinds of loss, and the curves.
pub(super) fn judge_loss(
    context: &Context<'_>,
    file: &PaperFile<Published>,
) -> anyhow::Result<(Vec<Row>, Grid)> {
    let jitter_ms = file.published.at[0].jitter_ms;
    let mut jobs: Jobs = Vec::new();
    for (loss_percent, name) in LOSSES {
        let setting = Setting::cs244(Cs244 { loss_percent, ..Cs244::with_jitter(jitter_ms) });
        jobs.extend(LOSS_CURVES.map(|curve| (Setting { name, ..setting.clone() }, curve)));
    }
    let long = scaled_duration(context, RUN_DURATION);
    let least = 1.0 + file.tolerance("significant")?;
    let (runs, rows) = context.judge_part(
        PART,
        |root| measure(&jobs, long, root.seed),
        |runs| Ok([1, 2].into_iter().flat_map(|losses| rows(runs, losses, least)).collect()),
    )?;
    let title = "Losses, jitter of 3G as in figure 7";
    let mut grid = shown::grid("losses", title, &["losses", "curve"]);
    for (number, (setting, curve)) in jobs.iter().enumerate() {
        shown::push(&mut grid, &[setting.name, curve.name], &runs, context.master, number);
    }
    Ok((rows, grid))
}

fn rows(runs: &Runs, losses: usize, least: f64) -> Vec<Row> {
    let name = LOSSES[losses].1;
    // The index of the lossy link is that of its curve.
    let lossy = losses - 1;
    let slower = median_ratio(runs, job(losses, lossy), job(0, lossy));
    let mut rows = vec![
        Row::new(format!("{name}: {} vs. the study's losses, p50", LOSS_CURVES[lossy].name))
            .paper_claim("affects latency significantly")
            .estimate(&slower, "")
            .at_least(least),
    ];
    let mut over = vec![0, AT_NONE];
    if lossy != 0 {
        over.push(lossy);
    }
    for rule in RULES {
        for other in &over {
            let what = format!(
                "{name}: gain of {} over {}, vs. the study's losses",
                LOSS_CURVES[rule].name, LOSS_CURVES[*other].name
            );
            rows.push(
                Row::new(what)
                    .paper_claim("amplifies the benefits")
                    .estimate(&estimate_gain(runs, losses, *other, rule), "")
                    .at_least(1.0),
            );
        }
    }
    rows
}

/// Ratio of two curves' medians, relative to that with the study's losses.
fn estimate_gain(runs: &Runs, losses: usize, slow: usize, fast: usize) -> Estimate {
    runs.estimate(|roots: &[&Vec<RunResult>]| {
        let sum = |job: usize| roots.iter().map(|root| root[job].p50_ms).sum::<f64>();
        let gain = |losses| sum(job(losses, slow)) / sum(job(losses, fast));
        gain(losses) / gain(0)
    })
}
