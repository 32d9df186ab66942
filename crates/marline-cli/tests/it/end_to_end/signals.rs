//! Tests of signals: which ones end a program, which reload it, and which have no effect.

use super::support;
use std::net::TcpStream;
use std::time::Duration;

use super::support::socks::{echo, echo_target, open};
use super::support::{Running, start_client, start_server};
use marline_testkit::free_port;

#[test]
fn a_hundred_streams_outlive_every_signal_that_is_not_an_end() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let target = echo_target();
    let mut streams: Vec<TcpStream> = (0..100).map(|_| open(socks, target).unwrap()).collect();
    for program in [&mut server.process, &mut client] {
        for name in ["USR1", "USR2", "ALRM", "VTALRM", "RTMIN", "HUP"] {
            program.signal(name);
        }
        program.line_with("SIGHUP: configuration reloaded");
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        echo(stream, format!("still {number}").as_bytes());
    }
    echo(&mut open(socks, target).unwrap(), b"and a new one");
    drop(streams);
    server.process.signal("QUIT");
    assert!(server.process.wait(Duration::from_secs(30)), "SIGQUIT is an orderly end");
    client.signal("TERM");
    assert!(client.wait(Duration::from_secs(30)), "SIGTERM is an orderly end");
}

#[test]
fn a_server_takes_over_new_rules_limits_and_log_level_and_refuses_a_bad_file() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_server(dir.path(), &[]);
    let path = format!("127.0.0.1={}", server.address);
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let target = echo_target();
    assert_eq!(open(socks, target).unwrap_err(), 2, "not allowed by the rules");

    let file = dir.path().join("server.toml");
    let made = std::fs::read_to_string(&file).unwrap();
    let change = |more: &str| std::fs::write(&file, format!("{made}{more}\n")).unwrap();
    change("allow = [\"127.0.0.0/8\"]\nlog = \"debug\"\nshards = 2");
    server.process.signal("HUP");
    server.process.line_with("configuration reloaded; changed: allow, log");
    server.process.line_with("need a restart: shards");
    let mut stream = open(socks, target).unwrap();
    server.process.line_with("DEBUG");

    // An invalid file changes nothing, and the error is reported with its location.
    change("allow = [\"127.0.0.1/8\"]");
    server.process.signal("HUP");
    server.process.line_with("reload failed; keeping current configuration");
    server.process.line_with("127.0.0.0/8");
    echo(&mut open(socks, target).unwrap(), b"as before");

    // Rules apply to new streams.
    change("deny = [\"127.0.0.0/8\"]");
    server.process.signal("HUP");
    server.process.line_with("changed: allow, deny, log");
    assert_eq!(open(socks, target).unwrap_err(), 2);
    echo(&mut stream, b"the old stream continues");
}

#[test]
fn a_client_takes_over_another_invite() {
    let _others = support::among_others();
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let flags = ["--allow", "127.0.0.0/8"];
    let (first, second) = (start_server(one.path(), &flags), start_server(two.path(), &flags));
    // A path without the server's address, which is in the invite.
    let (mut client, socks) =
        start_client(one.path(), &first.invite_file, &["--path", "127.0.0.1"]);
    let target = echo_target();
    let mut stream = open(socks, target).unwrap();
    std::fs::copy(&second.invite_file, &first.invite_file).unwrap();
    client.signal("HUP");
    client.line_with("invite changed");
    echo(&mut open(socks, target).unwrap(), b"through the other server");
    echo(&mut stream, b"through the first one");
    first.process.signal("KILL");
    echo(&mut open(socks, target).unwrap(), b"the old server is no longer needed");
}

#[test]
fn a_front_takes_over_another_service() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("serve.toml");
    let listen = format!("127.0.0.1:{}", free_port());
    let write = |to: &str| {
        let text = format!("listen = [\"{listen}\"]\ncarrier = \"udp\"\nto = \"{to}\"\n");
        std::fs::write(&file, text).unwrap();
    };
    write("127.0.0.1:81");
    let mut front = Running::start(dir.path(), &["serve", "--config", file.to_str().unwrap()]);
    front.line_with("listening on ");
    write("127.0.0.1:82");
    front.signal("USR1");
    front.line_with("SIGUSR1 ignored");
    front.signal("HUP");
    front.line_with("configuration reloaded; changed: to");
    front.signal("INT");
    assert!(front.wait(Duration::from_secs(30)), "SIGINT is an orderly end");
}
