//! Echo runs and their statistics over roots.

use std::time::Duration;

use marline_lab::bound::Bound;
use marline_lab::experiment::{Experiment, Message, Variant, simulate};
use serde::{Deserialize, Serialize};

use crate::estimate::{Estimate, Samples};
use crate::roots::Root;

/// Maximum time to wait for the last answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Number of roots that are compared with the clairvoyant bound. Computing it for changing links takes longer than the
/// run.
const BOUND_ROOTS: usize = 8;

/// Results of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Echoes {
    /// Round-trip times, ms, sorted.
    pub(super) latencies_ms: Vec<f64>,
    /// Bytes offered to the links.
    pub(super) wire_bytes: u64,
    /// Payload bytes that were sent over more than one path.
    pub(super) copied_bytes: u64,
    /// Share of the packets offered to each path that were lost.
    pub(super) lost: Vec<f64>,
}

/// Runs a variant with a root. A missing message is an error.
pub(super) fn run(
    experiment: &Experiment,
    variant: &Variant,
    root: &Root,
) -> anyhow::Result<(Vec<Message>, Echoes)> {
    let mut experiment = experiment.clone();
    experiment.patience = ANSWER_TIMEOUT;
    let outcome = simulate(&experiment, variant, root.seed)?;
    if let Some(missing) = &outcome.incomplete {
        anyhow::bail!("{}, root {}: {missing}", variant.name, root.seed);
    }
    let messages = outcome.messages(experiment.workload());
    let lost = outcome.paths.iter().map(|path| {
        let offered = path.up.offered_packets + path.down.offered_packets;
        (path.up.dropped() + path.down.dropped()) as f64 / offered.max(1) as f64
    });
    let echoes = Echoes {
        latencies_ms: sorted(messages.iter().map(|message| message.latency_ms)),
        wire_bytes: outcome.wire_bytes(),
        copied_bytes: outcome.reinjected_bytes,
        lost: lost.collect(),
    };
    Ok((messages, echoes))
}

/// Values rounded to a thousandth and sorted, as in a sample.
pub(super) fn sorted(latencies_ms: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = latencies_ms.map(round_to_thousandth).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Rounds a value to a thousandth.
pub(super) fn round_to_thousandth(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Mean round-trip time of a clairvoyant sender, ms. `None` after the first roots.
pub(super) fn bound_ms(
    experiment: &Experiment,
    root: &Root,
    messages: &[Message],
) -> anyhow::Result<Option<f64>> {
    if root.number >= BOUND_ROOTS {
        return Ok(None);
    }
    let bounds = Bound::for_experiment(&without_packet_losses(experiment), root.seed)?
        .latencies_ms(messages);
    Ok(Some(marline_sim::mean(&bounds)))
}

/// The experiment without per-packet losses, which do not change the bound and only cost time.
fn without_packet_losses(experiment: &Experiment) -> Experiment {
    let mut experiment = experiment.clone();
    for path in &mut experiment.scenario.paths {
        let random = |item: &&str| !item.starts_with("ge=") && !item.starts_with("loss=");
        path.link = path.link.split(',').filter(random).collect::<Vec<_>>().join(",");
    }
    experiment.scenario.events.retain(|event| !event.command.starts_with("set loss="));
    experiment
}

/// Average relative to the clairvoyant bound, over the roots for which it was computed.
pub(super) fn bound_ratio<'a>(roots: impl Iterator<Item = (&'a Echoes, Option<f64>)>) -> f64 {
    let (mut ours, mut bounds) = (0.0, 0.0);
    for (echoes, bound) in roots {
        if let Some(bound) = bound {
            ours += marline_sim::mean(&echoes.latencies_ms);
            bounds += bound;
        }
    }
    ours / bounds
}

/// Number, sum, sum of squares and maximum of a run's round-trip times, sufficient for the paper's table.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
    worst: f64,
}

impl Moments {
    pub(super) fn from_latencies(latencies_ms: &[f64]) -> Moments {
        Moments {
            count: latencies_ms.len() as f64,
            sum: latencies_ms.iter().sum(),
            squares: latencies_ms.iter().map(|ms| ms * ms).sum(),
            worst: latencies_ms.iter().copied().fold(0.0, f64::max),
        }
    }

    /// Moments of the messages of several runs, with the mean of the runs' maximums.
    pub(super) fn pool_moments(runs: impl Iterator<Item = Moments>) -> Moments {
        let (mut all, mut number) = (Moments::default(), 0.0);
        for run in runs {
            number += 1.0;
            all.count += run.count;
            all.sum += run.sum;
            all.squares += run.squares;
            all.worst += run.worst;
        }
        all.worst /= number;
        all
    }

    pub(super) fn average(&self) -> f64 {
        self.sum / self.count
    }

    /// Mean of the runs' maximums.
    pub(super) const fn worst(&self) -> f64 {
        self.worst
    }

    /// Standard deviation over all messages, not the mean over the runs.
    pub(super) fn sigma(&self) -> f64 {
        (self.squares / self.count - self.average().powi(2)).max(0.0).sqrt()
    }
}

