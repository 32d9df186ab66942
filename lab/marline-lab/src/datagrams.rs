//! Datagram runs in virtual time: a call, a game, or an opaque bulk flow through a session's lane, over the links of
//! other experiments.
//! As in all runs, random numbers are derived from the links' names: a policy that uses one of two paths meets the
//! same conditions on it as a policy that uses both. The clairvoyant bound of a datagram is that of a one-packet
//! message ([`crate::bound`]).

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use marline_datagram::{FlowId, LaneConfig, LaneStats};
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{LanePaths, LanePathsConfig, Pulse, PulsePlan, PulseReport, QuicLikeFlow};
use marline_time::{Instant, SeedTree};

use crate::bound::Bound;
use crate::emulation::settings::Settings;
use crate::experiment::{Experiment, START};
use crate::policies;
use crate::workload::{Gap, Workload};

/// Time for which a run continues after the last datagram. Datagrams that arrive later count as lost.
const DRAIN_TIME: Duration = Duration::from_secs(3);
const FLOW: FlowId = FlowId(1);

/// Sender of the datagrams.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum DatagramWorkload {
    /// Groups of datagrams at random intervals, from both ends.
    Pulse {
        /// Range of the time between two groups in ms.
        gap: Gap,
        /// Range of the number of datagrams in a group, inclusive.
        group: (u32, u32),
        /// Datagram size in bytes.
        bytes: u32,
    },
    /// Bulk data to the client, as fast as its own congestion control allows.
    Quic,
}

/// Policies of both lanes.
#[derive(Clone, Debug)]
pub struct DatagramPolicies {
    /// The datagram policy, by its spec.
    pub policy: String,
    /// The congestion control of each path of the lane, by its spec.
    pub congestion: String,
    /// The congestion control inside the bulk flow.
    pub inner: String,
}

/// Named links, and the workload over them with its duration.
#[derive(Clone, Debug)]
pub struct DatagramExperiment {
    links: Vec<(String, DuplexConfig)>,
    names: Vec<(String, String)>,
    trace_dir: Option<std::path::PathBuf>,
    workload: DatagramWorkload,
    lasts: Duration,
    seed: u64,
    path_failure: Option<(usize, Duration)>,
}

/// Datagrams from the server as the client received them.
#[derive(Clone, Debug, Default)]
pub struct DatagramOutcome {
    /// Send time of each datagram in ms after the start, and its latency in ms, which is infinite if it did not
    /// arrive.
    pub datagrams: Vec<(f64, f64)>,
    /// Arrivals of the bulk flow's payload: time in ms after the start, and number of bytes.
    pub bulk: Vec<(f64, u32)>,
    /// Number of datagrams, at both ends, that were delivered more than once or had never been sent.
    pub wrong: u64,
    /// Counters of the server's lane.
    pub server: LaneStats,
    /// Counters of the client's lane.
    pub client: LaneStats,
}

impl DatagramExperiment {
    /// Creates an experiment over links of these names and descriptions (docs/research/link.md) with this
    /// duration.
    ///
    /// # Errors
    /// A link cannot be parsed, or its trace is missing.
    pub fn with_links(
        links: &[(&str, &str)],
        trace_dir: Option<&Path>,
        workload: DatagramWorkload,
        lasts: Duration,
        seed: u64,
    ) -> anyhow::Result<DatagramExperiment> {
        let seeds = SeedTree::new(seed);
        let resolved = links.iter().map(|(name, text)| {
            let spec: DuplexSpec = text.parse().with_context(|| format!("link `{name}`"))?;
            let settings = Settings::new(spec, trace_dir, seeds.branch(name));
            Ok(((*name).to_owned(), settings.first()?))
        });
        let links_resolved: anyhow::Result<Vec<_>> = resolved.collect();
        Ok(DatagramExperiment {
            links: links_resolved?,
            names: links.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
            trace_dir: trace_dir.map(Path::to_path_buf),
            workload,
            lasts,
            seed,
            path_failure: None,
        })
    }

    /// Makes a path fail silently at this time after the start.
    #[must_use]
    pub const fn with_death(mut self, path: usize, after: Duration) -> Self {
        self.path_failure = Some((path, after));
        self
    }

    /// Runs the experiment once. Runs with equal seeds are identical.
    ///
    /// # Errors
    /// A policy is unknown.
    pub fn run(&self, policies: &DatagramPolicies) -> anyhow::Result<DatagramOutcome> {
        let registry = policies::registry();
        let policy = registry.datagram_policy(&policies.policy)?;
        let lane = LaneConfig::new(policy, registry.congestion(&policies.congestion)?);
        let mut inner = lane.clone();
        inner.policy = registry.datagram_policy("one-path")?;
        inner.congestion = registry.congestion(&policies.inner)?;
        let seeds = SeedTree::new(self.seed);
        let config = LanePathsConfig {
            links: self.links.clone(),
            backup: Vec::new(),
            client: lane.clone(),
            server: lane,
        };
        let mut paths = LanePaths::new(&config, seeds);
        let until = START + self.lasts;
        match self.workload {
            DatagramWorkload::Pulse { gap, group, bytes } => {
                let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
                let gap = (ms(gap.least_ms), ms(gap.most_ms));
                let plan = PulsePlan { from: START, until, gap, group, bytes: bytes as usize };
                let end = |name: &str| {
                    Box::new(Pulse::new(FLOW, plan, seeds.branch("datagrams").stream(name)))
                };
                paths.add_apps(end("client"), end("server"));
            }
            DatagramWorkload::Quic => {
                let [sends, receives] = QuicLikeFlow::pair(FLOW, &inner, START, until);
                paths.add_apps(Box::new(receives), Box::new(sends));
            }
        }
        if let Some((path, after)) = self.path_failure {
            paths.schedule_path_change(START + after, path, false);
        }
        paths.world.run_until(until + DRAIN_TIME);
        Ok(outcome(&paths))
    }

