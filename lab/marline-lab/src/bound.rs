//! Clairvoyant bound: the earliest time at which each message could have arrived, over any paths, from a sender that
//! knows the future behavior of the links.
//!
//! Sources: trace studies ask this question ("the better of the two carriers for each probe"). Here the answer is
//! computed with the link model of the run itself: its seeds, its traces and the events of the scenario
//! ([`Bound::for_experiment`]).
//!
//! *One-packet messages: exact.* The bound is the earliest arrival over all paths and all times of sending, on
//! links that carry nothing else. A request and its answer may take different paths. Random effects drawn per packet
//! (random loss, jitter, reordering, corruption) take their best value, because a sender that knows the draws can use
//! up the bad ones on dummy packets before the message. Random effects drawn over time (outages, Gilbert-Elliott
//! states that lose everything, rates and delays of traces) are those of the run. Headers are 40 bytes, less than in
//! any run.
//!
//! *Larger messages: a relaxation.* The message is a fluid that all paths carry at the same time, with empty queues,
//! and every piece that arrives counts. No scheduler reaches this bound: real packets have 1,500 bytes, windows have
//! to open, and earlier data is in the queues.
//!
//! *Blocks written as fast as the stack accepts them:* parts of a block may be in flight before the whole block is
//! accepted, so the bound is that of its last byte.
//!
//! No run may be faster; `cargo test -p marline-lab bound` checks this.

mod course;
#[cfg(test)]
mod tests;

use marline_emulator::{LinkCommand, Side};
use marline_link::DuplexConfig;
use marline_sim::quantile;
use marline_time::{Instant, SeedTree};

use crate::emulation::settings::Settings;
use crate::experiment::{Experiment, Message, START};
use crate::workload::Workload;
use course::{Change, LinkCourse, earliest_arrival};

/// Minimum header size of a packet in bytes: IPv4 and TCP without options.
const MIN_HEADER_BYTES: u32 = 40;
/// Maximum payload of a one-packet message in bytes.
const MAX_ONE_PACKET_PAYLOAD: u32 = 1_460;

/// Step between the send times that are tried, in ms. Shorter favorable intervals of a link may be missed.
pub const STEP_MS: f64 = course::GRID.as_nanos() as f64 / 1e6;

/// The bounds of an experiment's messages.
#[derive(Debug)]
pub struct Bound {
    workload: Workload,
    up: Vec<LinkCourse>,
    down: Vec<LinkCourse>,
}

impl Bound {
    /// Computes the bounds of an experiment that runs with this seed and may use all its paths.
    ///
    /// # Errors
    /// A path or an event cannot be parsed, or a trace is missing.
    pub fn for_experiment(experiment: &Experiment, seed: u64) -> anyhow::Result<Bound> {
        let seeds = SeedTree::new(seed);
        let workload = *experiment.workload();
        let until = START + experiment.duration(seed) + experiment.patience;
        let script = experiment.script(seed)?;
        let mut bound = Bound { workload, up: Vec::new(), down: Vec::new() };
        for path in &experiment.scenario.paths {
            let own = seeds.branch(&path.name);
            let mut settings = Settings::new(path.spec()?, experiment.trace_dir.as_deref(), own);
            let DuplexConfig { up, down } = settings.first()?;
            let mine = script.iter().filter(|happening| happening.path == path.name);
            let orders = mine.map(|happening| (happening.at, happening.order.clone())).collect();
            let commands = settings.schedule(orders)?;
            let course = |config, branch: &str, is_up: bool| {
                LinkCourse::new(config, own.branch(branch), changes(&commands, is_up), until)
            };
            bound.up.push(course(&up, "up", true));
            bound.down.push(course(&down, "down", false));
        }
        Ok(bound)
    }

    /// Computes the bounds of a workload until `end` over these links, each with both directions. The links change
    /// only according to their settings.
    #[must_use]
    pub fn for_links(
        links: &[(&str, DuplexConfig)],
        workload: &Workload,
        seed: u64,
        until: Instant,
    ) -> Bound {
        let seeds = SeedTree::new(seed);
        let mut bound = Bound { workload: *workload, up: Vec::new(), down: Vec::new() };
        for (name, link) in links {
            let own = seeds.branch(name);
            let course =
                |config, branch| LinkCourse::new(config, own.branch(branch), Vec::new(), until);
            bound.up.push(course(&link.up, "up"));
            bound.down.push(course(&link.down, "down"));
        }
        bound
    }

