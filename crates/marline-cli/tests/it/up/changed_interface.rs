//! Other programs change the interface, as NetworkManager does when networking is switched off or the machine sleeps:
//! the tunnel returns, and open connections continue.

use super::{TARGET_V4, TARGET_V6, World, page, support};

#[test]
fn an_interface_that_another_program_changes_is_restored() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-changed", &[]) else { return };
    world.up("--path wifi --path lte");
    let open = world.spawn(&format!(
        "curl -sf -m 120 --limit-rate 400k -o open {}; wc -c < open",
        page(TARGET_V4, 4_000_000)
    ));
    let file = world.dir().join("open");
    world.wait_until("data", || file.metadata().is_ok_and(|file| file.len() > 0));
    for change in [
        "ip link set marline0 down",
        "ip addr flush dev marline0",
        "ip link set marline0 down; ip addr flush dev marline0; ip link set marline0 mtu 1280",
        "ip route flush table 28001; ip -6 route flush table 28001",
    ] {
        world.run(change);
        world.wait_until(change, || !world.goes_directly());
        world.wait_until(change, || world.fetches(&page(&format!("[{TARGET_V6}]"), 1_000)));
        assert!(world.fetches(&page("www.example.test", 1_000)), "{change}");
    }
    assert!(world.run("ip link show marline0").contains("mtu 8240"));
    let output = open.wait_with_output().expect("output");
    let (out, err) = support::texts(&output);
    assert_eq!(out.trim(), "4000000", "{err}");
}
