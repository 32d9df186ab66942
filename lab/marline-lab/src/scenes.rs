//! Scenes: experiments with a user's question as their title, and checks that define the correct answer.
//!
//! They run in virtual time with a few seeds. An answer is the median of the runs' values.

use std::path::Path;

use anyhow::Context as _;

use crate::experiment::file::{ExperimentFile, Point};
use crate::experiment::{Check, Edge, Experiment, Measure, Stack, Variant, simulate};
use crate::figure::number;
use crate::parallel::parallel;
use crate::results::quantile;
use crate::runs::Record;

/// Number of runs of each variant.
const SEEDS: u64 = 3;
/// Number of consecutive fast messages after which a connection counts as settled.
const SETTLED_MESSAGES: usize = 5;

/// A question with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Title of the scene.
    pub question: String,
    /// Text of the check: values of the sweep, the question, and the bound.
    pub asked: String,
    /// Measured value.
    pub measured: String,
    /// True if the measured value is a correct answer.
    pub holds: bool,
}

/// One run of a scene.
struct Run<'a> {
    scene: usize,
    point: &'a Point,
    variant: &'a Variant,
    seed: u64,
}

/// Experiment files with checks in a directory, by name.
///
/// # Errors
/// A file cannot be read.
pub fn read_directory(directory: &Path) -> anyhow::Result<Vec<ExperimentFile>> {
    let listed = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut paths: Vec<_> = listed.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut scenes = Vec::new();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
    {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        if text.contains("\n[[check]]") {
            scenes.push(ExperimentFile::from_toml(&path.display().to_string(), &text)?);
        }
    }
    Ok(scenes)
}

/// Runs scenes on this many threads, and returns their answers in order.
///
/// # Errors
/// A run cannot be made.
pub fn answers(scenes: &[ExperimentFile], jobs: usize) -> anyhow::Result<Vec<Answer>> {
    let points: Vec<Vec<Point>> =
        scenes.iter().map(ExperimentFile::points).collect::<anyhow::Result<_>>()?;
    let mut runs = Vec::new();
    for (scene, points) in points.iter().enumerate() {
        for point in points {
            let variants = point.file.contestants.iter();
            let variants = variants.filter(|contestant| contestant.stacks.contains(&Stack::Sim));
            runs.extend(variants.flat_map(|contestant| {
                let first = point.file.experiment.scenario.seed;
                let variant = &contestant.variant;
                (first..first + SEEDS).map(move |seed| Run { scene, point, variant, seed })
            }));
        }
    }
    let records = parallel(jobs, &runs, |run| {
        let experiment = &run.point.file.experiment;
        simulate(experiment, run.variant, run.seed)
            .and_then(|outcome| Record::from_outcome(experiment, &outcome))
    });
    let records: Vec<Record> = records.into_iter().collect::<anyhow::Result<_>>()?;
    let mut answers = Vec::new();
    for (scene, points) in points.iter().enumerate() {
        for point in points {
            let mine: Vec<(&Variant, &Record)> = runs
                .iter()
                .zip(&records)
                .filter(|(run, _)| run.scene == scene && core::ptr::eq(run.point, point))
                .map(|(run, record)| (run.variant, record))
                .collect();
            answers.extend(point.file.checks.iter().map(|check| answer(point, check, &mine)));
        }
    }
    Ok(answers)
}

