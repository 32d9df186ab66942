//! Import of measurements as links: the measurements of a path over time become a `[[path]]` of an experiment file
//! with its `[[event]]`s, which run on every stack.
//! A file is checked as a whole, and all mistakes are reported together. Numbers are used unchanged, so the rate of a
//! transfer equals that of the link only if the link was the only limit.

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

pub use csv::{ReadOptions, read as read_csv};
pub use iperf3::read as read_iperf3;
pub use pcap::{CaptureFile, PathPacket, path_packets, read as read_pcaps};
pub use round_trips::{RoundTrips, round_trips};

/// Maximum number of samples of a file.
pub const MAX_SAMPLES: usize = 100_000;
/// Maximum number of reported mistakes of a file. Further ones are only counted.
const MAX_REPORTED_MISTAKES: usize = 8;

/// A direction of a path, or both.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathDirection {
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
    /// One-way delay in ms.
    Delay,
    /// Share of lost packets, 0 to 1.
    Loss,
}

/// A sample, which holds until the next one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time after the first sample.
    pub at: Duration,
    /// Values known at this time.
    pub values: Vec<Value>,
}

/// Measurements of a path over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// Samples in order of time; the first is at zero.
    pub samples: Vec<Sample>,
    /// Unknown columns, which are ignored.
    pub ignored: Vec<String>,
}

/// A value for one direction: Mbit/s, ms, or a share.
pub type Value = (PathDirection, Quantity, f64);

/// Returns true if the rate is zero.
fn is_stalled_link((_, quantity, value): &Value) -> bool {
    *quantity == Quantity::Rate && *value * 1e6 < 1.0
}

/// A value as an item of a link's description. `None` for a rate of zero, which means an outage.
fn item(value: &Value) -> Option<String> {
    let (way, quantity, number) = *value;
    let way = match way {
        PathDirection::Both => "",
        PathDirection::Up => "up.",
        PathDirection::Down => "down.",
    };
    (!is_stalled_link(value)).then(|| match quantity {
        Quantity::Rate => format!("{way}rate={:.0}", number * 1e6),
        Quantity::Delay => format!("{way}delay={:.0}us", number * 1e3),
        Quantity::Loss => format!("{way}loss={}%", (number * 1e6).round() / 1e4),
    })
}

/// The commands that change a link's values from the previous ones to these.
fn link_commands(values: &[Value], before: &[Value]) -> anyhow::Result<Vec<String>> {
    let mut link_commands = Vec::new();
    for value in values.iter().filter(|value| value.1 == Quantity::Rate) {
        let stood =
            before.iter().any(|old| (old.0, old.1) == (value.0, value.1) && is_stalled_link(old));
        let side = match value.0 {
            PathDirection::Both => "",
            PathDirection::Up => " uplink",
            PathDirection::Down => " downlink",
        };
        match (stood, is_stalled_link(value)) {
            (false, true) => link_commands.push(format!("down{side}")),
            (true, false) => link_commands.push(format!("up{side}")),
            _ => {}
        }
    }
    let items: Vec<String> = values.iter().filter_map(item).collect();
    if !items.is_empty() {
        link_commands.push(format!("set {}", check_items(&items)?));
    }
    Ok(link_commands)
}

impl Measurement {
    /// The path and its events as part of an experiment file. `name` is the path's name; `queue` is the link's
    /// queue in the syntax of docs/research/link.md, since measurements do not show it.
    ///
    /// # Errors
    /// The name is not valid for a path, there are no samples, or a value is not valid for a link.
    pub fn toml(&self, name: &str, queue: Option<&str>) -> anyhow::Result<String> {
        check_name(name)?;
        let Some(first) = self.samples.first() else { bail!("there are no samples") };
        let mut link: Vec<String> = first.values.iter().filter_map(item).collect();
        link.extend(queue.map(|queue| format!("queue={queue}")));
        if self.samples.iter().flat_map(|sample| &sample.values).any(is_stalled_link) {
            // At a rate of zero, packets wait on the link.
            link.push("outage=suspend".to_owned());
        }
        let mut text = format!("[[path]]\nname = \"{name}\"\nlink = \"{}\"\n", check_items(&link)?);
        let mut now: Vec<Value> =
            first.values.iter().filter(|v| !is_stalled_link(v)).copied().collect();
        for Sample { at, values } in &self.samples {
            let changed: Vec<Value> =
                values.iter().filter(|value| !now.contains(value)).copied().collect();
            for command in link_commands(&changed, &now)? {
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

/// Joins items after checking that they describe a link.
fn check_items(items: &[String]) -> anyhow::Result<String> {
    let text = items.join(",");
    match text.parse::<DuplexSpec>() {
        Ok(_) => Ok(text),
        Err(error) => bail!("{error}"),
    }
}

/// All mistakes in a file, in one error.
#[derive(Debug, Default)]
struct Mistakes {
    reported: Vec<String>,
    count: usize,
}

impl Mistakes {
    fn record_mistake(&mut self, line: usize, what: impl std::fmt::Display) {
        self.count += 1;
        if self.reported.len() < MAX_REPORTED_MISTAKES {
            self.reported.push(format!("line {line}: {what}"));
        }
    }

    fn result(self, file: &str) -> anyhow::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let more = self.count - self.reported.len();
        let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
        bail!("{file} cannot be used:\n  {}{more}", self.reported.join("\n  "))
    }
}

/// Samples in order, with times counted from the first.
fn normalize_times(file: &str, mut samples: Vec<Sample>) -> anyhow::Result<Vec<Sample>> {
    ensure!(!samples.is_empty(), "{file} has no samples");
    let count = samples.len();
    ensure!(count <= MAX_SAMPLES, "{file} has {count} samples; at most {MAX_SAMPLES} are allowed");
    let first = samples[0].at;
    samples.iter_mut().for_each(|sample| sample.at -= first);
    Ok(samples)
}
