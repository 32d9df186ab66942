//! Predicts from a radio's signal level whether its network will soon be out of reach.
//!
//! *Problem.* While a device leaves the range of a WiFi network, packets still arrive for a few seconds with growing
//! delay, and then stop. Packet measurements notice the end only when an answer is overdue. The signal level shows it
//! earlier.
//!
//! *How.* Readings are averaged ([`SignalThresholds::memory`]), because a single one means little: people and doors
//! cost 5 to 10 dB for a moment. The path *fades* once the average is at most
//! [`fading_dbm`](SignalThresholds::fading_dbm), and is *steady* again once the average has been at least
//! [`steady_dbm`](SignalThresholds::steady_dbm) for [`steady_time`](SignalThresholds::steady_time). Between the two
//! thresholds
//! nothing changes. Without a reading for `steady_time`, the level is unknown and the path counts as steady, so that
//! other
//! measurements decide.
//!
//! *Source.* Ours. -80 dBm is about 12 dB above the noise of a 20 MHz channel, which is 802.11n's third-lowest rate.
//! The 6 dB between the thresholds exceed the attenuation by people in the way.

use core::fmt;
use core::str::FromStr;

use marline_time::{Duration, Instant};

/// Thresholds at which a signal starts and stops fading.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct SignalThresholds {
    /// The signal fades at this average or below, in dBm.
    pub fading_dbm: f32,
    /// The signal can become steady at this average or above, in dBm. Greater than `fading_dbm`.
    pub steady_dbm: f32,
    /// Time for which the average must stay at `steady_dbm` or above.
    pub steady_time: Duration,
    /// Interval between two readings after which the weight of older readings is halved.
    pub memory: Duration,
}

impl Default for SignalThresholds {
    fn default() -> Self {
        SignalThresholds {
            fading_dbm: -80.0,
            steady_dbm: -74.0,
            steady_time: Duration::from_secs(5),
            memory: Duration::from_secs(1),
        }
    }
}

impl SignalThresholds {
    /// Smallest and largest valid threshold, in dBm.
    pub const RANGE: (f32, f32) = (-100.0, -30.0);
}

impl fmt::Display for SignalThresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fading={},steady={}", self.fading_dbm, self.steady_dbm)
    }
}

/// Error for invalid thresholds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadThresholds(String);

impl fmt::Display for BadThresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (expected `on` or `fading=DBM,steady=DBM`, both -100 to -30, with steady above fading)",
            self.0
        )
    }
}

impl core::error::Error for BadThresholds {}

impl FromStr for SignalThresholds {
    type Err = BadThresholds;

    fn from_str(text: &str) -> Result<SignalThresholds, BadThresholds> {
        let wrong = |why: &str| BadThresholds(format!("{text:?}: {why}"));
        let mut thresholds = SignalThresholds::default();
        for part in text.split(',').filter(|_| text != "on") {
            let (key, value) = part.split_once('=').ok_or_else(|| wrong("a value is missing"))?;
            let (least, most) = Self::RANGE;
            let level = value.parse::<f32>().ok().filter(|level| (least..=most).contains(level));
            let level = level.ok_or_else(|| wrong("a level is out of range, or not a number"))?;
            match key {
                "fading" => thresholds.fading_dbm = level,
                "steady" => thresholds.steady_dbm = level,
                _ => return Err(wrong("only `fading` and `steady` are known")),
            }
        }
        if thresholds.steady_dbm <= thresholds.fading_dbm {
            return Err(wrong("`steady` is not above `fading`"));
        }
        Ok(thresholds)
    }
}

/// Signal state of one radio.
#[derive(Clone, Debug)]
pub struct SignalMonitor {
    thresholds: SignalThresholds,
    /// The average and the time at which it was last updated.
    average: Option<(f32, Instant)>,
    steady_since: Option<Instant>,
    fading: bool,
}

impl SignalMonitor {
    /// A monitor without readings.
    #[must_use]
    pub const fn new(thresholds: SignalThresholds) -> SignalMonitor {
        SignalMonitor { thresholds, average: None, steady_since: None, fading: false }
    }

