//! Fault script of a run: path events at fixed times, and at random moments relative to bursts.
//!
//! The failure of a path with nothing in flight proves little: the relevant case is a burst that is interrupted. A
//! fault can therefore be tied to a burst, at a moment drawn from the seed, which is the same in virtual time and
//! live.

use std::time::Duration;

use anyhow::Context;
use marline_time::{Rng, SeedTree};
use serde::{Deserialize, Serialize};

use super::Experiment;
use crate::emulation::script::ParsedCommand;
use crate::scenario::{Side, path_number};

/// A moment drawn for each run.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Moment {
    /// Between these times, in ms after the start.
    Between(f64, f64),
    /// During this burst or request, between these times after its start in ms.
    InBurst(usize, f64, f64),
    /// Between the starts of this burst and the next.
    AroundBurst(usize),
}

/// A command for a path at a drawn moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The path.
    pub path: String,
    /// Moment.
    pub moment: Moment,
    /// Command, as in events: `down`, `down uplink`, `set loss=20%`.
    pub command: String,
    /// Duration until the path works again (only for `down`). `None`: it never does.
    pub lasts: Option<Duration>,
}

impl Fault {
    /// A fault that permanently takes the path down in both directions.
    #[must_use]
    pub fn down(path: &str, moment: Moment) -> Fault {
        Fault { path: path.to_owned(), moment, command: "down".to_owned(), lasts: None }
    }
}

/// A pause of the process at one end, as when it gets no CPU time. Only on stack sim.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Stop {
    /// The end.
    pub end: Side,
    /// Time after the workload's start.
    pub at: Duration,
    /// Time until the process continues.
    pub lasts: Duration,
}

/// A timed command of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedCommand {
    /// Time after the workload's start.
    pub at: Duration,
    /// Path.
    pub path: String,
    /// Command.
    pub order: ParsedCommand,
    /// True for the start of a [`Fault`].
    pub is_fault: bool,
}

impl Experiment {
    /// All timed commands of the run with this seed, in order.
    ///
    /// # Errors
    /// A time, a path or a command cannot be parsed, or there is no such burst.
    pub fn script(&self, seed: u64) -> anyhow::Result<Vec<TimedCommand>> {
        let mut script = Vec::new();
        for event in &self.scenario.events {
            path_number(&self.scenario.paths, &event.path)?;
            let (at, order) = event.parse()?;
            script.push(TimedCommand { at, path: event.path.clone(), order, is_fault: false });
        }
        let times = self.workload().times_ns(seed);
        let mut rng = SeedTree::new(seed).stream("fault");
        for fault in &self.faults {
            path_number(&self.scenario.paths, &fault.path)?;
            let order: ParsedCommand = fault.command.parse()?;
            let (from_ns, to_ns) = bounds(fault.moment, &times)?;
            let at = Duration::from_nanos(from_ns + rng.below((to_ns - from_ns).max(1)));
            let path = fault.path.clone();
            if let (Some(lasts), Some(order)) = (fault.lasts, restore_command(&order)) {
                let (at, path) = (at + lasts, path.clone());
                script.push(TimedCommand { at, path, order, is_fault: false });
            }
            script.push(TimedCommand { at, path, order, is_fault: true });
        }
        // A stable sort: commands at one time keep the order of the file.
        script.sort_by_key(|happening| happening.at);
        Ok(script)
    }
}

/// The command that ends an outage.
fn restore_command(order: &ParsedCommand) -> Option<ParsedCommand> {
    match order {
        ParsedCommand::Break(side) => Some(ParsedCommand::Restore(*side)),
        ParsedCommand::Set(_)
        | ParsedCommand::Restore(_)
        | ParsedCommand::Rebind
        | ParsedCommand::Stats
        | ParsedCommand::Quit => None,
    }
}

/// Returns true if `lasts` can follow this command.
#[must_use]
pub fn can_be_restored(order: &ParsedCommand) -> bool {
    matches!(order, ParsedCommand::Break(_))
}

fn bounds(moment: Moment, times_ns: &[u64]) -> anyhow::Result<(u64, u64)> {
    let ns = |ms: f64| (ms * 1e6) as u64;
    let burst = |number: usize| {
        let count = times_ns.len();
        times_ns
            .get(number)
            .copied()
            .with_context(|| format!("unknown burst {number}: there are {count}, counted from 0"))
    };
    Ok(match moment {
        Moment::Between(from_ms, to_ms) => (ns(from_ms), ns(to_ms)),
        Moment::InBurst(number, from_ms, to_ms) => {
            let at = burst(number)?;
            (at + ns(from_ms), at + ns(to_ms))
        }
        Moment::AroundBurst(number) => (burst(number)?, burst(number + 1)?),
    })
}