    /// The minimum latency in ms of a message of this size (for requests, of the answer) that was sent at this time.
    /// Infinite if it cannot arrive before the run ends.
    #[must_use]
    pub fn latency_ms(&self, sent_ms: f64, bytes: u32) -> f64 {
        self.least_ms(&self.workload, sent_ms, bytes)
    }

    /// Like [`latency_ms`](Self::latency_ms), for a message of another workload over the same links.
    fn least_ms(&self, workload: &Workload, sent_ms: f64, bytes: u32) -> f64 {
        let from = START + std::time::Duration::from_nanos((sent_ms * 1e6).round() as u64);
        let arrives = match *workload {
            Workload::Ask { request_bytes, .. } | Workload::Dialogue { request_bytes, .. } => {
                let asked = transfer(&self.up, from, request_bytes);
                asked.and_then(|asked| transfer(&self.down, asked, bytes))
            }
            Workload::Film(_) | Workload::Web { .. } => {
                let asked = transfer(&self.up, from, 1);
                asked.and_then(|asked| transfer(&self.down, asked, bytes))
            }
            // The direction to which the bound applies.
            Workload::Exchange { .. } | Workload::Voice { .. } => {
                let ways = [&self.up, &self.down].map(|links| transfer(links, from, bytes));
                ways.into_iter().flatten().min()
            }
            // The last byte only.
            Workload::Blocks { .. } => transfer(&self.down, from, 1),
            Workload::Upload { .. } => transfer(&self.up, from, 1),
            Workload::Bursts { .. } | Workload::RandomBursts { .. } => {
                transfer(&self.down, from, bytes)
            }
        };
        arrives.map_or(f64::INFINITY, |at| at.since(from).as_nanos() as f64 / 1e6)
    }

    /// The minimum latencies of these messages in ms.
    #[must_use]
    pub fn latencies_ms(&self, messages: &[Message]) -> Vec<f64> {
        self.latencies_for_workload(&self.workload, messages)
    }

    /// Like [`latencies_ms`](Self::latencies_ms), for messages of another workload over the same links.
    #[must_use]
    pub fn latencies_for_workload(&self, workload: &Workload, messages: &[Message]) -> Vec<f64> {
        let least = |message: &Message| self.least_ms(workload, message.sent_ms, message.bytes);
        messages.iter().map(least).collect()
    }
}

/// The ratio of a quantile (0 to 1) of latencies to the same quantile of their bounds; NaN without
/// values.
#[must_use]
pub fn ratio(latencies_ms: &[f64], bounds_ms: &[f64], share: f64) -> f64 {
    quantile(latencies_ms, share) / quantile(bounds_ms, share)
}

fn transfer(links: &[LinkCourse], from: Instant, bytes: u32) -> Option<Instant> {
    if bytes <= MAX_ONE_PACKET_PAYLOAD {
        return links
            .iter()
            .filter_map(|link| link.arrival_of_packet(from, (bytes + MIN_HEADER_BYTES) as usize))
            .min();
    }
    earliest_arrival(&links.iter().collect::<Vec<_>>(), from, bytes)
}

/// Changes of one direction.
fn changes(commands: &[(std::time::Duration, LinkCommand)], up: bool) -> Vec<(Instant, Change)> {
    let other = if up { Side::Down } else { Side::Up };
    let change = |(at, command): &(std::time::Duration, LinkCommand)| {
        let change = match command {
            LinkCommand::Break(side) if *side != other => Change::Up(false),
            LinkCommand::Restore(side) if *side != other => Change::Up(true),
            LinkCommand::Set(config) => {
                Change::Settings(Box::new(if up { config.up.clone() } else { config.down.clone() }))
            }
            LinkCommand::Break(_) | LinkCommand::Restore(_) | LinkCommand::Rebind => return None,
        };
        Some((START + *at, change))
    };
    commands.iter().filter_map(change).collect()
}
