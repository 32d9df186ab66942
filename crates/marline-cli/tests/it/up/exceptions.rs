//! Tests of exceptions: direct destinations, refused ones, and a tunnel for a few networks alone.

use super::super::run::targets::{HTTP, MIRRORS};
use super::{OTHER_V4, PUBLIC_V4, TARGET_V4, WIFI, World, page, support};
use marline_lab::scenario::Side;

#[test]
fn networks_and_domains_go_around_it_or_nowhere() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-split", &[]) else { return };
    // The machine's own resolver works for its names.
    std::fs::write(world.dir().join("machine.conf"), format!("nameserver {TARGET_V4}\n"))
        .expect("write");
    world.up(&format!(
        "--path wifi --path lte --bypass {OTHER_V4} --bypass direct.example.test --block v6.example.test \
         --block 203.0.113.200/29"
    ));
    assert_eq!(world.seen_from(OTHER_V4), WIFI, "a network that is direct");
    assert_ne!(world.seen_from(TARGET_V4), WIFI);
    let blocked = world.run("dig +time=5 v6.example.test AAAA | grep -o 'status: [A-Z]*'");
    assert_eq!(blocked, "status: NXDOMAIN");
    let refused = world.output(&format!("curl -s -m 10 http://203.0.113.201:{HTTP}/1"));
    assert_eq!(refused.status.code(), Some(7), "promptly");
    // Once a name was queried, its addresses are direct.
    assert_ne!(world.seen_from(PUBLIC_V4), WIFI);
    assert_eq!(world.run("dig +short +time=5 direct.example.test A @10.0.1.9"), PUBLIC_V4);
    assert_eq!(world.seen_from(PUBLIC_V4), WIFI, "a name that is direct");
    assert!(world.fetches(&page("direct.example.test", 100)));
    assert_eq!(world.run("marline down"), "stopped");
    assert_eq!(world.left(), "");
}

#[test]
fn only_some_networks_are_reached_through_it() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-only", &[]) else { return };
    std::fs::write(
        world.dir().join("up.toml"),
        format!("invite-file = 'invite'\npath = ['wifi', 'lte']\n[up]\nonly = ['{OTHER_V4}/32']\n"),
    )
    .expect("write");
    world.up("--config up.toml");
    assert_eq!(world.seen_from(TARGET_V4), WIFI);
    assert_ne!(world.seen_from(OTHER_V4), WIFI);
    assert!(!world.fetches(&page("www.example.test", 10)), "the router still resolves names");
}

#[test]
fn services_stay_reachable_from_distant_networks() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-ssh", &[]) else { return };
    // From an address outside the local network, answers would go through the tunnel.
    let serve = |port: u16| {
        format!(
            "exec python3 -c 'import socket
s = socket.create_server((\"{WIFI}\", {port}))
while True:
    c, _ = s.accept()
    while (b := c.recv(100)):
        c.sendall(b)'"
        )
    };
    let mut services: Vec<_> = [2222, 2223].map(|port| world.spawn(&serve(port))).into();
    let talk = format!(
        "python3 -c 'import socket, time, os
while True:
    try: s = socket.create_connection((\"{WIFI}\", 2222), 20, (\"{OTHER_V4}\", 0)); break
    except OSError: time.sleep(0.1)
def echo(s):
    s.sendall(b\"hello\"); assert s.recv(100) == b\"hello\"
echo(s); open(\"talking\", \"w\").write(\"x\")
while not os.path.exists(\"is-up\"): time.sleep(0.1)
echo(s)
t = socket.create_connection((\"{WIFI}\", 2223), 20, (\"{OTHER_V4}\", 0)); echo(t)
print(\"still there\")'"
    );
    let still = world.hosts.program(Side::Server, &talk);
    world.wait_until("a connection", || world.dir().join("talking").exists());
    world.up("--path wifi --path lte --reachable 2223");
    std::fs::write(world.dir().join("is-up"), "").expect("write");
    super::hear(&still, "still there");
    for service in &mut services {
        let _ = service.kill();
        let _ = service.wait();
    }
    assert_ne!(world.run(&format!("./seen-from {TARGET_V4} {}", MIRRORS[0])), WIFI);
}
