//! Claims of both studies on links that were not used for fitting. Each root draws every number of the links.
//!
//! Each number of a link (rate, delay, loss, jitter, queue) is the study's times a factor between a half and two.
//! The factors are independent and uniform in the logarithm. The rule was written down before the first run with
//! it.

use std::time::Duration;

use super::Published;
use super::curves::{
    self, CODE, Curve, Jobs, KERNEL, MARLINE_DEFAULT, NONE, PAPER, Setting, WIDE, WIFI, measure,
    scaled_duration,
};
use super::density::Runs;
use crate::estimate::{Estimate, RequiredRange};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};

const RUN_DURATION: Duration = Duration::from_secs(30);
const PART: Part = Part::new("drawn", 20, 100);
const DRAWN_CURVES: [Curve; 7] = [WIFI, NONE, KERNEL, PAPER, CODE, WIDE, MARLINE_DEFAULT];
const AT_NONE: usize = 1;
const RULES: std::ops::Range<usize> = 2..7;
const FAMILIES: [&str; 2] = ["links like CS244's", "links like NSDI's"];

fn jobs(root: &Root) -> Jobs {
    let mut rng = root.rng("links");
    let mut around = |value: f64| curves::draw_around(&mut rng, 2.0, value);
    let cs244 = [
        format!(
            "rate={}k,delay={}us,loss={}%,queue={}kB",
            around(30_000.0),
            around(6_000.0),
            around(7_500.0) as f64 / 1e4,
            around(1_500.0)
        ),
        format!(
            "rate={}k,delay={}us,jitter=uniform:{}us,overtaking=yes,loss={}%,queue={}kB",
            around(3_000.0),
            around(31_000.0),
            around(100_000.0),
            around(1_000.0) as f64 / 1e4,
            around(1_500.0)
        ),
    ];
    let settings =
        [Setting::with_links(FAMILIES[0], cs244), Setting::nsdi(FAMILIES[1], &mut around)];
    settings
        .into_iter()
        .flat_map(|setting| DRAWN_CURVES.map(|curve| (setting.clone(), curve)))
        .collect()
}

/// Rows on the drawn links.
pub(super) fn judge_drawn(
    context: &Context<'_>,
    file: &PaperFile<Published>,
) -> anyhow::Result<Vec<Row>> {
    let long = scaled_duration(context, RUN_DURATION);
    // Claims of each study about M1+M2, relative to TCP over WiFi.
    let same = 1.0 + file.tolerance("same")?;
    let most = [(same, "about as fast, or faster"), (1.0, "faster")];
    let all = |runs: &Runs| -> Vec<Row> {
        let of_family = |(family, (most, says))| rows(runs, family, most, says);
        most.into_iter().enumerate().flat_map(of_family).collect()
    };
    let (_, rows) = context.judge_part(
        PART,
        |root| measure(&jobs(root), long, root.seed),
        |runs| Ok(all(runs)),
    )?;
    Ok(rows)
}

fn rows(runs: &Runs, family: usize, most: f64, says: &str) -> Vec<Row> {
    let from = family * DRAWN_CURVES.len();
    let row = |what: String| Row::new(format!("{}: {what}", FAMILIES[family]));
    let none = geometric(runs, from + AT_NONE, from);
    let mut rows = vec![
        row("no M vs. TCP WiFi, p50".to_owned())
            .paper_claim("slower")
            .estimate(&none, "")
            .at_least(1.0),
    ];
    for curve in RULES {
        let (name, job) = (DRAWN_CURVES[curve].name, from + curve);
        let over_wifi = geometric(runs, job, from);
        rows.push(
            row(format!("{name} vs. TCP WiFi, p50"))
                .paper_claim(says)
                .estimate(&over_wifi, "")
                .require_range(RequiredRange::at_most(most), format!("at most {most} ({says})")),
        );
        rows.push(
            row(format!("no M vs. {name}, p50"))
                .paper_claim("slower without")
                .estimate(&geometric(runs, from + AT_NONE, job), "")
                .at_least(1.0),
        );
        let as_good = runs.share(|root| {
            let met = root[job].p50_ms <= most * root[from].p50_ms;
            (u64::from(met), 1)
        });
        let what = format!("{name}: links on which p50 is at most {most} of TCP WiFi's");
        rows.push(row(what).estimate(&as_good, ""));
    }
    rows
}

/// Geometric mean of the ratio of two medians. Each root has its own links, and slow links must not have more
/// weight.
fn geometric(runs: &Runs, of: usize, over: usize) -> Estimate {
    let Estimate { value, low, high, roots } =
        runs.mean(|root| (root[of].p50_ms / root[over].p50_ms).ln());
    Estimate { value: value.exp(), low: low.exp(), high: high.exp(), roots }
}
