use marline_policy::{Health, SubflowId, SubflowSet};
use marline_testkit::views::{
    DEGRADED, Stream, UNREACHABLE, UNREACHABLE_ON_DEGRADED_PAIR, backup, degraded, full, gone,
    paced, range, send, set, unreachable, view,
};
use proptest::prelude::*;

use super::*;

/// Builds a subflow that last brought something new at this time.
fn news(view: SubflowView, ms: u64) -> SubflowView {
    SubflowView { last_new_at: Instant::from_millis(ms), ..view }
}

fn decide(config: FollowClientConfig, subflows: &[SubflowView]) -> Decision {
    FollowClient::new(config).next_send(&Stream::new(5_000).context(subflows))
}

#[test]
fn decision_table() {
    let wifi = |ms| news(view(0, 20), ms);
    let cell = |ms| news(backup(view(1, 60)), ms);
    let other = |ms| news(view(2, 90), ms);
    let pacer = Decision::WaitUntil(Instant::from_millis(3));
    let table: &[(&str, &[SubflowView], Decision)] = &[
        ("nothing", &[], Decision::Wait),
        ("alone", &[cell(0)], send(1, 0, 5_000)),
        ("the newest, not the fastest", &[wifi(5), other(6)], send(2, 0, 5_000)),
        ("equal stamps: the lower slot", &[wifi(5), other(5)], send(0, 0, 5_000)),
        ("a backup that is not newer", &[wifi(5), cell(5)], send(0, 0, 5_000)),
        ("a backup that is strictly newer", &[wifi(5), cell(6)], send(1, 0, 5_000)),
        ("newer than one, but not than all", &[wifi(5), cell(6), other(7)], send(2, 0, 5_000)),
        ("followed and full: waited for", &[wifi(5), full(other(6))], Decision::Wait),
        ("followed and paced: until then", &[wifi(5), paced(cell(6), 3)], pacer),
        ("silent: last", &[unreachable(wifi(9), 9), cell(1)], send(1, 0, 5_000)),
        ("degraded address pair: last", &[degraded(wifi(9)), cell(1)], send(1, 0, 5_000)),
        (
            "degraded but receiving, before timed out",
            &[unreachable(wifi(9), 99), degraded(cell(1))],
            send(1, 0, 5_000),
        ),
        (
            "all failed: received something last",
            &[unreachable(wifi(9), 3), unreachable(cell(1), 4)],
            send(1, 0, 5_000),
        ),
        ("gone", &[gone(other(9)), wifi(1)], send(0, 0, 5_000)),
    ];
    for (name, subflows, expected) in table {
        assert_eq!(decide(FollowClientConfig::default(), subflows), *expected, "{name}");
    }
    let empty = Stream::new(0);
    assert_eq!(FollowClient::default().next_send(&empty.context(&[wifi(1)])), Decision::Wait);
}

#[test]
fn multimob_spills_over_to_a_path_with_room_but_not_an_older_backup() {
    let wifi = |ms| news(view(0, 20), ms);
    let cell = |ms| news(backup(view(1, 60)), ms);
    let other = |ms| news(view(2, 90), ms);
    let table: &[(&str, &[SubflowView], Decision)] = &[
        ("another regular one", &[full(wifi(6)), other(5)], send(2, 0, 5_000)),
        ("no backup that is older", &[full(wifi(6)), cell(5)], Decision::Wait),
        (
            "the regular one, if the newer backup is full",
            &[wifi(5), full(cell(6))],
            send(0, 0, 5_000),
        ),
        ("a newer backup before a regular one", &[full(wifi(5)), cell(6)], send(1, 0, 5_000)),
        ("no degraded subflow", &[full(wifi(6)), degraded(other(5))], Decision::Wait),
    ];
    for (name, subflows, expected) in table {
        assert_eq!(decide(FollowClientConfig::MULTIMOB, subflows), *expected, "{name}");
    }
}

fn reinject(subflows: &[SubflowView], carried_by: SubflowSet, cause: ReinjectionCause) -> Decision {
    let item = Reinjection { range: range(0, 1_000), carried_by, cause, since: Instant::ZERO };
    FollowClient::default().next_reinjection(&item, &Stream::new(5_000).context(subflows))
}

#[test]
fn repeats_go_where_the_client_is() {
    let wifi = news(view(0, 20), 5);
    let cell = news(backup(view(1, 60)), 6);
    let probe = ReinjectionCause::UnansweredProbe;
    assert_eq!(reinject(&[wifi, cell], set(&[0]), probe), send(1, 0, 1_000));
    assert_eq!(reinject(&[wifi, full(cell)], set(&[0]), probe), Decision::Wait, "it is waited for");
    assert_eq!(
        reinject(&[wifi, cell], set(&[1]), probe),
        Decision::Wait,
        "in flight on that subflow"
    );
    let all = set(&[0, 1]);
    assert_eq!(reinject(&[wifi, cell], all, ReinjectionCause::DataRto), send(1, 0, 1_000));
    let dead = [unreachable(wifi, 3), unreachable(cell, 4)];
    assert_eq!(
        reinject(&dead, set(&[1]), probe),
        send(0, 0, 1_000),
        "none is healthy: the other one"
    );
    assert_eq!(reinject(&dead, all, probe), Decision::Wait);
    assert_eq!(reinject(&[], set(&[0]), probe), Decision::Wait);
}

fn any_view(id: u8) -> impl Strategy<Value = SubflowView> {
    let health = prop_oneof![
        Just(Health::Usable),
        Just(DEGRADED),
        Just(UNREACHABLE),
        Just(UNREACHABLE_ON_DEGRADED_PAIR)
    ];
    let state = (any::<bool>(), health, 0..4u8);
    (state, 0..9u64, 0..9u64).prop_map(move |((is_backup, health, room), new, heard)| {
        let view = SubflowView {
            backup: is_backup,
            health,
            last_rx_at: Instant::from_millis(heard),
            ..news(marline_testkit::views::view(id, 10), new)
        };
        match room {
            0 => gone(view),
            1 => full(view),
            _ => view,
        }
    })
}

proptest! {
    /// For any snapshot: data goes only where there is room, and never to another subflow while a healthy one is
    /// usable.
    #[test]
    fn nothing_worse_while_anything_healthy_is_usable(
        subflows in (any_view(0), any_view(1), any_view(2)).prop_map(|(a, b, c)| [a, b, c]),
        spills in any::<bool>(),
    ) {
        let config = FollowClientConfig { uses_other_subflows: spills, ..FollowClientConfig::default() };
        if let Decision::Send { subflow: SubflowId(id), .. } = decide(config, &subflows) {
            let taken = subflows[usize::from(id)];
            prop_assert!(taken.is_ready());
            let healthy = |view: &SubflowView| view.is_active() && view.health.is_usable();
            prop_assert!(healthy(&taken) || !subflows.iter().any(healthy));
            let newer = |v: &&SubflowView| healthy(v) && !v.backup && v.last_new_at >= taken.last_new_at;
            prop_assert!(!taken.backup || !healthy(&taken) || !subflows.iter().any(|v| newer(&v)));
        }
    }
}
