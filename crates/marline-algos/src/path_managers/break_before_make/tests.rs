use marline_policy::{Health, UnreachableCause};
use marline_testkit::views::{DEGRADED, UNREACHABLE, UNREACHABLE_ON_DEGRADED_PAIR};

use super::*;
use crate::path_managers::testing::{Harness, addr, local, open};

const CELL: u8 = 2;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Creates a phone on WiFi (address 1), with cellular (address 2) as the backup.
fn phone() -> Harness<BreakBeforeMake> {
    let cell = LocalAddress { backup: true, ..local(CELL, "198.51.100.7:0") };
    let mut w = Harness::client(&[local(1, "192.0.2.7:0"), cell], "192.0.2.7:40000");
    assert!(w.event(PathEvent::Established).is_empty(), "cellular stays asleep");
    w
}

fn fast(local: u8) -> PathAction {
    PathAction::OpenSubflow {
        local: AddressId(local),
        remote: AddressId(0),
        backup: true,
        fast: true,
    }
}

fn id(slot: u8) -> SubflowId {
    SubflowId(slot)
}

/// Creates a phone whose WiFi address pair is bad and which uses cellular.
fn on_cellular() -> Harness<BreakBeforeMake> {
    let mut w = phone();
    w.views[0].health = DEGRADED;
    let actions = w.event(PathEvent::AddressPair { id: id(0), degraded: true });
    assert_eq!(actions, [fast(CELL)]);
    assert!(w.report_established(1, actions[0]).is_empty());
    w
}

#[test]
fn nothing_is_sent_on_cellular_while_wifi_does() {
    let mut w = phone();
    w.has_unacked_data = true;
    for event in [PathEvent::Reachable(id(0)), PathEvent::LocalUp(AddressId(CELL))] {
        assert!(w.event(event).is_empty());
    }
    assert_eq!(w.manager.next_timeout(), None, "no timer is set");
}

#[test]
fn failure_signs_open_cellular_immediately() {
    type Change = fn(&mut Harness<BreakBeforeMake>) -> PathEvent;
    let reasons: [(&str, Change); 5] = [
        ("path health", |w| {
            w.views[0].health = DEGRADED;
            PathEvent::AddressPair { id: id(0), degraded: true }
        }),
        ("the receive timer", |w| {
            w.views[0].health = UNREACHABLE;
            PathEvent::Silent { id: id(0), cause: UnreachableCause::ReceiveTimer }
        }),
        ("MP_PRIO", |w| {
            w.views[0].backup = true;
            PathEvent::Priority { id: id(0), backup: true }
        }),
        ("the address is gone", |w| {
            w.local[0].up = false;
            w.paths.clear();
            w.views.clear();
            PathEvent::LocalDown(AddressId(1))
        }),
        ("data waits and there is no subflow", |w| {
            w.has_unacked_data = true;
            w.paths.clear();
            w.views.clear();
            let (local, remote) = (AddressId(1), AddressId(0));
            PathEvent::SubflowDown { id: id(0), local, remote, was_established: true }
        }),
    ];
    for (name, change) in reasons {
        let mut w = phone();
        let event = change(&mut w);
        assert_eq!(w.event(event), [fast(CELL)], "{name}");
    }
}

#[test]
fn silence_is_given_some_time() {
    let mut w = phone();
    w.views[0].health = UNREACHABLE;
    assert!(w.event(PathEvent::Unreachable(id(0))).is_empty());
    assert_eq!(w.fire_timeout(), (at(75), vec![PathAction::Probe(id(0))]), "one probe");
    w.now += at(74);
    assert!(w.event(PathEvent::LocalUp(AddressId(CELL))).is_empty(), "a moment before");
    assert_eq!(w.fire_timeout(), (at(1), vec![fast(CELL)]));

    let mut w = phone();
    w.views[0].health = UNREACHABLE;
    w.event(PathEvent::Unreachable(id(0)));
    w.views[0].health = Health::Usable;
    assert!(w.event(PathEvent::Reachable(id(0))).is_empty());
    assert_eq!(w.manager.next_timeout(), None, "the path has recovered");
}

