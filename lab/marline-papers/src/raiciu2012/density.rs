//! Densities of pooled latencies from the roots' histograms: peaks, heights and reach.
//!
//! Smoothing is linear in the counts. Each root's histogram is therefore smoothed only once, and a resample adds
//! the smoothed counts of the drawn roots.

use super::curves::{BIN_MS, RunResult};
use crate::estimate::{Estimate, Samples};

/// Width of the study's bins, in bins of [`BIN_MS`].
const STUDY_BINS: usize = 4;
/// Width of the study's bins, ms.
const STUDY_BIN_MS: f64 = BIN_MS * STUDY_BINS as f64;
/// Share of the blocks in a study bin below which the study's plots show nothing.
const MIN_VISIBLE_SHARE: f64 = 0.005;

/// Results of a part: a run of each of its jobs on each root.
pub(super) type Runs = Samples<Vec<RunResult>>;

/// Smoothed counts of one job.
struct Density {
    step_ms: f64,
    /// Smoothed counts by root.
    heights: Vec<Vec<f32>>,
}

impl Density {
    /// Smooths with Gaussian kernels of 20 ms or a tenth of the median, whichever is wider. The step is at most a
    /// quarter of that.
    fn smooth(runs: &Runs, job: usize) -> Density {
        let medians: f64 = runs.all().iter().map(|root| root[job].p50_ms).sum();
        let width_ms = (medians / runs.roots().max(1) as f64 / 10.0).max(STUDY_BIN_MS);
        let every = ((width_ms / 8.0 / BIN_MS) as usize).max(1);
        let bins = runs.all().iter().map(|root| root[job].counts.len()).max().unwrap_or(0);
        let places = bins.div_ceil(every);
        let reach = (3.0 * width_ms / BIN_MS).ceil() as usize;
        let kernel: Vec<f64> =
            (0..=reach).map(|n| (-0.5 * (n as f64 * BIN_MS / width_ms).powi(2)).exp()).collect();
        let smooth = |counts: &Vec<u32>| -> Vec<f32> {
            let mut heights = vec![0.0_f64; places];
            for (bin, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let from = bin.saturating_sub(reach).div_ceil(every);
                for (place, height) in heights.iter_mut().enumerate().skip(from) {
                    let Some(weight) = kernel.get(bin.abs_diff(place * every)) else { break };
                    *height += weight * f64::from(*count);
                }
            }
            heights.iter().map(|height| *height as f32).collect()
        };
        let heights = runs.all().iter().map(|root| smooth(&root[job].counts)).collect();
        Density { step_ms: every as f64 * BIN_MS, heights }
    }

    /// Position of the maximum of the density over these roots, ms.
    fn peak_ms(&self, roots: &[&usize]) -> f64 {
        let mut sum = vec![0.0_f32; self.heights.first().map_or(0, Vec::len)];
        for root in roots {
            for (sum, height) in sum.iter_mut().zip(&self.heights[**root]) {
                *sum += height;
            }
        }
        let highest = (0..sum.len()).max_by(|a, b| sum[*a].total_cmp(&sum[*b]));
        highest.map_or(f64::NAN, |place| (place as f64).mul_add(self.step_ms, 0.5 * BIN_MS))
    }
}

/// Numbers of the roots, with the same resamples as the runs.
fn root_numbers(runs: &Runs, master: u64) -> Samples<usize> {
    Samples::new((0..runs.roots()).collect(), master)
}

/// Position of the maximum of a job's density, ms.
pub(super) fn peak(runs: &Runs, master: u64, job: usize) -> Estimate {
    of_peaks(runs, master, &[job], |peaks_ms| peaks_ms[0])
}

/// A statistic of the peaks of several jobs, ms, paired by root.
pub(super) fn of_peaks(
    runs: &Runs,
    master: u64,
    jobs: &[usize],
    of: impl Fn(&[f64]) -> f64,
) -> Estimate {
    let densities: Vec<Density> = jobs.iter().map(|job| Density::smooth(runs, *job)).collect();
    root_numbers(runs, master).estimate(|picked| {
        let peaks_ms: Vec<f64> = densities.iter().map(|density| density.peak_ms(picked)).collect();
        of(&peaks_ms)
    })
}