/// A column of the paper's table: its name, and its computation from moments.
pub(super) type Statistic = (&'static str, fn(&Moments) -> f64);

/// Columns of the paper's table.
pub(super) const STATISTICS: [Statistic; 3] = [
    ("average", Moments::average),
    ("worst of 100 s", Moments::worst),
    ("standard deviation", Moments::sigma),
];

/// Maps the results of each root. The resamples stay the same.
pub(super) fn map_roots<T, U>(
    samples: &Samples<T>,
    master: u64,
    of: impl Fn(&T) -> U,
) -> Samples<U> {
    Samples::new(samples.all().iter().map(of).collect(), master)
}

/// Estimate of a statistic of several contestants' messages, pooled over the roots.
pub(super) fn pooled_estimate<const N: usize>(
    samples: &Samples<[Moments; N]>,
    of: impl Fn([Moments; N]) -> f64,
) -> Estimate {
    samples.estimate(|picked| {
        of(std::array::from_fn(|n| Moments::pool_moments(picked.iter().map(|root| root[n]))))
    })
}

/// Pooled round-trip times of a contestant in descending order, each with its root. A quantile of a resample is
/// searched from the top, which is fast for high quantiles.
#[derive(Debug)]
pub(super) struct Tail {
    falling: Vec<(f64, u32)>,
    counts: Vec<usize>,
}

impl Tail {
    /// Tail of the lists of all roots.
    pub(super) fn new<'a>(roots: impl Iterator<Item = &'a [f64]>) -> Tail {
        let (mut falling, mut counts) = (Vec::new(), Vec::new());
        for (root, list) in (0_u32..).zip(roots) {
            falling.extend(list.iter().map(|value| (*value, root)));
            counts.push(list.len());
        }
        falling.sort_by(|a, b| b.0.total_cmp(&a.0));
        Tail { falling, counts }
    }

    /// The value at or below which this share of the messages lies (nearest rank), with each root picked a number
    /// of times. NaN without messages.
    fn quantile_of_picked(&self, times: &[usize], share: f64) -> f64 {
        let total: usize = self.counts.iter().zip(times).map(|(count, times)| count * times).sum();
        if total == 0 {
            return f64::NAN;
        }
        let rank = ((share * total as f64).ceil() as usize).clamp(1, total);
        let mut above = total - rank;
        for (value, root) in &self.falling {
            let times = times[*root as usize];
            if above < times {
                return *value;
            }
            above -= times;
        }
        f64::NAN
    }

    /// Quantile over all roots.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        self.quantile_of_picked(&vec![1; self.counts.len()], share)
    }

    /// Quantile over all roots, with its interval.
    pub(super) fn estimate(&self, master: u64, share: f64) -> Estimate {
        self.estimate_by_resampling(master, |times| self.quantile_of_picked(times, share))
    }

    /// Ratio of the quantile to that of another contestant in the same roots.
    pub(super) fn ratio(&self, of: &Tail, master: u64, share: f64) -> Estimate {
        self.estimate_by_resampling(master, |times| {
            self.quantile_of_picked(times, share) / of.quantile_of_picked(times, share)
        })
    }

    fn estimate_by_resampling(&self, master: u64, of: impl Fn(&[usize]) -> f64) -> Estimate {
        let roots = self.counts.len();
        let numbers = Samples::new((0..roots).collect::<Vec<usize>>(), master);
        numbers.estimate(|picked| {
            let mut times = vec![0; roots];
            picked.iter().for_each(|root| times[**root] += 1);
            of(&times)
        })
    }
}

#[cfg(test)]
mod tests {
    use marline_time::{Rng, SeedTree};

    use super::*;
    use crate::estimate::pooled_quantile;

    #[test]
    fn tails_have_the_quantiles_and_intervals_of_the_pooled_lists() {
        let mut rng = SeedTree::new(5).stream("lists");
        let mut list = |size| sorted((0..size).map(|_| rng.unit() * 100.0));
        let lists: Vec<Vec<f64>> = (0..25).map(|n| list(30 + n)).collect();
        let tail = Tail::new(lists.iter().map(Vec::as_slice));
        let samples = Samples::new(lists.clone(), 3);
        for share in [0.5, 0.9, 0.99] {
            let slow = samples.estimate(|picked| {
                pooled_quantile(picked.iter().map(|list| list.as_slice()), share)
            });
            assert_eq!(tail.estimate(3, share), slow, "{share}");
            assert_eq!(tail.quantile(share), slow.value);
        }
        let same = tail.ratio(&tail, 3, 0.99);
        assert_eq!((same.value, same.low, same.high), (1.0, 1.0, 1.0));
        assert!(Tail::new([].into_iter()).quantile(0.5).is_nan());
    }

    #[test]
    fn moments_of_runs_together_are_those_of_all_messages() {
        let (first, second) = (vec![1.0, 2.0, 3.0], vec![6.0]);
        let all = Moments::pool_moments(
            [&first, &second].into_iter().map(|run| Moments::from_latencies(run)),
        );
        assert_eq!((all.average(), all.worst()), (3.0, 4.5));
        assert!((all.sigma() - 3.5_f64.sqrt()).abs() < 1e-12);
    }
}
