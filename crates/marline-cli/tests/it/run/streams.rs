//! Tests of streams of programs in the namespace: bytes, ends, resets and refusals.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use ring::digest::{SHA256, digest};

use super::super::end_to_end::{hex, pattern};
use super::targets::{COUNT, GREET, HTTP, READ_ON, RESET, RESETS, STALL, WAIT, abort};
use super::{PATIENCE, TARGET_V4, TARGET_V6, World, support, two_uplinks};
use crate::support::name_of_test;

/// Size of a large transfer in bytes.
const LARGE: usize = 8 << 20;
/// A shell command that runs this test binary inside.
pub(super) const INSIDE: &str = "$run \"$binary\" --exact \"$MARLINE_TEST_ROLE\" --nocapture";

impl World {
    /// Runs this test binary again inside, as the test `role`, which must check [`two_uplinks::plays`].
    pub(super) fn inside(&self, role: impl Fn()) {
        self.inside_of(&mut self.command(INSIDE), role);
    }

    /// Runs this in a `command` that runs [`INSIDE`].
    pub(super) fn inside_of(&self, command: &mut Command, role: impl Fn()) {
        let name = name_of_test(role);
        let binary = std::env::current_exe().expect("this test");
        command.env("binary", binary).env("MARLINE_TEST_ROLE", name);
        let output = self.output_of(command);
        let (out, err) = support::texts(&output);
        assert!(output.status.success() && out.contains("1 passed"), "{name}:\n{out}\n{err}");
    }
}

pub(super) fn target(port: u16) -> [SocketAddr; 2] {
    [TARGET_V4, TARGET_V6].map(|ip| SocketAddr::new(ip.parse().expect("an address"), port))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

fn refusal(address: SocketAddr) -> ErrorKind {
    TcpStream::connect_timeout(&address, PATIENCE).expect_err("it is refused").kind()
}

fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("to the end");
    text
}

#[test]
fn curl_fetches_a_page_by_either_family_and_by_name() {
    let _others = support::among_others();
    let Some(world) = World::set("run-curl", &["curl"]) else { return };
    let hosts = [TARGET_V4.to_owned(), format!("[{TARGET_V6}]"), "www.example.test".to_owned()];
    for host in hosts {
        let url = format!("http://{host}:{HTTP}/1000");
        let page = world.run(&format!("$run curl -sS --noproxy '' --fail {url} | wc -c"));
        assert_eq!(page.trim(), "1000", "{host}");
    }
    // With a trace, which is complete soon after the program has ended, when the carrier process ends.
    let options = "--invite-file invite --path wifi --path lte --qlog traces";
    let fetch = format!("$run curl -sS --noproxy '' --fail http://{TARGET_V4}:{HTTP}/1000 | wc -c");
    let (out, err) = support::texts(&world.output_of(&mut world.command_with(options, &fetch)));
    assert!(out.starts_with("1000"), "{out}\n{err}");
    let until = Instant::now() + Duration::from_secs(10);
    while !support::plotted(&world.dir().join("traces"), "client-")
        .is_some_and(|said| said.iter().any(|said| said.contains(" B new data, ")))
    {
        assert!(Instant::now() < until, "no complete trace");
        std::thread::sleep(Duration::from_millis(100));
    }
    world.wait_for_nothing();
}

#[test]
fn large_transfers_arrive_whole_in_both_directions() {
    let _others = support::among_others();
    let Some(world) = World::set("run-large", &["curl", "sha256sum"]) else { return };
    let mut content = vec![0; LARGE];
    pattern(0, &mut content);
    let expected = hex(digest(&SHA256, &content).as_ref());
    let url = format!("http://{TARGET_V4}:{HTTP}/{LARGE}");
    let down = world.run(&format!("$run curl -sS --noproxy '' --fail {url} | sha256sum"));
    assert_eq!(down.split(' ').next(), Some(expected.as_str()));
    std::fs::write(world.dir().join("up"), &content).expect("write");
    let up = world.run(&format!("$run curl -sS --noproxy '' --fail -T up {url}"));
    assert_eq!(up, expected);
}

