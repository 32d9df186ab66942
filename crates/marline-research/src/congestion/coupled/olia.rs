//! OLIA, the "opportunistic linked increases" (Khalili et al., CoNEXT 2012).
//!
//! *Problem.* LIA keeps unnecessary traffic on congested paths to probe them. This takes capacity from other flows
//! without any gain.
//!
//! *How.* For each segment acknowledged on subflow r, the window grows by `(w_r / rtt_r^2) / (sum(w / rtt))^2 + e_r /
//! w_r`. The first term alone is Pareto-optimal but may oscillate between paths. The second moves traffic to the best
//! paths: those with the largest `l / rtt^2`, where l is the bytes between losses (1/p, so this is the square of a
//! TCP's rate on the path). If m of the n paths are best but do not have the largest window, these get `e = 1 / (n *
//! m)`, and the paths with the largest windows lose the corresponding amount. Otherwise all e are zero.
//!
//! *Source.* Khalili et al., "MPTCP is not Pareto-optimal", CoNEXT 2012. `l` is as in its later draft and the
//! out-of-tree kernel: the larger of the bytes since the last loss and the bytes between the last two. A loss halves
//! the window. A decrease by e never goes below one segment.

use super::{Coupled, Coupling, Group, Member};

/// Coupling rule of OLIA.
#[derive(Debug, Default)]
pub struct Opportunistic;

impl Coupling for Opportunistic {
    fn increase(group: &Group) -> f64 {
        let Some(me) = group.own_member() else { return 0.0 };
        let rate = group.total_rate();
        me.window / (me.rtt * me.rtt) / (rate * rate) + window_shift(group, me) / me.window
    }
}

/// Tolerance within which path qualities count as equal, because they are floats.
const TOLERANCE: f64 = 1e-9;

fn quality(member: &Member) -> f64 {
    member.between_losses / (member.rtt * member.rtt)
}

/// Returns the term that moves windows from the largest ones to the best paths.
fn window_shift(group: &Group, me: &Member) -> f64 {
    let members = &group.members;
    // Windows are compared in whole segments. Otherwise, equal windows would take turns being the largest by a fraction
    // of a segment.
    let whole = |member: &Member| member.window as u64;
    let largest = members.iter().map(whole).max().unwrap_or(0);
    let best = members.iter().map(quality).fold(f64::MIN_POSITIVE, f64::max) * (1.0 - TOLERANCE);
    let has_largest = |member: &Member| whole(member) == largest;
    let collects = |member: &Member| quality(member) >= best && !has_largest(member);
    let collecting = members.iter().filter(|member| collects(member)).count();
    if collecting == 0 {
        return 0.0;
    }
    let all = members.len() as f64;
    if collects(me) {
        1.0 / (all * collecting as f64)
    } else if has_largest(me) {
        let giving = members.iter().filter(|member| has_largest(member)).count();
        -1.0 / (all * giving as f64)
    } else {
        0.0
    }
}

/// OLIA congestion control of one subflow.
pub type Olia = Coupled<Opportunistic>;

#[cfg(test)]
mod tests {
    use super::super::tests::{group, member};
    use super::*;

    fn with_history(window: f64, rtt: f64, between_losses: f64) -> Member {
        Member { between_losses, ..member(window, rtt) }
    }

    #[test]
    fn equal_paths_together_grow_like_one_tcp() {
        let group = group([with_history(10.0, 0.1, 1e5), with_history(10.0, 0.1, 1e5)]);
        // (10 / 0.01) / 200^2 = 1/40, and nothing is moved.
        assert!((Opportunistic::increase(&group) - 1.0 / 40.0).abs() < 1e-12);
    }

    #[test]
    fn the_best_path_with_the_smaller_window_collects_from_the_largest() {
        let small_and_good = with_history(5.0, 0.1, 9e5);
        let large_and_bad = with_history(20.0, 0.1, 1e5);
        let base = |window: f64| window / 0.01 / (250.0 * 250.0);
        let mine = group([small_and_good, large_and_bad]);
        assert!((Opportunistic::increase(&mine) - (base(5.0) + 0.5 / 5.0)).abs() < 1e-12);
        let other = group([large_and_bad, small_and_good]);
        assert!((Opportunistic::increase(&other) - (base(20.0) - 0.5 / 20.0)).abs() < 1e-12);
    }

    #[test]
    fn a_third_path_is_left_alone_and_several_share() {
        let members = [
            with_history(5.0, 0.1, 9e5),
            with_history(4.0, 0.1, 9e5),
            with_history(20.0, 0.1, 1e5),
        ];
        let shift_of = |me: usize| {
            let mut group = group(members);
            group.members.iter_mut().enumerate().for_each(|(i, m)| m.is_own = i == me);
            window_shift(&group, group.own_member().unwrap())
        };
        assert!((shift_of(0) - 1.0 / 6.0).abs() < 1e-12);
        assert!((shift_of(1) - 1.0 / 6.0).abs() < 1e-12);
        assert!((shift_of(2) + 1.0 / 3.0).abs() < 1e-12);
        let all: f64 = (0..3).map(shift_of).sum();
        assert!(all.abs() < 1e-12, "the shifts sum to zero");
    }

    #[test]
    fn the_best_path_counts_the_rtt_squared() {
        // Twice the bytes between losses at twice the RTT is half as good.
        let near = with_history(5.0, 0.1, 1e5);
        let far = with_history(20.0, 0.2, 2e5);
        assert!(window_shift(&group([near, far]), &Member { is_own: true, ..near }) > 0.0);
    }
}
