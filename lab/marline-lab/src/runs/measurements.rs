//! Measures of a lane, computed again for each resample of its runs, as intervals and comparisons need them.

use super::record::Record;
use crate::estimate::{Estimate, Samples};

/// Minimum number of runs for an interval, because a bootstrap over fewer runs is unreliable.
pub const MIN_RUNS: usize = 10;
/// Maximum number of messages for an interval, because each resample processes all messages.
const MAX_INTERVAL_VALUES: usize = 2_000_000;
/// Seed of the resamples, which is fixed so that tables are reproducible.
const RESAMPLE_SEED: u64 = 1;

/// A measure of a lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Mean latency in ms.
    Mean,
    /// Median latency in ms.
    P50,
    /// 95th percentile in ms.
    P95,
    /// 99th percentile in ms.
    P99,
    /// 99th percentile divided by that of the messages' lower bounds.
    P99ToBound,
    /// Median of the runs' goodput in Mbit/s.
    Goodput,
}

impl Measure {
    /// Measures of comparisons.
    pub const COMPARED: [Measure; 5] =
        [Measure::Mean, Measure::P50, Measure::P95, Measure::P99, Measure::Goodput];

    /// Name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Mean => "mean ms",
            Measure::P50 => "p50 ms",
            Measure::P95 => "p95 ms",
            Measure::P99 => "p99 ms",
            Measure::P99ToBound => "p99 / bound",
            Measure::Goodput => "Mbit/s",
        }
    }

    /// Returns true if larger values are better.
    #[must_use]
    pub const fn is_higher_better(self) -> bool {
        matches!(self, Measure::Goodput)
    }
}

/// Ascending values of several runs, each with the number of its run.
#[derive(Clone, Debug)]
struct PooledSamples(Vec<(f64, u32)>);

impl PooledSamples {
    fn of<'a>(runs: impl Iterator<Item = &'a [f64]>) -> PooledSamples {
        let numbered =
            runs.zip(0..).flat_map(|(values, run)| values.iter().map(move |v| (*v, run)));
        let mut values: Vec<(f64, u32)> = numbered.collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        PooledSamples(values)
    }

    /// Like [`crate::results::quantile`], with each run weighted by its number of draws.
    fn quantile(&self, drawn: &[u32], share: f64) -> f64 {
        let times = |run: &u32| u64::from(drawn[*run as usize]);
        let total: u64 = self.0.iter().map(|(_, run)| times(run)).sum();
        let Some(last) = total.checked_sub(1) else { return f64::NAN };
        let place = share * last as f64;
        let below = place.floor() as u64;
        let (mut passed, mut at) = (0, f64::NAN);
        for (value, run) in &self.0 {
            passed += times(run);
            if at.is_nan() && passed > below {
                at = *value;
            }
            if passed > (below + 1).min(last) {
                return at + (place - below as f64) * (value - at);
            }
        }
        at
    }
}

/// Measurements of some runs of a lane.
#[derive(Clone, Debug)]
pub struct Measurements {
    latencies: PooledSamples,
    least: PooledSamples,
    /// Number of messages and sum of their latencies, per run.
    sums: Vec<(usize, f64)>,
    goodput: PooledSamples,
}

impl Measurements {
    /// Collects the measurements of these runs.
    #[must_use]
    pub fn from_records(records: &[&Record]) -> Measurements {
        let latencies: Vec<Vec<f64>> = records.iter().map(|record| record.latencies_ms()).collect();
        let goodput: Vec<[f64; 1]> =
            records.iter().map(|record| [record.goodput_mbit_per_s]).collect();
        Measurements {
            sums: latencies.iter().map(|run| (run.len(), run.iter().sum())).collect(),
            latencies: PooledSamples::of(latencies.iter().map(Vec::as_slice)),
            least: PooledSamples::of(records.iter().map(|record| record.least_ms.as_slice())),
            goodput: PooledSamples::of(goodput.iter().map(<[f64; 1]>::as_slice)),
        }
    }

    /// Number of runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.sums.len()
    }

    /// A measure, with each run weighted by its number of draws.
    #[must_use]
    pub fn value(&self, measure: Measure, drawn: &[u32]) -> f64 {
        match measure {
            Measure::Mean => {
                let add = |(count, sum): (f64, f64), ((n, of), times): (&(usize, f64), &u32)| {
                    let times = f64::from(*times);
                    (count + times * *n as f64, sum + times * of)
                };
                let (count, sum) = self.sums.iter().zip(drawn).fold((0.0, 0.0), add);
                sum / count
            }
            Measure::P50 => self.latencies.quantile(drawn, 0.5),
            Measure::P95 => self.latencies.quantile(drawn, 0.95),
            Measure::P99 => self.latencies.quantile(drawn, 0.99),
            Measure::P99ToBound => {
                self.latencies.quantile(drawn, 0.99) / self.least.quantile(drawn, 0.99)
            }
            Measure::Goodput => self.goodput.quantile(drawn, 0.5),
        }
    }

    /// A measure of all runs, with its interval (95 %, bootstrap over the runs).
    #[must_use]
    pub fn estimate(&self, measure: Measure) -> Estimate {
        bootstrap_interval(self.runs(), self.latencies.0.len(), |drawn| self.value(measure, drawn))
    }

    /// The ratio of this lane's measure to another lane's. Both are resampled together, paired by seed.
    #[must_use]
    pub fn ratio(&self, measure: Measure, other: &Measurements) -> Estimate {
        let values = self.latencies.0.len() + other.latencies.0.len();
        bootstrap_interval(self.runs().min(other.runs()), values, |drawn| {
            self.value(measure, drawn) / other.value(measure, drawn)
        })
    }
}

