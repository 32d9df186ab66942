//! Synthetic traces: the writes of the three applications, their paths, and the time of the WLAN
//! failure.
//!
//! Sizes and the time of the failure are the paper's; gaps are ours, and so is where in a burst WLAN dies:
//! the paper found the losses of Netflix in the first tenth of a burst, and those of Maps mostly between
//! bursts, else anywhere. The bursts are placed that way.

use std::time::Duration;

use marline_lab::experiment::{Experiment, Fault, Moment};
use marline_lab::workload::{Gap, Workload};
use marline_time::{Rng, SeedTree};

/// WLAN is the first path, 4G the second.
pub(super) const WLAN: usize = 0;
pub(super) const LTE: usize = 1;
/// A trace lasts so long.
pub(super) const TRACE: Duration = Duration::from_secs(180);
/// WLAN dies so long after the traffic began.
pub(super) const DEATH: Duration = Duration::from_secs(80);
/// Rates of the links, Mbit/s.
const WLAN_MBIT: f64 = 60.0;
const LTE_MBIT: f64 = 40.0;

/// The applications.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum App {
    Docs,
    Maps,
    Netflix,
}

impl App {
    pub(super) const ALL: [App; 3] = [App::Docs, App::Maps, App::Netflix];

    pub(super) const fn name(self) -> &'static str {
        match self {
            App::Docs => "Docs",
            App::Maps => "Maps",
            App::Netflix => "Netflix",
        }
    }

    /// Least and most bytes of a burst.
    const fn sizes(self) -> (f64, f64) {
        match self {
            App::Docs => (300.0, 500.0),
            App::Maps => (80_000.0, 120_000.0),
            App::Netflix => (500_000.0, 1_500_000.0),
        }
    }

    /// Least and most ms from the beginning of a burst to that of the next.
    const fn gap_ms(self) -> (f64, f64) {
        match self {
            App::Docs => (500.0, 1_500.0),
            App::Maps => (2_000.0, 4_000.0),
            App::Netflix => (3_000.0, 5_000.0),
        }
    }
}

/// What one application writes in 180 s, and over what.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) app: App,
    pub(super) number: usize,
    /// Times after the start and bytes.
    pub(super) bursts: Vec<(Duration, u64)>,
    /// Round trips of WLAN and 4G, ms.
    pub(super) rtts_ms: (f64, f64),
}

/// One repetition of a trace: the same bursts over the same paths, with jitter of its own, and the
/// failure some ms earlier or later.
#[derive(Clone, Debug)]
pub(super) struct Repetition {
    pub(super) seed: u64,
    pub(super) dies: Duration,
}

impl Trace {
    /// The trace of this number, from the paper's root of randomness.
    pub(super) fn new(app: App, number: usize, seed: u64) -> Trace {
        let seeds = SeedTree::new(seed).branch(&format!("{}/{number}", app.name()));
        let mut rng = seeds.stream("trace");
        let mut bursts = Vec::new();
        let mut at = between(&mut rng, app.gap_ms());
        while at < TRACE.as_secs_f64() * 1e3 {
            bursts.push((at, between(&mut rng, app.sizes()) as u64));
            at += between(&mut rng, app.gap_ms());
        }
        if part_of_burst(app, number).is_some() {
            // A burst begins when WLAN dies, or just before (`Repetition` says how much).
            let death_ms = DEATH.as_secs_f64() * 1e3;
            let next = bursts.partition_point(|(at, _)| *at < death_ms);
            let shift = death_ms - bursts[next - 1].0;
            bursts.iter_mut().for_each(|(at, _)| *at += shift);
            bursts.retain(|(at, _)| *at < TRACE.as_secs_f64() * 1e3);
        }
        let rtts_ms = (between(&mut rng, (10.0, 15.0)), between(&mut rng, (70.0, 100.0)));
        let bursts = bursts.into_iter().map(|(at, bytes)| (millis(at), bytes)).collect();
        Trace { app, number, bursts, rtts_ms }
    }

    pub(super) fn repetition(&self, number: usize, seed: u64) -> Repetition {
        let name = format!("{}/{}/{number}", self.app.name(), self.number);
        let mut rng = SeedTree::new(seed).branch(&name).stream("repetition");
        let death_ms = DEATH.as_secs_f64() * 1e3;
        let dies_ms = match part_of_burst(self.app, self.number) {
            // Half a round trip after the burst began its first bytes arrive.
            Some(part) => {
                let bytes = self.hit_if_on_time() as f64 * part;
                let lasts_ms = bytes * 8.0 / (WLAN_MBIT * 1e3);
                death_ms + self.rtts_ms.0 / 2.0 + between(&mut rng, (0.0, lasts_ms))
            }
            None => death_ms + between(&mut rng, (-100.0, 100.0)),
        };
        Repetition { seed: rng.next_u64(), dies: millis(dies_ms) }
    }

    /// Bytes of the burst that begins when WLAN is to die.
    fn hit_if_on_time(&self) -> u64 {
        let at = self.bursts.iter().rfind(|(at, _)| *at <= DEATH + Duration::from_millis(1));
        at.map_or(0, |(_, bytes)| *bytes)
    }

    /// The links, with the failure.
    pub(super) fn experiment(&self, dies: Duration) -> Experiment {
        let (wlan, lte) = self.rtts_ms;
        let wlan =
            format!("rate={WLAN_MBIT}M,delay={:.2}ms,jitter=uniform:0.5ms,queue=40ms", wlan / 2.0);
        let lte =
            format!("rate={LTE_MBIT}M,delay={:.2}ms,jitter=uniform:2ms,queue=150ms", lte / 2.0);
        // The bursts are our own: the workload only says that they are such, to the bound.
        let gap = Gap { least_ms: 1.0, most_ms: 1.0 };
        let workload = Workload::Bursts { bytes: 1, gap, count: 1 };
        let mut experiment =
            Experiment::over(&[("wlan", wlan.as_str()), ("4g", lte.as_str())], workload);
        let dies_ms = dies.as_secs_f64() * 1e3;
        experiment.faults = vec![Fault::down("wlan", Moment::Between(dies_ms, dies_ms))];
        experiment.patience = TRACE;
        experiment
    }
}

/// The share of a burst that may have arrived when WLAN dies; `None`: it dies at any time, most likely
/// between two.
const fn part_of_burst(app: App, trace: usize) -> Option<f64> {
    match app {
        App::Docs => None,
        App::Maps if trace.is_multiple_of(3) => Some(1.0),
        App::Maps => None,
        App::Netflix => Some(0.1),
    }
}

fn between(rng: &mut impl Rng, (least, most): (f64, f64)) -> f64 {
    (most - least).mul_add(rng.unit(), least)
}

fn millis(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6) as u64)
}
