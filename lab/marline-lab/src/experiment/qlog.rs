//! Traces of runs: the qlog of each connection at either end, in virtual time or live.
//!
//! The endpoints report the same events as a live program, and the same code writes them. Traces add no event to the
//! simulation and draw no random number, so a run is identical with and without them, and the traces are always the
//! same bytes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use marline::advanced::EventObserver;
use marline::monitor::{ConnectionId, MonitorEvent, MonitorKind};
use marline_qlog::{Header, Trace, Vantage};
use marline_sim::Paths;
use marline_time::Instant;
use serde::{Deserialize, Serialize};

use super::simulation::{run_staged, stage_observed};
use super::{Experiment, Outcome, Variant};

/// Limits on a run's traces.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QlogConfig {
    /// Maximum size of a connection's trace at an end in bytes.
    pub limit_bytes: u64,
    /// Maximum number of traced connections of an end. Later ones have no trace.
    pub connections: usize,
}

impl Default for QlogConfig {
    fn default() -> Self {
        QlogConfig { limit_bytes: 64 << 20, connections: 16 }
    }
}

/// The trace of a connection at one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndTrace {
    /// Client or server.
    pub vantage: Vantage,
    /// Connection number at this end, from 0 in the order of creation.
    pub connection: usize,
    /// Contents of the trace file.
    pub text: String,
}

/// Trace writers of an end.
#[derive(Debug)]
pub(super) struct Traces {
    title: String,
    vantage: Vantage,
    config: QlogConfig,
    /// Wall-clock time, if it is available.
    time_of_day: Option<fn() -> String>,
    open: BTreeMap<ConnectionId, (usize, Trace, String)>,
}

impl Traces {
    pub(super) fn new(
        title: String,
        vantage: Vantage,
        config: QlogConfig,
        time_of_day: Option<fn() -> String>,
    ) -> Traces {
        Traces { title, vantage, config, time_of_day, open: BTreeMap::new() }
    }

    fn record_event(&mut self, event: &MonitorEvent) {
        let number = self.open.len();
        if matches!(event.kind, MonitorKind::Created(_)) && number < self.config.connections {
            let header = Header {
                title: self.title.clone(),
                vantage: self.vantage,
                connection: number as u64,
                wall_clock: self.time_of_day.map(|time_of_day| time_of_day()),
            };
            // In virtual time, times count from zero; otherwise from the wall-clock start of the trace.
            let zero = if header.wall_clock.is_some() { event.at } else { Instant::ZERO };
            let mut text = String::new();
            let trace = Trace::begin(&header, zero, self.config.limit_bytes, &mut text);
            self.open.insert(event.connection, (number, trace, text));
        }
        if let Some((_, trace, text)) = self.open.get_mut(&event.connection) {
            trace.event(event, text);
        }
    }

    pub(super) fn finish(&mut self) -> Vec<EndTrace> {
        let vantage = self.vantage;
        let trace = |(connection, _, text)| EndTrace { vantage, connection, text };
        let mut traces: Vec<EndTrace> =
            core::mem::take(&mut self.open).into_values().map(trace).collect();
        traces.sort_by_key(|trace| trace.connection);
        traces
    }
}

impl EventObserver for Traces {
    fn event(&mut self, event: &MonitorEvent) {
        self.record_event(event);
    }
}

/// Runs an experiment once and returns its traces, the client's first. The outcome is that of
/// [`simulate`](super::simulate), bit for bit.
///
/// # Errors
/// The same as [`simulate`](super::simulate).
pub fn simulate_traced(
    experiment: &Experiment,
    variant: &Variant,
    seed: u64,
    config: QlogConfig,
) -> anyhow::Result<(Outcome, Vec<EndTrace>)> {
    let (_, outcome, traces) = run_traced(experiment, variant, seed, config)?;
    Ok((outcome, traces))
}

fn run_traced(
    experiment: &Experiment,
    variant: &Variant,
    seed: u64,
    config: QlogConfig,
) -> anyhow::Result<(Paths, Outcome, Vec<EndTrace>)> {
    let title = format!("{}, seed {seed}", variant.name);
    let both = [Vantage::Client, Vantage::Server]
        .map(|vantage| Rc::new(RefCell::new(Traces::new(title.clone(), vantage, config, None))));
    let (mut paths, flows) = stage_observed(experiment, variant, seed, |paths| {
        for (node, traces) in [paths.client, paths.server].into_iter().zip(&both) {
            let told = Rc::clone(traces);
            let watcher =
                Box::new(move |event: &MonitorEvent| told.borrow_mut().record_event(event));
            paths.world.node_mut(node).set_watcher(watcher);
        }
    })?;
    let outcome = run_staged(&mut paths, &flows, experiment, variant, seed)?;
    let traces = both.iter().flat_map(|traces| traces.borrow_mut().finish()).collect();
    Ok((paths, outcome, traces))
}

#[cfg(test)]
mod tests;
