//! BALIA, the "balanced linked adaptation" (Peng, Walid, Hwang, Low, 2013).
//!
//! *Problem.* LIA is unfriendly to single-path TCPs, and OLIA is slow to detect that a path has become free.
//!
//! *How.* With `x = w / rtt` and `a_r = max(x) / x_r`, each segment acknowledged on subflow r adds `(x_r / rtt_r) /
//! (sum x)^2 * (1 + a_r)/2 * (4 + a_r)/5`. A loss subtracts `w_r / 2 * min(a_r, 1.5)`. The best path behaves like a
//! TCP. On a worse path, the window grows faster and is reduced more than with LIA.
//!
//! *Source.* Peng et al., "Multipath TCP: Analysis, Design and Implementation", 2013, and
//! draft-walid-mptcp-congestion-control. The out-of-tree kernel truncates a_r to an integer, which makes every
//! reduction 1/2 or 3/4. Here the fraction is kept.

use super::{Coupled, Coupling, Group};

/// Upper limit of `a` in a decrease.
const MAX_DECREASE: f64 = 1.5;

/// Coupling rule of BALIA.
#[derive(Debug, Default)]
pub struct Balanced;

impl Coupling for Balanced {
    fn increase(group: &Group) -> f64 {
        let Some(me) = group.own_member() else { return 0.0 };
        let (a, rate) = (ratio(group), group.total_rate());
        me.rate() / me.rtt / (rate * rate) * (f64::midpoint(1.0, a)) * ((4.0 + a) / 5.0)
    }

    fn remaining_share(group: &Group) -> f64 {
        1.0 - ratio(group).min(MAX_DECREASE) / 2.0
    }
}

/// Returns the rate of the fastest subflow relative to this one.
fn ratio(group: &Group) -> f64 {
    let largest = group.members.iter().map(super::Member::rate).fold(0.0, f64::max);
    group.own_member().map_or(1.0, |me| largest / me.rate())
}

/// BALIA congestion control of one subflow.
pub type Balia = Coupled<Balanced>;

#[cfg(test)]
mod tests {
    use super::super::tests::{group, member};
    use super::*;

    #[test]
    fn equal_paths_grow_like_one_tcp_and_halve_together() {
        let group = group([member(10.0, 0.1), member(10.0, 0.1)]);
        assert!((Balanced::increase(&group) - 1.0 / 40.0).abs() < 1e-12);
        assert!((Balanced::remaining_share(&group) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn the_slower_path_grows_faster_and_falls_further() {
        // With rates of 300 and 100, a is 1 for the first and 3 for the second.
        let fast = group([member(30.0, 0.1), member(10.0, 0.1)]);
        let slow = group([member(10.0, 0.1), member(30.0, 0.1)]);
        let sum = 400.0 * 400.0;
        assert!((Balanced::increase(&fast) - 3_000.0 / sum).abs() < 1e-12);
        assert!((Balanced::increase(&slow) - 1_000.0 / sum * 2.0 * 7.0 / 5.0).abs() < 1e-12);
        assert!((Balanced::remaining_share(&fast) - 0.5).abs() < 1e-12);
        assert!(
            (Balanced::remaining_share(&slow) - 0.25).abs() < 1e-12,
            "the factor a is at most 1.5"
        );
    }

    #[test]
    fn the_fraction_of_a_is_kept() {
        let slow = group([member(10.0, 0.1), member(12.0, 0.1)]);
        assert!((Balanced::remaining_share(&slow) - 0.4).abs() < 1e-12);
    }
}
