//! vegeta opens 50 connections a second through the HTTP proxy, while WiFi fails and returns.

use std::time::Duration;

use serde_json::Value;

use super::super::run::World;
use super::super::{SOCKS, browser, client, lost_to_outages, support};
use super::spawn;

/// Connections per second: few enough for a debug build on a busy machine.
const RATE: u64 = 50;
const SECONDS: u64 = 20;
const PAGE_BYTES: usize = 2_000;
/// Time that WiFi works and then does not.
const ALIVE: Duration = Duration::from_secs(7);
const DEAD: Duration = Duration::from_secs(6);
/// Longest answer, although the machine is busy with other tests.
const LONGEST: Duration = Duration::from_secs(3);

#[test]
#[ignore = "nightly: needs vegeta"]
fn every_request_of_a_load_test_is_answered_while_wifi_fails() {
    let _others = support::among_others();
    let Some(mut world) = World::set("tool-load", &["vegeta", "caddy", "openssl"]) else { return };
    let web = world.dir().join("web");
    std::fs::create_dir(&web).expect("directory");
    std::fs::write(web.join("page"), "x".repeat(PAGE_BYTES)).expect("write");
    browser::serve(&mut world.hosts);
    client(&mut world.hosts, &format!("--socks5 {SOCKS}"), "socks5 listening on");
    let attack = format!(
        "echo GET {} | HTTP_PROXY=http://{SOCKS} vegeta attack -rate {RATE} -duration {SECONDS}s -timeout 20s \
         -keepalive=false | vegeta report -type json",
        browser::plain("page")
    );
    let attack = spawn(&world.hosts, &attack);
    std::thread::sleep(ALIVE);
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    std::thread::sleep(DEAD);
    world.hosts.net.command("wifi", "up").expect("WiFi returns");
    let (out, err) = support::texts(&attack.wait_with_output().expect("output"));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    println!("vegeta: {out}");
    let requests = RATE * SECONDS;
    assert_eq!(report["status_codes"]["200"], requests, "{out}");
    assert_eq!(report["bytes_in"]["total"], requests * PAGE_BYTES as u64, "{out}");
    let longest = report["latencies"]["max"].as_u64().expect("nanoseconds");
    assert!(Duration::from_nanos(longest) < LONGEST, "{out}");
    assert!(lost_to_outages(&world.hosts) > 0, "no packet was on WiFi when it failed");
}
