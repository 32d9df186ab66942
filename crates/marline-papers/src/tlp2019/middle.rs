//! Future work of the study: losses in the middle of a burst, and RACK, beside the stack of the
//! time.

use marline_lab::experiment::Variant;
use marline_lab::figure::mean_interval;

use super::contestants::{RECOVERY_OF_THEN, multipath};
use super::drill::{Done, Drill, bound_ratio};
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const SEEDS: usize = 30;

/// A burst in which something is lost.
struct Size {
    name: &'static str,
    bytes: u64,
}

/// One that WLAN's window holds as a whole, and one that goes on while it is repaired.
const SIZES: [Size; 2] = [
    Size { name: "Maps, 100 kB", bytes: 100_000 },
    Size { name: "Netflix, 1 MB", bytes: 1_000_000 },
];

/// What is lost at a position.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Loss {
    One,
    Three,
    /// One packet, and its repeat.
    Twice,
}

impl Loss {
    const ALL: [Loss; 3] = [Loss::One, Loss::Three, Loss::Twice];

    const fn words(self) -> &'static str {
        match self {
            Loss::One => "one packet",
            Loss::Three => "three in a row",
            Loss::Twice => "one packet and its repeat",
        }
    }
}

fn recoveries() -> [Variant; 3] {
    [
        Variant { name: "RFC 6675".to_owned(), ..multipath() }.recovery(RECOVERY_OF_THEN),
        Variant { name: "RACK".to_owned(), ..multipath() }.recovery("rack-tlp,pto=linux"),
        Variant { name: "Marline's RACK".to_owned(), ..multipath() }.recovery("rack-tlp"),
    ]
}

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let seeds: Vec<u64> = (0..context.runs(SEEDS) as u64).map(|n| context.master + n).collect();
    for (number, size) in (1..).zip(&SIZES) {
        let mut rows = Vec::new();
        for variant in recoveries() {
            let what = format!("nothing lost, {}", variant.name);
            let done = context
                .parallel(&what, &seeds, |seed| Drill::new(size.bytes, *seed).run(&variant, &[]))?;
            rows.push(row(what, &done));
        }
        for loss in Loss::ALL {
            for percent in [10, 50, 90] {
                rows.extend(at_position(context, size, &seeds, (loss, percent))?);
            }
        }
        let title = format!(
            "{}: a loss on WLAN within the burst, both paths alive: completion (95 % intervals)",
            size.name
        );
        all.tables.push(Table::new(&format!("mid-burst-{number}"), title, rows));
    }
    all.grids.push(reordering(context, &seeds)?);
    Ok(())
}

fn at_position(
    context: &Context<'_>,
    size: &Size,
    seeds: &[u64],
    (loss, percent): (Loss, u64),
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut runs = Vec::new();
    for variant in recoveries() {
        let what = format!("{} at {percent} %, {}", loss.words(), variant.name);
        let done = context.parallel(&what, seeds, |seed| {
            lose(&Drill::new(size.bytes, *seed), &variant, loss, percent)
        })?;
        rows.push(row(what, &done));
        runs.push(times(&done));
    }
    if let ([_, rack, _], [counted, timed, _]) = (rows.as_mut_slice(), runs.as_slice()) {
        let saved: Vec<f64> = counted.iter().zip(timed).map(|(one, other)| one - other).collect();
        let (mean, (least, most)) = mean_interval(&saved);
        let remark = format!("saves {mean:.1} ms of RFC 6675's ({least:.1} to {most:.1})");
        *rack = rack.clone().remark(remark);
    }
    Ok(rows)
}

fn lose(drill: &Drill, variant: &Variant, loss: Loss, percent: u64) -> anyhow::Result<Done> {
    let first = (drill.run(variant, &[])?.segments() * percent / 100).max(1);
    match loss {
        Loss::One => drill.run(variant, &[first]),
        Loss::Three => drill.run(variant, &[first, first + 1, first + 2]),
        Loss::Twice => {
            let once = drill.run(variant, &[first])?;
            let lost: Vec<u64> =
                [Some(first), once.repeat_of(first)].into_iter().flatten().collect();
            drill.run(variant, &lost)
        }
    }
}

fn times(done: &[Done]) -> Vec<f64> {
    done.iter().map(|done| done.completion_ms).collect()
}

fn row(what: String, done: &[Done]) -> Row {
    let (mean, interval) = mean_interval(&times(done));
    Row::new(what).ours_between(mean, interval, "ms").bound_ratio(bound_ratio(done))
}

/// Nothing is lost, but packets overtake each other: who repeats what was only late?
fn reordering(context: &Context<'_>, seeds: &[u64]) -> anyhow::Result<Grid> {
    let columns = [
        ("loss recovery", ""),
        ("jitter", "ms"),
        ("completion", "ms"),
        ("bytes sent needlessly", ""),
    ];
    let title = "WLAN reorders a burst of 100 kB, nothing is lost";
    let mut grid = Grid::new("reordering", title, &columns);
    for variant in recoveries() {
        for jitter_ms in [1.0, 3.0] {
            let what = format!("reordering, {}", variant.name);
            let done = context.parallel(&what, seeds, |seed| {
                let mut drill = Drill::new(SIZES[0].bytes, *seed);
                drill.overtaking_ms = jitter_ms;
                drill.run(&variant, &[])
            })?;
            let (mean, interval) = mean_interval(&times(&done));
            let twice: Vec<f64> = done.iter().map(|done| done.duplicate_bytes as f64).collect();
            let (wasted, between) = mean_interval(&twice);
            grid.rows.push(vec![
                Value::Text(variant.name.clone()),
                Value::new(jitter_ms, ""),
                Value::between(mean, interval, ""),
                Value::between(wasted, between, ""),
            ]);
        }
    }
    Ok(grid)
}
