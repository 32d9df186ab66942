//! `dig` queries a resolver behind the server through a forwarded UDP port (`-U`), over UDP only, also when WiFi has
//! just failed.

use std::time::Instant;

use super::run::World;
use super::run::targets::DNS;
use super::{Side, TARGET_V4, client, support};

/// Queries each name once a second until there is an answer.
const DIG: &str = "dig +notcp +short +tries=20 +time=1 -p 5353 @127.0.0.1";

#[test]
fn dig_asks_through_a_forwarded_port_also_when_wifi_has_died() {
    let _others = support::among_others();
    let Some(mut world) = World::set("app-dns", &["dig"]) else { return };
    let forward = format!("-U 127.0.0.1:5353:{TARGET_V4}:{DNS}");
    client(&mut world.hosts, &forward, "udp forward listening on");
    let ask = |query: &str| {
        let begun = Instant::now();
        let answer = world.hosts.shell(Side::Client, &format!("{DIG} {query}"));
        // The output starts with messages about timeouts.
        (answer.lines().last().unwrap_or_default().to_owned(), begun.elapsed())
    };
    assert_eq!(ask("v4.example.test A").0, TARGET_V4);
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    let (answer, took) = ask("www.example.test A");
    assert_eq!(answer, TARGET_V4);
    println!("gap: {} ms for the first name after WiFi died, through -U", took.as_millis());
    for _ in 0..5 {
        assert_eq!(ask("v4.example.test A").0, TARGET_V4);
    }
}