/// Bootstraps a statistic, which depends on how often each run was drawn. There is no interval for too few or too many
/// messages.
fn bootstrap_interval(runs: usize, values: usize, of: impl Fn(&[u32]) -> f64) -> Estimate {
    if !(MIN_RUNS..).contains(&runs) || values > MAX_INTERVAL_VALUES {
        let value = of(&vec![1; runs]);
        return Estimate { value, low: f64::NAN, high: f64::NAN, roots: runs };
    }
    let places = Samples::new((0..runs).collect::<Vec<usize>>(), RESAMPLE_SEED).for_tables();
    places.estimate(|picked| {
        let mut drawn = vec![0_u32; runs];
        picked.iter().for_each(|place| drawn[**place] += 1);
        of(&drawn)
    })
}

#[cfg(test)]
mod tests {
    use marline_time::{Rng as _, SeedTree};

    use super::*;
    use crate::experiment::Message;
    use crate::results::quantile;

    fn run(latencies: &[f64]) -> Record {
        let message = |latency_ms: &f64| Message {
            index: 0,
            bytes: 1,
            sent_ms: 0.0,
            latency_ms: *latency_ms,
        };
        Record {
            messages: latencies.iter().map(message).collect(),
            least_ms: latencies.iter().map(|latency| latency / 2.0).collect(),
            goodput_mbit_per_s: latencies.iter().sum(),
            ..Record::default()
        }
    }

    fn runs(seed: u64, count: usize, of: impl Fn(f64) -> f64) -> Vec<Record> {
        let mut rng = SeedTree::new(seed).stream("runs");
        let mut one = || run(&(0..20).map(|_| of(rng.unit())).collect::<Vec<f64>>());
        (0..count).map(|_| one()).collect()
    }

    fn measured(records: &[Record]) -> Measurements {
        Measurements::from_records(&records.iter().collect::<Vec<_>>())
    }

    #[test]
    fn runs_count_as_often_as_drawn() {
        let records = runs(1, 5, |unit| 10.0 + 90.0 * unit * unit);
        let (of, drawn) = (measured(&records), [2, 0, 1, 1, 3]);
        let again = records.iter().zip(drawn).flat_map(|(record, times)| {
            std::iter::repeat_n(record.latencies_ms(), times as usize).flatten()
        });
        let again: Vec<f64> = again.collect();
        for (measure, share) in [(Measure::P50, 0.5), (Measure::P95, 0.95), (Measure::P99, 0.99)] {
            let (ours, theirs) = (of.value(measure, &drawn), quantile(&again, share));
            assert!((ours - theirs).abs() < 1e-9, "{measure:?} {ours} {theirs}");
        }
        let mean = again.iter().sum::<f64>() / again.len() as f64;
        assert!((of.value(Measure::Mean, &drawn) - mean).abs() < 1e-9);
        assert!((of.value(Measure::P99ToBound, &drawn) - 2.0).abs() < 1e-9);
        assert!(of.value(Measure::P50, &[0; 5]).is_nan());
    }

    #[test]
    fn intervals_have_nearly_their_nominal_coverage() {
        // The 95th percentile of a uniform distribution from 0 to 100 is 95.
        let trials = 200;
        let held = (0..trials).filter(|trial| {
            let of = measured(&runs(100 + trial, 12, |unit| 100.0 * unit));
            let estimate = of.estimate(Measure::P50);
            estimate.low <= 50.0 && 50.0 <= estimate.high
        });
        let share = held.count() as f64 / trials as f64;
        assert!((0.89..=1.0).contains(&share), "{share}");
    }

    #[test]
    fn ratios_are_paired_and_few_runs_have_no_interval() {
        let slow = runs(5, 15, |unit| 10.0 + unit);
        let fast: Vec<Record> = slow
            .iter()
            .map(|record| run(&record.latencies_ms().iter().map(|ms| ms / 2.0).collect::<Vec<_>>()))
            .collect();
        let ratio = measured(&slow).ratio(Measure::P99, &measured(&fast));
        assert!((ratio.low - 2.0).abs() < 1e-9 && (ratio.high - 2.0).abs() < 1e-9, "{ratio:?}");
        let few = measured(&slow[..9]).estimate(Measure::P50);
        assert!(few.value > 10.0 && few.low.is_nan(), "{few:?}");
    }
}
