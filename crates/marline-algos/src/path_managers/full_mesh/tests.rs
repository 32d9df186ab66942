use marline_policy::{
    AddressId, LocalAddress, PathAction, RemoteAddress, Role, SubflowId, SubflowPath,
};
use marline_time::Duration;

use super::*;
use crate::path_managers::Manual;
use crate::path_managers::testing::{Harness, addr, local, open};

fn two_interfaces() -> Harness<FullMesh> {
    Harness::client(&[local(1, "192.0.2.7:0"), local(2, "198.51.100.7:0")], "192.0.2.7:40000")
}

fn secs(duration: Duration) -> u64 {
    assert_eq!(duration.subsec_nanos(), 0, "{duration:?}");
    duration.as_secs()
}

#[test]
fn nothing_before_joins_are_possible_then_every_pair_without_a_subflow() {
    let mut w = two_interfaces();
    assert!(w.event(PathEvent::LocalUp(AddressId(2))).is_empty());
    let actions = w.event(PathEvent::Established);
    assert_eq!(actions, [open(2, 0, false)], "the first interface has the initial subflow");
    assert!(w.report_established(1, actions[0]).is_empty());
    w.remote.push(RemoteAddress { id: AddressId(5), address: addr("10.0.0.2:443") });
    let actions = w.event(PathEvent::Announced(AddressId(5)));
    assert_eq!(actions, [open(1, 5, false), open(2, 5, false)]);
}

#[test]
fn families_pins_flags_and_denied_joins_are_respected() {
    let v6 = local(2, "[2001:db8::7]:0");
    let pinned = LocalAddress { remote: Some(addr("127.0.0.1:7002")), ..local(3, "127.0.0.1:0") };
    let spare = LocalAddress { backup: true, ..local(4, "203.0.113.7:0") };
    let down = LocalAddress { up: false, ..local(5, "203.0.113.8:0") };
    let unused = LocalAddress { subflow: false, ..local(6, "203.0.113.9:0") };
    let all = [local(1, "192.0.2.7:0"), v6, pinned, spare, down, unused];
    let mut w: Harness<FullMesh> = Harness::client(&all, "192.0.2.7:40000");
    assert_eq!(w.event(PathEvent::Established), [open(3, 0, false), open(4, 0, true)]);
    let mut denied: Harness<FullMesh> = Harness::client(&all, "192.0.2.7:40000");
    denied.deny_join_id0 = true;
    // The pin is not the initial address, so joining it is allowed.
    assert_eq!(denied.event(PathEvent::Established), [open(3, 0, false)]);
}

#[test]
fn a_load_balancer_is_left_once_the_server_is_reached_directly() {
    let mut w = two_interfaces();
    w.deny_join_id0 = true;
    assert!(w.event(PathEvent::Established).is_empty());
    w.remote.push(RemoteAddress { id: AddressId(5), address: addr("10.0.0.2:443") });
    let actions = w.event(PathEvent::Announced(AddressId(5)));
    assert_eq!(actions, [open(2, 5, false), open(1, 5, false)]);
    assert!(
        w.report_established(2, actions[0]).is_empty(),
        "the other interface is not a substitute"
    );
    assert_eq!(w.report_established(1, actions[1]), [PathAction::CloseSubflow(SubflowId(0))]);
    assert!(w.event(PathEvent::Reachable(SubflowId(1))).is_empty());
    assert!(w.event(PathEvent::LocalUp(AddressId(2))).is_empty(), "requested once");
    assert!(w.down(0).is_empty(), "not opened again");
    assert_eq!(w.manager.next_timeout().map(|_| w.fire_timeout().1), Some(vec![]));
    // If joins are allowed everywhere, all subflows stay.
    let mut w = two_interfaces();
    w.remote.push(RemoteAddress { id: AddressId(5), address: addr("10.0.0.2:443") });
    for (slot, action) in w.event(PathEvent::Established).into_iter().enumerate() {
        assert!(w.report_established(slot as u8 + 1, action).is_empty());
    }
    assert_eq!(w.paths.len(), 4);
}

