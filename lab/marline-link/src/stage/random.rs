//! Random distributions that use only additions and comparisons, so that every machine draws the same numbers. The
//! logarithm and cosine of the platform's math library may differ in the last bit.

use marline_time::{Duration, Rng, nanos};

/// Draws a standard exponential variate with von Neumann's method of descending runs: draws uniform values while they
/// descend. A run of odd length yields its first number, and each run of even length adds 1.
fn draw_standard_exponential(rng: &mut impl Rng) -> f64 {
    let mut whole = 0.0;
    loop {
        let first = rng.unit();
        let (mut last, mut length) = (first, 1u32);
        loop {
            let next = rng.unit();
            if next >= last {
                break;
            }
            last = next;
            length += 1;
        }
        if length % 2 == 1 {
            return whole + first;
        }
        whole += 1.0;
    }
}

/// Draws an exponentially distributed time with this mean, at least 1 ns.
pub(crate) fn exponential(mean: Duration, rng: &mut impl Rng) -> Duration {
    let drawn = nanos(mean) as f64 * draw_standard_exponential(rng);
    Duration::from_nanos((drawn as u64).max(1))
}

/// Draws a standard normal variate: the sum of twelve uniform values minus six (variance 1, range -6 to 6).
pub(crate) fn normal(rng: &mut impl Rng) -> f64 {
    let mut sum = 0u64;
    for _ in 0..3 {
        let bits = rng.next_u64();
        sum += (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    }
    (sum as f64 + 6.0) / 65_536.0 - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_time::PcgRng;

    #[test]
    fn exponential_has_its_mean_and_memoryless_tail() {
        let mut rng = PcgRng::new(1, 1);
        let draws: Vec<f64> = (0..20_000).map(|_| draw_standard_exponential(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((0.97..1.03).contains(&mean), "{mean}");
        let beyond = |x: f64| draws.iter().filter(|d| **d > x).count() as f64;
        let (one, two) = (beyond(1.0) / 20_000.0, beyond(2.0) / beyond(1.0));
        assert!((0.355..0.381).contains(&one) && (0.35..0.386).contains(&two), "{one} {two}");
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut rng = PcgRng::new(2, 1);
        let draws: Vec<f64> = (0..20_000).map(|_| normal(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / 20_000.0;
        let variance = draws.iter().map(|d| d * d).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
    }
}
