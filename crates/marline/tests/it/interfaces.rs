//! Tests of interfaces that appear and disappear, in separate network namespaces: a client without configured paths
//! uses all interfaces with a default route, packets actually use them, and changes are followed.
//!
//! The test starts itself again inside `unshare`, first as the client's machine, and from there as the server's.
//! Needs `unshare`, `nsenter` and `ip`, and a kernel that allows user namespaces.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::support::machines::{
    can_make_machines, done, name_of_test, role, run_this_test, this_test,
};
use super::support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn interfaces_are_found_used_and_followed() {
    let name = name_of_test(&interfaces_are_found_used_and_followed);
    match role().as_deref() {
        Some("server") => return run(serve()),
        Some("client") => {
            run(follow(name));
            done();
        }
        _ => {}
    }
    if !can_make_machines() {
        return;
    }
    run_this_test("client", &["-rn"], name);
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work);
}

/// The server's machine: listens once its interfaces exist, and counts the received bytes.
async fn serve() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let listen = "0.0.0.0:7000".parse().unwrap();
    let listener = marline::Server::builder().listen(listen).bind().await.unwrap();
    println!("ready");
    let (mut stream, _) = within(listener.accept()).await.unwrap();
    let mut buf = vec![0; 65_536];
    while let Ok(len) = stream.read(&mut buf).await {
        if len == 0 || stream.write_all(&buf[..len]).await.is_err() {
            return;
        }
    }
}

struct Server {
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(name: &str) -> Server {
        let mut command = this_test("server", &["-n"], name);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let server = Server { child };
        // `unshare` executes the test: wait until it runs in the new namespace.
        let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", server.child.id());
        for _ in 0..500 {
            if std::fs::read_link(&theirs).is_ok_and(|link| link != ours) {
                return server;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the server's namespace does not appear");
    }

    /// Runs `ip` on the server's machine.
    fn ip(&self, args: &str) {
        let pid = self.child.id().to_string();
        let words = args.split(' ');
        let status =
            Command::new("nsenter").args(["-t", &pid, "-n", "ip"]).args(words).status().unwrap();
        assert!(status.success(), "server: ip {args}");
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let mut lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines();
        // The test harness writes lines as well.
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("ready"));
        assert!(ready, "the server does not listen");
    }
}

/// Runs `ip` on the client's machine.
fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "client: ip {args}");
}

/// Connects the two machines by a cable: 10.N.0.1 here, 10.N.0.2 there, and a default route over it.
fn cable(server: &Server, n: u8) {
    let pid = server.child.id();
    ip(&format!("link add near{n} type veth peer name far{n}"));
    ip(&format!("link set far{n} netns {pid}"));
    server.ip(&format!("addr add 10.{n}.0.2/24 dev far{n}"));
    server.ip(&format!("link set far{n} up"));
    plug_in(n);
}

fn plug_in(n: u8) {
    ip(&format!("addr replace 10.{n}.0.1/24 dev near{n}"));
    ip(&format!("link set near{n} up"));
    ip(&format!("route add default via 10.{n}.0.2 dev near{n} metric {}", 100 * u32::from(n)));
}

/// Returns the number of packets sent on an interface.
fn packets_sent(interface: &str) -> u64 {
    const TRANSMITTED_PACKETS: usize = 9;
    let table = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(&format!("{interface}:")));
    let count = line.and_then(|line| line.split_whitespace().nth(TRANSMITTED_PACKETS));
    count.and_then(|count| count.parse().ok()).expect("the interface is in the table")
}

async fn echo(stream: &mut marline::Stream, bytes: &[u8]) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut back = vec![0; bytes.len()];
    let (sent, got) =
        within(async { tokio::join!(writer.write_all(bytes), reader.read_exact(&mut back)) }).await;
    sent.unwrap();
    got.unwrap();
    assert!(back == bytes);
}