/// At the edge of a cell, an ACK arrives now and then.
#[test]
fn a_path_heard_only_briefly_has_not_recovered() {
    for (healthy_ms, opens_after_ms) in [(60, 100), (199, 100), (200, 150), (300, 150)] {
        let mut w = phone();
        w.views[0].health = UNREACHABLE;
        w.event(PathEvent::Unreachable(id(0)));
        w.now += at(50);
        w.views[0].health = Health::Usable;
        assert!(w.event(PathEvent::Reachable(id(0))).is_empty());
        w.now += at(healthy_ms);
        w.views[0].health = UNREACHABLE;
        assert!(w.event(PathEvent::Unreachable(id(0))).is_empty());
        let failed_at = w.now;
        assert_eq!(w.fire_timeout().1, [PathAction::Probe(id(0))]);
        assert_eq!(w.fire_timeout().1, [fast(CELL)]);
        assert_eq!(w.now - failed_at, at(opens_after_ms), "{healthy_ms} ms");
    }
}

#[test]
fn another_primary_path_is_enough() {
    let mut w = phone();
    w.local.push(local(3, "203.0.113.7:0"));
    let wired = w.event(PathEvent::LocalUp(AddressId(3)));
    assert_eq!(wired, [open(3, 0, false)]);
    w.report_established(1, wired[0]);
    w.views[0].health = DEGRADED;
    assert!(w.event(PathEvent::AddressPair { id: id(0), degraded: true }).is_empty());
    w.views[1].health = DEGRADED;
    assert_eq!(w.event(PathEvent::AddressPair { id: id(1), degraded: true }), [fast(CELL)]);
}

#[test]
fn back_on_wifi_cellular_is_closed_after_a_quiet_time() {
    let mut w = on_cellular();
    w.now += at(5_000);
    w.views[1].last_new_at = w.now;
    w.views[0].health = Health::Usable;
    assert!(
        w.event(PathEvent::AddressPair { id: id(0), degraded: false }).is_empty(),
        "not immediately"
    );
    let (slept, actions) = w.fire_timeout();
    assert_eq!((slept, actions), (at(2_000), vec![PathAction::CloseSubflow(id(1))]));
    assert!(w.down(1).is_empty());
    // It is opened again immediately, although the subflow was short-lived.
    w.views[0].health = DEGRADED;
    assert_eq!(w.event(PathEvent::AddressPair { id: id(0), degraded: true }), [fast(CELL)]);
}

#[test]
fn cellular_is_not_closed_while_it_is_used_nor_before_wifi_has_settled() {
    let mut w = on_cellular();
    w.now += at(60_000);
    w.views[0].health = Health::Usable;
    assert!(w.event(PathEvent::AddressPair { id: id(0), degraded: false }).is_empty());
    w.views[1].bytes_in_flight = 1_000;
    assert_eq!(
        w.fire_timeout(),
        (at(1_000), vec![]),
        "quiet for a long time, but data is in flight"
    );
    w.views[1].bytes_in_flight = 0;
    w.views[0].health = UNREACHABLE;
    w.event(PathEvent::Unreachable(id(0)));
    w.views[0].health = Health::Usable;
    w.event(PathEvent::Reachable(id(0)));
    let (slept, actions) = w.fire_timeout();
    assert_eq!((slept, actions), (at(1_000), vec![PathAction::CloseSubflow(id(1))]));
}

#[test]
fn wifi_that_comes_back_is_joined_from_immediately() {
    let mut w = phone();
    w.local[0].up = false;
    w.paths.clear();
    w.views.clear();
    let cell = w.event(PathEvent::LocalDown(AddressId(1)))[0];
    w.report_established(1, cell);
    w.now += at(7_000);
    w.local[0].up = true;
    let wifi = w.event(PathEvent::LocalUp(AddressId(1)));
    assert_eq!(wifi, [open(1, 0, false)]);
    w.views[0].last_new_at = w.now;
    w.report_established(2, wifi[0]);
    assert_eq!(w.fire_timeout(), (at(2_000), vec![PathAction::CloseSubflow(id(1))]));
}

