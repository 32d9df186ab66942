//! LinUCB (Li et al., WWW 2010): the expected reward of an action as a linear function of the context, with the
//! uncertainty of that estimate.
//!
//! Each arm keeps the second moments A of the contexts in which it was tried, and the resulting rewards b. The expected
//! reward in context x is x' A^-1 b. Its uncertainty is sqrt(x' A^-1 x), which shrinks in contexts in which the arm was
//! tried. Trials decay with each decision, even for the other arm. So old network conditions are forgotten, an action
//! that seemed bad is eventually tried again, and all values stay bounded.

/// Number of features in a context.
pub(super) const FEATURES: usize = 6;

/// Features at the time of a decision.
pub(super) type Context = [f64; FEATURES];

/// Learned reward estimate of one action.
#[derive(Clone, Debug, Default)]
pub(super) struct Arm {
    moments: [Context; FEATURES],
    rewards: Context,
}

/// Estimated reward of an action.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct RewardEstimate {
    pub(super) reward: f64,
    pub(super) uncertainty: f64,
}

impl Arm {
    /// Decays the learned values by the factor `kept`. Called for every decision, whether about this action or the
    /// other one.
    pub(super) fn apply_decay(&mut self, kept: f64) {
        self.moments.iter_mut().flatten().chain(&mut self.rewards).for_each(|sum| *sum *= kept);
    }

    /// Learns the reward that the action brought in this context.
    pub(super) fn learn(&mut self, context: &Context, reward: f64) {
        for (row, x) in self.moments.iter_mut().zip(context) {
            row.iter_mut().zip(context).for_each(|(moment, y)| *moment += x * y);
        }
        self.rewards.iter_mut().zip(context).for_each(|(sum, x)| *sum += x * reward);
    }

    /// Returns the estimate in this context.
    pub(super) fn estimate(&self, context: &Context) -> RewardEstimate {
        // With A = L L': x' A^-1 b is (L^-1 x)' (L^-1 b).
        let root = self.root();
        let (x, b) = (forward(&root, context), forward(&root, &self.rewards));
        RewardEstimate { reward: dot(&x, &b), uncertainty: dot(&x, &x).sqrt() }
    }

    /// Returns the Cholesky root of the moments plus the identity matrix, which keeps the sum far from singular.
    fn root(&self) -> [Context; FEATURES] {
        let mut root = [[0.0; FEATURES]; FEATURES];
        for row in 0..FEATURES {
            for column in 0..=row {
                let known = dot_product(column, &root[row], &root[column]);
                let moment = self.moments[row][column] - known;
                root[row][column] = if row == column {
                    (moment + 1.0).max(1.0).sqrt()
                } else {
                    moment / root[column][column]
                };
            }
        }
        root
    }
}

/// Solves L y = v.
fn forward(root: &[Context; FEATURES], v: &Context) -> Context {
    let mut y = [0.0; FEATURES];
    for row in 0..FEATURES {
        y[row] = (v[row] - dot_product(row, &root[row], &y)) / root[row][row];
    }
    y
}

fn dot(a: &Context, b: &Context) -> f64 {
    dot_product(FEATURES, a, b)
}

fn dot_product(n: usize, a: &Context, b: &Context) -> f64 {
    a.iter().zip(b).take(n).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untried_context_is_uncertain_and_a_tried_one_known() {
        let mut arm = Arm::default();
        let (tried, other) = ([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(arm.estimate(&tried), RewardEstimate { reward: 0.0, uncertainty: 1.0 });
        for _ in 0..99 {
            arm.learn(&tried, 2.0);
        }
        let known = arm.estimate(&tried);
        assert!((known.reward - 1.98).abs() < 1e-9 && (known.uncertainty - 0.1).abs() < 1e-9);
        assert_eq!(arm.estimate(&other), RewardEstimate { reward: 0.0, uncertainty: 1.0 });
    }

    #[test]
    fn a_linear_reward_is_found_and_a_new_one_replaces_it() {
        let mut arm = Arm::default();
        let context = |n: u32| {
            let part = |k: u32| f64::from((n * (2 * k + 3) + k) % 7) / 7.0;
            [part(0), part(1), part(2), part(3), part(4), part(5)]
        };
        let reward = |c: &Context, sign: f64| 1.0 + sign * (c[0] - 0.5 * c[3]);
        for sign in [1.0, -1.0] {
            // The constant is a feature that is always present.
            let with_one = |n| {
                let mut c = context(n);
                c[5] = 1.0;
                c
            };
            for n in 0..2_000 {
                let c = with_one(n);
                arm.apply_decay(0.99);
                arm.learn(&c, reward(&c, sign));
            }
            for n in 0..7 {
                let c = with_one(n);
                let error = arm.estimate(&c).reward - reward(&c, sign);
                assert!(error.abs() < 0.1, "{sign}, {n}: {error}");
            }
        }
    }

    #[test]
    fn no_context_breaks_it() {
        let mut arm = Arm::default();
        for _ in 0..100_000 {
            arm.apply_decay(0.995);
            arm.learn(&[4.0; FEATURES], 4.0);
        }
        let promise = arm.estimate(&[4.0; FEATURES]);
        assert!((promise.reward - 4.0).abs() < 0.01 && promise.uncertainty.is_finite());
        assert_eq!(
            arm.estimate(&[0.0; FEATURES]),
            RewardEstimate { reward: 0.0, uncertainty: 0.0 }
        );
    }
}
