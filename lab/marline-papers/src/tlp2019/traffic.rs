//! Synthetic traces: the writes of the three applications, their paths, and the time at which WLAN dies.
//!
//! Sizes, the rate of WLAN, round trips and the time of the failure are the paper's. The gaps are ours. The
//! position in a burst at which WLAN dies depends on the gaps, so it is varied: unplaced, anywhere within a burst,
//! or as the paper observed it ([`FailurePlacement`]).

use std::ops::RangeInclusive;
use std::time::Duration;

use marline_lab::experiment::{Experiment, Fault, Moment};
use marline_lab::workload::{Gap, Workload};
use marline_time::{Rng, SeedTree};

/// WLAN is the first path, 4G the second.
pub(super) const WLAN: usize = 0;
pub(super) const LTE: usize = 1;
/// Time from the start of the traffic to the death of WLAN.
pub(super) const DEATH: Duration = Duration::from_secs(80);
/// How long the bursts of a trace continue after that. No run is longer.
const TRAFFIC_TAIL: Duration = Duration::from_secs(20);
/// Rates of the links, Mbit/s: the nominal rate of the study's router, and the achievable rate of the radio.
pub(super) const WLAN_MBIT: f64 = 150.0;
pub(super) const WLAN_ON_AIR_MBIT: f64 = 60.0;
const LTE_MBIT: f64 = 40.0;

/// Applications. Netflix also has one variant for each end of its range of sizes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum App {
    Docs,
    Maps,
    Netflix,
    NetflixSmall,
    NetflixLarge,
}

impl App {
    /// Applications of the study.
    pub(super) const STUDIED: [App; 3] = [App::Docs, App::Maps, App::Netflix];

    pub(super) const fn name(self) -> &'static str {
        match self {
            App::Docs => "Docs",
            App::Maps => "Maps",
            App::Netflix => "Netflix",
            App::NetflixSmall => "Netflix 0.5 MB",
            App::NetflixLarge => "Netflix 1.5 MB",
        }
    }

    /// Minimum and maximum bytes of a burst.
    pub(super) const fn sizes(self) -> RangeInclusive<f64> {
        match self {
            App::Docs => 300.0..=500.0,
            App::Maps => 80_000.0..=120_000.0,
            App::Netflix => 500_000.0..=1_500_000.0,
            App::NetflixSmall => 500_000.0..=500_000.0,
            App::NetflixLarge => 1_500_000.0..=1_500_000.0,
        }
    }

    /// Minimum and maximum ms between the starts of two bursts.
    const fn gap_ms(self) -> RangeInclusive<f64> {
        match self {
            App::Docs => 500.0..=1_500.0,
            App::Maps => 2_000.0..=4_000.0,
            App::Netflix | App::NetflixSmall | App::NetflixLarge => 3_000.0..=5_000.0,
        }
    }
}

/// Placement of WLAN's death in the traffic.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum FailurePlacement {
    /// Independent of the traffic, therefore mostly between two bursts.
    Independent,
    /// After a share of a burst has arrived, uniformly distributed.
    Within,
    /// As the paper observed: for Netflix within the first tenth of a burst, for Maps within a burst in every
    /// third trace, for Docs between two bursts.
    AsObserved,
}

impl FailurePlacement {
    pub(super) const fn text(self) -> &'static str {
        match self {
            FailurePlacement::Independent => "not placed",
            FailurePlacement::Within => "within a burst",
            FailurePlacement::AsObserved => "as observed",
        }
    }

    /// Maximum share of a burst that may have arrived when WLAN dies. `None`: not placed.
    pub(super) const fn max_share(self, app: App, trace: usize) -> Option<f64> {
        match (self, app) {
            (FailurePlacement::Independent, _) | (FailurePlacement::AsObserved, App::Docs) => None,
            (FailurePlacement::Within, _) => Some(1.0),
            (FailurePlacement::AsObserved, App::Maps) if trace.is_multiple_of(3) => Some(1.0),
            (FailurePlacement::AsObserved, App::Maps) => None,
            (FailurePlacement::AsObserved, _) => Some(0.1),
        }
    }
}

/// Writes of one application, and the paths they use.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    /// Times after the start, and bytes.
    pub(super) bursts: Vec<(Duration, u64)>,
    /// Round trips of WLAN and 4G, ms.
    pub(super) rtts_ms: (f64, f64),
    pub(super) wlan_mbit: f64,
}

/// Randomness of a trace's links and hosts, and the time at which WLAN dies.
#[derive(Clone, Debug)]
pub(super) struct Repetition {
    pub(super) seed: u64,
    pub(super) death_time: Duration,
}

impl Trace {
    /// The trace of this number of a root. If it is hit within a burst, that burst starts at `death`.
    pub(super) fn new(app: App, number: usize, seed: u64, death: Duration, within: bool) -> Trace {
        let seeds = SeedTree::new(seed).branch(&format!("{}/{number}", app.name()));
        let mut rng = seeds.stream("trace");
        let rtts_ms = round_trips_ms(&mut rng);
        let death_ms = death.as_secs_f64() * 1e3;
        let until_ms = death_ms + TRAFFIC_TAIL.as_secs_f64() * 1e3;
        let mut bursts = Vec::new();
        let mut at = draw_between(&mut rng, app.gap_ms());
        while at < until_ms {
            bursts.push((at, draw_between(&mut rng, app.sizes()) as u64));
            at += draw_between(&mut rng, app.gap_ms());
        }
        if within {
            let last = bursts.iter().rfind(|(at, _)| *at < death_ms).map_or(0.0, |(at, _)| *at);
            bursts.iter_mut().for_each(|(at, _)| *at += death_ms - last);
        }
        let bursts = bursts.into_iter().map(|(at, bytes)| (millis(at), bytes)).collect();
        Trace { bursts, rtts_ms, wlan_mbit: WLAN_MBIT }
    }

    /// Experiment with the links and the failure.
    pub(super) fn experiment(&self, dies: Duration) -> Experiment {
        let (wlan, lte) = self.rtts_ms;
        let wlan = format!(
            "rate={}M,delay={:.2}ms,jitter=uniform:0.5ms,queue=40ms",
            self.wlan_mbit,
            wlan / 2.0
        );
        let lte =
            format!("rate={LTE_MBIT}M,delay={:.2}ms,jitter=uniform:2ms,queue=150ms", lte / 2.0);
        // The bursts come from the trace. The workload only gives the bound their kind.
        let gap = Gap { least_ms: 1.0, most_ms: 1.0 };
        let workload = Workload::Bursts { bytes: 1, gap, count: 1 };
        let mut experiment =
            Experiment::over(&[("wlan", wlan.as_str()), ("4g", lte.as_str())], workload);
        let dies_ms = dies.as_secs_f64() * 1e3;
        experiment.faults = vec![Fault::down("wlan", Moment::Between(dies_ms, dies_ms))];
        experiment.patience = DEATH + 2 * TRAFFIC_TAIL;
        experiment
    }
}

/// Round trips of WLAN and 4G as the paper measured them, ms.
pub(super) fn round_trips_ms(rng: &mut impl Rng) -> (f64, f64) {
    (draw_between(rng, 10.0..=15.0), draw_between(rng, 70.0..=100.0))
}

pub(super) fn draw_between(rng: &mut impl Rng, range: RangeInclusive<f64>) -> f64 {
    let (least, most) = range.into_inner();
    (most - least).mul_add(rng.unit(), least)
}

pub(super) fn millis(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6) as u64)
}
