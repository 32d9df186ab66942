//! Workload of an experiment, with its connection and start.

use std::time::Duration;

use marline_time::{Rng as _, SeedTree};
use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// A workload, its connection and its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Name in tables.
    pub name: String,
    /// Workload.
    pub workload: Workload,
    /// Name of a connection that several workloads share. `None`: a separate connection.
    pub connection: Option<String>,
    /// Latency above which a message is late.
    pub deadline: Option<Duration>,
    /// Start time, counted from the start of the run's workloads.
    pub from: Duration,
}

impl Load {
    /// A workload on a separate connection that begins at the start.
    #[must_use]
    pub const fn new(workload: Workload) -> Load {
        let (connection, deadline, from) = (None, None, Duration::ZERO);
        Load { name: String::new(), workload, connection, deadline, from }
    }

    /// Seed of the workload with this number in a run. The first has the run's seed.
    #[must_use]
    pub fn seed(run_seed: u64, number: usize) -> u64 {
        if number == 0 {
            return run_seed;
        }
        SeedTree::new(run_seed).branch(&format!("workload/{number}")).stream("seed").next_u64()
    }

    pub(super) fn starts_ns(&self) -> u64 {
        self.from.as_nanos() as u64
    }

    /// Planned end, counted from the start of the run's workloads.
    #[must_use]
    pub fn ends(&self, seed: u64) -> Duration {
        self.from + self.workload.duration(seed)
    }
}

#[cfg(test)]
mod tests;
