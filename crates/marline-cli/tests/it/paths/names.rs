//! Tests of name resolution with the resolver behind a dead network, and a changing server address.

use super::{Program, WORLD, World, support};

/// A request with a long time limit.
const REQUEST: &str = "curl -sS --fail --max-time 20 -o /dev/null --socks5-hostname 127.0.0.1:1080 \
                       http://127.0.0.1:8080/";

fn world(dir: &std::path::Path, program: Program) -> Option<World> {
    let testbed = World::set(dir, WORLD, "0.0.0.0", "marline.test")?;
    std::fs::write(dir.join("zone"), "marline.test 9.9.9.1\n").expect("a zone");
    for interface in ["wlan0", "wwan0"] {
        testbed.run("client", &format!("ip -6 addr flush dev {interface} scope global"));
    }
    // The system sends queries over WiFi, which has the better metric but is dead.
    testbed.run("net", "dead c0");
    Some(World::join(testbed, program, "auto"))
}

fn a_name_is_resolved(program: Program) {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = world(dir.path(), program) else { return };
    if program == Program::Client {
        world.testbed.run("client", REQUEST);
    }
    world.talk();
}

#[test]
fn a_name_is_resolved_over_a_path_that_works() {
    a_name_is_resolved(Program::Client);
}

#[test]
fn the_whole_machines_server_is_resolved_over_a_path_that_works() {
    a_name_is_resolved(Program::Up);
}

fn a_server_moves(program: Program) {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = world(dir.path(), program) else { return };
    world.talk();
    let moved = "ip addr del 9.9.9.1/24 dev eth0; ip addr add 9.9.9.2/24 dev eth0
        ip route add default via 9.9.9.254 dev eth0";
    world.testbed.run("server", moved);
    std::fs::write(dir.path().join("zone"), "marline.test 9.9.9.2\n").expect("a zone");
    if program == Program::Client {
        world.testbed.run("client", REQUEST);
    }
    // The existing streams continue.
    world.goes_on();
}

#[test]
fn a_server_whose_address_changes_is_found_again_with_its_streams() {
    a_server_moves(Program::Client);
}

#[test]
fn the_whole_machines_server_whose_address_changes_is_found_again() {
    a_server_moves(Program::Up);
}
