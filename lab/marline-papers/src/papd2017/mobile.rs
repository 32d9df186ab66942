//! Phone download over WiFi and 4G with varying RTTs.

use std::sync::Arc;

use marline_link::trace::{PingTrace, Probe};
use marline_link::{DuplexConfig, TraceStart};
use marline_time::{Duration, Rng, SeedTree};

use super::contestants::{
    MORE_THAN_ONE, Means, Rates, SMALL_BUFFER, Scene, estimate_over_scenes, line_of_ours,
    minimum_ratio, rates_of_scene,
};
use super::published::{Published, Scenario, ms};
use crate::download::{Download, link};
use crate::estimate::Samples;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const PART: Part = Part::new("mobile", 20, 50);
/// About 60 % of the time that 380 MB take, at 60 Mbit/s in the scenarios before [`FIRST_VARYING`] and at 30 Mbit/s
/// in the
/// others. The start counts, as in a real download.
const LENGTHS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];
/// Time between two changes of the RTT.
const RTT_DURATION: Duration = Duration::from_millis(200);
const WIFI: &str = "rate=50M,up.rate=20M,queue=1MB";
const LTE: &str = "rate=40M,up.rate=10M,queue=1MB";
/// First of the scenarios with varying RTTs, in which PAPD performs better.
const FIRST_VARYING: usize = 3;

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
    ours: &mut Grid,
) -> anyhow::Result<()> {
    let scenarios = &file.published.mobile;
    let measure = |seed: u64| -> anyhow::Result<Vec<Rates>> {
        let rates = |(number, scenario): (usize, &Scenario)| {
            let length = LENGTHS[usize::from(number >= FIRST_VARYING)];
            let download = download(scenario, context.length(length), seed)?;
            Scene { download, buffer: SMALL_BUFFER, start: Duration::ZERO }.all(seed)
        };
        (1..).zip(scenarios).map(rates).collect()
    };
    let (samples, rows) = context.judge_part(
        PART,
        |root| measure(root.seed),
        |samples| Ok(vec![better_as_rtts_vary(samples)]),
    )?;
    let title = "A phone's download over WiFi and 4G: PAPD is better as the RTT varies more";
    all.tables.push(Table::new("mobile", title, rows));
    let columns =
        [("scenario", ""), ("minRTT", "Mbit/s"), ("PAPD", "Mbit/s"), ("best path", "Mbit/s")];
    let mut grid = Grid::new("mobile-scenarios", "Throughput of a phone's download", &columns);
    for (place, scenario) in scenarios.iter().enumerate() {
        let name = format!("scenario {} (WiFi {} ms)", place + 1, scenario.wifi_rtt_ms[1]);
        let rates = rates_of_scene(&samples, place).map(|rate| Value::from_estimate(&rate, ""));
        grid.rows.push([Value::Text(name.clone())].into_iter().chain(rates).collect());
        ours.rows.push(line_of_ours(name, &samples, place));
    }
    all.grids.push(grid);
    Ok(())
}

fn better_as_rtts_vary(samples: &Samples<Vec<Rates>>) -> Row {
    let ratio = |means: &Means| means.papd[0] / means.min_rtt;
    let varying = |means: &[Means]| minimum_ratio(&means[FIRST_VARYING - 1..], ratio);
    let growth = estimate_over_scenes(samples, |means| {
        let steady = means[..FIRST_VARYING - 1].iter().map(ratio).fold(0.0, f64::max);
        varying(means) / steady
    });
    Row::new("PAPD / minRTT, minimum of scenarios 3 to 5")
        .statement("mobile-papd-better")
        .paper_claim("better when the RTT varies more")
        .estimate(&estimate_over_scenes(samples, varying), "")
        .require_range(MORE_THAN_ONE, "more than 1")
        .require_also(&growth, MORE_THAN_ONE, "more than in scenarios 1 and 2")
}

pub(super) fn download(
    scenario: &Scenario,
    length: Duration,
    seed: u64,
) -> anyhow::Result<Download> {
    let wifi = path("wifi", WIFI, scenario.wifi_rtt_ms, scenario.wifi_loss, seed)?;
    let lte = path("lte", LTE, scenario.lte_rtt_ms, scenario.lte_loss, seed)?;
    Ok(Download { paths: vec![("wifi", wifi), ("lte", lte)], length })
}

fn path(
    name: &str,
    text: &str,
    rtt_ms: [f64; 3],
    loss: f64,
    seed: u64,
) -> anyhow::Result<DuplexConfig> {
    let mut path = link(&format!("{text},down.loss={}%", loss * 100.0))?;
    let trace = Arc::new(rtts(name, rtt_ms, seed)?);
    for way in [&mut path.up, &mut path.down] {
        way.delay.trace = Some(TraceStart { trace: Arc::clone(&trace), start: Duration::ZERO });
    }
    Ok(path)
}

/// RTTs between the minimum and the maximum with this mean, a new one every [`RTT_DURATION`]. The mean of u^k is 1 /
/// (k +
/// 1). k is rounded to an integer, so that a seed has the same result on every machine.
fn rtts(name: &str, [least, mean, most]: [f64; 3], seed: u64) -> anyhow::Result<PingTrace> {
    let power = ((most - least) / (mean - least) - 1.0).round() as i32;
    let mut rng = SeedTree::new(seed).branch(name).stream("paper/rtt");
    let count = (LENGTHS[1].as_nanos() / RTT_DURATION.as_nanos()) as u32 + 1;
    let probe = |number: u32| Probe {
        at: RTT_DURATION * number,
        rtt: Some(ms(least + (most - least) * rng.unit().powi(power))),
    };
    PingTrace::from_probes((0..count).map(probe).collect()).map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtts_have_the_stated_mean_and_range() {
        for (number, rtt_ms) in (0..).zip([[49.0, 54.0, 167.0], [235.0, 371.0, 625.0]]) {
            let trace = rtts("wifi", rtt_ms, number).unwrap();
            let values: Vec<f64> =
                (0..500).map(|n| trace.rtt_at(RTT_DURATION * n).as_secs_f64() * 1e3).collect();
            let mean = values.iter().sum::<f64>() / 500.0;
            assert!((mean / rtt_ms[1] - 1.0).abs() < 0.06, "{mean} {rtt_ms:?}");
            assert!(values.iter().all(|rtt| (rtt_ms[0]..=rtt_ms[2]).contains(rtt)));
        }
    }
}
