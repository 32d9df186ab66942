//! CSV with a header line: a time column, and columns of delay, loss and rate.
//!
//! | column | meaning |
//! |---|---|
//! | `time_s`, `time_ms`, `time_us` | time on any monotonic clock; the first row is the start |
//! | `rate_mbit_per_s`, `rate_kbit_per_s`, `rate_bits_per_s` | rate |
//! | `delay_ms`, `delay_us`, `rtt_ms`, `rtt_us` | one way, or round trip, of which half is used |
//! | `loss`, `loss_percent` | share of the packets, 0 to 1, or percent |
//!
//! A column with the prefix `up_` or `down_` is for one direction. An empty field keeps the previous value.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use super::{Measurement, Mistakes, PathDirection, Quantity, Sample, normalize_times};

/// Meaning of a column, and the factor of its numbers.
#[derive(Copy, Clone, Debug)]
enum Column {
    Time(f64),
    Value(PathDirection, Quantity, f64),
    Ignored,
}

const TIMES: [(&str, f64); 3] = [("time_s", 1.0), ("time_ms", 1e-3), ("time_us", 1e-6)];
const VALUES: [(&str, Quantity, f64); 9] = [
    ("rate_mbit_per_s", Quantity::Rate, 1.0),
    ("rate_kbit_per_s", Quantity::Rate, 1e-3),
    ("rate_bits_per_s", Quantity::Rate, 1e-6),
    ("delay_ms", Quantity::Delay, 1.0),
    ("delay_us", Quantity::Delay, 1e-3),
    ("rtt_ms", Quantity::Delay, 0.5),
    ("rtt_us", Quantity::Delay, 0.5e-3),
    ("loss", Quantity::Loss, 1.0),
    ("loss_percent", Quantity::Loss, 1e-2),
];

fn column(name: &str) -> Column {
    if let Some((_, scale)) = TIMES.iter().find(|(known, _)| *known == name) {
        return Column::Time(*scale);
    }
    let (way, rest) = match (name.strip_prefix("up_"), name.strip_prefix("down_")) {
        (Some(rest), _) => (PathDirection::Up, rest),
        (_, Some(rest)) => (PathDirection::Down, rest),
        _ => (PathDirection::Both, name),
    };
    match VALUES.iter().find(|(known, ..)| *known == rest) {
        Some((_, quantity, scale)) => Column::Value(way, *quantity, *scale),
        None => Column::Ignored,
    }
}

/// Options for reading a file.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Renamed columns: name in the file, and name in this program.
    pub renamed: Vec<(String, String)>,
    /// Interval of the rows, if there is no time column.
    pub every: Option<Duration>,
}

/// Reads a file's text.
///
/// # Errors
/// Columns are missing, a name is not in the file, or fields are not numbers or out of range. All errors are reported
/// together.
pub fn read(file: &str, text: &str, reading: &ReadOptions) -> anyhow::Result<Measurement> {
    let ReadOptions { renamed, every } = reading;
    let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let (heading, _) = lines.next().with_context(|| format!("{file} is empty"))?;
    let names: Vec<&str> = heading
        .trim_start_matches('\u{feff}')
        .split(',')
        .map(|name| name.trim().trim_matches('"'))
        .collect();
    for (theirs, _) in renamed {
        ensure!(
            names.contains(&theirs.as_str()),
            "{file} has no column `{theirs}`; it has {}",
            names.join(", ")
        );
    }
    let ours = |name: &str| {
        let other = renamed.iter().find(|(theirs, _)| theirs == name);
        other.map_or_else(|| name.to_owned(), |(_, ours)| ours.clone())
    };
    let columns: Vec<Column> = names.iter().map(|name| column(&ours(name))).collect();
    let times = columns.iter().filter(|column| matches!(column, Column::Time(_))).count();
    let values = columns.iter().any(|column| matches!(column, Column::Value(..)));
    if times != usize::from(every.is_none()) || !values {
        let of = |known: &[&str]| known.join(", ");
        bail!(
            "{file} needs a time column ({}) or --every, and at least one of {}, optionally \
                prefixed with up_ or down_; it has {}. Map columns with --column THEIRS=OURS",
            of(&TIMES.map(|(name, _)| name)),
            of(&VALUES.map(|(name, ..)| name)),
            names.join(", ")
        );
    }
    let (mut samples, mut mistakes) = (Vec::new(), Mistakes::default());
    for (line, number) in lines {
        match sample(line, &names, &columns) {
            Ok(mut sample) => {
                if let Some(every) = every {
                    sample.at = *every * samples.len() as u32;
                }
                let before = samples.last().is_some_and(|last: &Sample| sample.at < last.at);
                if before {
                    mistakes
                        .record_mistake(number, "the time is earlier than in the previous line");
                } else {
                    samples.push(sample);
                }
            }
            Err(error) => mistakes.record_mistake(number, error),
        }
    }
    mistakes.result(file)?;
    let is_ignored = |(_, column): &(&&str, &Column)| matches!(column, Column::Ignored);
    let ignored = names.iter().zip(&columns).filter(is_ignored);
    let ignored = ignored.map(|(name, _)| (*name).to_owned()).collect();
    Ok(Measurement { samples: normalize_times(file, samples)?, ignored })
}

fn sample(line: &str, names: &[&str], columns: &[Column]) -> anyhow::Result<Sample> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let (count, wanted) = (fields.len(), columns.len());
    ensure!(count == wanted, "{count} fields, but the header has {wanted}");
    let mut sample = Sample::default();
    for ((field, column), name) in fields.into_iter().zip(columns).zip(names) {
        let number = || {
            let number =
                field.trim_matches('"').parse::<f64>().ok().filter(|number| number.is_finite());
            number.with_context(|| format!("`{field}` in column `{name}` is not a number"))
        };
        match *column {
            Column::Time(scale) => {
                let at = Duration::try_from_secs_f64(number()? * scale);
                sample.at =
                    at.with_context(|| format!("`{field}` in column `{name}` is not a time"))?;
            }
            Column::Value(way, quantity, scale) if !field.is_empty() => {
                let value = number()? * scale;
                let most = match quantity {
                    Quantity::Rate => 1e6,
                    Quantity::Delay => 6e4,
                    Quantity::Loss => 1.0,
                };
                let what = || format!("{field} in column `{name}`: must be 0 to {}", most / scale);
                ensure!((0.0..=most).contains(&value), what());
                sample.values.push((way, quantity, value));
            }
            Column::Value(..) | Column::Ignored => {}
        }
    }
    Ok(sample)
}
