//! The default in the scenes of each seed system, compared with that system, plain `min-rtt` and full redundancy.

use std::fmt::Write as _;

use marline_lab::experiment::Variant;
use marline_lab::figure::number as figure_text;
use serde::{Deserialize, Serialize};

use super::measure::{Cell, SceneCells, in_scene};
use super::scenes::{SCENES, Scene};
use crate::estimate::{Estimate, RangePosition, RequiredRange, Samples};
use crate::paper::Context;
use crate::plain::mptcp;
use crate::roots::Part;

const PART: Part = Part::fixed("ground", 20);
/// Ratio to the seed's own system above which the default loses.
const TOLERANCE: f64 = 1.03;
/// Columns of the table, in the order of the variants.
const COLUMNS: [&str; 4] = ["`auto`", "the study's system", "`min-rtt`", "`redundant`"];

/// Results of a root: a row of cells for each scene, in the order of [`COLUMNS`].
#[derive(Serialize, Deserialize)]
struct Ground(Vec<SceneCells>);

/// Runs the default in the scenes of the seeds, and returns a Markdown table with its losses first. Costs are those
/// of a mean run: bytes sent twice as a percentage of the payload, and joules of the cellular radio.
///
/// # Errors
/// A run failed, or its result cannot be stored.
pub fn default_on_seed_ground(context: &Context<'_>) -> anyhow::Result<String> {
    let samples = context.sample(PART, |root| {
        let cells = SCENES.iter().map(|scene| in_scene(context, scene, &variants(scene), root));
        Ok(Ground(cells.collect::<anyhow::Result<_>>()?))
    })?;
    Ok(text(&samples, context.master))
}

/// Systems in a scene, in the order of [`COLUMNS`]. All but the default run over the congestion control of their study.
fn variants(scene: &Scene) -> [Variant; 4] {
    let redundant = mptcp("redundant").scheduler("redundant");
    [Variant::new("auto"), seed_system(scene.key), mptcp("min-rtt"), redundant]
}

/// System of the seed with this key.
fn seed_system(key: &str) -> Variant {
    match key {
        "tlp2019" => mptcp("TLP-MP").scheduler("lowest-rtt+tlp-mp"),
        "remp2015" => mptcp("ReMP").scheduler("redundant"),
        "papd2017" | "hsr2018" => mptcp("PAPD").scheduler("lowest-rtt+orp+papd").congestion("bbr"),
        "multimob2018" => {
            Variant { mode: Some("multimob".to_owned()), scheduler: None, ..mptcp("MultiMob") }
        }
        _ => mptcp("M1 and M2").scheduler("lowest-rtt+orp"),
    }
}

fn text(samples: &Samples<Ground>, master: u64) -> String {
    let (mut lost, mut rows) = (Vec::new(), String::new());
    for (number, scene) in SCENES.iter().enumerate() {
        let own = seed_system(scene.key).name;
        for (measure, kind) in scene.measures.iter().enumerate() {
            let ratio = samples.estimate(|picked| {
                let of = |system| mean(picked, number, system, measure);
                if kind.is_lower_better() { of(0) / of(1) } else { of(1) / of(0) }
            });
            let what = format!("{}, {}", scene.name, kind.name());
            let position = ratio.position_in(RequiredRange::at_most(TOLERANCE));
            if position == RangePosition::Outside {
                lost.push(format!("{what} ({own}: {})", format_ratio(&ratio)));
            }
            let picked: Vec<&Ground> = samples.all().iter().collect();
            let cells = (0..COLUMNS.len()).map(|system| {
                let value = mean(&picked, number, system, measure);
                let cells = picked.iter().map(|root| &root.0[number][system]);
                format!("{}{}", figure_text(value), costs(&Cell::sum(cells), picked.len()))
            });
            let cells: Vec<String> = cells.collect();
            let verdict = match position {
                RangePosition::Outside => "**loses**",
                RangePosition::Inside => "holds",
                RangePosition::Undecided { .. } => "no clear difference",
            };
            let _ = writeln!(
                rows,
                "|{what}|{own}|{}|{}|{verdict}|",
                cells.join("|"),
                format_ratio(&ratio)
            );
        }
    }
    let lost = match lost.as_slice() {
        [] => "nowhere".to_owned(),
        lost => lost.join("; "),
    };
    let columns = COLUMNS.join("|");
    format!(
        "The default is more than 3 % worse than the study's own system here: {lost}.\n\n\
         Master root {master}, {} roots, means; 99 % intervals of the ratio, above 1: worse.\n\n\
         |scene|study|{columns}|`auto` relative to the study's||\n|---|---|---|---|---|---|---|---|\n{rows}",
        samples.roots()
    )
}

fn mean(picked: &[&Ground], scene: usize, system: usize, measure: usize) -> f64 {
    let values = picked.iter().map(|root| root.0[scene][system].values[measure]);
    values.sum::<f64>() / picked.len() as f64
}

/// Costs of a mean run, in parentheses.
fn costs(sum: &Cell, runs: usize) -> String {
    let copies = 100.0 * sum.extra_bytes / sum.payload_bytes;
    let joules = sum.cellular_j / runs as f64;
    match joules > 0.0 {
        true => format!(" (+{copies:.0} %, {joules:.0} J)"),
        false => format!(" (+{copies:.0} %)"),
    }
}

fn format_ratio(ratio: &Estimate) -> String {
    format!(
        "{} [{}, {}]",
        figure_text(ratio.value),
        figure_text(ratio.low),
        figure_text(ratio.high)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_come_first() {
        let cell = |value: f64, joules: f64| Cell {
            values: vec![value; 3],
            extra_bytes: 25.0,
            payload_bytes: 100.0,
            sending_s: 1.0,
            cellular_j: joules,
        };
        let root = |n: u32| {
            let cells = |scene: &Scene| {
                let auto = if scene.key == "multimob2018" { 20.0 } else { 10.0 };
                let is_lower = scene.measures[0].is_lower_better();
                let own = if is_lower { 11.0 } else { 9.0 };
                [auto, own, 12.0, 12.0].map(|value| cell(value + f64::from(n) * 1e-3, 4.0)).to_vec()
            };
            Ground(SCENES.iter().map(cells).collect())
        };
        let text = text(&Samples::new((0..20).map(root).collect(), 1), 7);
        let first = text.lines().next().unwrap();
        assert!(first.contains("voice assistant") && first.contains("MultiMob: 1.8"), "{first}");
        assert!(!first.contains("echoes"), "{first}");
        assert!(text.contains("(+25 %, 4 J)") && text.contains("|**loses**|"), "{text}");
    }
}
