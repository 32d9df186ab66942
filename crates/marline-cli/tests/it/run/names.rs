//! Tests of every kind of name resolution in the namespace.

use super::targets::HTTP;
use super::{TARGET_V4, TARGET_V6, World, support};

#[test]
fn dig_and_the_c_library_resolve() {
    let _others = support::among_others();
    let Some(world) = World::set("run-dig", &["dig", "getent"]) else { return };
    let text = world.run(
        "$run bash -euc '
            dig +short www.example.test A
            dig +short www.example.test AAAA
            dig +short +tcp v4.example.test A
            dig v4.example.test AAAA | grep -c \"status: NOERROR\"
            dig nothing.example.test A | grep -c \"status: NXDOMAIN\"
            dig +short big.example.test TXT | wc -l
            dig +short +ignore +bufsize=4096 big.example.test TXT | wc -l
            getent ahosts www.example.test | cut -d \" \" -f 1 | sort -u
            ! getent ahosts nothing.example.test
        '",
    );
    let lines: Vec<&str> = text.lines().collect();
    // The long answer over UDP is truncated, and the following one over TCP is complete.
    let expected = [TARGET_V4, TARGET_V6, TARGET_V4, "1", "1", "20", "0", TARGET_V6, TARGET_V4];
    assert_eq!(lines, expected, "{text}");
}

#[test]
fn a_static_go_program_resolves_and_connects() {
    let _others = support::among_others();
    let Some(world) = World::set("run-go", &["go"]) else { return };
    std::fs::write(world.dir().join("main.go"), GO).expect("write");
    let build = "CGO_ENABLED=0 GOFLAGS=-mod=mod GOCACHE=$PWD/cache GO111MODULE=off go build -o fetch main.go";
    world.hosts.shell(super::Side::Client, build);
    let text = world.run(&format!("$run ./fetch http://www.example.test:{HTTP}/500"));
    assert_eq!(text.trim(), "200 500");
}

const GO: &str = include_str!("fetch.go");

#[test]
fn git_clones_by_name() {
    let _others = support::among_others();
    let Some(mut world) = World::set("run-git", &["git"]) else { return };
    world.hosts.shell(
        super::Side::Server,
        "git init -q --bare served.git; git init -q work; cd work
         git -c user.name=a -c user.email=a@example.test commit -q --allow-empty -m first
         git push -q ../served.git HEAD:main",
    );
    let daemon = format!(
        "git daemon --verbose --export-all --base-path=. --listen={TARGET_V4} --listen={TARGET_V6} --reuseaddr"
    );
    super::hear(&world.hosts.program(super::Side::Server, &daemon), "Ready to rumble");
    let text = world.run(
        "$run git clone -q git://www.example.test/served.git cloned && git -C cloned log --format=%s origin/main",
    );
    assert_eq!(text.trim(), "first");
}

#[test]
fn a_resolver_that_is_not_there_fails_immediately_and_says_which_flag_helps() {
    let _others = support::among_others();
    let Some(world) = World::set("run-no-dns", &["dig", "getent"]) else { return };
    let options = "--invite-file invite --path wifi --dns 203.0.113.7:99";
    let text =
        "$run bash -c 'dig www.example.test A | grep status; ! getent hosts www.example.test'";
    let output = world.output_of(&mut world.command_with(options, text));
    let (out, err) = support::texts(&output);
    assert!(output.status.success() && out.contains("SERVFAIL"), "{out}\n{err}");
    assert!(err.contains("--dns"), "{err}");
}

/// The server's own resolver is that of this machine, which the test's server host cannot reach.
#[test]
fn where_the_servers_resolver_is_not_reached_this_machines_is_asked() {
    let _others = support::among_others();
    let Some(world) = World::set("run-resolv", &["getent"]) else { return };
    let resolv_conf = world.dir().join("resolv.conf");
    let options = "--invite-file invite --path wifi";
    let command = || {
        let text = "$run bash -c 'cat /etc/resolv.conf; getent hosts v4'";
        world.output_of(&mut world.command_with(options, text))
    };
    // Only this machine reaches that resolver.
    std::fs::write(&resolv_conf, "nameserver 127.0.0.53\n").expect("write");
    let output = command();
    let (out, err) = support::texts(&output);
    assert!(!output.status.success() && out.contains("198.18.0.1"), "{out}\n{err}");
    assert!(err.contains("resolver.marline.invalid") && err.contains("--dns"), "{err}");
    std::fs::write(&resolv_conf, format!("nameserver {TARGET_V4}\nsearch example.test\n"))
        .expect("write");
    let output = command();
    let (out, err) = support::texts(&output);
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.starts_with("nameserver 198.18.0.1\nsearch example.test\n"), "{out}");
    assert!(out.contains(TARGET_V4), "{out}");
}
