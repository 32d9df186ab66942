//! Tests of every kind of end, after which the machine's network is restored, and of failed starts, which change
//! nothing.

use std::time::Duration;

use super::{TARGET_V4, World, hear, page, support};
use marline_lab::scenario::Side;
use rustix::process::{Pid, Signal, kill_process};

pub(super) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(pid, signal).expect("`marline up` runs");
}

#[test]
fn killed_outright_it_leaves_the_machine_its_network() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-kill", &[]) else { return };
    world.hosts.shell(Side::Client, "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter");
    for _ in 0..3 {
        let pid = world.up("--path wifi --path lte");
        assert!(!world.goes_directly());
        let filter = "cat /proc/sys/net/ipv4/conf/all/rp_filter";
        assert_eq!(world.run(filter), "2");
        signal(pid, Signal::KILL);
        world.wait_until("nothing is left", || world.left().is_empty());
        assert_eq!(world.run(filter), "1");
        assert!(world.goes_directly());
    }
    assert_eq!(world.run("marline down"), "`marline up` was not running");
}

#[test]
fn connections_through_it_are_reset_when_it_ends() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-term", &[]) else { return };
    let pid = world.up("--path wifi --path lte");
    let waiting = world.spawn(&format!(
        "exec 3<> /dev/tcp/{TARGET_V4}/9004; echo connected > open; ! timeout 30 cat <&3 2> /dev/null"
    ));
    world.wait_until("a connection", || world.dir().join("open").exists());
    // Signals without a function are ignored.
    signal(pid, Signal::HUP);
    signal(pid, Signal::USR1);
    assert!(world.fetches(&page(TARGET_V4, 100)));
    signal(pid, Signal::TERM);
    let output = waiting.wait_with_output().expect("output");
    assert!(output.status.success(), "the program waits forever: {output:?}");
    world.wait_until("nothing is left", || world.left().is_empty());
    assert!(world.goes_directly());
}

#[test]
fn a_second_one_says_so_and_the_first_one_stays() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-twice", &[]) else { return };
    world.up("--path wifi --path lte");
    let output = world.output("marline up --invite-file invite --path wifi");
    let (_, err) = support::texts(&output);
    assert!(!output.status.success() && err.contains("marline down"), "{err}");
    std::thread::sleep(Duration::from_millis(500));
    assert!(!world.goes_directly());
    assert!(world.fetches(&page("www.example.test", 100)));
}

#[test]
fn without_a_server_the_machine_stays_as_it_is_until_there_is_one() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-no-server", &[]) else { return };
    world
        .hosts
        .shell(Side::Server, "ip addr del 10.0.1.1/24 dev wifi; ip addr add 10.0.1.1/24 dev wifi");
    world.hosts.net.command("wifi", "down").expect("an order");
    let (lines, _) = world.start("--path wifi");
    let line = hear(&lines, "waiting for the server");
    assert!(line.contains("10.0.1.1"), "{line}");
    world.wait_until("nothing has changed", || world.left().is_empty());
    world.hosts.net.command("wifi", "up").expect("an order");
    hear(&lines, "goes through the server");
    assert!(world.fetches(&page(TARGET_V4, 100)));
}

#[test]
fn a_kill_switch_lets_nothing_past_until_down() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-switch", &[]) else { return };
    let pid = world.up("--path wifi --path lte --kill-switch");
    assert!(world.fetches(&page("www.example.test", 100)));
    // Both of its processes, as when a whole control group is killed.
    world.run(&format!("kill -KILL $(cat /proc/{pid}/task/{pid}/children) {pid}"));
    world.wait_until("the interface is gone", || !world.run("ip link show").contains("marline0"));
    for _ in 0..5 {
        let output = world.output(&format!("./seen-from {TARGET_V4} 9010 0.0.0.0 1"));
        assert!(!output.status.success(), "traffic bypasses the tunnel: {output:?}");
    }
    assert!(world.run("marline down").contains("leftover kill switch"));
    assert!(world.goes_directly());
    assert_eq!(world.left(), "");
}

#[test]
fn foreign_routing_rules_are_kept_and_ipv6_may_be_missing() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-odd", &[]) else { return };
    world.hosts.shell(Side::Client, "ip route add 192.0.2.0/24 dev lo table 28001");
    let (lines, _) = world.start("--path wifi");
    hear(&lines, "28001");
    world.hosts.shell(Side::Client, "ip route del 192.0.2.0/24 table 28001");
    world.wait_until("nothing is left", || world.left().is_empty());
    world.hosts.shell(
        Side::Client,
        "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip rule add priority 5301 to 192.0.2.0/24 lookup main",
    );
    world.up("--path wifi --path lte");
    assert!(world.fetches(&page("www.example.test", 100)));
    assert_eq!(world.run("marline down"), "stopped");
    assert!(
        world.run("ip rule show priority 5301").contains("192.0.2.0/24"),
        "a foreign rule is kept"
    );
}