/// The client's machine.
async fn follow(name: &str) {
    let mut server = Server::start(name);
    server.ip("link set lo up");
    ip("link set lo up");
    cable(&server, 1);
    cable(&server, 2);
    server.go();
    let client = client(&[]).await;
    let names = |client: &marline::Client| {
        let up = client.paths().into_iter().filter(|path| path.up);
        up.map(|path| path.spec.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&client), ["near1", "near2"], "paths are ordered by metric");
    // The server has one address: the second path reaches it by its own default route, despite the better metric of
    // the first.
    let mut stream = within(client.connect("10.1.0.2:7000")).await.unwrap();
    wait_for_subflows(&stream, 2).await;
    let before = [packets_sent("near1"), packets_sent("near2")];
    stream.set_scheduler("redundant").unwrap();
    echo(&mut stream, &bytes(500_000, 1)).await;
    let after = [packets_sent("near1"), packets_sent("near2")];
    // The kernel counts a batch of segments as one packet, so half a megabyte may be few packets.
    assert!(after[0] > before[0] + 4 && after[1] > before[1] + 4, "{before:?} {after:?}");

    // The cable is unplugged: this is detected, and nothing is lost.
    ip("link set near1 down");
    within(async {
        while names(&client) != ["near2"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let before = packets_sent("near1");
    echo(&mut stream, &bytes(100_000, 2)).await;
    assert_eq!(packets_sent("near1"), before);

    // The cable is plugged in again: the path is used again.
    plug_in(1);
    within(async {
        while names(&client).len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    wait_for_subflows(&stream, 2).await;
    echo(&mut stream, &bytes(100_000, 3)).await;
    assert!(packets_sent("near1") > before);
}

#[test]
fn named_paths_that_are_not_there_at_the_start_or_come_back_as_others_are_used() {
    let name =
        name_of_test(&named_paths_that_are_not_there_at_the_start_or_come_back_as_others_are_used);
    match role().as_deref() {
        Some("server") => return run(serve()),
        Some("client") => {
            run(wait_for_paths(name));
            done();
        }
        _ => {}
    }
    if !can_make_machines() {
        return;
    }
    run_this_test("client", &["-rn"], name);
}

/// Waits until the paths that are up have these addresses.
async fn wait_for_addresses(client: &marline::Client, wanted: &[&str]) {
    let here = || {
        let up = client.paths().into_iter().filter(|path| path.up);
        up.flat_map(|path| path.addresses).map(|ip| ip.to_string()).collect::<Vec<_>>()
    };
    within(async {
        while here() != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn wait_for_paths(name: &str) {
    let mut server = Server::start(name);
    server.ip("link set lo up");
    // An address that belongs to neither cable.
    server.ip("addr add 10.9.0.1/32 dev lo");
    ip("link set lo up");
    // Neither the interface of one path nor the address of the other exists.
    let client = client(&["near1", "10.2.0.1"]).await;
    assert!(
        client
            .paths()
            .iter()
            .all(|path| !path.up && path.health == marline::paths::PathHealth::Unreachable)
    );
    assert!(client.connect("10.9.0.1:7000").await.is_err());
    cable(&server, 1);
    server.go();
    wait_for_addresses(&client, &["10.1.0.1"]).await;
    let mut stream = within(client.connect("10.9.0.1:7000")).await.unwrap();
    echo(&mut stream, &bytes(1_000, 1)).await;
    cable(&server, 2);
    wait_for_addresses(&client, &["10.1.0.1", "10.2.0.1"]).await;
    wait_for_subflows(&stream, 2).await;

    // Removed: another interface of the same name appears, with another index and another address.
    ip("link del near1");
    wait_for_addresses(&client, &["10.2.0.1"]).await;
    echo(&mut stream, &bytes(1_000, 2)).await;
    cable(&server, 1);
    ip("addr add 10.1.0.7/24 dev near1");
    ip("addr del 10.1.0.1/24 dev near1");
    ip("addr replace 10.1.0.7/24 dev near1");
    ip("route replace default via 10.1.0.2 dev near1 metric 100");
    wait_for_addresses(&client, &["10.1.0.7", "10.2.0.1"]).await;
    wait_for_subflows(&stream, 2).await;
    // The address appears on another interface.
    ip("link del near2");
    wait_for_addresses(&client, &["10.1.0.7"]).await;
    cable(&server, 2);
    wait_for_addresses(&client, &["10.1.0.7", "10.2.0.1"]).await;
    wait_for_subflows(&stream, 2).await;
    stream.set_scheduler("redundant").unwrap();
    let before = [packets_sent("near1"), packets_sent("near2")];
    echo(&mut stream, &bytes(300_000, 3)).await;
    let after = [packets_sent("near1"), packets_sent("near2")];
    assert!(after[0] > before[0] + 2 && after[1] > before[1] + 2, "{before:?} {after:?}");
}

#[test]
fn a_named_path_without_route_is_a_loud_error() {
    if role().is_some() {
        run(async {
            ip("link set lo up");
            ip("link add left type veth peer name right");
            ip("link set right up");
            ip("addr add 10.9.0.1/24 dev left");
            ip("link set left up");
            let client = client(&["left"]).await;
            let error = within(client.connect("203.0.113.5:7000")).await.unwrap_err();
            assert!(matches!(error, marline::ConnectError::NoRoute { .. }), "{error}");
            assert!(error.to_string().contains("left"), "{error}");
            // The path table shows the error after a short delay.
            within(async {
                while client.paths()[0].health != marline::paths::PathHealth::Unreachable {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
        });
        done();
    }
    if !can_make_machines() {
        return;
    }
    run_this_test("client", &["-rn"], name_of_test(&a_named_path_without_route_is_a_loud_error));
}
