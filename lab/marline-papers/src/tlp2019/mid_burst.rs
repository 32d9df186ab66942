//! Losses in the middle of a burst, which the study left for future work: TLP-MP compared with TLP-STD, and RACK
//! compared with the stack of the time.

use std::ops::RangeInclusive;

use marline_lab::experiment::Variant;
use serde::{Deserialize, Serialize};

use super::contestants::{LINUX_314_RECOVERY, Windows, both_variants, multipath};
use super::published::Published;
use super::single_burst::{BurstExperiment, BurstResults};
use super::tail_loss::difference;
use super::traffic::{App, draw_between};
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const JUDGED: Part = Part::new("mid-burst", 40, 160);
const RECOVERY: Part = Part::fixed("recovery", 20);
const REORDERING: Part = Part::fixed("reordering", 20);
const APPS: [App; 3] = [App::Maps, App::NetflixSmall, App::NetflixLarge];
/// Range of the shares of a burst that count as its middle.
const MIDDLE: RangeInclusive<f64> = 0.1..=0.9;

/// Packets that are lost at a position.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Loss {
    One,
    Three,
    /// One packet and its retransmission.
    Twice,
}

impl Loss {
    const ALL: [Loss; 3] = [Loss::One, Loss::Three, Loss::Twice];

    const fn text(self) -> &'static str {
        match self {
            Loss::One => "one packet",
            Loss::Three => "three in a row",
            Loss::Twice => "one packet and its retransmission",
        }
    }
}

/// Results of both contestants for a loss in a burst.
#[derive(Serialize, Deserialize)]
struct Episode {
    standard_ms: f64,
    multipath_ms: f64,
    more_packets: f64,
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let settings: Vec<(App, Windows)> =
        APPS.into_iter().flat_map(|app| Windows::ALL.map(|windows| (app, windows))).collect();
    let slower = file.tolerance("slower")?;
    let names = settings.iter().flat_map(|(app, windows)| {
        Loss::ALL.map(|loss| format!("{}, {}, {}", app.name(), windows.text(), loss.text()))
    });
    let names: Vec<String> = names.collect();
    let (_, rows) = context.judge_part(
        JUDGED,
        |root| {
            let mut all = Vec::new();
            for (app, windows) in &settings {
                all.extend(episodes(context, root, *app, *windows)?);
            }
            Ok(all)
        },
        |samples| {
            let of = names.iter().enumerate();
            Ok(of.map(|(index, name)| row(samples, index, name, slower)).collect())
        },
    )?;
    let title =
        "A loss on WLAN anywhere in the middle of a burst, both paths live (99 % intervals)";
    all.tables.push(Table::new("mid-burst", title, rows));
    all.grids.push(recovery(context)?);
    all.grids.push(reordering(context)?);
    Ok(())
}

fn episodes(
    context: &Context<'_>,
    root: &Root,
    app: App,
    windows: Windows,
) -> anyhow::Result<Vec<Episode>> {
    let mut rng = root.rng(&format!("middle/{}", app.name()));
    let drill =
        BurstExperiment::new(context, draw_between(&mut rng, app.sizes()) as u64, root.seed);
    let place = draw_between(&mut rng, MIDDLE);
    let [standard, multipath] = both_variants(windows);
    let first = at_share(&drill.run(&standard, &[])?, place);
    let standard = lose(&drill, &standard, first)?;
    let multipath = lose(&drill, &multipath, first)?;
    let episode = |(standard, multipath): (&BurstResults, &BurstResults)| Episode {
        standard_ms: standard.completion_ms,
        multipath_ms: multipath.completion_ms,
        more_packets: difference(multipath, standard, |done| done.sent.len() as u64),
    };
    Ok(standard.iter().zip(&multipath).map(episode).collect())
}

/// Number of the packet at this share of a burst's packets on WLAN.
fn at_share(whole: &BurstResults, share: f64) -> u64 {
    ((whole.segments() as f64 * share) as u64).max(1)
}

/// Runs the burst with each of [`Loss::ALL`].
fn lose(
    drill: &BurstExperiment,
    variant: &Variant,
    first: u64,
) -> anyhow::Result<[BurstResults; 3]> {
    let once = drill.run(variant, &[first])?;
    let three = drill.run(variant, &[first, first + 1, first + 2])?;
    let lost: Vec<u64> = [Some(first), once.repeat_of(first)].into_iter().flatten().collect();
    let twice = drill.run(variant, &lost)?;
    Ok([once, three, twice])
}

fn row(samples: &Samples<Vec<Episode>>, index: usize, name: &str, slower: f64) -> Row {
    let mean = |of: fn(&Episode) -> f64| samples.mean(|episodes| of(&episodes[index]));
    let (standard, multipath) = (mean(|e| e.standard_ms), mean(|e| e.multipath_ms));
    let more_packets = mean(|episode| episode.more_packets);
    let ratio = samples.ratio(|all| (all[index].multipath_ms, all[index].standard_ms));
    let most = RequiredRange::at_most(1.0 + slower);
    Row::new(format!("{name}: completion of TLP-MP relative to TLP-STD"))
        .paper_claim("left for later")
        .estimate(&ratio, "")
        .require_range(most, format!("not slower by more than {} %", 100.0 * slower))
        .require_also(
            &more_packets,
            RequiredRange::at_most(1.0),
            "at most one packet more per burst",
        )
        .with_remark(format!(
            "TLP-STD {}, TLP-MP {}; packets beyond TLP-STD: {}",
            unit(&standard, "ms"),
            unit(&multipath, "ms"),
            unit(&more_packets, "")
        ))
}

