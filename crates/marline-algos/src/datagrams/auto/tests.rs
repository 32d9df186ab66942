use marline_policy::{AddressPairFault, Forecast, Health, UnreachableCause};

use super::*;
use crate::datagrams::testing::{NOW, context, flow, path};

fn class(class: FlowClass) -> FlowView {
    FlowView { class, ..flow() }
}

fn route(paths: &[DatagramPathView], flow: &FlowView) -> (u8, Option<u8>) {
    let Route { path, copy, .. } = Auto::default().route(&context(paths), flow);
    (path.0, copy.map(|copy| copy.0))
}

/// Creates a policy that has spent this share of its budget.
fn spent(share: f64) -> Auto {
    let mut auto = Auto::default();
    auto.on_sent(NOW, 4_000_000, false);
    auto.on_sent(NOW, (1_000_000.0 * share) as u64, true);
    auto
}

#[test]
fn a_sparse_flow_is_on_two_paths_while_the_budget_lasts() {
    let paths = [path(0, 30), path(1, 90)];
    assert_eq!(route(&paths, &class(FlowClass::Sparse)), (0, Some(1)));
    let sparse = class(FlowClass::Sparse);
    assert_eq!(spent(1.1).route(&context(&paths), &sparse).copy, None);
}

#[test]
fn a_call_uses_only_the_earlier_path_while_it_is_healthy() {
    assert_eq!(route(&[path(0, 90), path(1, 30)], &flow()), (1, None));
}

#[test]
fn a_slightly_better_path_does_not_attract_a_flow() {
    let paths = [path(0, 30), path(1, 32)];
    let on_second = FlowView { last: Some((PathId(1), NOW)), ..flow() };
    assert_eq!(route(&paths, &on_second).0, 1);
    assert_eq!(route(&[path(0, 20), path(1, 32)], &on_second).0, 0);
}

#[test]
fn signs_of_trouble_bring_a_copy_until_they_are_over() {
    let mut paths = [path(0, 30), path(1, 90)];
    paths[0].last_trouble_at = Some(Instant::from_millis(99_000));
    assert_eq!(route(&paths, &flow()), (0, Some(1)));
    paths[0].last_trouble_at = Some(Instant::from_millis(98_000));
    assert_eq!(route(&paths, &flow()), (0, None));
    paths[0].rttvar = Duration::from_millis(10);
    assert_eq!(route(&paths, &flow()), (0, Some(1)));
    assert_eq!(spent(1.1).route(&context(&paths), &flow()).copy, None);
}

#[test]
fn backups_and_metered_paths_are_spared() {
    let mut paths = [path(0, 60), path(1, 30)];
    paths[1].backup = true;
    assert_eq!(route(&paths, &class(FlowClass::Sparse)), (0, None));
    paths[1].backup = false;
    paths[1].metered = true;
    paths[0].srtt = Some(Duration::from_millis(25));
    paths[0].forecast = path(0, 25).forecast;
    assert_eq!(route(&paths, &class(FlowClass::Sparse)), (0, None));
    // A path in trouble justifies the metered path, and a failing one justifies the backup.
    paths[0].last_trouble_at = Some(NOW);
    assert_eq!(route(&paths, &class(FlowClass::Sparse)), (0, Some(1)));
    paths[1].backup = true;
    paths[0].health = Health::Unreachable { since: NOW, cause: UnreachableCause::ProbeTimeout };
    assert_eq!(route(&paths, &class(FlowClass::Sparse)).0, 1);
}

#[test]
fn a_costly_path_is_used_only_if_it_saves_enough_time() {
    let costs: [fn(&mut DatagramPathView); 2] =
        [|path| path.metered = true, |path| path.radio = true];
    for cost in costs {
        let goes = |other_ms: u64, class_of: FlowClass| {
            let mut paths = [path(0, other_ms), path(1, 30)];
            cost(&mut paths[1]);
            route(&paths, &class(class_of))
        };
        assert_eq!(goes(60, FlowClass::Sparse), (0, None));
        assert_eq!(goes(100, FlowClass::Steady).0, 0);
        assert_eq!(goes(300, FlowClass::Steady).0, 1);
        assert_eq!(goes(300, FlowClass::Bulk), (0, None));
    }
}

#[test]
fn a_fading_or_doubtful_path_is_left_for_a_healthy_one() {
    let mut paths = [path(0, 30), path(1, 60)];
    paths[0].fading = true;
    assert_eq!(route(&paths, &flow()).0, 1);
    paths[0].fading = false;
    paths[0].health = Health::Degraded { since: NOW, cause: AddressPairFault::Loss };
    assert_eq!(route(&paths, &flow()).0, 1);
}

