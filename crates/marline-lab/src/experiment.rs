//! An experiment: paths, something done on them, and the stacks and policies that do it.
//!
//! The same experiment runs in virtual time ([`simulate`]) and with real processes over emulated
//! links. Chances are drawn by the names of the links, so that a run with one seed loses the same
//! packets of a link whoever uses it: in virtual time or live, with other links or alone.

mod outcome;
mod simulation;
mod variant;

pub use outcome::{Message, Outcome, PathTotals};
pub use simulation::{START, simulate, stage};
pub use variant::Variant;

use std::path::PathBuf;
use std::time::Duration;

use crate::scenario::{Path, Scenario};
use crate::workload::Workload;

/// Paths and what is done on them.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Paths and events; the times of events count from the start of the workload.
    pub scenario: Scenario,
    /// What is done.
    pub workload: Workload,
    /// What begins earlier than this after the start is not looked at.
    pub warm_up: Duration,
    /// After the workload's planned end a run goes on for so long, at most.
    pub patience: Duration,
    /// Where the traces are that links name; none: `MARLINE_TRACE_DIR`.
    pub trace_dir: Option<PathBuf>,
}

impl Experiment {
    /// An experiment over links of these names and descriptions (docs/link.md).
    #[must_use]
    pub fn over(links: &[(&str, &str)], workload: Workload) -> Experiment {
        let path = |(name, link): &(&str, &str)| Path {
            name: (*name).to_owned(),
            link: (*link).to_owned(),
            ..Path::default()
        };
        let paths = links.iter().map(path).collect();
        Experiment {
            scenario: Scenario { seed: 1, paths, ..Scenario::default() },
            workload,
            warm_up: Duration::ZERO,
            patience: Duration::from_secs(30),
            trace_dir: None,
        }
    }
}

#[cfg(test)]
mod tests;
