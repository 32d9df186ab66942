//! Single burst with chosen losses on WLAN, after bursts without loss.

use std::time::Duration;

use anyhow::Context as _;
use marline_lab::experiment::{START, Variant};
use marline_sim::{LinkId, Paths};
use marline_time::{Instant, SeedTree};

use super::run::{duplicates, rounded, scene};
use super::traffic::{Repetition, Trace, WLAN, WLAN_MBIT, round_trips_ms};
use super::watch::{Sent, Watch};
use crate::paper::Context;

/// Bursts before the one that is looked at: windows and timers have settled by then.
pub(super) const BEFORE: usize = 15;
const GAP: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// Bursts of a size over WLAN and 4G.
#[derive(Clone, Debug)]
pub(super) struct BurstExperiment {
    trace: Trace,
    repetition: Repetition,
    before: usize,
    /// Variation of WLAN's delay that lets packets overtake each other, ms.
    pub(super) overtaking_ms: f64,
}

/// What became of the burst.
#[derive(Clone, Debug)]
pub(super) struct Done {
    /// From its writing until it was read, ms.
    pub(super) completion_ms: f64,
    /// What the server sent of it and after.
    pub(super) sent: Vec<Sent>,
    /// Payload that came twice, bytes.
    pub(super) duplicate_bytes: u64,
}

impl BurstExperiment {
    /// Bursts of so many bytes over paths whose round trips the seed draws: those of the traces.
    /// Fewer before it for a quick look.
    pub(super) fn new(context: &Context<'_>, bytes: u64, seed: u64) -> BurstExperiment {
        BurstExperiment::after(context.count(BEFORE), bytes, seed)
    }

    /// The same with so many before it.
    pub(super) fn after(before: usize, bytes: u64, seed: u64) -> BurstExperiment {
        let rtts_ms = round_trips_ms(&mut SeedTree::new(seed).stream("drill"));
        let times = (1..=before as u32 + 1).map(|number| GAP * number);
        let bursts = times.map(|at| (at, bytes)).collect();
        let trace = Trace { bursts, rtts_ms, wlan_mbit: WLAN_MBIT };
        // WLAN does not die.
        let repetition = Repetition { seed, dies: GAP * (before as u32 + 1) + PATIENCE * 2 };
        BurstExperiment { trace, repetition, before, overtaking_ms: 0.0 }
    }

    /// Runs it; the burst's packets of these numbers, counted from 1 with all that follow on WLAN,
    /// are lost.
    pub(super) fn run(&self, variant: &Variant, lost: &[u64]) -> anyhow::Result<Done> {
        let mut paths = scene(&self.trace, &self.repetition, variant)?;
        let begins = START + GAP * (self.before as u32 + 1);
        paths.world.run_until(begins - Duration::from_millis(20));
        self.prepare(&mut paths, lost)?;
        let watch = Watch::of(&paths);
        paths.world.observe(Box::new(watch));
        let before = duplicates(&paths);
        let read = |paths: &Paths| {
            paths.client_report(0).and_then(|report| report.received.get(self.before).copied())
        };
        let limit = begins + PATIENCE;
        while read(&paths).is_none() && paths.world.now() < limit {
            paths.world.run_until(paths.world.now() + Duration::from_millis(50));
        }
        let read = read(&paths).context("the burst never came")?;
        paths.world.run_until(Instant::max(read, begins) + Duration::from_secs(2));
        let watch = paths.world.observer::<Watch>().context("nobody watched")?;
        Ok(Done {
            completion_ms: rounded(read.since(begins)),
            sent: watch.sent().to_vec(),
            duplicate_bytes: duplicates(&paths) - before,
        })
    }

    fn prepare(&self, paths: &mut Paths, lost: &[u64]) -> anyhow::Result<()> {
        let experiment = self.trace.experiment(self.repetition.dies);
        let path = experiment.scenario.paths.first().context("no WLAN")?;
        let mut spec = path.spec()?;
        if self.overtaking_ms > 0.0 {
            let jitter = format!("jitter=uniform:{}ms,overtaking=yes", self.overtaking_ms);
            spec = format!("{},{jitter}", path.link).parse()?;
        }
        let link: LinkId = paths.down[WLAN];
        let mut config = spec.resolve(&SeedTree::new(self.repetition.seed), &mut |_| None)?.down;
        // What has left the queue so far; nothing waits in it now.
        let stats = paths.world.link(link).stats();
        let passed = stats.offered_packets - stats.dropped_queue;
        config.loss.pattern = lost.iter().map(|number| passed + number).collect();
        paths.world.set_link(link, config);
        Ok(())
    }
}

impl Done {
    /// Number on WLAN, counted from 1, of the second copy of what went there with this number.
    pub(super) fn repeat_of(&self, number: u64) -> Option<u64> {
        let on_wlan: Vec<&Sent> = self.sent.iter().filter(|sent| sent.path == WLAN).collect();
        let first = on_wlan.get(usize::try_from(number).ok()?.checked_sub(1)?)?.place;
        let again = on_wlan.iter().skip(number as usize).position(|sent| sent.place == first)?;
        Some(number + again as u64 + 1)
    }

    /// Segments of the burst that went on WLAN the first time.
    pub(super) fn segments(&self) -> u64 {
        let mut places: Vec<u64> =
            self.sent.iter().filter(|s| s.path == WLAN).map(|sent| sent.place).collect();
        places.sort_unstable();
        places.dedup();
        places.len() as u64
    }

    /// Bytes that the server put on either path, headers included.
    pub(super) fn air_bytes(&self) -> u64 {
        self.sent.iter().map(|sent| sent.wire_bytes).sum()
    }
}