#[test]
fn an_overdue_datagram_is_rescued_if_it_is_still_useful() {
    let paths = [path(0, 30), path(1, 90)];
    let rescue = |auto: &mut Auto, flow: &FlowView| auto.rescue(&context(&paths), flow, PathId(0));
    assert_eq!(rescue(&mut Auto::default(), &flow()), Some(PathId(1)));
    assert_eq!(rescue(&mut spent(1.2), &flow()), Some(PathId(1)));
    assert_eq!(rescue(&mut spent(1.3), &flow()), None);
    let late = FlowView { deadline: NOW + Duration::from_millis(40), ..flow() };
    assert_eq!(rescue(&mut Auto::default(), &late), None);
    assert_eq!(rescue(&mut Auto::default(), &class(FlowClass::Bulk)), None);
}

#[test]
fn bulk_is_where_it_is_fast_and_changes_with_hesitation() {
    let with = |id, mbit| {
        let answers = [30, 33, 40].map(Duration::from_millis);
        let forecast = Forecast::with_quantiles(answers, 0.0, Some(Rate::from_mbit(mbit)));
        DatagramPathView { forecast, ..path(id, 30) }
    };
    let bulk = class(FlowClass::Bulk);
    let paths = [with(0, 10), with(1, 20)];
    assert_eq!(route(&paths, &bulk), (1, None));
    let on = |since| FlowView { last: Some((PathId(0), since)), ..bulk };
    assert_eq!(route(&paths, &on(NOW)).0, 0);
    assert_eq!(route(&paths, &on(Instant::from_secs(95))).0, 1);
    assert_eq!(route(&[with(0, 16), with(1, 20)], &on(Instant::from_secs(95))).0, 0);
    // A move to a much faster path happens immediately.
    assert_eq!(route(&[with(0, 5), with(1, 20)], &on(NOW)).0, 1);
    // Bulk waits for a path that has just fallen silent.
    let unreachable = |since| {
        let health = Health::Unreachable { since, cause: UnreachableCause::ProbeTimeout };
        [DatagramPathView { health, ..with(0, 20) }, with(1, 20)]
    };
    assert_eq!(route(&unreachable(Instant::from_millis(99_500)), &on(NOW)).0, 0);
    assert_eq!(route(&unreachable(Instant::from_millis(98_500)), &on(NOW)).0, 1);
}

#[test]
fn a_burst_on_a_path_that_loses_single_packets_is_repaired_and_not_copied() {
    let mut paths = [path(0, 30), path(1, 90)];
    // The path has just lost a frame.
    (paths[0].last_trouble_at, paths[0].lone_losses) = (Some(NOW), 0.01);
    let burst = FlowView { burst: 2.5, ..flow() };
    let repaired = |paths: &[DatagramPathView], flow: &FlowView| {
        let Route { copy, grouped, .. } = Auto::default().route(&context(paths), flow);
        (copy.is_some(), grouped)
    };
    assert_eq!(repaired(&paths, &burst), (false, true));
    // One datagram at a time, a peer without repair support, or an overdue answer.
    assert_eq!(repaired(&paths, &flow()), (true, false));
    let old_peer = DatagramContext { repairs: false, ..context(&paths) };
    assert!(!Auto::default().route(&old_peer, &burst).grouped);
    paths[0].overdue = Duration::from_millis(5);
    assert_eq!(repaired(&paths, &burst), (false, true));
    paths[0].stalled = Duration::from_millis(5);
    assert_eq!(repaired(&paths, &burst), (true, false));
}

#[test]
fn the_fuller_a_group_the_more_of_the_budget_its_repairs_may_take() {
    let paths = [path(0, 30), path(1, 90)];
    let burst = FlowView { burst: 2.5, ..flow() };
    let repairs = |share, frames| {
        let group = Group { frames, on: PathId(0) };
        let repairs = spent(share).repairs(&context(&paths), &burst, group);
        repairs.map(|repairs| (repairs.path.0, repairs.count))
    };
    assert_eq!(
        [1, 2, 3, 4, 5, 16].map(|frames| repairs(0.2, frames)),
        [Some((1, 1)), Some((1, 1)), Some((1, 1)), Some((1, 1)), Some((1, 2)), Some((1, 4)),]
    );
    let some = |share| [1, 2, 3, 4].map(|frames| repairs(share, frames).is_some());
    assert_eq!(some(0.4), [false, true, true, true]);
    assert_eq!(some(0.6), [false, false, true, true]);
    assert_eq!(some(0.95), [false, false, false, true]);
    assert_eq!(some(1.1), [false; 4]);
}
