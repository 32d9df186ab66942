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
use crate::table::{Grid, Reproduction, Table};
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
    let (samples, rows) = context.judge_part(
        PART,
        |root| {
            settings.iter().map(|(app, windows)| episode(context, root, *app, *windows)).collect()
        },
        |samples: &Samples<Sample>| Ok(vec![row(samples, &settings, always)]),
    )?;
    let title = "The last 1 to 10 packets on WLAN are lost once, both paths live (99 % intervals)";
    all.tables.push(Table::new("ordinary-loss", title, rows));
    all.grids.push(by_app(&samples, &settings));
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
fn difference(one: &BurstResults, other: &BurstResults, of: impl Fn(&BurstResults) -> u64) -> f64 {
    of(one) as f64 - of(other) as f64
}

/// The paper's statement about any loss, with windows that persist over pauses.
fn row(samples: &Samples<Sample>, settings: &[(App, Windows)], always: f64) -> Row {
    let kept = |sample: &Sample| -> Vec<f64> {
        let of = sample.iter().zip(settings).filter(|(_, (_, windows))| *windows == Windows::Kept);
        of.map(|(episode, _)| episode.more_packets).collect()
    };
    let count = |sample: &Sample, fits: fn(&f64) -> bool| {
        let packets = kept(sample);
        (packets.iter().filter(|more| fits(more)).count() as u64, packets.len() as u64)
    };
    let packets = samples.ratio(|sample| {
        let packets = kept(sample);
        (packets.iter().sum(), packets.len() as f64)
    });
    let small = samples.share(|sample| count(sample, |more| *more <= 1.0));
    let some = samples.share(|sample| count(sample, |more| *more > 0.0));
    let words =
        |least: f64, what: &str| format!("{what} in {:.0} % of the episodes", 100.0 * least);
    Row::new("Docs, Maps, Netflix: packets sent by TLP-MP beyond TLP-STD")
        .statement("ordinary-loss-costs-little")
        .paper_claim("some, but few")
        .estimate(&packets, "per episode")
        .at_most(1.0)
        .require_also(&small, RequiredRange::at_least(always), words(always, "no more than one"))
        .require_also(&some, RequiredRange::at_least(1.0 - always), words(1.0 - always, "some"))
}

fn by_app(samples: &Samples<Sample>, settings: &[(App, Windows)]) -> Grid {
    let columns = [
        ("burst", ""),
        ("windows", ""),
        ("packets beyond TLP-STD", "per episode"),
        ("at most one packet", "% of the episodes"),
        ("bytes beyond TLP-STD", "B"),
        ("time saved by TLP-MP", "%"),
    ];
    let title = "The last 1 to 10 packets on WLAN are lost once, by application (99 % intervals)";
    let mut grid = Grid::new("ordinary-loss-by-app", title, &columns);
    for (index, (app, windows)) in settings.iter().enumerate() {
        let mean = |of: fn(&Episode) -> f64| {
            Value::from_estimate(&samples.mean(|episodes| of(&episodes[index])), "")
        };
        let one = samples.share(|episodes| (u64::from(episodes[index].more_packets <= 1.0), 1));
        let saved = samples.ratio(|episodes| {
            let Episode { standard_ms, multipath_ms, .. } = episodes[index];
            (100.0 * (standard_ms - multipath_ms), standard_ms)
        });
        grid.rows.push(vec![
            Value::Text(app.name().to_owned()),
            Value::Text(windows.text().to_owned()),
            mean(|episode| episode.more_packets),
            Value::from_estimate(&one.percent(), ""),
            mean(|episode| episode.more_bytes),
            Value::from_estimate(&saved, ""),
        ]);
    }
    grid
}
