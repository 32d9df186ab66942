//! The curves of both studies on links drawn around theirs. Each root draws every parameter of the links.
//!
//! Each parameter of a link (rate, delay, loss, jitter, queue) is the study's times a factor between a half and two.
//! The factors are independent and log-uniform. The rule was written down before the first run with it.

use std::time::Duration;

use super::curves::{
    self, CODE, Curve, Jobs, KERNEL, MARLINE_DEFAULT, NONE, PAPER, RunResult, Setting, WIDE, WIFI,
    measure, scaled_duration,
};
use super::density::Runs;
use crate::estimate::Estimate;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::Grid;
use crate::value::Value;

const RUN_DURATION: Duration = Duration::from_secs(30);
const PART: Part = Part::fixed("drawn", 100);
const DRAWN_CURVES: [Curve; 7] = [WIFI, NONE, KERNEL, PAPER, CODE, WIDE, MARLINE_DEFAULT];
const AT_NONE: usize = 1;
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

/// All curves, relative to TCP over WiFi and to the one without M1 and M2.
pub(super) fn grid(context: &Context<'_>) -> anyhow::Result<Grid> {
    let columns = [
        ("links", ""),
        ("curve", ""),
        ("p50 / WiFi's", ""),
        ("no M's p50 / p50", ""),
        ("links with p50 at most that of WiFi", "%"),
        ("links with p50 at most 1.25 times that of WiFi", "%"),
    ];
    let title = "Ours: every rule, and Marline's default, on links drawn around the published ones";
    let mut grid = Grid::new("ours", title, &columns);
    let long = scaled_duration(context, RUN_DURATION);
    let runs = context.sample(PART, |root| measure(&jobs(root), long, root.seed))?;
    for (family, links) in FAMILIES.into_iter().enumerate() {
        let wifi = family * DRAWN_CURVES.len();
        for (number, curve) in DRAWN_CURVES.iter().enumerate().skip(1) {
            let job = wifi + number;
            let within = |most: f64| {
                let met = |root: &Vec<RunResult>| root[job].p50_ms <= most * root[wifi].p50_ms;
                runs.share(|root| (u64::from(met(root)), 1)).percent()
            };
            let ratios = [geometric(&runs, job, wifi), geometric(&runs, wifi + AT_NONE, job)];
            let numbers = ratios.into_iter().chain([within(1.0), within(1.25)]);
            let words = [links, curve.name].map(|word| Value::Text(word.to_owned()));
            let cells = numbers.map(|number| Value::from_estimate(&number, ""));
            grid.rows.push(words.into_iter().chain(cells).collect());
        }
    }
    Ok(grid)
}

/// Geometric mean of the ratio of two medians. Each root has its own links, and slow links must not have more
/// weight.
fn geometric(runs: &Runs, of: usize, over: usize) -> Estimate {
    let Estimate { value, low, high, roots } =
        runs.mean(|root| (root[of].p50_ms / root[over].p50_ms).ln());
    Estimate { value: value.exp(), low: low.exp(), high: high.exp(), roots }
}
