use marline_policy::SubflowId;
use marline_testkit::views::{
    Stream, UNREACHABLE_ON_DEGRADED_PAIR, backup, degraded, full, gone, paced, range,
    send as sends, set, unreachable, view,
};
use marline_time::Instant;

use super::*;

#[test]
fn the_best_class_that_has_members_is_used() {
    let regular = view(0, 50);
    let spare = backup(view(1, 10));
    let table: &[(&[SubflowView], Option<Class>)] = &[
        (&[], None),
        (&[gone(regular)], None),
        (&[regular, spare], Some(Class::Regular)),
        (&[full(regular), spare], Some(Class::Regular)),
        (&[unreachable(regular, 5), spare], Some(Class::Backup)),
        (&[gone(regular), spare], Some(Class::Backup)),
        (&[unreachable(regular, 5), unreachable(spare, 9)], Some(Class::Unreachable)),
        (
            &[SubflowView { health: UNREACHABLE_ON_DEGRADED_PAIR, ..regular }, degraded(spare)],
            Some(Class::Degraded),
        ),
        (&[gone(regular), unreachable(spare, 9)], Some(Class::Unreachable)),
    ];
    for (subflows, expected) in table {
        assert_eq!(best_class(subflows), *expected, "{subflows:?}");
    }
}

#[test]
fn unknown_rtts_come_last_and_ties_go_to_the_lower_slot() {
    let unknown = SubflowView { srtt: None, ..view(0, 1) };
    let all = [unknown, view(1, 300), view(2, 300)];
    assert_eq!(pick(all.iter(), Class::Regular).map(|v| v.id), Some(SubflowId(1)));
    assert_eq!(pick([unknown].iter(), Class::Regular).map(|v| v.id), Some(SubflowId(0)));
}

#[test]
fn the_silent_subflow_heard_last_is_picked() {
    let all = [unreachable(view(0, 10), 100), unreachable(view(1, 90), 200)];
    assert_eq!(pick(all.iter(), Class::Unreachable).map(|v| v.id), Some(SubflowId(1)));
}

#[test]
fn waiting_ends_with_the_first_pacer() {
    let all = [full(view(0, 10)), paced(view(1, 20), 7), paced(view(2, 20), 5)];
    assert_eq!(wait(all.iter()), Decision::WaitUntil(Instant::from_millis(5)));
    assert_eq!(wait(all[..1].iter()), Decision::Wait);
}

fn item(carried_by: &[u8], cause: ReinjectionCause) -> Reinjection {
    Reinjection {
        range: range(3_000, 4_000),
        carried_by: set(carried_by),
        cause,
        since: Instant::ZERO,
    }
}

#[test]
fn reinjection_table() {
    use ReinjectionCause::{DataRto, SubflowClosed, SubflowRto, UnansweredProbe};
    let wifi = unreachable(view(0, 20), 100);
    let (lte, dsl, sat) = (view(1, 60), view(2, 40), backup(view(3, 600)));
    let to = |id| sends(id, 3_000, 4_000);
    let open = Decision::WaitUntil(Instant::from_millis(2));
    let table: &[(&str, &[SubflowView], Reinjection, Decision)] = &[
        ("the fastest other", &[wifi, lte, dsl], item(&[0], UnansweredProbe), to(2)),
        ("full: the next", &[wifi, lte, full(dsl)], item(&[0], SubflowRto), to(1)),
        ("all full: wait", &[wifi, full(lte), sat], item(&[0], SubflowRto), Decision::Wait),
        ("the pacer", &[wifi, paced(lte, 2), sat], item(&[0], SubflowRto), open),
        ("a copy is in flight", &[wifi, lte, sat], item(&[0, 1], SubflowRto), Decision::Wait),
        ("no regular subflow is left", &[wifi, sat], item(&[0], UnansweredProbe), to(3)),
        ("closed, only a backup", &[gone(wifi), sat], item(&[], SubflowClosed), to(3)),
        ("a backup carries it", &[wifi, sat], item(&[0, 3], SubflowRto), Decision::Wait),
        ("another silent one", &[wifi, unreachable(lte, 5)], item(&[0], SubflowRto), to(1)),
        (
            "unreachable paths: the last that answered, at any cost",
            &[wifi, unreachable(lte, 5), unreachable(dsl, 9), unreachable(sat, 50)],
            item(&[0], SubflowRto),
            to(3),
        ),
        (
            "a degraded address pair that answers, not a silent one",
            &[wifi, unreachable(lte, 5), degraded(sat)],
            item(&[0], SubflowRto),
            to(3),
        ),
        ("alone: its own retransmission", &[wifi], item(&[0], SubflowRto), Decision::Wait),
        ("data timeout: again", &[lte], item(&[1], DataRto), to(1)),
        ("data timeout, other first", &[lte, dsl], item(&[2], DataRto), to(1)),
        ("data timeout on a silent one", &[wifi], item(&[0], DataRto), to(0)),
        ("nobody", &[gone(wifi)], item(&[0], DataRto), Decision::Wait),
    ];
    let stream = Stream::new(0);
    for (name, subflows, item, expected) in table {
        assert_eq!(reinject(item, &stream.context(subflows)), *expected, "{name}");
    }
}
