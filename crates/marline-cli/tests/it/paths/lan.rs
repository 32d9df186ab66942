//! Tests of two interfaces in one network, behind one gateway: the client answers for either address on both, and
//! the router may send packets for one address to the other interface.

use super::{Program, World, support};

const LAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/paths/lan.sh");

fn one_gateway(program: Program, carrier: &str) {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(testbed) = World::set(dir.path(), LAN, "9.9.9.1", "9.9.9.1") else { return };
    let mut world = World::join(testbed, program, carrier);
    world.talk();
    let usable = |world: &World| world.paths().iter().filter(|(_, usable)| *usable).count();
    world.wait_until("both interfaces to be usable", || usable(&world) == 2);
    for interface in ["eth0", "wlan0"] {
        // Nothing gets through, and the client is not notified.
        world.testbed.run("net", &format!("ip link set p-{interface} nomaster"));
        world.goes_on();
        world.testbed.run("net", &format!("ip link set p-{interface} master lan"));
        world.wait_until("both to be usable again", || usable(&world) == 2);
    }
}

#[test]
fn two_interfaces_behind_one_gateway_are_two_paths() {
    one_gateway(Program::Client, "auto");
}

#[test]
fn two_interfaces_behind_one_gateway_are_two_paths_over_tcp() {
    one_gateway(Program::Client, "tcp");
}

#[test]
fn two_interfaces_behind_one_gateway_are_two_paths_of_the_whole_machine() {
    one_gateway(Program::Up, "auto");
}