fn answer(point: &Point, check: &Check, records: &[(&Variant, &Record)]) -> Answer {
    let file = &point.file;
    let value = |variant: usize| {
        let name = &file.contestants[variant].variant.name;
        let mine = records.iter().filter(|(variant, _)| variant.name == *name);
        let values: Vec<f64> =
            mine.map(|(_, record)| measured_value(check, &file.experiment, record)).collect();
        quantile(&values, 0.5)
    };
    let (got, other) = (value(check.variant), check.of.map(value));
    let bound = check.bound * other.unwrap_or(1.0);
    let sign = if check.is_minimum { "≥" } else { "≤" };
    let unit = check.measure.1;
    let shown = |value: f64| match value.is_finite() {
        true => format!("{}{unit}", number(value)),
        false => "never".to_owned(),
    };
    let (asks, limit) = (&check.asks, number(check.bound));
    let (asked, of) = match check.of.zip(other) {
        None => (format!("{asks} {sign} {limit}{unit}"), String::new()),
        Some((of, other)) => {
            let name = &file.contestants[of].variant.name;
            (format!("{asks} {sign} {limit} times {name}"), format!(" ({})", shown(other)))
        }
    };
    // Numbers are unclear without their key.
    let named = |(key, value): &(String, String)| {
        let is_number = value.starts_with(|first: char| first.is_ascii_digit());
        let item = key.rsplit('.').next().filter(|_| is_number);
        item.map_or_else(|| value.clone(), |item| format!("{item} {value}"))
    };
    let values: Vec<String> = point.values.iter().map(named).collect();
    let values = values.join(", ") + if values.is_empty() { "" } else { ": " };
    Answer {
        question: file.title.clone(),
        asked: values + &asked,
        measured: shown(got) + &of,
        holds: if check.is_minimum { got >= bound } else { got <= bound },
    }
}

