//! Losses in the middle of a burst: fast retransmits stay on their path. Beyond the study: RACK compared with the
//! stack of the time.

use marline_lab::experiment::Variant;

use super::contestants::{LINUX_314_RECOVERY, Windows, multipath, standard};
use super::single_burst::{BurstExperiment, BurstResults};
use super::traffic::LTE;
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

const RECOVERY: Part = Part::fixed("recovery", 20);
const REORDERING: Part = Part::fixed("reordering", 20);
const FAST_RETRANSMIT: Part = Part::fixed("fast-retransmit", 20);
/// Linux's lower bound of a retransmission timeout.
const LEAST_TIMEOUT_MS: f64 = 200.0;

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

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<Row> {
    all.grids.push(recovery(context)?);
    all.grids.push(reordering(context)?);
    fast_retransmit(context)
}

/// A fast retransmit of TLP-STD, and what 4G carries of the burst.
fn fast_retransmit(context: &Context<'_>) -> anyhow::Result<Row> {
    let samples = context.sample(FAST_RETRANSMIT, |root| {
        let drill = BurstExperiment::new(context, SIZES[0].1, root.seed);
        let standard = standard(Windows::Kept);
        let first = at_share(&drill.run(&standard, &[])?, 0.5);
        let done = drill.run(&standard, &[first])?;
        let on_lte = done.sent.iter().filter(|sent| sent.path == LTE).count();
        Ok((on_lte as f64, done.completion_ms))
    })?;
    let completion = samples.mean(|of: &(f64, f64)| of.1);
    Ok(Row::new("Maps, one packet lost in the middle: packets that TLP-STD sends on 4G")
        .statement("fast-retransmit-stays")
        .paper_claim("none")
        .estimate(&samples.mean(|of| of.0), "per burst")
        .at_most(0.0)
        .require_also(
            &completion,
            RequiredRange::at_most(LEAST_TIMEOUT_MS),
            "complete before a retransmission timeout could occur",
        ))
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

fn cell(of: &Estimate) -> Value {
    Value::from_estimate(of, "")
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
