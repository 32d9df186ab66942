//! Outage stage: scheduled or random outages.

use marline_time::{Instant, PcgRng, SeedTree};

use super::exponential;
use crate::OutageConfig;

/// The outages of one link.
#[derive(Clone, Debug)]
pub(crate) struct OutageStage {
    config: OutageConfig,
    start: Instant,
    /// Number of intervals that have started.
    passed: usize,
    in_interval: bool,
    is_flapped_down: bool,
    flap_at: Instant,
    flaps: PcgRng,
}

impl OutageStage {
    pub(crate) fn new(config: OutageConfig, seeds: &SeedTree, start: Instant) -> Self {
        let mut stage = OutageStage {
            config,
            start,
            passed: 0,
            in_interval: false,
            is_flapped_down: false,
            flap_at: Instant::FAR_FUTURE,
            flaps: seeds.stream("outage/flap"),
        };
        stage.schedule_flap(start);
        stage
    }

    /// Sets new outages. Intervals in the past are skipped.
    pub(crate) fn set_config(&mut self, config: OutageConfig, now: Instant) {
        if self.config.flap != config.flap {
            self.is_flapped_down = false;
        }
        let redraw = self.config.flap != config.flap;
        self.config = config;
        if redraw {
            self.schedule_flap(now);
        }
        let elapsed = now.since(self.start);
        self.passed = self.config.intervals.partition_point(|(from, _)| *from <= elapsed);
        self.in_interval = self.passed > 0 && self.config.intervals[self.passed - 1].1 > elapsed;
    }

    pub(crate) const fn is_down(&self) -> bool {
        self.in_interval || self.is_flapped_down
    }

    /// Time of the next change. `FAR_FUTURE` if there is none.
    pub(crate) fn next_change(&self) -> Instant {
        self.interval_change().min(self.flap_at)
    }

    /// Applies the change at `next_change`.
    pub(crate) fn step(&mut self) {
        if self.interval_change() <= self.flap_at {
            self.passed += usize::from(!self.in_interval);
            self.in_interval = !self.in_interval;
        } else {
            self.is_flapped_down = !self.is_flapped_down;
            self.schedule_flap(self.flap_at);
        }
    }

    fn interval_change(&self) -> Instant {
        let elapsed = if self.in_interval {
            self.config.intervals.get(self.passed - 1).map(|(_, to)| *to)
        } else {
            self.config.intervals.get(self.passed).map(|(from, _)| *from)
        };
        elapsed.map_or(Instant::FAR_FUTURE, |elapsed| self.start + elapsed)
    }

    fn schedule_flap(&mut self, from: Instant) {
        self.flap_at = match self.config.flap {
            None => Instant::FAR_FUTURE,
            Some((up, down)) => {
                let mean = if self.is_flapped_down { down } else { up };
                from + exponential(mean, &mut self.flaps)
            }
        };
    }
}