fn unit(of: &Estimate, unit: &str) -> Value {
    Value::from_estimate(of, unit)
}

fn cell(of: &Estimate) -> Value {
    unit(of, "")
}

fn variants_by_recovery() -> [Variant; 3] {
    let of = |name: &str, recovery| {
        Variant { name: name.to_owned(), ..multipath(Windows::Kept) }.recovery(recovery)
    };
    [
        of("RFC 6675", LINUX_314_RECOVERY),
        of("RACK", "rack-tlp,pto=linux"),
        of("Marline's RACK", "rack-tlp"),
    ]
}

/// A burst that fits into WLAN's window, and one that continues during the repair.
const SIZES: [(&str, u64); 2] = [("Maps, 100 kB", 100_000), ("Netflix, 1 MB", 1_000_000)];
const PERCENT: [f64; 3] = [10.0, 50.0, 90.0];

/// RACK compared with duplicate counting, by position of the loss.
fn recovery(context: &Context<'_>) -> anyhow::Result<Grid> {
    // Completion times of each size and recovery: first without losses, then of each loss at each position.
    let measure = |root: &Root| {
        let mut times = Vec::new();
        for (_, bytes) in SIZES {
            let drill = BurstExperiment::new(context, bytes, root.seed);
            for variant in variants_by_recovery() {
                let whole = drill.run(&variant, &[])?;
                times.push(whole.completion_ms);
                for percent in PERCENT {
                    let lost = lose(&drill, &variant, at_share(&whole, percent / 100.0))?;
                    times.extend(lost.iter().map(|done| done.completion_ms));
                }
            }
        }
        Ok(times)
    };
    let samples: Samples<Vec<f64>> = context.sample(RECOVERY, measure)?;
    let columns = [
        ("burst", ""),
        ("lost", ""),
        ("at", "%"),
        ("RFC 6675", "ms"),
        ("RACK", "ms"),
        ("Marline's RACK", "ms"),
        ("time saved by RACK compared with RFC 6675", "ms"),
    ];
    let title = "TLP-MP with other loss recovery: a loss on WLAN in a burst, both paths live, \
                 windows kept (99 % intervals)";
    let mut grid = Grid::new("recovery", title, &columns);
    let each = 1 + PERCENT.len() * Loss::ALL.len();
    for (size, (name, _)) in SIZES.iter().enumerate() {
        let whole = (0, "nothing".to_owned(), Value::Text("-".to_owned()));
        let lossy = PERCENT.iter().enumerate().flat_map(|(place, percent)| {
            Loss::ALL.iter().enumerate().map(move |(kind, loss)| {
                let index = 1 + place * Loss::ALL.len() + kind;
                (index, loss.text().to_owned(), Value::new(*percent, ""))
            })
        });
        for (index, words, place) in std::iter::once(whole).chain(lossy) {
            let at = |recovery: usize| (size * 3 + recovery) * each + index;
            let mean = |recovery| cell(&samples.mean(|times| times[at(recovery)]));
            let saved = samples.mean(|times| times[at(0)] - times[at(1)]);
            let mut row = vec![Value::Text((*name).to_owned()), Value::Text(words), place];
            row.extend([mean(0), mean(1), mean(2), cell(&saved)]);
            grid.rows.push(row);
        }
    }
    Ok(grid)
}

const JITTER_MS: [f64; 2] = [1.0, 3.0];

/// Retransmissions by each contestant if nothing is lost but packets overtake each other.
fn reordering(context: &Context<'_>) -> anyhow::Result<Grid> {
    let cases: Vec<(Variant, f64)> = variants_by_recovery()
        .into_iter()
        .flat_map(|variant| JITTER_MS.map(|jitter_ms| (variant.clone(), jitter_ms)))
        .collect();
    let samples = context.sample(REORDERING, |root| {
        let of_case = |(variant, jitter_ms): &(Variant, f64)| {
            let mut drill = BurstExperiment::new(context, SIZES[0].1, root.seed);
            drill.overtaking_ms = *jitter_ms;
            let done = drill.run(variant, &[])?;
            Ok((done.completion_ms, done.duplicate_bytes as f64))
        };
        cases.iter().map(of_case).collect::<anyhow::Result<Vec<(f64, f64)>>>()
    })?;
    let columns = [
        ("loss recovery", ""),
        ("jitter", "ms"),
        ("completion", "ms"),
        ("unnecessary bytes sent", ""),
    ];
    let title = "WLAN reorders a burst of 100 kB without losing packets (99 % intervals)";
    let mut grid = Grid::new("reordering", title, &columns);
    for (index, (variant, jitter_ms)) in cases.iter().enumerate() {
        grid.rows.push(vec![
            Value::Text(variant.name.clone()),
            Value::new(*jitter_ms, ""),
            cell(&samples.mean(|cases: &Vec<(f64, f64)>| cases[index].0)),
            cell(&samples.mean(|cases: &Vec<(f64, f64)>| cases[index].1)),
        ]);
    }
    Ok(grid)
}