/// The measured value of a run. Infinite if the measured event never happened.
fn measured_value(check: &Check, experiment: &Experiment, record: &Record) -> f64 {
    let Some(of_load) = record.workloads().nth(check.workload) else { return f64::NAN };
    let fault_ms = record.faults_ms.first().copied().unwrap_or(0.0);
    let lasts = experiment.faults.first().and_then(|fault| fault.lasts).unwrap_or_default();
    let time_ms = |edge: Edge| match edge {
        Edge::At(ms) => ms,
        Edge::Fault => fault_ms,
        Edge::Return => fault_ms + lasts.as_secs_f64() * 1e3,
    };
    let from_ms = check.from.map(time_ms);
    let span_ms = from_ms.unwrap_or(0.0)..check.until.map_or(f64::INFINITY, time_ms);
    let counted = of_load.messages.iter().skip(of_load.warm_up);
    let counted = counted.filter(|message| span_ms.contains(&message.sent_ms));
    match &check.measure.0 {
        Measure::Latency(share) => {
            let mut latencies: Vec<f64> = counted.map(|message| message.latency_ms).collect();
            latencies.extend((0..of_load.missing).map(|_| f64::INFINITY));
            latencies.sort_unstable_by(f64::total_cmp);
            // Uses the nearest rank, because there is nothing between a number and infinity.
            let rank = (share * latencies.len() as f64).ceil() as usize;
            latencies.get(rank.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
        }
        Measure::Missing => f64::from(of_load.missing),
        Measure::Goodput if check.from.is_none() && check.until.is_none() => {
            of_load.goodput_mbit_per_s
        }
        Measure::Goodput => {
            let ends = of_load.messages.iter().map(|of| (of.sent_ms + of.latency_ms, of.bytes));
            let last_ms = ends.clone().map(|(end_ms, _)| end_ms).fold(0.0, f64::max);
            let read = ends.filter(|(end_ms, _)| span_ms.contains(end_ms));
            let bytes: f64 = read.map(|(_, bytes)| f64::from(bytes)).sum();
            bytes * 8e-3 / (span_ms.end.min(last_ms) - span_ms.start)
        }
        Measure::Settled(most_ms) => {
            let counted: Vec<_> = counted.collect();
            let mut rows = counted.windows(SETTLED_MESSAGES);
            let row = rows.find(|row| row.iter().all(|message| message.latency_ms <= *most_ms));
            row.map_or(f64::INFINITY, |row| (row[0].sent_ms - span_ms.start) / 1e3)
        }
        Measure::CellularEnergy => {
            let radios = record.paths.iter().filter_map(|path| path.radio.as_ref());
            radios.filter(|radio| radio.kind != "wifi").map(|radio| radio.traffic_j).sum()
        }
        Measure::Named(name) => of_load.measures.of(name).unwrap_or(f64::NAN),
    }
}

/// Formats the answers as a table in Markdown. A scene's question is in its first row.
#[must_use]
pub fn table(answers: &[Answer]) -> String {
    let mut text = "|question|expected|measured|holds|\n|---|---|---|---|\n".to_owned();
    let mut before = "";
    for Answer { question, asked, measured: got, holds } in answers {
        let shown = if question == before { "" } else { question };
        let verdict = if *holds { "yes" } else { "**no**" };
        text += &format!("|{shown}|{asked}|{got}|{verdict}|\n");
        before = question;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENE: &str = "title = 'Is it quick?'\n\
        [[path]]\nname = 'wifi'\nlink = 'rate=20M,delay=10ms'\n\
        [[path]]\nname = 'lte'\nlink = 'rate=10M,delay=40ms'\n\
        [workload]\nkind = 'echo'\nbytes = 200\ngap = '50ms'\ncount = 60\n\
        [[fault]]\npath = 'wifi'\nbetween = ['1s', '1s']\nlasts = '500ms'\n\
        [[stop]]\nend = 'server'\nat = '2s'\nlasts = '200ms'\n\
        [[variant]]\nname = 'both'\n[[variant]]\nname = 'WiFi alone'\nplain = true\n";

    fn asked(checks: &str) -> Vec<(String, bool)> {
        let file = ExperimentFile::from_toml("x.toml", &format!("{SCENE}{checks}"));
        let file = file.unwrap_or_else(|error| panic!("{error:#}"));
        let all = answers(&[file], 1).expect("runs");
        assert!(all.iter().all(|answer| answer.question == "Is it quick?"));
        all.into_iter().map(|answer| (answer.asked, answer.holds)).collect()
    }

    #[test]
    fn answers_are_judged() {
        let quick = "[[check]]\nmeasure = 'p50_ms'\nat_most = 25\n";
        let held =
            "[[check]]\nasks = 'longest'\nmeasure = 'max_ms'\nat_most = 150\nuntil = '1.8s'\n";
        let stopped = "[[check]]\nmeasure = 'max_ms'\nat_least = 190\nfrom = '1.8s'\n";
        let back =
            "[[check]]\nmeasure = 'settled_s'\nbelow = '25ms'\nat_most = 1\nfrom = 'return'\n";
        let than = "[[check]]\nmeasure = 'max_ms'\nat_most = 0.5\nof = 'WiFi alone'\nfrom = \
            'fault'\n\
                    until = 'return'\n";
        let swept = "[sweep]\n'path.lte.delay' = ['40ms', '50ms']\n";
        let all = asked(&[quick, held, stopped, back, than, swept].concat());
        assert_eq!(all.len(), 10);
        assert!(all.iter().all(|(_, holds)| *holds), "{all:?}");
        assert_eq!(all[0].0, "delay 40ms: p50 ms ≤ 25 ms");
        assert_eq!(all[9].0, "delay 50ms: max ms ≤ 0.5 times WiFi alone");
        assert!(!asked("[[check]]\nmeasure = 'p50_ms'\nat_most = 5\n")[0].1);
    }

    #[test]
    fn invalid_checks_are_reported() {
        for (check, wanted) in [
            ("measure = 'p98_ms'\nat_most = 1", "unknown measure `p98_ms`; known: p50_ms"),
            ("measure = 'p50_ms'", "expected exactly one of: at_most = 100, at_least = 10"),
            ("measure = 'settled_s'\nat_most = 1", "`below` is missing"),
            ("measure = 'p50_ms'\nat_most = 1\nof = 'LTE'", "unknown name `LTE`; known: both"),
            ("measure = 'p50_ms'\nat_most = 1\nfrom = 'soon'", "soon"),
        ] {
            let text = format!("{SCENE}[[check]]\n{check}\n");
            let error = ExperimentFile::from_toml("x.toml", &text).expect_err("wrong");
            let error = format!("{error:#}");
            assert!(error.contains(wanted), "wanted {wanted}, got:\n{error}");
        }
    }
}
