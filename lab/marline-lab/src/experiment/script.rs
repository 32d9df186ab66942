//! Fault script of a run: path events at fixed times, and at random moments relative to bursts.
//!
//! A path that dies while nothing is in flight proves little: the relevant case is a burst that is
//! cut in two. So a fault can be tied to a burst, at a moment that is drawn from the seed; it is
//! the same moment in virtual time and live.

use std::time::Duration;

use anyhow::Context;
use marline_time::{Rng, SeedTree};
use serde::{Deserialize, Serialize};

use super::Experiment;
use crate::emulation::script::Order;
use crate::scenario::path_number;

/// A moment that is drawn for each run.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Moment {
    /// Between so many ms after the start.
    Between(f64, f64),
    /// In this burst or request, between so many ms after its beginning.
    InBurst(usize, f64, f64),
    /// Somewhere between the beginning of this one and the next's.
    AroundBurst(usize),
}

/// Something that is done to a path at such a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The path.
    pub path: String,
    /// When.
    pub moment: Moment,
    /// What, as in events: `down`, `down uplink`, `set loss=20%`.
    pub command: String,
    /// After so long the path works again (only after a `down`); `None`: never.
    pub lasts: Option<Duration>,
}

impl Fault {
    /// The path dies, both ways, and stays dead.
    #[must_use]
    pub fn down(path: &str, moment: Moment) -> Fault {
        Fault { path: path.to_owned(), moment, command: "down".to_owned(), lasts: None }
    }
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    /// After the workload's start.
    pub at: Duration,
    /// To which path.
    pub path: String,
    /// What.
    pub order: Order,
    /// It is the beginning of a [`Fault`].
    pub is_fault: bool,
}

impl Experiment {
    /// Everything that happens in the run of this seed, in order.
    ///
    /// # Errors
    /// A time, a path or a command is not understood, or there is no such burst.
    pub fn script(&self, seed: u64) -> anyhow::Result<Vec<Happening>> {
        let mut script = Vec::new();
        for event in &self.scenario.events {
            path_number(&self.scenario.paths, &event.path)?;
            let (at, order) = event.parse()?;
            script.push(Happening { at, path: event.path.clone(), order, is_fault: false });
        }
        let times = self.workload.times_ns(seed);
        let mut rng = SeedTree::new(seed).stream("fault");
        for fault in &self.faults {
            path_number(&self.scenario.paths, &fault.path)?;
            let order: Order = fault.command.parse()?;
            let (from_ns, to_ns) = bounds(fault.moment, &times)?;
            let at = Duration::from_nanos(from_ns + rng.below((to_ns - from_ns).max(1)));
            let path = fault.path.clone();
            if let (Some(lasts), Some(order)) = (fault.lasts, restored(&order)) {
                let (at, path) = (at + lasts, path.clone());
                script.push(Happening { at, path, order, is_fault: false });
            }
            script.push(Happening { at, path, order, is_fault: true });
        }
        // Stable: what is written first happens first.
        script.sort_by_key(|happening| happening.at);
        Ok(script)
    }
}

/// What makes an outage good again.
fn restored(order: &Order) -> Option<Order> {
    match order {
        Order::Break(side) => Some(Order::Restore(*side)),
        Order::Set(_) | Order::Restore(_) | Order::Rebind | Order::Stats | Order::Quit => None,
    }
}

/// Whether `lasts` can follow this command.
#[must_use]
pub fn can_be_restored(order: &Order) -> bool {
    matches!(order, Order::Break(_))
}

fn bounds(moment: Moment, times_ns: &[u64]) -> anyhow::Result<(u64, u64)> {
    let ns = |ms: f64| (ms * 1e6) as u64;
    let burst = |number: usize| {
        let count = times_ns.len();
        times_ns.get(number).copied().with_context(|| {
            format!("there is no burst {number}: they are counted from 0, and there are {count}")
        })
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
