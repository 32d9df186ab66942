//! Tests of the end of programs in the namespace: exit statuses, signals, and that nothing is left behind.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{PATIENCE, Side, World, support};

/// Signal numbers, identical on all supported architectures.
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

impl World {
    /// Starts a shell inside, and waits until it has reached `READY`. The process is the program itself.
    fn started(&self, name: &str, text: &str) -> Child {
        // The parent of these tests may ignore signals, as `nohup` and a shell's background jobs do.
        let mut command = self.command("exec env --default-signal $run bash -c \"$inner\"");
        let ready = self.dir().join(name);
        command
            // Without a separate program, because bash ignores an interrupt that arrives while a program runs and ends
            // successfully.
            .env("inner", text.replace("READY", &format!(": > {name}")))
            .stdout(Stdio::piped());
        let child = self.hosts.net.spawn(Side::Client, &mut command).expect("spawn");
        let begun = Instant::now();
        while !ready.exists() {
            assert!(begun.elapsed() < PATIENCE, "{text}: not ready");
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    }
}

fn signal(name: &str, id: &str) {
    let status = Command::new("kill").args(["-s", name, "--", id]).status().expect("kill");
    assert!(status.success());
}

#[test]
fn exit_status_equals_that_of_the_program() {
    let _others = support::among_others();
    let Some(world) = World::set("run-status", &[]) else { return };
    for (text, status) in [
        ("$run true", 0),
        ("$run bash -c 'exit 7'", 7),
        ("exec $run bash -c 'exit 255'", 255),
        ("$run ./there-is-no-such-program", 127),
        ("$run ./invite", 126),
        ("marline run --invite-file nowhere -- true", 125),
        ("marline run --invite-file invite --path wifi --socks5 127.0.0.1:1 -- true", 125),
    ] {
        let output = world.output(text);
        assert_eq!(output.status.code(), Some(status), "{text}: {}", support::texts(&output).1);
    }
    // This half reports errors from the other half.
    let output = world
        .output("marline run --invite-file invite --metrics 192.0.2.1:9 --dns 203.0.113.7 -- true");
    let (_, err) = support::texts(&output);
    assert!(output.status.code() == Some(125) && err.contains("192.0.2.1"), "{err}");
    world.wait_for_nothing();
}

#[test]
fn a_program_killed_by_a_signal_determines_the_exit_status() {
    let _others = support::among_others();
    let Some(world) = World::set("run-signal", &[]) else { return };
    let output = world.output("exec $run bash -c 'kill -TERM $$'");
    assert_eq!(output.status.signal(), Some(SIGTERM));
    world.wait_for_nothing();
    for (name, number) in [("KILL", SIGKILL), ("TERM", SIGTERM), ("INT", SIGINT)] {
        let mut child = world.started(name, "READY; exec sleep 1000");
        world.wait_for_carriers(1);
        // Like a terminal: the signal goes to all processes of the group.
        signal(name, &format!("-{}", child.id()));
        assert_eq!(child.wait().expect("wait").signal(), Some(number));
        world.wait_for_nothing();
    }
}

#[test]
fn a_program_that_ends_in_its_own_time_has_its_network_until_then() {
    let _others = support::among_others();
    let Some(world) = World::set("run-trap", &["curl"]) else { return };
    let url = format!("http://{}:{}/123", super::TARGET_V4, super::targets::HTTP);
    let text = format!(
        "trap 'curl -sS --noproxy \"\" --fail {url} | wc -c; exit 3' TERM; READY; while :; do sleep 0.05; done"
    );
    let child = world.started("trap", &text);
    signal("TERM", &format!("-{}", child.id()));
    let output = child.wait_with_output().expect("output");
    let (out, err) = support::texts(&output);
    assert_eq!((output.status.code(), out.trim()), (Some(3), "123"), "{err}");
    world.wait_for_nothing();
}

#[test]
fn processes_the_program_left_behind_keep_their_network() {
    let _others = support::among_others();
    let Some(world) = World::set("run-daemon", &["curl"]) else { return };
    let url = format!("http://{}:{}/321", super::TARGET_V4, super::targets::HTTP);
    let text = format!(
        "$run bash -c '(while [ ! -e go-on ]; do sleep 0.05; done; \
         curl -sS --noproxy \"\" --fail {url} > late; mv late fetched) < /dev/null > /dev/null 2>&1 & exit 0'"
    );
    world.run(&text);
    assert_eq!(world.carriers().len(), 1, "a process carries the waiting shell's traffic");
    std::fs::write(world.dir().join("go-on"), "").expect("write");
    world.wait_for_nothing();
    assert_eq!(std::fs::read(world.dir().join("fetched")).expect("fetched").len(), 321);
}

/// The last written data arrives although the program has ended.
#[test]
fn the_last_bytes_of_a_program_arrive() {
    let _others = support::among_others();
    let Some(world) = World::set("run-last", &[]) else { return };
    let (ip, count, last) = (super::TARGET_V4, super::targets::COUNT, super::targets::LAST);
    // The program writes and ends without waiting.
    world.run(&format!("$run bash -c 'head -c 1000000 /dev/zero > /dev/tcp/{ip}/{count}'"));
    world.wait_for_nothing();
    let begun = Instant::now();
    while world.run(&format!("$run bash -c 'cat < /dev/tcp/{ip}/{last}'")) != "1000000" {
        assert!(begun.elapsed() < PATIENCE, "the bytes did not arrive");
    }
}

#[test]
fn standard_streams_and_identity_are_the_programs_own() {
    let _others = support::among_others();
    let Some(world) = World::set("run-streams", &[]) else { return };
    let plain = world
        .run("id -u; id -g; pwd; echo out; echo err >&2; echo in | cat; env | grep -c '^HOME='");
    let inside = world.run(
        "$run bash -c \"id -u; id -g; pwd; echo out; echo err >&2; echo in | cat; env | grep -c '^HOME='\"",
    );
    assert_eq!(plain, inside);
    // A pipe that was passed to the program is closed with it, regardless of other programs.
    let text = world.run("(exec 7>&1; $run bash -c 'echo through >&7') | cat");
    assert_eq!(text, "through\n");
}

#[test]
fn a_system_without_user_namespaces_names_the_switch() {
    let _others = support::among_others();
    let Some(world) = World::set("run-switch", &[]) else { return };
    // A user namespace in which no further one is permitted, and a user without privileges in it.
    let text = "exec unshare --user --map-root-user bash -euc '
        echo 0 > /proc/sys/user/max_user_namespaces
        exec setpriv --bounding-set=-all --inh-caps=-all bash -c \"$1\"' _ \"$run true\"";
    let output = world.output(text);
    let (_, err) = support::texts(&output);
    assert_eq!(output.status.code(), Some(125), "{err}");
    assert!(err.contains("user.max_user_namespaces"), "{err}");
    world.wait_for_nothing();
}

/// As installed for `--carrier raw`.
#[test]
fn a_program_file_with_capabilities_serves_as_well() {
    let _others = support::among_others();
    let Some(world) = World::set("run-setcap", &["curl", "setcap"]) else { return };
    let copy =
        "cp \"$(command -v marline)\" with-raw; setcap cap_net_raw+ep with-raw; chmod 755 with-raw";
    world.hosts.shell(Side::Client, copy);
    let url = format!("http://{}:{}/99", super::TARGET_V4, super::targets::HTTP);
    let options = format!("--invite-file invite --path wifi --dns {}", super::TARGET_V4);
    let text = format!("./with-raw run {options} -- curl -sS --noproxy '' --fail {url} | wc -c");
    assert_eq!(world.run(&text).trim(), "99");
}

#[test]
fn root_needs_no_user_namespace() {
    let _others = support::among_others();
    let Some(world) = World::set("run-root", &["curl"]) else { return };
    let url = format!("http://{}:{}/77", super::TARGET_V4, super::targets::HTTP);
    let text = format!(
        "marline run --invite-file invite --path wifi --dns 203.0.113.7 -- \
         bash -euc 'readlink /proc/self/ns/user; curl -sS --noproxy \"\" --fail {url} | wc -c'
         readlink /proc/self/ns/user"
    );
    let out = world.hosts.shell(Side::Client, &text);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0] == lines[2] && lines[1] == "77", "{out}");
    world.wait_for_nothing();
}
