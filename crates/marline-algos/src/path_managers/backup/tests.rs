use marline_policy::SubflowId;

use super::*;
use crate::path_managers::testing::{Harness, local, open};

fn prio(id: u8, backup: bool) -> PathAction {
    PathAction::SetBackup { id: SubflowId(id), backup }
}

fn harness(from: &str) -> Harness<Backup> {
    Harness::client(&[local(1, "192.0.2.7:0"), local(2, "198.51.100.7:0")], from)
}

#[test]
fn all_but_the_primary_stand_by() {
    let mut w = harness("192.0.2.7:40000");
    let actions = w.event(PathEvent::Established);
    assert_eq!(actions, [open(2, 0, true)]);
    assert!(w.report_established(1, actions[0]).is_empty(), "already opened with the flag");
}

#[test]
fn if_another_path_won_the_race_priorities_are_put_right() {
    let mut w = harness("198.51.100.7:40000");
    assert_eq!(w.event(PathEvent::Established), [open(1, 0, false), prio(0, true)]);
    assert!(
        w.report_established(1, open(1, 0, false)).is_empty(),
        "requested once, even if the view is old"
    );
    w.views[0].backup = true;
    w.down(0);
    let (_, actions) = w.fire_timeout();
    assert_eq!(actions, [open(2, 0, true)]);
}

#[test]
fn a_primary_that_returns_is_regular_again() {
    let mut w = harness("192.0.2.7:40000");
    let spare = w.event(PathEvent::Established)[0];
    w.report_established(1, spare);
    w.local[0].up = false;
    w.event(PathEvent::LocalDown(AddressId(1)));
    assert!(w.down(0).is_empty());
    w.local[0].up = true;
    assert_eq!(w.event(PathEvent::LocalUp(AddressId(1))), [open(1, 0, false)]);
}

#[test]
fn the_flag_of_an_address_counts() {
    let all =
        [LocalAddress { backup: true, ..local(1, "192.0.2.7:0") }, local(2, "198.51.100.7:0")];
    let mut w: Harness<Backup> = Harness::client(&all, "198.51.100.7:40000");
    assert_eq!(w.event(PathEvent::Established), [open(1, 0, true)]);
}

#[test]
fn a_server_leaves_priorities_to_the_client() {
    let mut w = harness("198.51.100.7:40000");
    w.role = Role::Server;
    assert!(w.event(PathEvent::Established).is_empty());
}
