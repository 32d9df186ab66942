use marline_policy::{AddressId, LocalAddress, PathCost, PathManager as _};
use marline_testkit::views::{DEGRADED, UNREACHABLE};

use super::*;
use crate::path_managers::FullMesh;
use crate::path_managers::testing::{Harness, local, open};

const LTE: u8 = 2;
const WIFI: SubflowId = SubflowId(0);

/// A phone whose connection began on WiFi (address 1). LTE (address 2) sleeps.
fn phone() -> Harness<FullMesh> {
    let cost = PathCost { tail_ms: 11_576, ..PathCost::NONE };
    let lte = LocalAddress { cost, ..local(LTE, "198.51.100.7:0") };
    let mut phone = Harness::client(&[local(1, "192.0.2.7:0"), lte], "192.0.2.7:40000");
    assert!(phone.event(PathEvent::Established).is_empty(), "LTE stays asleep");
    phone
}

fn fast() -> PathAction {
    PathAction::OpenSubflow {
        local: AddressId(LTE),
        remote: AddressId(0),
        backup: false,
        fast: true,
    }
}

/// A phone that uses LTE, as WiFi is degraded.
fn on_lte() -> Harness<FullMesh> {
    let mut phone = phone();
    phone.views[0].health = DEGRADED;
    let actions = phone.event(PathEvent::AddressPair { id: WIFI, degraded: true });
    assert_eq!(actions, [fast()]);
    phone.report_established(1, actions[0]);
    phone
}

/// Transfers the next of `bytes` over WiFi in each tenth of a second, until LTE is opened. Returns the time until then.
fn transfer(phone: &mut Harness<FullMesh>, bytes: impl Iterator<Item = u32>) -> Option<Duration> {
    let (begun, mut bytes) = (phone.now, bytes);
    let mut next_at = phone.now;
    loop {
        while next_at <= phone.now {
            phone.views[0].bytes_received =
                phone.views[0].bytes_received.wrapping_add(bytes.next()?);
            next_at += SAMPLE_INTERVAL;
        }
        let (_, actions) = phone.fire_timeout();
        if !actions.is_empty() {
            assert_eq!(actions, [open(LTE, 0, false)]);
            return Some(phone.now - begun);
        }
    }
}

#[test]
fn lte_is_opened_at_once_if_wifi_is_degraded_and_after_two_round_trips_if_it_is_silent() {
    on_lte();
    let mut phone = phone();
    phone.views[0].health = UNREACHABLE;
    assert!(phone.event(PathEvent::Unreachable(WIFI)).is_empty());
    let (waited, actions) = phone.fire_timeout();
    assert_eq!((waited, actions), (Duration::from_millis(100), vec![fast()]));
}

#[test]
fn a_lost_segment_does_not_wake_lte() {
    let mut phone = phone();
    phone.views[0].health = UNREACHABLE;
    assert!(phone.event(PathEvent::Unreachable(WIFI)).is_empty());
    phone.views[0].health = marline_policy::Health::Usable;
    assert!(phone.event(PathEvent::Reachable(WIFI)).is_empty());
    for _ in 0..20 {
        assert!(phone.fire_timeout().1.is_empty());
    }
}

#[test]
fn a_transfer_opens_lte_within_about_a_second() {
    let waited = transfer(&mut phone(), core::iter::repeat(20_000)).expect("LTE is opened");
    assert!(waited <= Duration::from_millis(1_200), "{waited:?}");
    // A slow WiFi with a long queue is also busy.
    let mut slow = phone();
    slow.views[0].srtt = slow.views[0].min_rtt.map(|rtt| rtt + LONG_QUEUE);
    assert!(transfer(&mut slow, core::iter::repeat(1_500)).is_some());
}

#[test]
fn calls_and_dialogues_do_not_wake_lte() {
    let call = core::iter::repeat_n(1_600, 1_000);
    assert_eq!(transfer(&mut phone(), call), None);
    // Three requests and answers a second.
    let dialogue = (0..1_000).map(|n| if n % 10 % 3 == 2 { 0 } else { 8_000 });
    assert_eq!(transfer(&mut phone(), dialogue), None);
}

#[test]
fn an_idle_connection_is_checked_ever_less_often() {
    let mut phone = phone();
    phone.views[0].bytes_sent = 1_000;
    let checks: Vec<Duration> = (0..20).map(|_| phone.fire_timeout().0).collect();
    assert_eq!(checks.last(), Some(&MAX_SAMPLE_INTERVAL));
}

#[test]
fn lte_is_closed_when_wifi_has_worked_for_a_while_and_lte_is_quiet() {
    let mut phone = on_lte();
    for _ in 0..20 {
        assert!(phone.fire_timeout().1.is_empty(), "WiFi does not work yet");
    }
    let returned = phone.now;
    phone.views[0].health = marline_policy::Health::Usable;
    phone.views[1].last_new_at = returned;
    let mut actions = phone.event(PathEvent::AddressPair { id: WIFI, degraded: false });
    while actions.is_empty() {
        actions = phone.fire_timeout().1;
    }
    assert_eq!(actions, [PathAction::CloseSubflow(SubflowId(1))]);
    assert_eq!(phone.now - returned, QUIET);
    // While it closes, it is still listed.
    assert!(phone.event(PathEvent::Reachable(WIFI)).is_empty());
    assert!(phone.down(1).is_empty());
    // The next failure opens it without delay.
    phone.views[0].health = DEGRADED;
    assert_eq!(phone.event(PathEvent::AddressPair { id: WIFI, degraded: true }), [fast()]);
}

#[test]
fn without_wifi_lte_is_an_ordinary_path() {
    let mut phone = phone();
    phone.local[0].up = false;
    assert_eq!(phone.event(PathEvent::LocalDown(AddressId(1))), [open(LTE, 0, false)]);
    assert!(phone.manager.next_timeout().is_some_and(|at| at > phone.now));
}

#[test]
fn a_radio_may_be_kept_awake() {
    let mut phone = phone();
    phone.manager = FullMesh::with_radios_awake();
    assert_eq!(phone.event(PathEvent::Established), [open(LTE, 0, false)]);
    assert_eq!(phone.manager.next_timeout().map(|at| at > phone.now), Some(true));
}
