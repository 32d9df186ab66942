//! Experiment: paths, their workload, and the stacks and policies under test.
//!
//! An experiment runs in virtual time ([`simulate`]) or with real processes over emulated links. Random numbers
//! are derived from the names of the links, so that runs with the same seed lose the same packets of a link in virtual
//! time and live, regardless of other links.

pub mod apps;
mod background;
mod calibration;
mod capture;
mod end;
mod expected_answer;
pub mod file;
mod film;
mod live;
mod load;
mod measures;
mod outcome;
mod plan;
mod process;
mod qlog;
mod script;
mod simulation;
mod stack;
mod stream_task;
mod timeline;
mod variant;
mod web;

pub use background::BackgroundConnection;
pub use calibration::Calibration;
pub use capture::{CaptureConfig, EndCapture, simulate_captured};
pub use end::run_end;
pub use expected_answer::{Check, Edge, Measure};
pub use live::{RecordingOptions, RunRecords, run_live, run_live_recorded, weight};
pub use load::Load;
pub use measures::Measures;
pub use outcome::{Flow, Message, Outcome, PathTotals};
pub use plan::Flows;
pub use qlog::{EndTrace, QlogConfig, simulate_traced};
pub use script::{Fault, Moment, Stop, TimedCommand, can_be_restored};
pub use simulation::{START, reinjected_bytes, simulate, simulate_recorded, stage};
pub use stack::Stack;
pub use timeline::{Timeline, TimelineConfig};
pub use variant::Variant;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use ipnet::IpNet;

use crate::scenario::{Path, Scenario, path_number};
use crate::workload::Workload;

/// Paths with workloads and faults.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Paths and events; the times of events count from the start of the workload.
    pub scenario: Scenario,
    /// Workloads, at least one; faults count from the bursts of the first.
    pub loads: Vec<Load>,
    /// Competing traffic.
    pub background: Vec<BackgroundConnection>,
    /// Path events at times drawn for each run.
    pub faults: Vec<Fault>,
    /// Pauses of the ends' processes.
    pub stops: Vec<Stop>,
    /// Messages that are sent earlier than this after the start are not counted.
    pub warm_up: Duration,
    /// Maximum time for which a run continues after the workload's planned end.
    pub patience: Duration,
    /// Directory of the links' traces; `None`: `MARLINE_TRACE_DIR`.
    pub trace_dir: Option<PathBuf>,
}

impl Experiment {
    /// Creates an experiment over links of these names and descriptions (docs/research/link.md).
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
            loads: vec![Load::new(workload)],
            background: Vec::new(),
            faults: Vec::new(),
            stops: Vec::new(),
            warm_up: Duration::ZERO,
            patience: Duration::from_secs(30),
            trace_dir: None,
        }
    }

    /// The first workload.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn workload(&self) -> &Workload {
        &self.loads[0].workload
    }

    /// Planned duration of all workloads of the run with this seed.
    #[must_use]
    pub fn duration(&self, seed: u64) -> Duration {
        let ends = self.loads.iter().enumerate();
        let ends = ends.map(|(number, load)| load.ends(Load::seed(seed, number)));
        ends.max().unwrap_or_default()
    }

    /// Runs the experiment once.
    ///
    /// # Errors
    /// The same as [`simulate`] and [`run_live`].
    pub fn run(
        &self,
        stack: Stack,
        variant: &Variant,
        seed: u64,
        instance: &str,
    ) -> anyhow::Result<Outcome> {
        match stack {
            Stack::Sim => simulate(self, variant, seed),
            _ => run_live(self, stack, variant, seed, instance),
        }
    }

    /// The scenario. Paths that have no addresses get 10.0.N.2 and 10.0.N.1, or with IPv6 fd00:N::2 and fd00:N::1.
    #[must_use]
    pub fn hosts(&self) -> Scenario {
        let mut scenario = self.scenario.clone();
        for (number, path) in (1..).zip(&mut scenario.paths) {
            let is_ipv6 = path.is_ipv6();
            let net = |host| match is_ipv6 {
                false => IpNet::new_assert(Ipv4Addr::new(10, 0, number, host).into(), 24),
                true => {
                    let groups = [0xfd00, number.into(), 0, 0, 0, 0, 0, host.into()];
                    IpNet::new_assert(Ipv6Addr::from(groups).into(), 64)
                }
            };
            if path.client.is_empty() && path.server.is_empty() {
                (path.client, path.server) = (vec![net(2)], vec![net(1)]);
            }
        }
        scenario
    }

    /// Checks that the experiment can run.
    ///
    /// # Errors
    /// A path, a link, an event or a fault is invalid.
    pub fn check(&self) -> anyhow::Result<()> {
        self.hosts().check()?;
        for flow in &self.background {
            path_number(&self.scenario.paths, &flow.path)?;
        }
        self.script(self.scenario.seed).map(drop)
    }

    /// The paths that a variant uses, in its order.
    ///
    /// # Errors
    /// The variant names a path that does not exist.
    pub fn used_paths(&self, variant: &Variant) -> anyhow::Result<Vec<&Path>> {
        let all = &self.scenario.paths;
        for name in &variant.backup {
            path_number(all, name)?;
        }
        if variant.paths.is_empty() {
            return Ok(all.iter().collect());
        }
        let find =
            |text: &String| path_number(all, variant::path_name(text)).map(|number| &all[number]);
        let found: anyhow::Result<Vec<&Path>> = variant.paths.iter().map(find).collect();
        found.with_context(|| format!("variant `{}`", variant.name))
    }
}

#[cfg(test)]
mod tests;
