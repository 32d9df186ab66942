//! Phone download over WiFi and 4G with varying RTTs.

use std::sync::Arc;

use marline_link::trace::{PingTrace, Probe};
use marline_link::{DuplexConfig, Offset};
use marline_time::{Duration, Rng, SeedTree};

use super::contestants::{PAPDS, Rates, SMALL_BUFFER, Scene, estimate_for_scene};
use super::published::{Published, Scenario, ms};
use crate::download::{Download, link};
use crate::estimate::{RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::{Reproduction, Table};

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
) -> anyhow::Result<()> {
    let scenarios = &file.published.mobile;
    let least = file.tolerance("papd_of_best")?;
    let measure = |seed: u64| -> anyhow::Result<Vec<Rates>> {
        let rates = |(number, scenario): (usize, &Scenario)| {
            let length = LENGTHS[usize::from(number >= FIRST_VARYING)];
            let download = download(scenario, context.length(length), seed)?;
            Scene { download, buffer: SMALL_BUFFER, start: Duration::ZERO }.all(seed)
        };
        (1..).zip(scenarios).map(rates).collect()
    };
    let (_, rows) = context.judge_part(
        PART,
        |root| measure(root.seed),
        |samples| Ok(rows(scenarios, samples, least)),
    )?;
    let title = "A phone's download over WiFi and 4G: PAPD is better as the RTT varies more";
    all.tables.push(Table::new("mobile", title, rows));
    Ok(())
}

fn rows(scenarios: &[Scenario], samples: &Samples<Vec<Rates>>, least: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (place, scenario) in scenarios.iter().enumerate() {
        let name = format!("scenario {} (WiFi {} ms)", place + 1, scenario.wifi_rtt_ms[1]);
        let min_rtt = estimate_for_scene(samples, place, |means| means.min_rtt);
        rows.push(Row::new(format!("{name}: minRTT")).estimate(&min_rtt, "Mbit/s"));
        let best = estimate_for_scene(samples, place, |means| means.best);
        rows.push(Row::new(format!("{name}: the best path")).estimate(&best, "Mbit/s"));
        for (which, papd) in PAPDS.iter().enumerate() {
            let rate = estimate_for_scene(samples, place, |means| means.papd[which]);
            let of_best =
                estimate_for_scene(samples, place, |means| means.papd[which] / means.best);
            let text = format!("at least {least} times the best path's rate");
            let row = Row::new(format!("{name}: {papd}")).estimate(&rate, "Mbit/s");
            rows.push(row.require_also(&of_best, RequiredRange::at_least(least), text));
            let gain =
                estimate_for_scene(samples, place, |means| means.papd[which] / means.min_rtt);
            let says = match place + 1 < FIRST_VARYING {
                true => "no worse",
                false => "better, as the RTT varies more",
            };
            let row = Row::new(format!("{name}: {papd} / minRTT")).paper_claim(says);
            rows.push(row.estimate(&gain, "").at_least(1.0));
        }
    }
    rows
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
        way.delay.trace = Some(Offset { trace: Arc::clone(&trace), start: Duration::ZERO });
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