    /// Uses other thresholds, starting with the next reading. A fading signal becomes steady only according to the new
    /// thresholds.
    pub const fn change(&mut self, thresholds: SignalThresholds) {
        (self.thresholds, self.steady_since) = (thresholds, None);
    }

    /// Returns true if the signal fades, based on the readings so far.
    #[must_use]
    pub const fn is_fading(&self) -> bool {
        self.fading
    }

    /// Adds a reading in dBm; `None` means that the level is unknown. Returns the new state (`true` if fading) when
    /// it has changed.
    pub fn read(&mut self, now: Instant, level_dbm: Option<f32>) -> Option<bool> {
        let SignalThresholds { fading_dbm, steady_dbm, steady_time: calm, memory } =
            self.thresholds;
        let before = self.fading;
        match level_dbm {
            Some(level) => {
                let average = self.average.map_or(level, |(average, at)| {
                    let age = now.since(at).as_secs_f32() / memory.as_secs_f32();
                    average + (level - average) * age / (1.0 + age)
                });
                self.average = Some((average, now));
                if average <= fading_dbm {
                    self.fading = true;
                }
                let steady = average >= steady_dbm;
                let since = self.steady_since.filter(|_| steady);
                self.steady_since = since.or_else(|| steady.then_some(now));
                if self.steady_since.is_some_and(|since| now.since(since) >= calm) {
                    self.fading = false;
                }
            }
            None if self.average.is_none_or(|(_, at)| now.since(at) >= calm) => {
                *self = SignalMonitor::new(self.thresholds);
            }
            None => {}
        }
        (self.fading != before).then_some(self.fading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the changes after these levels, one per second; `NAN` means no reading.
    fn changes(levels: &[f32]) -> Vec<(usize, bool)> {
        let mut judge = SignalMonitor::new(SignalThresholds::default());
        let read = |(second, level): (usize, &f32)| {
            let level = Some(*level).filter(|level| !level.is_nan());
            Some((second, judge.read(Instant::from_secs(second as u64), level)?))
        };
        levels.iter().enumerate().filter_map(read).collect()
    }

    #[test]
    fn a_falling_signal_fades_once_and_is_steady_after_a_good_period() {
        let mut levels: Vec<f32> = (0..30).map(|second| -60.0 - second as f32).collect();
        let fades = changes(&levels);
        assert_eq!(fades, [(21, true)], "the average is a second behind");
        levels.extend([-77.0; 20]);
        assert_eq!(changes(&levels), fades, "between the thresholds nothing changes");
        levels.extend([-65.0; 10]);
        assert_eq!(changes(&levels), [(21, true), (55, false)]);
    }

    #[test]
    fn short_signal_changes_neither_start_nor_end_fading() {
        let mut levels = vec![-70.0; 10];
        levels.extend([-86.0, -70.0, -70.0, -86.0, -70.0]);
        assert_eq!(changes(&levels), []);
        levels.extend([-85.0; 5]);
        levels.extend([-60.0, -60.0, -60.0, -85.0, -85.0, -85.0]);
        assert_eq!(changes(&levels), [(16, true)]);
    }

    #[test]
    fn unknown_signal_levels_end_the_hint() {
        assert_eq!(changes(&[f32::NAN; 20]), []);
        let mut levels = vec![-85.0; 3];
        levels.extend([f32::NAN; 10]);
        assert_eq!(changes(&levels), [(0, true), (7, false)]);
    }

    #[test]
    fn thresholds_parse_from_text() {
        let read = |text: &str| text.parse::<SignalThresholds>();
        assert_eq!(read("on"), Ok(SignalThresholds::default()));
        let told = read("fading=-85,steady=-79.5").unwrap();
        assert_eq!((told.fading_dbm, told.steady_dbm), (-85.0, -79.5));
        assert_eq!(read(&told.to_string()), Ok(told));
        for bad in ["", "fading", "fading=-70", "fading=5", "fading=x", "noise=-90", "steady=NaN"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
