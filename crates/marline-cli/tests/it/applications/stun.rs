//! A program queries STUN servers through SOCKS5's UDP ASSOCIATE for the address at which others reach it, like the
//! parties of a call. That address is a port of the server, the same for all STUN servers, and stays when WiFi fails.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::end_to_end::udp::Association;
use super::run::World;
use super::run::targets::STUN;
use super::support::stun;
use super::{
    OTHER_V4, PATIENCE, SERVER, SOCKS, Side, TARGET_V4, client, hear, lost_to_outages,
    seen_from_outside, support, two_uplinks,
};

/// Time without an answer after which a query is repeated.
const AGAIN: Duration = Duration::from_millis(100);
/// Time that the program continues after WiFi has failed.
const AFTER: Duration = Duration::from_secs(4);

#[test]
fn an_address_for_calls_is_the_servers_and_survives_wifi() {
    let _others = support::among_others();
    let Some(mut world) = World::set("app-stun", &[]) else { return };
    seen_from_outside(&world.hosts);
    client(&mut world.hosts, &format!("--socks5 {SOCKS}"), "socks5 listening on");
    let lines = world.hosts.role(Side::Client, "", asks);
    let mapped = hear(&lines, "mapped ");
    assert!(mapped.starts_with(&format!("mapped {SERVER}:")), "{mapped}");
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    std::fs::write(world.dir().join("died"), "").expect("write");
    let after = hear(&lines, "still ");
    assert_eq!(after.strip_prefix("still "), mapped.strip_prefix("mapped "));
    println!("{}", hear(&lines, "gap: "));
    assert!(lost_to_outages(&world.hosts) > 0, "no packet was on WiFi when it failed");
}

/// The program under test.
#[test]
fn asks() {
    if !two_uplinks::plays(asks) {
        return;
    }
    let app = Association::open(SOCKS.parse().expect("an address"));
    let servers = [TARGET_V4, OTHER_V4].map(|ip| SocketAddr::new(ip.parse().expect("an IP"), STUN));
    let mut number = 0;
    let mapped = binding(&app, servers[0], number);
    let (mut gap, mut answered, mut died) = (Duration::ZERO, Instant::now(), None);
    // Some queries before the failure, so that both paths are in use.
    while died.is_none_or(|died: Instant| died.elapsed() < AFTER) {
        number += 1;
        let server = servers[number as usize % 2];
        assert_eq!(binding(&app, server, number), mapped, "{server} sees another address");
        gap = gap.max(answered.elapsed());
        answered = Instant::now();
        if number == 50 {
            println!("mapped {mapped}");
        }
        if died.is_none() && std::path::Path::new("died").exists() {
            died = Some(Instant::now());
        }
        assert!(number < 5_000, "WiFi does not fail in time");
    }
    println!("still {}", binding(&app, servers[1], number + 1));
    println!("gap: {} ms between answers to STUN over UDP ASSOCIATE", gap.as_millis());
}

/// Queries until there is an answer, because datagrams may be lost.
fn binding(app: &Association, server: SocketAddr, number: u32) -> SocketAddr {
    let mut transaction = [0; 12];
    transaction[..4].copy_from_slice(&number.to_be_bytes());
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        app.send(server, &stun::request(transaction));
        let asked = Instant::now();
        while let Some(left) = AGAIN.checked_sub(asked.elapsed()).filter(|left| !left.is_zero()) {
            let Some((from, answer)) = app.recv(left) else { break };
            // A late answer to an earlier query is ignored.
            if let Some(mapped) = stun::mapped(&answer, transaction) {
                assert_eq!(from, server);
                std::thread::sleep(Duration::from_millis(10));
                return mapped;
            }
        }
    }
    panic!("no answer from {server}");
}
