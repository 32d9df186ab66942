//! Single burst with chosen losses on WLAN, after bursts without loss.

use std::time::Duration;

use anyhow::Context as _;
use marline_lab::experiment::{START, Variant};
use marline_sim::{LinkId, Paths};
use marline_time::{Instant, SeedTree};

use super::run::{duplicates, scene};
use super::traffic::{Repetition, Trace, WLAN, WLAN_MBIT, round_trips_ms};
use super::watch::rounded;
use super::watch::{BurstObserver, SentSegment};
use crate::paper::Context;

/// Bursts before the evaluated one, after which windows and timers are stable.
pub(super) const BURSTS_BEFORE: usize = 15;
const GAP: Duration = Duration::from_secs(1);
const BURST_TIMEOUT: Duration = Duration::from_secs(30);

/// Bursts of one size over WLAN and 4G.
#[derive(Clone, Debug)]
pub(super) struct BurstExperiment {
    trace: Trace,
    repetition: Repetition,
    before: usize,
    /// Variation of WLAN's delay, which reorders packets, ms.
    pub(super) overtaking_ms: f64,
}

/// Results of the burst.
#[derive(Clone, Debug)]
pub(super) struct BurstResults {
    /// Time from writing the burst until it was read, ms.
    pub(super) completion_ms: f64,
    /// Segments that the server sent during and after the burst.
    pub(super) sent: Vec<SentSegment>,
    /// Payload bytes that arrived twice.
    pub(super) duplicate_bytes: u64,
}

impl BurstExperiment {
    /// Bursts of `bytes` bytes over paths whose round-trip times are drawn from the seed, as in the traces. A quick
    /// run has fewer bursts before the evaluated one.
    pub(super) fn new(context: &Context<'_>, bytes: u64, seed: u64) -> BurstExperiment {
        BurstExperiment::with_bursts_before(context.count(BURSTS_BEFORE), bytes, seed)
    }

    /// Like [`new`](Self::new), with `before` bursts before the evaluated one.
    pub(super) fn with_bursts_before(before: usize, bytes: u64, seed: u64) -> BurstExperiment {
        let rtts_ms = round_trips_ms(&mut SeedTree::new(seed).stream("drill"));
        let times = (1..=before as u32 + 1).map(|number| GAP * number);
        let bursts = times.map(|at| (at, bytes)).collect();
        let trace = Trace { bursts, rtts_ms, wlan_mbit: WLAN_MBIT };
        // WLAN does not die.
        let repetition =
            Repetition { seed, death_time: GAP * (before as u32 + 1) + BURST_TIMEOUT * 2 };
        BurstExperiment { trace, repetition, before, overtaking_ms: 0.0 }
    }

    /// Runs the experiment. The packets with the numbers `lost` are lost. Packets on WLAN are counted from 1 at
    /// the start of the burst, including those after it.
    pub(super) fn run(&self, variant: &Variant, lost: &[u64]) -> anyhow::Result<BurstResults> {
        let mut paths = scene(&self.trace, &self.repetition, variant)?;
        let begins = START + GAP * (self.before as u32 + 1);
        paths.world.run_until(begins - Duration::from_millis(20));
        self.prepare(&mut paths, lost)?;
        let watch = BurstObserver::new(&paths);
        paths.world.observe(Box::new(watch));
        let before = duplicates(&paths);
        let read = |paths: &Paths| {
            paths.client_report(0).and_then(|report| report.received.get(self.before).copied())
        };
        let limit = begins + BURST_TIMEOUT;
        while read(&paths).is_none() && paths.world.now() < limit {
            paths.world.run_until(paths.world.now() + Duration::from_millis(50));
        }
        let read = read(&paths).context("the burst never arrived")?;
        paths.world.run_until(Instant::max(read, begins) + Duration::from_secs(2));
        let watch =
            paths.world.observer::<BurstObserver>().context("the simulation has no observer")?;
        Ok(BurstResults {
            completion_ms: rounded(read.since(begins)),
            sent: watch.sent().to_vec(),
            duplicate_bytes: duplicates(&paths) - before,
        })
    }

    fn prepare(&self, paths: &mut Paths, lost: &[u64]) -> anyhow::Result<()> {
        let experiment = self.trace.experiment(self.repetition.death_time);
        let path = experiment.scenario.paths.first().context("the scenario has no WLAN path")?;
        let mut spec = path.spec()?;
        if self.overtaking_ms > 0.0 {
            let jitter = format!("jitter=uniform:{}ms,overtaking=yes", self.overtaking_ms);
            spec = format!("{},{jitter}", path.link).parse()?;
        }
        let link: LinkId = paths.down[WLAN];
        let mut config = spec.resolve(&SeedTree::new(self.repetition.seed), &mut |_| None)?.down;
        // Packets that have left the queue so far. It is empty now.
        let stats = paths.world.link(link).stats();
        let passed = stats.offered_packets - stats.dropped_queue;
        config.loss.pattern = lost.iter().map(|number| passed + number).collect();
        paths.world.set_link(link, config);
        Ok(())
    }
}

impl BurstResults {
    /// Number on WLAN, counted from 1, of the second copy of the packet with this number.
    pub(super) fn repeat_of(&self, number: u64) -> Option<u64> {
        let on_wlan: Vec<&SentSegment> =
            self.sent.iter().filter(|sent| sent.path == WLAN).collect();
        let first = on_wlan.get(usize::try_from(number).ok()?.checked_sub(1)?)?.place;
        let again = on_wlan.iter().skip(number as usize).position(|sent| sent.place == first)?;
        Some(number + again as u64 + 1)
    }

    /// Number of distinct segments that were sent on WLAN.
    pub(super) fn segments(&self) -> u64 {
        let mut places: Vec<u64> =
            self.sent.iter().filter(|s| s.path == WLAN).map(|sent| sent.place).collect();
        places.sort_unstable();
        places.dedup();
        places.len() as u64
    }

    /// Bytes that the server sent on either path, including headers.
    pub(super) fn air_bytes(&self) -> u64 {
        self.sent.iter().map(|sent| sent.wire_bytes).sum()
    }
}
