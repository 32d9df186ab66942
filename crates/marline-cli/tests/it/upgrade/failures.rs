//! Tests of failed upgrades: the process continues, and the reason is reported.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;

fn script(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
}

#[test]
fn a_program_that_does_not_start_leaves_everything_as_it_was() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let mut server = Upgraded::start(dir, &[]);
    let client_control = dir.join("client.control");
    let flags = ["--carrier", "auto", "--control", client_control.to_str().expect("text")];
    let (_client, socks) = client(dir, &server, &flags);
    let target = echo_target();
    let mut stream = open(socks, target).expect("a stream");
    let bad = |name: &str| dir.join(name).to_str().expect("text").to_owned();
    script(&dir.join("no-program"), "nothing\n", 0o600);
    script(&dir.join("ends"), "#!/bin/sh\nexit 7\n", 0o700);
    script(&dir.join("hangs"), "#!/bin/sh\nexec sleep 60\n", 0o700);
    script(&dir.join("talks"), "#!/bin/sh\necho 'let me in' >&0\nexec sleep 60\n", 0o700);
    for (name, why) in [
        ("not-there", "No such file"),
        ("no-program", "Permission denied"),
        ("ends", "exit status: 7"),
        ("hangs", "not become ready within 1 s"),
        ("talks", "invalid message"),
    ] {
        let control = server.control().to_owned();
        let program = bad(name);
        let flags = ["upgrade", "--control", &control, "--program", &program, "--timeout", "1"];
        let said = run_err(dir, &flags);
        assert!(said.contains(why), "{name}: {said}");
        server.first.process.line_with("upgrade failed; this process continues");
        echo(&mut stream, name.as_bytes());
        echo(&mut open(socks, target).expect("a new stream"), name.as_bytes());
    }
    let client = client_control.to_str().expect("text");
    let said = run_err(dir, &["upgrade", "--control", client]);
    assert!(said.contains("only `marline server` and `marline serve`"), "{said}");
    // An invalid configuration, and one with a setting that cannot be taken over.
    let file = dir.join("server.toml");
    let made = std::fs::read_to_string(&file).expect("the configuration");
    for (more, why) in [("shards = 3", "power of two"), ("shards = 2", "needs a restart")] {
        std::fs::write(&file, format!("{made}{more}\n")).expect("written");
        let said = run_err(dir, &["upgrade", "--control", server.control()]);
        assert!(said.contains(why), "{more}: {said}");
        echo(&mut stream, more.as_bytes());
    }
    std::fs::write(&file, made).expect("written");
    server.upgrade(dir);
    echo(&mut stream, b"the upgrade succeeds");
    echo(&mut open(socks, target).expect("a new stream"), b"through the new process");
    // A replaced process is not contacted, and the newest one can be replaced again.
    server.upgrade(dir);
    echo(&mut stream, b"and again");
}

/// The newest process is killed, and an older one receives its own packets again.
#[test]
fn an_older_process_outlives_its_successor() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let mut server = Upgraded::start(dir, &[]);
    let (_client, socks) = client(dir, &server, &["--carrier", "auto"]);
    let mut stream = open(socks, echo_target()).expect("a stream");
    server.upgrade(dir);
    echo(&mut stream, b"passed on");
    end(server.successors[0]);
    server.first.process.line_with("receiving own packets again");
    echo(&mut stream, b"received");
}
