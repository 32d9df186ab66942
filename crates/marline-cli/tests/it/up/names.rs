//! Tests of names with exceptions, which apply regardless of the resolver, over UDP or TCP.

use super::{PUBLIC_V4, PUBLIC_V6, TARGET_V4, World, support};

#[test]
fn a_blocked_name_is_blocked_with_every_resolver_and_transport() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-block", &[]) else { return };
    // A public resolver in a network that is reached directly.
    std::fs::write(world.dir().join("machine.conf"), format!("nameserver {PUBLIC_V4}\n"))
        .expect("write");
    world.up(&format!(
        "--path wifi --path lte --block v6.Example.test --bypass {PUBLIC_V4} --bypass {TARGET_V4}"
    ));
    let servers = [
        String::new(),
        format!("@{PUBLIC_V4}"),
        format!("@{PUBLIC_V6}"),
        format!("@{TARGET_V4}"),
        "@10.0.1.1".to_owned(),
        "@10.0.1.99".to_owned(),
        "@198.18.0.1".to_owned(),
    ];
    for server in &servers {
        for how in ["+notcp", "+tcp", "+noedns", "+bufsize=4096 +dnssec"] {
            for name in
                ["v6.example.test", "V6.eXample.TEST.", "x.v6.example.test", "alias.example.test"]
            {
                let query = format!("dig +time=5 +tries=2 {how} {server} {name} AAAA");
                let said = world.run(&format!("{query} | grep -o 'status: [A-Z]*' || true"));
                assert_eq!(said, "status: NXDOMAIN", "{query}");
            }
            let query = format!("dig +time=5 +tries=2 +short {how} {server} www.example.test A");
            assert_eq!(world.run(&query), TARGET_V4, "{query}");
        }
        let query =
            format!("dig +time=5 +tries=2 +tcp +short {server} big.example.test TXT | wc -l");
        assert_eq!(world.run(&query), "20", "a long answer is complete: {query}");
    }
    // Several queries on one connection, and one with two questions.
    let said = world.run(&format!(
        "python3 -c '
import socket, struct
def question(name): return b\"\".join(bytes([len(l)]) + l for l in name.split(b\".\")) + b\"\\0\\0\\1\\0\\1\"
def ask(number, *names):
    q = struct.pack(\"!HHHHHH\", number, 256, len(names), 0, 0, 0) + b\"\".join(map(question, names))
    return struct.pack(\"!H\", len(q)) + q
s = socket.create_connection((\"{PUBLIC_V4}\", 53), 20)
f = s.makefile(\"rb\")
s.sendall(ask(1, b\"www.example.test\") + ask(2, b\"v6.example.test\"))
s.sendall(ask(3, b\"www.example.test\", b\"v6.example.test\"))
got = dict()
for _ in range(3):
    a = f.read(struct.unpack(\"!H\", f.read(2))[0])
    got[a[1]] = a[3] & 15
print(got[1], got[2], got[3])'"
    ));
    assert_eq!(said, "0 3 1");
    assert_eq!(world.run("marline down"), "stopped");
    assert_eq!(world.left(), "");
}

#[test]
fn a_bypassed_name_opens_few_addresses_and_only_public_ones() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-bypass", &[]) else { return };
    std::fs::write(world.dir().join("machine.conf"), format!("nameserver {PUBLIC_V4}\n"))
        .expect("write");
    world.up("--path wifi --path lte --bypass rebinding.example.test --bypass many.example.test");
    let opened = |world: &World| {
        world.run("ip route show table 28001 | grep ^throw | cut -d ' ' -f 2 | sort")
    };
    let before = opened(&world);
    world.run("dig +time=5 rebinding.example.test A");
    let after = opened(&world);
    let new: Vec<&str> = after.lines().filter(|line| !before.contains(*line)).collect();
    assert_eq!(new, ["9.9.9.21"]);
    for _ in 0..3 {
        world.run("dig +time=5 many.example.test A; dig +tcp +time=5 many.example.test A");
    }
    let many = opened(&world).lines().filter(|line| line.starts_with("9.9.8.")).count();
    assert!((1..=16).contains(&many), "{many}");
    // The resolver is in a direct network, and still answers other queries.
    assert_eq!(world.run("dig +short +time=5 www.example.test A"), TARGET_V4);
}

#[test]
fn names_that_are_not_taken_cannot_have_exceptions() {
    let _others = support::among_others();
    let Some(world) = World::set("up-only-names", &[]) else { return };
    for option in ["--block v6.example.test", "--bypass v6.example.test"] {
        let output = world.output(&format!(
            "marline up --invite-file invite --path wifi --only 203.0.113.0/24 {option}"
        ));
        let (_, err) = support::texts(&output);
        assert!(!output.status.success() && err.contains("v6.example.test"), "{err}");
        assert!(err.contains("--only"), "{err}");
    }
}