/// A statistic of the medians of jobs, ms, paired by root. `of` is called with a function from a job to its median.
pub(super) fn of_medians(runs: &Runs, of: impl Fn(&dyn Fn(usize) -> f64) -> f64) -> Estimate {
    runs.estimate(|roots| {
        let sum_ms = |job: usize| roots.iter().map(|root| root[job].p50_ms).sum::<f64>();
        of(&|job| sum_ms(job) / roots.len() as f64)
    })
}

/// Median of a job: the mean of the medians of the roots.
pub(super) fn median(runs: &Runs, job: usize) -> Estimate {
    runs.mean(|root| root[job].p50_ms)
}

/// Ratio of the medians of two jobs, paired by root.
pub(super) fn median_ratio(runs: &Runs, of: usize, over: usize) -> Estimate {
    runs.ratio(|root| (root[of].p50_ms, root[over].p50_ms))
}

/// Ratio of the goodput of two jobs, paired by root.
pub(super) fn goodput_ratio(runs: &Runs, of: usize, over: usize) -> Estimate {
    runs.ratio(|root| (root[of].goodput_mbit_per_s, root[over].goodput_mbit_per_s))
}

/// Share of a job's blocks with a latency up to this limit.
pub(super) fn share_within(runs: &Runs, job: usize, limit_ms: f64) -> Estimate {
    let bins = (limit_ms / BIN_MS) as usize;
    runs.ratio(|root| {
        let counts = &root[job].counts;
        let within: u32 = counts.iter().take(bins).sum();
        (f64::from(within), f64::from(counts.iter().sum::<u32>()))
    })
}

/// A job's blocks in the study's bins.
struct StudyBins(Vec<Vec<f64>>);

impl StudyBins {
    fn count(runs: &Runs, job: usize) -> StudyBins {
        let sum = |bins: &[u32]| f64::from(bins.iter().sum::<u32>());
        let of_root = |root: &Vec<RunResult>| -> Vec<f64> {
            root[job].counts.chunks(STUDY_BINS).map(sum).collect()
        };
        StudyBins(runs.all().iter().map(of_root).collect())
    }

    /// Share of the blocks in each bin over these roots.
    fn shares(&self, roots: &[&usize]) -> Vec<f64> {
        let mut sum = vec![0.0; self.0.iter().map(Vec::len).max().unwrap_or(0)];
        for root in roots {
            for (sum, count) in sum.iter_mut().zip(&self.0[**root]) {
                *sum += count;
            }
        }
        let total: f64 = sum.iter().sum();
        sum.iter().map(|count| count / total).collect()
    }

    /// Share of the blocks in the fullest bin over these roots.
    fn height(&self, roots: &[&usize]) -> f64 {
        self.shares(roots).into_iter().fold(0.0, f64::max)
    }
}

/// Share of the blocks in the fullest of the study's bins, and the start of the last bin that is visible in its
/// plots, ms.
pub(super) fn height_and_reach(runs: &Runs, master: u64, job: usize) -> (Estimate, Estimate) {
    let (bins, roots) = (StudyBins::count(runs, job), root_numbers(runs, master));
    let reach = roots.estimate(|picked| {
        let last = bins.shares(picked).into_iter().rposition(|share| share > MIN_VISIBLE_SHARE);
        last.map_or(f64::NAN, |last| last as f64 * STUDY_BIN_MS)
    });
    (roots.estimate(|picked| bins.height(picked)), reach)
}

/// Ratio of the fullest bins of two jobs, paired by root.
pub(super) fn height_ratio(runs: &Runs, master: u64, of: usize, over: usize) -> Estimate {
    let (of, over) = (StudyBins::count(runs, of), StudyBins::count(runs, over));
    root_numbers(runs, master).estimate(|picked| of.height(picked) / over.height(picked))
}

