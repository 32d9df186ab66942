//! Measurements of others as links: what was measured of a path over time becomes a `[[path]]` of an experiment file
//! with its `[[event]]`s, which run on every stack.
//!
//! What is read is checked as a whole, and all that is wrong is told at once. What the numbers mean is taken at
//! its word: a rate that a transfer reached is not the rate of the link unless the transfer was limited by
//! nothing else.

mod csv;
mod iperf3;
mod pcap;
mod round_trips;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{bail, ensure};
use marline_link::DuplexSpec;

use crate::scenario::check_name;

pub use csv::{Reading, read as read_csv};
pub use iperf3::read as read_iperf3;
pub use pcap::{Passage, passages, read as read_pcaps};
pub use round_trips::{RoundTrips, round_trips};

/// Most samples of a file.
pub const MAX_SAMPLES: usize = 100_000;
/// Mistakes that are told of a file; of the rest there is the number.
const MAX_REPORTED_MISTAKES: usize = 8;

/// A direction of a path, or both.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Both.
    Both,
    /// From the client.
    Up,
    /// To the client.
    Down,
}

/// A quantity of a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Mbit/s.
    Rate,
    /// One way, ms.
    Delay,
    /// Share of the packets, 0 to 1.
    Loss,
}

/// What was measured at a time: it holds until the next sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// After the first sample.
    pub at: Duration,
    /// What is known then.
    pub values: Vec<Value>,
}

/// What was measured of a path over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// In the order of time; the first is at zero.
    pub samples: Vec<Sample>,
    /// Columns that were not understood, and are not in it.
    pub ignored: Vec<String>,
}

/// A value of a direction: Mbit/s, ms, or a share.
pub type Value = (Way, Quantity, f64);

/// Whether a link stands still.
fn is_stalled_link((_, quantity, value): &Value) -> bool {
    *quantity == Quantity::Rate && *value * 1e6 < 1.0
}

/// A value as an item of a link's description; none where the link stands still, which is an outage.
fn item(value: &Value) -> Option<String> {
    let (way, quantity, number) = *value;
    let way = match way {
        Way::Both => "",
        Way::Up => "up.",
        Way::Down => "down.",
    };
    (!is_stalled_link(value)).then(|| match quantity {
        Quantity::Rate => format!("{way}rate={:.0}", number * 1e6),
        Quantity::Delay => format!("{way}delay={:.0}us", number * 1e3),
        Quantity::Loss => format!("{way}loss={}%", (number * 1e6).round() / 1e4),
    })
}

/// What is to be done to a link for these values, after those of before.
fn orders(values: &[Value], before: &[Value]) -> anyhow::Result<Vec<String>> {
    let mut orders = Vec::new();
    for value in values.iter().filter(|value| value.1 == Quantity::Rate) {
        let stood =
            before.iter().any(|old| (old.0, old.1) == (value.0, value.1) && is_stalled_link(old));
        let side = match value.0 {
            Way::Both => "",
            Way::Up => " uplink",
            Way::Down => " downlink",
        };
        match (stood, is_stalled_link(value)) {
            (false, true) => orders.push(format!("down{side}")),
            (true, false) => orders.push(format!("up{side}")),
            _ => {}
        }
    }
    let items: Vec<String> = values.iter().filter_map(item).collect();
    if !items.is_empty() {
        orders.push(format!("set {}", checked(&items)?));
    }
    Ok(orders)
}

impl Measurement {
    /// The path and its events as a part of an experiment file. `name`: of the path; `queue`: of the link, in
    /// the words of docs/research/link.md, for no measurement tells it.
    ///
    /// # Errors
    /// No path can have this name, there is no sample, or a value makes no link.
    pub fn toml(&self, name: &str, queue: Option<&str>) -> anyhow::Result<String> {
        check_name(name)?;
        let Some(first) = self.samples.first() else { bail!("there is no sample") };
        let mut link: Vec<String> = first.values.iter().filter_map(item).collect();
        link.extend(queue.map(|queue| format!("queue={queue}")));
        if self.samples.iter().flat_map(|sample| &sample.values).any(is_stalled_link) {
            // A rate of nothing keeps what is on the link.
            link.push("outage=suspend".to_owned());
        }
        let mut text = format!("[[path]]\nname = \"{name}\"\nlink = \"{}\"\n", checked(&link)?);
        let mut now: Vec<Value> =
            first.values.iter().filter(|v| !is_stalled_link(v)).copied().collect();
        for Sample { at, values } in &self.samples {
            let changed: Vec<Value> =
                values.iter().filter(|value| !now.contains(value)).copied().collect();
            for command in orders(&changed, &now)? {
                let at_us = at.as_micros();
                // Writing to a String cannot fail.
                let _ = write!(
                    text,
                    "\n[[event]]\nat = \"{at_us}us\"\npath = \"{name}\"\ncommand = \"{command}\"\n"
                );
            }
            now.retain(|known| !changed.iter().any(|new| (new.0, new.1) == (known.0, known.1)));
            now.extend(&changed);
        }
        Ok(text)
    }
}

/// Items that make a link, joined.
fn checked(items: &[String]) -> anyhow::Result<String> {
    let text = items.join(",");
    match text.parse::<DuplexSpec>() {
        Ok(_) => Ok(text),
        Err(error) => bail!("{error}"),
    }
}

/// All that is wrong with a file, in one error.
#[derive(Debug, Default)]
struct Mistakes {
    told: Vec<String>,
    count: usize,
}

impl Mistakes {
    fn note(&mut self, line: usize, what: impl std::fmt::Display) {
        self.count += 1;
        if self.told.len() < MAX_REPORTED_MISTAKES {
            self.told.push(format!("line {line}: {what}"));
        }
    }

    fn result(self, file: &str) -> anyhow::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let more = self.count - self.told.len();
        let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
        bail!("{file} cannot be used:\n  {}{more}", self.told.join("\n  "))
    }
}

/// Samples in order, from zero on.
fn from_zero(file: &str, mut samples: Vec<Sample>) -> anyhow::Result<Vec<Sample>> {
    ensure!(!samples.is_empty(), "{file} has no sample");
    let count = samples.len();
    ensure!(count <= MAX_SAMPLES, "{file} has {count} samples, at most {MAX_SAMPLES}");
    let first = samples[0].at;
    samples.iter_mut().for_each(|sample| sample.at -= first);
    Ok(samples)
}