#[test]
fn two_pins_on_one_local_address_are_two_paths() {
    let pin = |id, to: &str| LocalAddress { remote: Some(addr(to)), ..local(id, "127.0.0.1:0") };
    let all = [pin(1, "10.0.0.1:443"), pin(2, "127.0.0.1:7002")];
    let mut w: Harness<FullMesh> = Harness::client(&all, "127.0.0.1:40000");
    let actions = w.event(PathEvent::Established);
    assert_eq!(actions, [open(2, 0, false)]);
    assert!(w.report_established(1, actions[0]).is_empty());
    assert_eq!(w.manager.next_timeout(), None, "both subflows exist");
}

/// WiFi supports both families, the cellular network supports only IPv4, and the server supports both.
#[test]
fn an_interface_has_a_subflow_by_one_family_until_that_fails() {
    let here = |id, address, link| LocalAddress { link, ..local(id, address) };
    let all =
        [here(1, "[2001:db8::7]:0", 3), here(2, "192.0.2.7:0", 3), here(3, "198.51.100.7:0", 4)];
    let mut w: Harness<FullMesh> = Harness::client(&all, "[2001:db8::7]:40000");
    w.remote[0].address = addr("[2001:db8:9::1]:443");
    w.paths[0].remote = w.remote[0].address;
    w.remote.push(RemoteAddress { id: AddressId(255), address: addr("10.0.0.1:443") });
    let actions = w.event(PathEvent::Established);
    assert_eq!(actions, [open(3, 255, false)], "WiFi's IPv4 address is not used as well");
    assert!(w.report_established(1, actions[0]).is_empty());
    // WiFi loses IPv6.
    w.paths.remove(0);
    w.views.remove(0);
    w.local[0].up = false;
    assert_eq!(w.event(PathEvent::LocalDown(AddressId(1))), [open(2, 255, false)]);
}

/// Both networks support both families, but the second one's IPv6 does not work.
#[test]
fn the_other_family_is_tried_where_the_first_fails() {
    let here = |id, address, link| LocalAddress { link, ..local(id, address) };
    let all = [
        here(1, "192.0.2.7:0", 3),
        here(2, "[2001:db8::7]:0", 3),
        here(3, "198.51.100.7:0", 4),
        here(4, "[2001:db8:4::7]:0", 4),
    ];
    let mut w: Harness<FullMesh> = Harness::client(&all, "[2001:db8::7]:40000");
    w.remote[0].address = addr("[2001:db8:9::1]:443");
    w.paths[0].remote = w.remote[0].address;
    w.remote.push(RemoteAddress { id: AddressId(255), address: addr("10.0.0.1:443") });
    let actions = w.event(PathEvent::Established);
    assert_eq!(actions, [open(4, 0, false)], "with the family of the first subflow");
    let (id, local, remote) = (SubflowId(1), AddressId(4), AddressId(0));
    let failed = PathEvent::SubflowDown { id, local, remote, was_established: false };
    assert_eq!(w.event(failed), [open(3, 255, false)]);
}

/// The server has only IPv4 addresses. One of them is announced, and the first belongs to a load balancer.
#[test]
fn from_a_network_with_only_ipv6_each_ipv4_address_is_reached_below_its_prefix() {
    let prefix = marline_wire::Prefix64::WELL_KNOWN;
    let cell = LocalAddress { nat64: Some(prefix), ..local(2, "[2001:db8::7]:0") };
    let mut w: Harness<FullMesh> =
        Harness::client(&[local(1, "192.0.2.7:0"), cell], "192.0.2.7:40000");
    let actions = w.event(PathEvent::Established);
    assert_eq!(actions, [open(2, 0, false)]);
    assert!(w.report_established(1, actions[0]).is_empty(), "no address is left to reach");
    let way = |path: &SubflowPath| prefix.translate_back(path.remote);
    assert!(w.paths[1].remote.is_ipv6() && way(&w.paths[1]) == w.remote[0].address);
    w.remote.push(RemoteAddress { id: AddressId(5), address: addr("10.0.0.2:443") });
    let announced = w.event(PathEvent::Announced(AddressId(5)));
    assert_eq!(announced, [open(1, 5, false), open(2, 5, false)]);
    let left =
        [w.report_established(2, announced[0]), w.report_established(3, announced[1])].concat();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(way(&w.paths[3]), addr("10.0.0.2:443"));
}