/// Smoothed share of a job's blocks per 20 ms, as a line up to a latency.
pub(super) fn line(runs: &Runs, job: usize, to_ms: f64) -> Vec<(f64, f64)> {
    let density = Density::smooth(runs, job);
    let places = density.heights.first().map_or(0, Vec::len);
    let at = |place: usize| (place as f64).mul_add(density.step_ms, 0.5 * BIN_MS);
    let sum = |place: usize| density.heights.iter().map(|root| f64::from(root[place])).sum::<f64>();
    let sums: Vec<f64> = (0..places).map(sum).collect();
    let scale = STUDY_BIN_MS / density.step_ms / sums.iter().sum::<f64>();
    let points = sums.iter().enumerate().map(|(place, sum)| (at(place), scale * sum));
    points.take_while(|point| point.0 <= to_ms).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(latencies_ms: &[f64], roots: usize) -> Runs {
        let mut counts = vec![0; 400];
        for latency in latencies_ms {
            counts[(latency / BIN_MS) as usize] += 1;
        }
        let p50_ms = marline_sim::quantile(latencies_ms, 0.5);
        let seen = RunResult { counts, p50_ms, ..RunResult::default() };
        Samples::new(vec![vec![seen]; roots], 1)
    }

    #[test]
    fn the_peak_is_where_most_values_are_not_where_the_median_is() {
        let mut values: Vec<f64> = (0..100).map(|n| 100.0 + f64::from(n % 10)).collect();
        values.extend((0..150).map(|n| 400.0 + f64::from(n) * 4.0));
        let runs = of(&values, 5);
        let found = peak(&runs, 1, 0);
        assert!((found.value - 105.0).abs() <= BIN_MS, "{found:?}");
        assert_eq!((found.low, found.high), (found.value, found.value));
        let ratio = of_peaks(&runs, 1, &[0, 0], |peaks_ms| peaks_ms[0] / peaks_ms[1]);
        assert_eq!((ratio.value, ratio.low, ratio.high), (1.0, 1.0, 1.0));
        assert!((peak(&of(&[7.0], 2), 1, 0).value - 7.5).abs() < 1e-9);
    }

    #[test]
    fn heights_and_reach_are_those_of_bins_of_twenty_ms() {
        // A fifth is in the bin from 100 ms on. The others are in separate bins, the last of them at 260 ms.
        let mut values = vec![110.0; 4];
        values.extend((0..16).map(|n| 120.0 + 20.0 * f64::from(n)));
        let runs = of(&values, 3);
        let (height, reach) = height_and_reach(&runs, 1, 0);
        assert_eq!((height.value, reach.value), (0.2, 420.0));
        assert_eq!(share_within(&runs, 0, 120.0).value, 0.2);
        assert_eq!(height_ratio(&runs, 1, 0, 0).value, 1.0);
    }

    #[test]
    fn a_line_holds_all_blocks() {
        let values: Vec<f64> = (0..500).map(|n| 300.0 + f64::from(n)).collect();
        let points = line(&of(&values, 2), 0, 3_000.0);
        let step = points[1].0 - points[0].0;
        let all: f64 = points.iter().map(|point| point.1 * step / STUDY_BIN_MS).sum();
        assert!((all - 1.0).abs() < 1e-3, "{all}");
        // The notebook that draws the figure is tested with the same numbers
        // (marline-python/tests/test_figure.py), on a histogram that ends with its last value, as those of runs
        // do.
        let mut seen = of(&values, 1).all()[0][0].clone();
        seen.counts.truncate(160);
        let points = line(&Samples::new(vec![vec![seen]; 2], 1), 0, 3_000.0);
        for (place, share) in [(60, 0.021_670_029), (100, 0.041_817_229), (150, 0.033_759_830)] {
            assert!((points[place].1 - share).abs() < 1e-8, "{place}: {}", points[place].1);
        }
    }
}
