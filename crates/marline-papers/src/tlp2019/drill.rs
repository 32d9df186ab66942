//! Single burst with chosen losses on WLAN, after bursts without loss.

use std::time::Duration;

use anyhow::Context as _;
use marline_lab::bound::Bound;
use marline_lab::experiment::{START, Variant};
use marline_sim::{LinkId, Paths};
use marline_time::{Instant, Rng, SeedTree};

use super::run::{duplicates, scene};
use super::traffic::{App, Repetition, Trace, WLAN};
use super::watch::{Sent, Watch};

/// Bursts before the one that is looked at: windows and timers have settled by then.
const BEFORE: usize = 15;
const GAP: Duration = Duration::from_secs(1);
const BEGINS: Duration = Duration::from_secs(1 + BEFORE as u64);
const PATIENCE: Duration = Duration::from_secs(30);

/// Bursts of a size over WLAN and 4G.
#[derive(Clone, Debug)]
pub(super) struct Drill {
    trace: Trace,
    repetition: Repetition,
    /// Variation of WLAN's delay that lets packets overtake each other, ms.
    pub(super) overtaking_ms: f64,
}

/// What became of the burst.
#[derive(Clone, Debug)]
pub(super) struct Done {
    /// From its writing until it was read, ms.
    pub(super) completion_ms: f64,
    /// The least that could be, whatever is lost of it, ms.
    pub(super) bound_ms: f64,
    /// What the server sent of it and after.
    pub(super) sent: Vec<Sent>,
    /// Payload that came twice, bytes.
    pub(super) duplicate_bytes: u64,
}

impl Drill {
    /// Bursts of so many bytes over paths whose round trips the seed draws: those of the traces.
    pub(super) fn new(bytes: u64, seed: u64) -> Drill {
        let mut rng = SeedTree::new(seed).stream("drill");
        let mut between = |least: f64, most: f64| (most - least).mul_add(rng.unit(), least);
        let rtts_ms = (between(10.0, 15.0), between(70.0, 100.0));
        let times = (1..=BEFORE as u32 + 1).map(|number| GAP * number);
        let bursts = times.map(|at| (at, bytes)).collect();
        let trace = Trace { app: App::Maps, number: 0, bursts, rtts_ms };
        // WLAN does not die.
        let repetition = Repetition { seed, dies: BEGINS + PATIENCE * 2 };
        Drill { trace, repetition, overtaking_ms: 0.0 }
    }

    /// Runs it; the burst's packets of these numbers, counted from 1 with all that follow on WLAN, are lost.
    pub(super) fn run(&self, variant: &Variant, lost: &[u64]) -> anyhow::Result<Done> {
        let mut paths = scene(&self.trace, &self.repetition, variant)?;
        let begins = START + BEGINS;
        paths.world.run_until(begins - Duration::from_millis(20));
        self.prepare(&mut paths, lost)?;
        let watch = Watch::of(&paths);
        paths.world.observe(Box::new(watch));
        let before = duplicates(&paths);
        let read =
            |paths: &Paths| paths.client_report(0).and_then(|r| r.received.get(BEFORE).copied());
        let limit = begins + PATIENCE;
        while read(&paths).is_none() && paths.world.now() < limit {
            paths.world.run_until(paths.world.now() + Duration::from_millis(50));
        }
        let read = read(&paths).context("the burst never came")?;
        paths.world.run_until(Instant::max(read, begins) + Duration::from_secs(2));
        let watch = paths.world.observer::<Watch>().context("nobody watched")?;
        Ok(Done {
            completion_ms: read.since(begins).as_secs_f64() * 1e3,
            bound_ms: self.bound_ms()?,
            sent: watch.sent().to_vec(),
            duplicate_bytes: duplicates(&paths) - before,
        })
    }

    fn bound_ms(&self) -> anyhow::Result<f64> {
        let mut experiment = self.trace.experiment(self.repetition.dies);
        experiment.faults.clear();
        let bytes = self.trace.bursts.last().map_or(0, |(_, bytes)| *bytes);
        let bound = Bound::of(&experiment, self.repetition.seed)?;
        Ok(bound.latency_ms(BEGINS.as_secs_f64() * 1e3, u32::try_from(bytes)?))
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

/// Mean completion over mean bound.
pub(super) fn bound_ratio(done: &[Done]) -> f64 {
    let sum = |of: fn(&Done) -> f64| done.iter().map(of).sum::<f64>();
    sum(|done| done.completion_ms) / sum(|done| done.bound_ms)
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
}