#[test]
fn with_few_slots_every_interface_gets_one_subflow_first() {
    let mut w = two_interfaces();
    w.max_subflows = 3;
    w.remote.push(RemoteAddress { id: AddressId(5), address: addr("10.0.0.2:443") });
    assert_eq!(w.event(PathEvent::Established), [open(2, 0, false), open(1, 5, false)]);
    assert!(w.accepts_join());
    w.max_subflows = 1;
    assert!(!w.accepts_join());
}

#[test]
fn a_failed_join_is_tried_again_forever_with_growing_waits() {
    let mut w = two_interfaces();
    w.event(PathEvent::Established);
    let mut waits = Vec::new();
    for _ in 0..9 {
        assert!(w.failed(2, 0).is_empty(), "not immediately");
        let mut waited = 0;
        loop {
            let (slept, actions) = w.fire_timeout();
            waited += secs(slept);
            if !actions.is_empty() {
                assert_eq!(actions, [open(2, 0, false)]);
                break;
            }
        }
        waits.push(waited);
    }
    assert_eq!(waits, [1, 2, 4, 8, 15, 15, 15, 15, 15]);
}

#[test]
fn a_dead_subflow_is_rebuilt_and_a_stable_life_forgets_the_failures() {
    let mut w = two_interfaces();
    let mut action = w.event(PathEvent::Established)[0];
    for _ in 0..5 {
        w.failed(2, 0);
        action = core::iter::repeat_with(|| w.fire_timeout().1)
            .find_map(|actions| actions.first().copied())
            .expect("it keeps trying");
    }
    w.report_established(1, action);
    w.now += Duration::from_secs(10);
    assert!(w.down(1).is_empty());
    assert_eq!(w.fire_timeout(), (Duration::from_secs(1), vec![open(2, 0, false)]));
    // A short-lived subflow does not count as success.
    w.report_established(1, action);
    w.now += Duration::from_secs(9);
    w.down(1);
    assert_eq!(w.fire_timeout(), (Duration::from_secs(1), vec![]));
    assert_eq!(w.fire_timeout(), (Duration::from_secs(1), vec![open(2, 0, false)]));
}

#[test]
fn without_any_subflow_tries_are_never_more_than_two_seconds_apart() {
    let mut w = two_interfaces();
    w.event(PathEvent::Established);
    for _ in 0..6 {
        w.failed(2, 0);
        while w.fire_timeout().1.is_empty() {}
    }
    w.failed(2, 0);
    assert_eq!(w.down(0), [open(1, 0, false)], "the first attempt is immediate");
    w.failed(1, 0);
    let begin = w.now;
    let mut tries = Vec::new();
    while w.now - begin < Duration::from_secs(60) {
        for action in w.fire_timeout().1 {
            let PathAction::OpenSubflow { local, .. } = action else { panic!("{action:?}") };
            tries.push((local, w.now));
            w.failed(local.0, 0);
        }
    }
    for id in [1, 2] {
        let times: Vec<_> = tries.iter().filter(|(l, _)| l.0 == id).map(|(_, t)| *t).collect();
        assert!(times.len() >= 29, "{id}: {times:?}");
        assert!(times.windows(2).all(|w| w[1] - w[0] <= Duration::from_secs(2)), "{times:?}");
    }
}

