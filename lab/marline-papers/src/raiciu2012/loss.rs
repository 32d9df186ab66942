//! The study's statement on losses: on either link, they only amplify the gain of Multipath TCP.

use std::time::Duration;

use super::Published;
use super::curves::{
    CELLULAR, CODE, Cs244, Curve, Jobs, KERNEL, NONE, PAPER, Setting, WIFI, measure,
    scaled_duration,
};
use super::density::{Runs, of_medians};
use super::supplement::{self, Heading};
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
/// Indexes into [`LOSSES`].
const WIFI_LOSS: usize = 1;
const CELLULAR_LOSS: usize = 2;
/// Indexes into [`LOSS_CURVES`].
const AT_WIFI: usize = 0;
const AT_CELLULAR: usize = 1;
const AT_NONE: usize = 2;
const AT_KERNEL: usize = 3;

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
        |runs| Ok(vec![slower_row(runs, least), benefit_row(runs)]),
    )?;
    let title = "Losses, jitter of 3G as in figure 7";
    let heading = Heading { name: "losses", title, settings: "losses" };
    let grid = supplement::grid(&heading, &jobs, &runs, context.master);
    Ok((rows, grid))
}

/// "A high loss rate on either link will affect latency significantly": that of TCP over the link.
fn slower_row(runs: &Runs, least: f64) -> Row {
    let slower = of_medians(runs, |median| {
        let wifi = median(job(WIFI_LOSS, AT_WIFI)) / median(job(0, AT_WIFI));
        wifi.min(median(job(CELLULAR_LOSS, AT_CELLULAR)) / median(job(0, AT_CELLULAR)))
    });
    Row::new("3 % on either link: TCP over it vs. the study's losses, smaller ratio of p50")
        .paper_claim("affects latency significantly")
        .estimate(&slower, "")
        .at_least(least)
        .statement("loss-latency")
}

/// "But this only amplifies the benefits of MPTCP."
fn benefit_row(runs: &Runs) -> Row {
    const COMPARED: [(usize, usize); 5] = [
        (WIFI_LOSS, AT_WIFI),
        (WIFI_LOSS, AT_NONE),
        (CELLULAR_LOSS, AT_WIFI),
        (CELLULAR_LOSS, AT_NONE),
        (CELLULAR_LOSS, AT_CELLULAR),
    ];
    let gain = of_medians(runs, |median| {
        let gain = |losses, over| median(job(losses, over)) / median(job(losses, AT_KERNEL));
        let change = |(losses, over)| gain(losses, over) / gain(0, over);
        COMPARED.map(change).into_iter().fold(f64::INFINITY, f64::min)
    });
    let what = format!(
        "3 % on either link: gain of {} over each other curve, vs. the study's losses, smallest ratio",
        KERNEL.name
    );
    Row::new(what)
        .paper_claim("amplifies the benefits")
        .estimate(&gain, "")
        .at_least(1.0)
        .statement("loss-benefit")
}