/// WiFi fails during the download, which still arrives complete.
#[test]
fn a_download_goes_on_when_wifi_dies() {
    let _others = support::among_others();
    let Some(world) = World::set("run-wifi", &["curl", "sha256sum"]) else { return };
    let mut content = vec![0; LARGE];
    pattern(0, &mut content);
    let expected = hex(digest(&SHA256, &content).as_ref());
    let url = format!("http://{TARGET_V4}:{HTTP}/{LARGE}");
    let mut command = world.command(&format!(
        "$run curl -sS --noproxy '' --fail --limit-rate 2M {url} | (head -c 1000000; touch begun; cat) | sha256sum"
    ));
    command.stdout(std::process::Stdio::piped());
    let child = world.hosts.net.spawn(super::Side::Client, &mut command).expect("spawn");
    let begun = std::time::Instant::now();
    while !world.dir().join("begun").exists() {
        assert!(begun.elapsed() < PATIENCE, "no data arrived");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    let output = child.wait_with_output().expect("output");
    assert_eq!(support::texts(&output).0.split(' ').next(), Some(expected.as_str()));
    let links = world.hosts.net.report().expect("report");
    let lost: u64 = links
        .iter()
        .map(|link| link.up.stats.dropped_outage + link.down.stats.dropped_outage)
        .sum();
    assert!(lost > 0, "the transfer ended before WiFi failed");
}

#[test]
fn ends_and_resets_pass_in_both_directions() {
    let _others = support::among_others();
    let Some(world) = World::set("run-ends", &[]) else { return };
    world.inside(ends_and_resets);
}

/// Part of the test that runs in the namespace.
#[test]
fn ends_and_resets() {
    if !two_uplinks::plays(ends_and_resets) {
        return;
    }
    for address in target(GREET) {
        assert_eq!(rest(connect(address)), "hello\n", "the target sends first, and ends");
    }
    for address in target(COUNT) {
        let mut stream = connect(address);
        stream.write_all(&[7; 300_000]).expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("an end of one direction");
        assert_eq!(rest(stream), "300000", "the other direction goes on");
    }
    for address in target(RESET) {
        let mut stream = connect(address);
        stream.write_all(b"x").expect("written");
        let error = stream.read(&mut [0; 10]).expect_err("a reset is not an orderly end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    // And in the other direction. The target sees the reset a little later.
    let stream = connect(target(WAIT)[0]);
    (&stream).write_all(b"x").expect("written");
    abort(&stream);
    drop(stream);
    let begun = std::time::Instant::now();
    while rest(connect(target(RESETS)[0])) != "1" {
        assert!(begun.elapsed() < PATIENCE, "the target saw no reset");
    }
}

#[test]
fn refusals_are_the_targets_own() {
    let _others = support::among_others();
    let Some(world) = World::set("run-refused", &[]) else { return };
    world.inside(refusals);
    // The user is shown the relevant flag of the server.
    let output = world.output("$run bash -c 'exec 3<>/dev/tcp/192.168.7.7/80' || true");
    assert!(support::texts(&output).1.contains("--allow 192.168.7.7"));
}

/// Part of the test that runs in the namespace.
#[test]
fn refusals() {
    if !two_uplinks::plays(refusals) {
        return;
    }
    for address in target(1) {
        assert_eq!(refusal(address), ErrorKind::ConnectionRefused, "no listener at {address}");
    }
    let at = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), 80);
    // Refused by the server's rules, and for lack of a route at the server.
    let prohibited = refusal(at("192.168.7.7"));
    assert_eq!(prohibited, ErrorKind::HostUnreachable);
    assert_eq!(refusal(at("fd00:99::1")), ErrorKind::PermissionDenied);
    assert_eq!(refusal(at("203.0.113.98")), ErrorKind::HostUnreachable);
    assert_eq!(refusal(at("203.0.113.99")), ErrorKind::NetworkUnreachable);
    // The gateway offers only DNS.
    assert_eq!(refusal(at("198.18.0.1")), ErrorKind::ConnectionRefused);
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket.connect(at("198.18.0.1")).expect("an address");
    socket.send(b"x").expect("sent");
    let error = socket.recv(&mut [0; 10]).expect_err("no host accepts it");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    // Only loopback and the interface exist.
    let names: Vec<String> = std::fs::read_to_string("/proc/net/dev")
        .expect("a list")
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect();
    assert_eq!(names, ["lo", "marline0"]);
}

#[test]
fn a_hundred_connections_at_once_are_all_served() {
    let _others = support::among_others();
    let Some(world) = World::set("run-hundred", &[]) else { return };
    world.inside(a_hundred_connections);
}

/// Part of the test that runs in the namespace.
#[test]
fn a_hundred_connections() {
    if !two_uplinks::plays(a_hundred_connections) {
        return;
    }
    let threads: Vec<_> = (0..100u32)
        .map(|number| {
            std::thread::spawn(move || {
                let mut stream = connect(target(COUNT)[number as usize % 2]);
                let bytes = vec![1; 10_000 + number as usize];
                stream.write_all(&bytes).expect("written");
                stream.shutdown(std::net::Shutdown::Write).expect("an end");
                assert_eq!(rest(stream), bytes.len().to_string());
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("served");
    }
}

/// A target that does not read stops the program: data in transit is limited, and none of it is lost.
#[test]
fn a_target_that_reads_nothing_stops_the_program() {
    let _others = support::among_others();
    let Some(world) = World::set("run-stall", &[]) else { return };
    world.inside(stalled);
}

/// Part of the test that runs in the namespace.
#[test]
fn stalled() {
    if !two_uplinks::plays(stalled) {
        return;
    }
    /// More than all buffers on the way together, in bytes.
    const MOST: usize = 64 << 20;
    let mut stream = connect(target(STALL)[0]);
    stream.set_write_timeout(Some(std::time::Duration::from_secs(3))).expect("timeout");
    let (chunk, mut written) = (vec![5; 1 << 16], 0);
    while let Ok(count) = stream.write(&chunk) {
        written += count;
        assert!(written < MOST, "the program is never blocked");
    }
    connect(target(READ_ON)[0]);
    stream.shutdown(std::net::Shutdown::Write).expect("an end");
    assert_eq!(rest(stream), written.to_string());
    println!("{written} bytes were in transit");
}