#[test]
fn a_failed_path_is_probed_less_and_less_often() {
    let mut w = phone();
    w.views[0].health = UNREACHABLE;
    let silent = PathEvent::Silent { id: id(0), cause: UnreachableCause::UnansweredProbes };
    let cell = w.event(silent)[0];
    w.report_established(1, cell);
    let mut waits = Vec::new();
    while waits.len() < 7 {
        let (slept, actions) = w.fire_timeout();
        assert_eq!(actions, [PathAction::Probe(id(0))]);
        waits.push(slept.as_millis());
    }
    assert_eq!(waits, [200, 400, 800, 1_600, 3_200, 3_200, 3_200]);
    w.views[0].health = UNREACHABLE_ON_DEGRADED_PAIR;
    w.event(PathEvent::AddressPair { id: id(0), degraded: true });
    assert_eq!(
        w.manager.next_timeout(),
        None,
        "path health monitoring probes degraded address pairs"
    );
}

#[test]
fn a_peer_that_does_not_follow_the_client_gets_mp_prio() {
    let mut w = phone();
    w.followed = false;
    w.views[0].health = DEGRADED;
    let cell = w.event(PathEvent::AddressPair { id: id(0), degraded: true })[0];
    let prio = |backup| PathAction::SetBackup { id: id(1), backup };
    assert_eq!(w.report_established(1, cell), [prio(false)]);
    w.views[1].backup = false;
    w.views[0].health = Health::Usable;
    assert_eq!(w.event(PathEvent::AddressPair { id: id(0), degraded: false }), [prio(true)]);
}

#[test]
fn after_a_failed_join_the_next_address_is_tried() {
    let mut w = phone();
    w.local.push(LocalAddress { backup: true, ..local(4, "203.0.113.9:0") });
    w.views[0].health = DEGRADED;
    assert_eq!(w.event(PathEvent::AddressPair { id: id(0), degraded: true }), [fast(CELL)]);
    assert_eq!(w.failed(CELL, 0), [fast(4)]);
    assert!(w.failed(4, 0).is_empty(), "the first address again, when its retry is due");
    assert_eq!(w.fire_timeout().1, [fast(CELL)]);
}

#[test]
fn a_connection_started_on_cellular_moves_to_wifi() {
    let cell = LocalAddress { backup: true, ..local(CELL, "198.51.100.7:0") };
    let mut wifi = local(1, "192.0.2.7:0");
    wifi.up = false;
    let mut w: Harness<BreakBeforeMake> = Harness::client(&[wifi, cell], "198.51.100.7:40000");
    w.views[0].backup = true;
    assert!(w.event(PathEvent::Established).is_empty());
    w.local[0].up = true;
    let join = w.event(PathEvent::LocalUp(AddressId(1)));
    assert_eq!(join, [open(1, 0, false)]);
    assert!(w.report_established(1, join[0]).is_empty(), "WiFi must settle first");
    w.now += at(60_000);
    assert_eq!(w.event(PathEvent::Reachable(id(1))), [PathAction::CloseSubflow(id(0))]);
}

#[test]
fn the_module_waits_for_a_verdict_and_never_closes() {
    let mut w = phone();
    w.manager = BreakBeforeMake::new(BreakBeforeMakeConfig::multimob());
    w.event(PathEvent::Established);
    w.views[0].health = UNREACHABLE;
    w.event(PathEvent::Unreachable(id(0)));
    assert_eq!(w.manager.next_timeout(), Some(w.now + at(1_800_000)), "practically never");
    w.views[0].health = UNREACHABLE_ON_DEGRADED_PAIR;
    let cell = w.event(PathEvent::AddressPair { id: id(0), degraded: true })[0];
    w.report_established(1, cell);
    w.views[0].health = Health::Usable;
    w.now += at(100_000);
    assert!(w.event(PathEvent::AddressPair { id: id(0), degraded: false }).is_empty());
    assert_eq!(w.manager.next_timeout(), None);
}

#[test]
fn if_every_address_is_a_backup_all_are_used() {
    let both = [
        LocalAddress { backup: true, ..local(1, "192.0.2.7:0") },
        LocalAddress { backup: true, ..local(CELL, "198.51.100.7:0") },
    ];
    let mut w: Harness<BreakBeforeMake> = Harness::client(&both, "192.0.2.7:40000");
    assert_eq!(w.event(PathEvent::Established), [open(CELL, 0, true)]);
}

#[test]
fn a_server_opens_nothing() {
    let mut w = phone();
    w.role = Role::Server;
    w.views[0].health = DEGRADED;
    assert!(w.event(PathEvent::AddressPair { id: id(0), degraded: true }).is_empty());
    assert!(w.accepts_join());
    assert_eq!(w.remote[0].address, addr("10.0.0.1:443"));
}
