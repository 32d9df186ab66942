//! Quantiles in tables, as in pandas, numpy and R.

/// The value below which a share (0 to 1) of the values lies, by linear interpolation. For `n` values in order, `x[0]`
/// to `x[n - 1]`, and `h = share * (n - 1)`, it is `x[⌊h⌋] + (h - ⌊h⌋) * (x[⌊h⌋ + 1] - x[⌊h⌋])`. NaN without values.
///
/// This is type 7 of R. J. Hyndman and Y. Fan, *Sample Quantiles in Statistical Packages* (1996), the default of
/// pandas, Polars (`interpolation="linear"`), numpy and R. Rows of papers use the nearest rank
/// ([`marline_sim::quantile`]), which is always one of the values.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted_quantile(&sorted, share)
}

/// The quantile of sorted values.
pub(crate) fn sorted_quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = place.floor();
    let (at, next) = (below as usize, (below as usize + 1).min(last));
    sorted[at] + (place - below) * (sorted[next] - sorted[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_numpy() {
        // Expected values from numpy.quantile([4, 1, 3, 2], q), and of 1 to 100.
        let four = |share| quantile(&[4.0, 1.0, 3.0, 2.0], share);
        assert_eq!([0.0, 0.5, 0.75, 1.0].map(four), [1.0, 2.5, 3.25, 4.0]);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert!((quantile(&hundred, 0.99) - 99.01).abs() < 1e-12);
        assert!((quantile(&hundred, 0.95) - 95.05).abs() < 1e-12);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