#[test]
fn an_interface_that_comes_back_is_used_immediately() {
    let mut w = two_interfaces();
    w.event(PathEvent::Established);
    for _ in 0..6 {
        w.failed(2, 0);
        while w.fire_timeout().1.is_empty() {}
    }
    w.failed(2, 0);
    w.local[1].up = false;
    assert!(w.event(PathEvent::LocalDown(AddressId(2))).is_empty());
    while w.manager.next_timeout().is_some() {
        assert!(w.fire_timeout().1.is_empty(), "nothing is opened from an address that is gone");
    }
    w.local[1].up = true;
    assert_eq!(w.event(PathEvent::LocalUp(AddressId(2))), [open(2, 0, false)]);
}

#[test]
fn a_server_announces_unknown_addresses_and_opens_no_subflow() {
    let signal = |id, address| LocalAddress { signal: true, ..local(id, address) };
    let all = [signal(1, "10.0.0.1:443"), signal(2, "10.0.0.2:443"), signal(3, "10.0.0.1:8443")];
    let mut w: Harness<FullMesh> = Harness::client(&all, "10.0.0.1:443");
    w.role = Role::Server;
    let announce = |id| PathAction::Announce(AddressId(id));
    assert_eq!(w.event(PathEvent::Established), [announce(2), announce(3)]);
    assert!(w.event(PathEvent::SubflowUp(SubflowId(0))).is_empty(), "once");
    w.local[1].up = false;
    let actions = w.event(PathEvent::LocalDown(AddressId(2)));
    assert_eq!(actions, [PathAction::Withdraw(AddressId(2))]);
    w.local[1].up = true;
    assert_eq!(w.event(PathEvent::LocalUp(AddressId(2))), [announce(2)]);
    assert_eq!(w.manager.next_timeout(), None);
}

#[test]
fn an_address_withdrawn_is_not_tried_and_a_new_announcement_is_tried_immediately() {
    let mut w = two_interfaces();
    w.event(PathEvent::Established);
    w.remote.push(RemoteAddress { id: AddressId(5), address: addr("10.0.0.2:443") });
    w.event(PathEvent::Announced(AddressId(5)));
    let gone = w.remote.pop().expect("just added");
    w.event(PathEvent::Removed(AddressId(5)));
    while w.now < Instant::from_secs(120) && w.manager.next_timeout().is_some() {
        assert!(!w.fire_timeout().1.contains(&open(1, 5, false)));
    }
    w.remote.push(gone);
    let actions = w.event(PathEvent::Announced(AddressId(5)));
    assert!(actions.contains(&open(1, 5, false)) && actions.contains(&open(2, 5, false)));
}

#[test]
fn manual_does_nothing_by_itself() {
    let all =
        [local(1, "192.0.2.7:0"), LocalAddress { signal: true, ..local(2, "198.51.100.7:0") }];
    let mut w: Harness<Manual> = Harness::client(&all, "192.0.2.7:40000");
    assert!(w.event(PathEvent::Established).is_empty());
    assert!(w.down(0).is_empty());
    assert_eq!(w.manager.next_timeout(), None);
    assert!(w.accepts_join());
}

/// A NAT may have lost this translation; other ports would get through.
#[test]
fn a_pair_whose_only_subflow_is_stuck_gets_another_until_it_is_heard() {
    let only = [local(1, "192.0.2.7:0")];
    let mut w: Harness<FullMesh> = Harness::client(&only, "192.0.2.7:40000");
    assert!(w.event(PathEvent::Established).is_empty());
    let actions = w.event(PathEvent::Stuck(SubflowId(0)));
    assert_eq!(actions, [open(1, 0, false)]);
    assert!(w.report_established(1, actions[0]).is_empty(), "one subflow is enough");
    let mut w: Harness<FullMesh> = Harness::client(&only, "192.0.2.7:40000");
    w.event(PathEvent::Established);
    w.event(PathEvent::Unreachable(SubflowId(0)));
    w.event(PathEvent::Stuck(SubflowId(0)));
    w.event(PathEvent::Reachable(SubflowId(0)));
    w.now += Duration::from_secs(60);
    assert!(w.event(PathEvent::LocalUp(AddressId(9))).is_empty(), "the subflow was only slow");
}
