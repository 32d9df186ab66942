//! LIA, the "linked increases" of RFC 6356.
//!
//! *How.* For each segment acknowledged on subflow i, its window grows by `min(alpha / w_total, 1 / w_i)` segments,
//! with `alpha = w_total * max(w / rtt^2) / (sum(w / rtt))^2`. All subflows grow by an equal amount per segment, so the
//! windows become inversely proportional to the loss rates of the paths. alpha makes the total rate equal to that of a
//! TCP on the best path. The second term keeps each subflow no more aggressive than a TCP on its path. A loss halves
//! the window.
//!
//! *Source.* Raiciu, Handley, Wischik, RFC 6356 (2011), equations 1 and 2, here in segments of each subflow instead of
//! bytes, which makes no difference if all segments are of equal size.
//!
//! *Differences.* alpha is computed for each ACK instead of once per window. This costs two divisions per subflow, and
//! alpha is never outdated.

use super::{Coupled, Coupling, Group, Member};

/// Coupling rule of RFC 6356.
#[derive(Debug, Default)]
pub struct LiaRule;

impl Coupling for LiaRule {
    fn increase(group: &Group) -> f64 {
        let own = group.own_member().map_or(1.0, |me| me.window);
        let total: f64 = group.members.iter().map(|member| member.window).sum();
        (alpha(group) / total).min(1.0 / own)
    }
}

fn alpha(group: &Group) -> f64 {
    let total: f64 = group.members.iter().map(|member| member.window).sum();
    let best = group.members.iter().map(speed).fold(0.0, f64::max);
    let rate = group.total_rate();
    total * best / (rate * rate)
}

fn speed(member: &Member) -> f64 {
    member.window / (member.rtt * member.rtt)
}

/// LIA congestion control (RFC 6356) of one subflow.
pub type Lia = Coupled<LiaRule>;

#[cfg(test)]
mod tests {
    use super::super::tests::{group, member};
    use super::*;

    #[test]
    fn two_equal_paths_together_grow_like_one_tcp() {
        let group = group([member(10.0, 0.1), member(10.0, 0.1)]);
        // alpha = 20 * 1000 / 200^2 = 1/2: each window grows by 1/40 per segment, which is 1/4 per round trip.
        assert!((alpha(&group) - 0.5).abs() < 1e-12);
        assert!((LiaRule::increase(&group) - 0.5 / 20.0).abs() < 1e-12);
    }

    #[test]
    fn never_more_aggressive_than_a_tcp_of_its_own() {
        // With a small window on a short path, alpha / w_total would exceed 1 / w.
        let group = group([member(50.0, 0.5), member(20.0, 0.01)]);
        // alpha = 70 * 200000 / 2100^2 = 3.17; /70 = 0.045; 1/50 is less.
        let alpha = 70.0 * 20.0 / 0.000_1 / (2_100.0 * 2_100.0);
        assert!((super::alpha(&group) - alpha).abs() < 1e-9 && alpha / 70.0 > 1.0 / 50.0);
        assert!((LiaRule::increase(&group) - 1.0 / 50.0).abs() < 1e-12);
    }

    #[test]
    fn the_hand_computed_case_of_unequal_paths() {
        let group = group([member(30.0, 0.1), member(10.0, 0.2)]);
        // rates 300 and 50; w/rtt^2 3000 and 250: alpha = 40 * 3000 / 350^2 = 0.9796.
        assert!((alpha(&group) - 40.0 * 3_000.0 / 122_500.0).abs() < 1e-12);
        assert!((LiaRule::increase(&group) - 3_000.0 / 122_500.0).abs() < 1e-12);
    }
}
