//! Phone download over WiFi and 4G with varying RTTs.

use std::sync::Arc;

use marline_link::trace::{PingTrace, Probe};
use marline_link::{DuplexConfig, Offset};
use marline_time::{Duration, Rng, SeedTree};

use super::contestants::{Measured, SMALL_BUFFER, contestants};
use super::published::{Published, Scenario, ms};
use crate::download::{Download, link};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Reproduction, Table};

const SEEDS: usize = 2;
/// About as long as 380 MB take.
const LENGTH: Duration = Duration::from_secs(100);
/// How long an RTT holds.
const HOLDS: Duration = Duration::from_millis(200);
const WIFI: &str = "rate=50M,up.rate=20M,queue=1MB";
const LTE: &str = "rate=40M,up.rate=10M,queue=1MB";

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let (scenarios, seeds) = (&file.published.mobile, context.runs(SEEDS));
    let mut runs = Vec::new();
    for scenario in scenarios {
        for seed in 0..seeds as u64 {
            let seed = context.master + seed;
            let download = Download { length: context.length(LENGTH), ..download(scenario, seed)? };
            for variant in contestants(SMALL_BUFFER, ["wifi", "lte"]) {
                runs.push((download.clone(), variant, seed));
            }
        }
    }
    let rates = context.parallel("mobile", &runs, |(download, variant, seed)| {
        download.mbit_per_s(variant, *seed)
    })?;
    let measured: Vec<Measured> = rates.chunks(4 * seeds).map(Measured::of).collect();
    let least = file.tolerance("papd_of_best")?;
    let mut rows = Vec::new();
    for (number, (scenario, ours)) in (1..).zip(scenarios.iter().zip(&measured)) {
        let name = format!("scenario {number} (WiFi {} ms)", scenario.wifi_rtt_ms[1]);
        let text = format!("at least {least} of the best path ({:.1})", ours.best);
        let papd = Row::new(format!("{name}: PAPD")).ours(ours.papd, "Mbit/s");
        rows.push(papd.holds(ours.papd >= least * ours.best, text));
        let gain = Row::new(format!("{name}: PAPD / minRTT")).ours(ours.papd / ours.min_rtt, "");
        rows.push(if number < 3 {
            gain.paper_says("no worse")
        } else {
            gain.paper_says("better, as the RTT varies more").at_least(1.0)
        });
    }
    let title = "A phone's download: WiFi and 4G (mean of 2 runs of 100 s)";
    all.tables.push(Table::new("mobile", title, rows));
    Ok(())
}

fn download(scenario: &Scenario, seed: u64) -> anyhow::Result<Download> {
    let wifi = path("wifi", WIFI, scenario.wifi_rtt_ms, scenario.wifi_loss, seed)?;
    let lte = path("lte", LTE, scenario.lte_rtt_ms, scenario.lte_loss, seed)?;
    Ok(Download { paths: vec![("wifi", wifi), ("lte", lte)], length: LENGTH })
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

/// RTTs between the least and the most with this mean, a new one every [`HOLDS`]: the mean of u^k
/// is 1 / (k + 1). k is rounded to a whole number, so that one seed is one run everywhere.
fn rtts(name: &str, [least, mean, most]: [f64; 3], seed: u64) -> anyhow::Result<PingTrace> {
    let power = ((most - least) / (mean - least) - 1.0).round() as i32;
    let mut rng = SeedTree::new(seed).branch(name).stream("paper/rtt");
    let count = (LENGTH.as_nanos() / HOLDS.as_nanos()) as u32 + 1;
    let probe = |number: u32| Probe {
        at: HOLDS * number,
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
                (0..500).map(|n| trace.rtt_at(HOLDS * n).as_secs_f64() * 1e3).collect();
            let mean = values.iter().sum::<f64>() / 500.0;
            assert!((mean / rtt_ms[1] - 1.0).abs() < 0.06, "{mean} {rtt_ms:?}");
            assert!(values.iter().all(|rtt| (rtt_ms[0]..=rtt_ms[2]).contains(rtt)));
        }
    }
}
