//! Rate of one interface: samples of the bytes transferred, and a forecast from them.

use marline_time::{Duration, Instant};

/// Length of a pause above which it is attributed to the application. Bytes around it are not evidence about the path.
const GAP: Duration = Duration::from_millis(200);
/// Minimum duration of a sample.
const SAMPLE: Duration = Duration::from_millis(250);
/// Weight of a new sample in the level, and of a new step in the trend.
const LEVEL: f64 = 0.3;
const TREND: f64 = 0.1;

/// Holt's linear exponential smoothing: a level and its trend.
#[derive(Copy, Clone, Debug)]
struct Holt {
    level: f64,
    trend: f64,
}

/// Bytes that arrived without a pause since a given time.
#[derive(Copy, Clone, Debug)]
struct Run {
    since: Instant,
    bytes: u64,
    /// True after the first sample of a run. That sample is not counted, because the window is still growing.
    grown: bool,
}

/// Measurements of an interface's rate.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    run: Option<Run>,
    last_at: Option<Instant>,
    forecast: Option<Holt>,
}

impl Meter {
    /// Creates a meter without measurements that assumes this rate in bytes per second.
    pub(super) fn with_assumed_rate(rate: f64) -> Self {
        Meter { forecast: Some(Holt { level: rate, trend: 0.0 }), ..Meter::default() }
    }

    /// Adds the bytes transferred since the last sample.
    pub(super) fn add_bytes(&mut self, now: Instant, bytes: u64) {
        if self.last_at.is_some_and(|last| now.since(last) > GAP) {
            self.run = None;
        }
        if bytes == 0 {
            return;
        }
        self.last_at = Some(now);
        // The arrival time of the first of these bytes is unknown.
        let Some(run) = &mut self.run else {
            self.run = Some(Run { since: now, bytes: 0, grown: false });
            return;
        };
        run.bytes += bytes;
        let took = now.since(run.since);
        if took < SAMPLE {
            return;
        }
        let rate = run.bytes as f64 / took.as_secs_f64();
        let counts = run.grown;
        *run = Run { since: now, bytes: 0, grown: true };
        if counts {
            self.observe(rate);
        }
    }

    fn observe(&mut self, rate: f64) {
        let Some(Holt { level, trend }) = self.forecast else {
            self.forecast = Some(Holt { level: rate, trend: 0.0 });
            return;
        };
        let next = LEVEL * rate + (1.0 - LEVEL) * (level + trend);
        let trend = TREND * (next - level) + (1.0 - TREND) * trend;
        self.forecast = Some(Holt { level: next, trend });
    }

    /// Returns the expected rate in bytes per second; `None` if unknown.
    pub(super) fn rate(&self) -> Option<f64> {
        self.forecast.map(|holt| (holt.level + holt.trend).max(0.0))
    }

    /// Time at which bytes were last transferred.
    pub(super) const fn last_at(&self) -> Option<Instant> {
        self.last_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds these byte counts as samples every 50 ms, starting at `from_ms`.
    fn sample_every_50_ms(meter: &mut Meter, from_ms: u64, bytes: &[u64]) {
        for (n, bytes) in bytes.iter().enumerate() {
            meter.add_bytes(Instant::from_millis(from_ms + 50 * n as u64), *bytes);
        }
    }

    #[test]
    fn a_steady_rate_is_found_and_a_change_followed() {
        let mut meter = Meter::default();
        sample_every_50_ms(&mut meter, 0, &[5_000; 10]);
        assert_eq!(meter.rate(), None, "only slow start has been observed");
        sample_every_50_ms(&mut meter, 500, &[5_000; 10]);
        assert_eq!(meter.rate(), Some(100_000.0));
        sample_every_50_ms(&mut meter, 1_000, &[500; 60]);
        let rate = meter.rate().expect("known");
        assert!((0.0..30_000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn occasional_requests_do_not_change_the_measured_rate() {
        let mut meter = Meter::with_assumed_rate(70.0);
        for question in 0..20 {
            sample_every_50_ms(&mut meter, question * 350, &[20_000, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(meter.rate(), Some(70.0));
    }
}
