//! Drawn scenes: links and buffers that nothing was fitted to. Each root draws them from the range of the slides'
//! tables.
//!
//! PAPD's share of measuring and the small buffer were derived from the tables. The claims about both cases are
//! therefore also judged on links that were not used to derive them.

use marline_time::{Duration, Rng};
use serde::{Deserialize, Serialize};

use super::contestants::{NAMES, PAPDS, Rates, Scene};
use super::published::Published;
use crate::download::{Download, link};
use crate::estimate::{RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Reproduction, Table};

const PART: Part = Part::new("drawn", 20, 120);
/// Ranges of uniform values.
const RATE_MBIT: [f64; 2] = [20.0, 100.0];
const RTT_MS: [f64; 2] = [10.0, 200.0];
/// Range of a value that is uniform in the logarithm.
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
) -> anyhow::Result<()> {
    let (_, rows) =
        context.judge_part(PART, |root| measure(context, root), |samples| rows(samples, file))?;
    let title = "Drawn links and buffers: a pair of links of each root, with a small and a large \
         buffer";
    all.tables.push(Table::new("drawn", title, rows));
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

fn rows(samples: &Samples<DrawnScene>, file: &PaperFile<Published>) -> anyhow::Result<Vec<Row>> {
    let (of_min_rtt, least) = (file.tolerance("papd_of_min_rtt")?, file.tolerance("papd_of_best")?);
    let wins = |drawn: &&DrawnScene| ratio_to_best(&drawn.small, drawn.small.min_rtt) > 1.0;
    let bound = samples.share(|drawn| (u64::from(!wins(&drawn)), 1));
    let winners: Vec<f64> = samples
        .all()
        .iter()
        .filter(wins)
        .map(|drawn| ratio_to_best(&drawn.small, drawn.small.min_rtt))
        .collect();
    let remark = format!(
        "bonding won in {} of {} scenes, at most {:.2} times the best path",
        winners.len(),
        samples.roots(),
        winners.iter().copied().fold(1.0, f64::max)
    );
    let row = Row::new("small buffer: scenes in which minRTT is no faster than the best path");
    let row =
        row.paper_claim("buffer <= RTT_max x T': no faster").estimate(&bound, "of the scenes");
    let mut rows = vec![
        row.require_range(RequiredRange::at_least(0.95), "at least 0.95 of the scenes")
            .with_remark(remark),
    ];
    let ratio = samples.mean(|drawn| ratio_to_best(&drawn.small, drawn.small.min_rtt));
    rows.push(Row::new("small buffer: minRTT / best path, mean").estimate(&ratio, ""));
    for (which, papd) in PAPDS.iter().enumerate() {
        let ratio = samples.ratio(|DrawnScene { small, .. }| {
            (ratio_to_best(small, small.papd[which]), ratio_to_best(small, small.min_rtt))
        });
        let row = Row::new(format!("small buffer: {papd} / minRTT"));
        rows.push(row.paper_claim("outperforms it").estimate(&ratio, "").at_least(1.0));
        let ratio =
            samples.mean(|DrawnScene { small, .. }| ratio_to_best(small, small.papd[which]));
        let row = Row::new(format!("small buffer: {papd} / best path, mean"));
        rows.push(row.paper_claim("0.93 to 0.98").estimate(&ratio, "").at_least(least));
        let far = samples.share(|DrawnScene { small, .. }| {
            (u64::from(ratio_to_best(small, small.papd[which]) < least), 1)
        });
        let name = format!(
            "small buffer: scenes in which {papd} is below {least} times the best path's rate"
        );
        rows.push(Row::new(name).estimate(&far, "of the scenes"));
    }
    let ratio = samples.mean(|drawn| ratio_to_best(&drawn.large, drawn.large.min_rtt));
    rows.push(Row::new("large buffer: minRTT / best path, mean").estimate(&ratio, ""));
    for (which, papd) in PAPDS.iter().enumerate() {
        let ratio = samples.ratio(|DrawnScene { large, .. }| {
            (ratio_to_best(large, large.papd[which]), ratio_to_best(large, large.min_rtt))
        });
        let row = Row::new(format!("large buffer: {papd} / minRTT")).paper_claim("equally well");
        rows.push(row.estimate(&ratio, "").at_least(of_min_rtt));
    }
    Ok(rows)
}