    /// The clairvoyant bounds in ms of datagrams to the client, in the order of these send times.
    ///
    /// # Errors
    /// A trace is missing.
    pub fn bounds_ms(&self, sent_ms: &[f64], bytes: u32) -> anyhow::Result<Vec<f64>> {
        let links: Vec<(&str, &str)> =
            self.names.iter().map(|(name, link)| (name.as_str(), link.as_str())).collect();
        let gap = Gap { least_ms: 1e3, most_ms: 1e3 };
        let count = self.lasts.as_secs_f64().ceil() as u32;
        let mut experiment = Experiment::over(&links, Workload::Bursts { bytes, gap, count });
        experiment.trace_dir.clone_from(&self.trace_dir);
        experiment.patience = DRAIN_TIME;
        let bound = Bound::for_experiment(&experiment, self.seed)?;
        Ok(sent_ms.iter().map(|sent| bound.latency_ms(*sent, bytes)).collect())
    }
}

fn ms(at: Instant) -> f64 {
    at.since(START).as_nanos() as f64 / 1e6
}

fn outcome(paths: &LanePaths) -> DatagramOutcome {
    let stats = |host| paths.world.node(host).lane().stats();
    let mut outcome = DatagramOutcome {
        server: stats(paths.server),
        client: stats(paths.client),
        ..DatagramOutcome::default()
    };
    let reports = (paths.server_app::<Pulse>(0), paths.client_app::<Pulse>(0));
    if let (Some(server), Some(client)) = reports {
        let (sent, came): (&PulseReport, &PulseReport) = (server.report(), client.report());
        let wrong = |report: &PulseReport| report.twice + report.wrong;
        outcome.wrong = wrong(sent) + wrong(came);
        let arrived = came.arrived.iter().copied().chain(std::iter::repeat(None));
        let datagram = |(sent, came): (&Instant, Option<Instant>)| {
            (ms(*sent), came.map_or(f64::INFINITY, |came| ms(came) - ms(*sent)))
        };
        outcome.datagrams = sent.sent.iter().zip(arrived).map(datagram).collect();
    }
    if let Some(quic) = paths.client_app::<QuicLikeFlow>(0) {
        let arrived = quic.report().arrived.iter();
        outcome.bulk = arrived.map(|(at, bytes)| (ms(*at), *bytes)).collect();
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: DatagramWorkload = DatagramWorkload::Pulse {
        gap: Gap { least_ms: 20.0, most_ms: 33.0 },
        group: (1, 4),
        bytes: 1_000,
    };

    fn policies(policy: &str) -> DatagramPolicies {
        DatagramPolicies {
            policy: policy.to_owned(),
            congestion: "cubic-westwood".to_owned(),
            inner: "cubic".to_owned(),
        }
    }

    #[test]
    fn no_policy_beats_the_bound_and_duplication_is_near_it() {
        let links = [
            ("a", "rate=8M,delay=20ms,flap=2s:300ms,outage=kill"),
            ("b", "rate=8M,delay=35ms,ge=900ms:80ms:1:0"),
        ];
        for seed in 0..3 {
            let lasts = Duration::from_secs(8);
            let experiment =
                DatagramExperiment::with_links(&links, None, CALL, lasts, seed).unwrap();
            for policy in ["auto", "duplicate", "min-rtt", "one-path"] {
                let outcome = experiment.run(&policies(policy)).unwrap();
                let sent: Vec<f64> = outcome.datagrams.iter().map(|of| of.0).collect();
                let bounds = experiment.bounds_ms(&sent, 1_000).unwrap();
                assert!(sent.len() > 600 && outcome.wrong == 0);
                for ((sent, latency), bound) in outcome.datagrams.iter().zip(&bounds) {
                    assert!(latency >= bound, "{policy}: {latency} < {bound} at {sent}");
                }
            }
        }
    }

    #[test]
    fn lost_datagrams_are_infinitely_late_and_unknown_policies_are_errors() {
        let links = [("a", "delay=10ms,loss=1")];
        let lasts = Duration::from_secs(2);
        let experiment = DatagramExperiment::with_links(&links, None, CALL, lasts, 1).unwrap();
        let outcome = experiment.run(&policies("auto")).unwrap();
        assert!(!outcome.datagrams.is_empty());
        assert!(outcome.datagrams.iter().all(|(_, latency)| latency.is_infinite()));
        let error = experiment.run(&policies("nobody")).unwrap_err().to_string();
        assert!(error.contains("unknown datagram policy `nobody`; known: auto"), "{error}");
    }
}
