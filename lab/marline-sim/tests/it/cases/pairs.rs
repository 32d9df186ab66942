//! Bulk transfer to the client over pairs of changing links, compared with the better link alone.

use std::path::Path;

use marline_link::DuplexConfig;
use marline_time::{Duration, SeedTree};

use super::{bulk, traced_link};

/// The recorded links, as descriptions without a start time.
pub const TRACES: [(&str, &str); 4] = [
    ("ATT-LTE", "trace=ATT-LTE-driving"),
    ("TMobile-LTE", "trace=TMobile-LTE-short"),
    ("TMobile-UMTS", "trace=TMobile-UMTS-driving"),
    ("Verizon-LTE", "trace=Verizon-LTE-short"),
];

/// Delay and queue of every traced link, which mahimahi traces lack.
const BESIDES: &str = "delay=25ms,queue=200ms";

/// Trace times at which runs start.
pub const OFFSETS_S: [u64; 5] = [0, 25, 50, 75, 100];

/// Two links to be used together.
#[derive(Clone, Debug)]
pub struct Pair {
    /// For the table.
    pub name: String,
    /// Descriptions of the links, excluding the start times of traces.
    links: [String; 2],
}

/// The outcome of a pair at one offset.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The pair.
    pub name: String,
    /// Offset in the traces.
    pub offset_s: u64,
    /// Goodput of each link alone, Mbit/s.
    pub alone_mbit: [f64; 2],
    /// Goodput of both together, Mbit/s.
    pub together_mbit: f64,
}

impl Outcome {
    /// Goodput of both together, relative to the better one alone.
    pub fn ratio(&self) -> f64 {
        self.together_mbit / self.alone_mbit[0].max(self.alone_mbit[1]).max(1e-9)
    }
}

/// The walk-out with each trace, and all pairs of traces.
pub fn all() -> Vec<Pair> {
    let traced = |text: &str| format!("{text},{BESIDES}");
    let pair = |a: (&str, String), b: (&str, String)| Pair {
        name: format!("{} + {}", a.0, b.0),
        links: [a.1, b.1],
    };
    let mut pairs = Vec::new();
    for (name, text) in TRACES {
        pairs.push(pair(("walkout", "walkout".to_owned()), (name, traced(text))));
    }
    for (index, (name, text)) in TRACES.iter().enumerate() {
        for (other, other_text) in &TRACES[index + 1..] {
            pairs.push(pair((*name, traced(text)), (*other, traced(other_text))));
        }
    }
    pairs
}

/// Runs a pair at an offset: each link alone, then both, for `length` each.
pub fn run(pair: &Pair, offset_s: u64, scheduler: &str, length: Duration, dir: &Path) -> Outcome {
    let seeds = SeedTree::new(offset_s + 1);
    let links = pair.links.each_ref().map(|text| {
        let text = match text.split_once(',') {
            Some((trace, rest)) if trace.starts_with("trace=") => {
                format!("{trace}@{offset_s}s,{rest}")
            }
            _ => text.clone(),
        };
        traced_link(&text, &seeds, Some(dir))
    });
    let goodput = |links: Vec<DuplexConfig>| {
        bulk::run(links, scheduler, length, offset_s + 1).goodput.bits_per_s() as f64 / 1e6
    };
    Outcome {
        name: pair.name.clone(),
        offset_s,
        alone_mbit: links.each_ref().map(|link| goodput(vec![link.clone()])),
        together_mbit: goodput(links.to_vec()),
    }
}
