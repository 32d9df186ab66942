//! Ordinary tail losses: the last packets of a burst on WLAN are lost once, and WLAN stays up. The result is the
//! extra traffic of TLP-MP compared with TLP-STD.

use marline_time::Rng;
use serde::{Deserialize, Serialize};

use super::contestants::{Windows, both_variants};
use super::published::Published;
use super::single_burst::{BurstExperiment, BurstResults};
use super::traffic::{App, draw_between};
use crate::estimate::{RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Reproduction, Table};
use crate::value::Value;

const PART: Part = Part::new("ordinary-loss", 110, 220);
const APPS: [App; 4] = [App::Docs, App::Maps, App::NetflixSmall, App::NetflixLarge];
/// Maximum number of lost packets.
const MAX_LOST_PACKETS: u64 = 10;

/// Results of both contestants in an episode.
#[derive(Serialize, Deserialize)]
struct Episode {
    standard_ms: f64,
    multipath_ms: f64,
    more_packets: f64,
    more_bytes: f64,
}

type Sample = Vec<Episode>;

fn settings() -> Vec<(App, Windows)> {
    let with = |app| Windows::ALL.map(|windows| (app, windows));
    APPS.into_iter().flat_map(with).collect()
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let settings = settings();
    let always = file.tolerance("always")?;
    let (_, rows) = context.judge_part(
        PART,
        |root| {
            settings.iter().map(|(app, windows)| episode(context, root, *app, *windows)).collect()
        },
        |samples: &Samples<Sample>| {
            let of = settings.iter().enumerate();
            Ok(of
                .map(|(index, (app, windows))| row(samples, index, *app, *windows, always))
                .collect())
        },
    )?;
    let title = "The last 1 to 10 packets on WLAN are lost once, both paths live (99 % intervals)";
    all.tables.push(Table::new("ordinary-loss", title, rows));
    Ok(())
}

fn episode(
    context: &Context<'_>,
    root: &Root,
    app: App,
    windows: Windows,
) -> anyhow::Result<Episode> {
    let mut rng = root.rng(&format!("ordinary/{}", app.name()));
    let drill =
        BurstExperiment::new(context, draw_between(&mut rng, app.sizes()) as u64, root.seed);
    let [standard, multipath] = both_variants(windows);
    let segments = drill.run(&standard, &[])?.segments();
    let length = (1 + rng.below(MAX_LOST_PACKETS)).min(segments);
    let lost: Vec<u64> = (segments + 1 - length..=segments).collect();
    let (standard, multipath) = (drill.run(&standard, &lost)?, drill.run(&multipath, &lost)?);
    Ok(Episode {
        standard_ms: standard.completion_ms,
        multipath_ms: multipath.completion_ms,
        more_packets: difference(&multipath, &standard, |done| done.sent.len() as u64),
        more_bytes: difference(&multipath, &standard, BurstResults::air_bytes),
    })
}

/// Difference of a count between two results.
pub(super) fn difference(
    one: &BurstResults,
    other: &BurstResults,
    of: impl Fn(&BurstResults) -> u64,
) -> f64 {
    of(one) as f64 - of(other) as f64
}

fn row(samples: &Samples<Sample>, index: usize, app: App, windows: Windows, always: f64) -> Row {
    let packets = samples.mean(|episodes| episodes[index].more_packets);
    let bytes = samples.mean(|episodes| episodes[index].more_bytes);
    let no_more = samples.share(|episodes| (u64::from(episodes[index].more_packets <= 1.0), 1));
    let saved = samples.ratio(|episodes| {
        let Episode { standard_ms, multipath_ms, .. } = episodes[index];
        (100.0 * (standard_ms - multipath_ms), standard_ms)
    });
    let words = format!("no more than one in {:.0} % of the episodes", 100.0 * always);
    Row::new(format!("{}, {}: packets sent beyond TLP-STD", app.name(), windows.text()))
        .paper_claim("small; one extra packet")
        .estimate(&packets, "per episode")
        .at_most(1.0)
        .require_also(&no_more, RequiredRange::at_least(always), words)
        .with_remark(format!(
            "{}; no more than one packet in {:.1} %; TLP-MP saves {} of the time",
            Value::from_estimate(&bytes, "B"),
            100.0 * no_more.value,
            Value::from_estimate(&saved, "%")
        ))
}
