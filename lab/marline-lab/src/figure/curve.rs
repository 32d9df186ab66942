//! Curves computed from samples.

/// Empirical distribution function: `(value, share of the values that are no larger)`, to be drawn in steps. NaN
/// counts as never reached.
#[must_use]
pub fn cdf(values: &[f64]) -> Vec<(f64, f64)> {
    let mut finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    let share = |count: usize| count as f64 / values.len() as f64;
    let mut points: Vec<(f64, f64)> = Vec::with_capacity(finite.len());
    for (index, value) in finite.iter().enumerate() {
        match points.last_mut() {
            Some(last) if last.0 == *value => last.1 = share(index + 1),
            _ => points.push((*value, share(index + 1))),
        }
    }
    points
}

/// Density of the values from `from` to `to` at 200 points as `(value, density)`, estimated with Gaussian kernels of
/// standard deviation `bandwidth`, all in the unit of the values. The area is 1 if all values lie well inside.
#[must_use]
pub fn density(values: &[f64], from: f64, to: f64, bandwidth: f64) -> Vec<(f64, f64)> {
    const PLACES: u32 = 200;
    let weight = 1.0 / (values.len().max(1) as f64 * bandwidth * std::f64::consts::TAU.sqrt());
    (0..PLACES)
        .map(|n| {
            let place = from + (to - from) * f64::from(n) / f64::from(PLACES - 1);
            let kernel = |value: &f64| (-0.5 * ((place - value) / bandwidth).powi(2)).exp();
            (place, weight * values.iter().map(kernel).sum::<f64>())
        })
        .collect()
}

/// The mean and its 95 % confidence interval from Student's t, for independent runs. With fewer than two values, the
/// ends of the interval are NaN.
#[must_use]
pub fn mean_interval(values: &[f64]) -> (f64, (f64, f64)) {
    let count = values.len() as f64;
    let mean = marline_sim::mean(values);
    if values.len() < 2 {
        return (mean, (f64::NAN, f64::NAN));
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = student_975(values.len() - 1) * (variance / count).sqrt();
    (mean, (mean - half, mean + half))
}

/// The 97.5th percentile of Student's t: tabulated up to 10 degrees of freedom, and beyond that from the expansion of
/// Cornish and Fisher, correct to three digits.
fn student_975(freedom: usize) -> f64 {
    const FEW: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    if let Some(value) = FEW.get(freedom.wrapping_sub(1)) {
        return *value;
    }
    let (z, n) = (1.959_964_f64, freedom as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / n + second / n.powi(2) + third / n.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cdf_ends_at_the_share_that_came() {
        assert_eq!(cdf(&[3.0, 1.0, 3.0, 2.0]), [(1.0, 0.25), (2.0, 0.5), (3.0, 1.0)]);
        assert_eq!(cdf(&[1.0, f64::INFINITY]), [(1.0, 0.5)]);
        assert!(cdf(&[]).is_empty());
    }

    #[test]
    fn a_density_has_the_area_one_and_its_peak_at_the_values() {
        let points = density(&[40.0, 50.0, 60.0], 0.0, 100.0, 4.0);
        let step = points[1].0 - points[0].0;
        let area: f64 = points.iter().map(|point| point.1 * step).sum();
        assert!((area - 1.0).abs() < 0.01, "{area}");
        let single = density(&[40.0], 0.0, 100.0, 4.0);
        let peak = single.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
        assert!((peak - 40.0).abs() < step, "{peak}");
    }

    #[test]
    fn intervals_are_those_of_students_t() {
        let (mean, (low, high)) = mean_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        // s = sqrt(2.5), t(4) = 2.776: 1.963.
        assert_eq!(mean, 3.0);
        assert!((low - 1.037).abs() < 1e-3 && (high - 4.963).abs() < 1e-3, "{low} {high}");
        assert!((student_975(29) - 2.045).abs() < 1e-3, "{}", student_975(29));
        assert!((student_975(11) - 2.201).abs() < 1e-3, "{}", student_975(11));
        assert!(mean_interval(&[1.0]).1.0.is_nan());
    }
}
