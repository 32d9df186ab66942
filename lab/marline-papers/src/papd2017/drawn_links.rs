//! Drawn scenes: links and buffers that nothing was fitted to. Each root draws them from the range of the slides'
//! tables. The slides' inequality is about any links and buffer, so it is judged here.

use marline_time::{Duration, Rng};
use serde::{Deserialize, Serialize};

use super::contestants::{NAMES, Rates, Scene};
use super::published::Published;
use crate::download::{Download, link};
use crate::estimate::{RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const PART: Part = Part::new("drawn", 20, 120);
/// Ranges of uniform values.
const RATE_MBIT: [f64; 2] = [20.0, 100.0];
const RTT_MS: [f64; 2] = [10.0, 200.0];
/// Range of a log-uniform value.
const LOSS: [f64; 2] = [1e-4, 1e-2];
/// Small buffers, in multiples of RTT_max x the rate of the faster link. Bonding cannot win.
const SMALL: [f64; 2] = [0.2, 0.9];
/// Large buffers, in multiples of RTT_max x the rate of both links. They never limit the throughput.
const LARGE: [f64; 2] = [2.0, 4.0];
/// Share of payload in a packet of 1500 bytes with timestamps and DSS.
const PAYLOAD: f64 = 0.95;
const START: Duration = Duration::from_secs(4);
const LENGTH: Duration = Duration::from_secs(16);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct DrawnScene {
    seed: u64,
    small: Rates,
    large: Rates,
}

/// Throughput relative to the better of the two paths alone.
fn ratio_to_best(rates: &Rates, ours: f64) -> f64 {
    ours / rates.alone.iter().copied().fold(f64::NAN, f64::max)
}

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
    ours: &mut Grid,
) -> anyhow::Result<()> {
    let no_faster = file.tolerance("no_faster")?;
    let (samples, rows) = context.judge_part(
        PART,
        |root| measure(context, root),
        |samples| Ok(vec![inequality(samples, no_faster)]),
    )?;
    let title = "Drawn links, with a buffer below RTT_max x best rate: one pair of links per root";
    all.tables.push(Table::new("drawn", title, rows));
    for (name, is_small) in [("small", true), ("large", false)] {
        let contestants: [fn(&Rates) -> f64; 3] =
            [|rates| rates.min_rtt, |rates| rates.papd[0], |rates| rates.papd[1]];
        let ratio = |rate: fn(&Rates) -> f64| {
            let mean = samples.mean(|drawn| {
                let rates = if is_small { &drawn.small } else { &drawn.large };
                ratio_to_best(rates, rate(rates))
            });
            Value::from_estimate(&mean, "")
        };
        let words = Value::Text(format!("drawn links, {name} buffer"));
        ours.rows.push([words].into_iter().chain(contestants.map(ratio)).collect());
    }
    Ok(())
}

fn measure(context: &Context<'_>, root: &Root) -> anyhow::Result<DrawnScene> {
    let mut rng = root.rng("sampled scene");
    let mut between = |[low, high]: [f64; 2]| (high - low).mul_add(rng.unit(), low);
    let mut paths = Vec::new();
    let (mut rates, mut longest_ms) = ([0.0; 2], 0.0_f64);
    for (name, rate) in NAMES.iter().zip(&mut rates) {
        *rate = between(RATE_MBIT);
        let rtt_ms = between(RTT_MS);
        let percent = 100.0 * between(LOSS.map(f64::ln)).exp();
        longest_ms = longest_ms.max(rtt_ms);
        let delay_ms = rtt_ms / 2.0;
        let text =
            format!("rate={rate:.1}M,queue=100ms,delay={delay_ms:.1}ms,down.loss={percent:.4}%");
        paths.push((*name, link(&text)?));
    }
    let [first, second] = rates;
    // Payload of 1 Mbit/s during the longest RTT, bytes.
    let each = PAYLOAD * longest_ms * 1e3 / 8.0;
    let small = between(SMALL) * first.max(second) * each;
    let large = between(LARGE) * (first + second) * each;
    let download = Download { paths, length: context.length(LENGTH) };
    let with = |buffer: f64| {
        let (download, start) = (download.clone(), context.length(START));
        Scene { download, buffer: buffer as u64, start }.all(root.seed)
    };
    Ok(DrawnScene { seed: root.seed, small: with(small)?, large: with(large)? })
}

/// Row of the slides' inequality.
fn inequality(samples: &Samples<DrawnScene>, no_faster: f64) -> Row {
    let of = |drawn: &DrawnScene| ratio_to_best(&drawn.small, drawn.small.min_rtt);
    let bound = samples.share(|drawn| (u64::from(of(drawn) <= 1.0), 1));
    let ratios: Vec<f64> = samples.all().iter().map(of).collect();
    let remark = format!(
        "bonding won in {} of {} scenes, at most {:.2} times the best path",
        ratios.iter().filter(|ratio| **ratio > 1.0).count(),
        samples.roots(),
        ratios.iter().copied().fold(1.0, f64::max)
    );
    let less = RequiredRange::at_most(1.0_f64.next_down());
    Row::new("scenes in which minRTT is no faster than the best path")
        .statement("bonding-cannot-win")
        .paper_claim("buffer <= RTT_max x T': no faster")
        .estimate(&bound, "of the scenes")
        .at_least(no_faster)
        .require_also(&samples.mean(of), less, "on average slower than the best path")
        .with_remark(remark)
}
