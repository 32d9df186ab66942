//! Tests of a whole machine's traffic through the server: connections, names, datagrams, both families. The local
//! network stays reachable, and no packet bypasses the tunnel.

use super::super::run::targets::{HTTP, MIRRORS};
use super::{NEIGHBOR, OTHER_V4, TARGET_V4, TARGET_V6, WIFI, World, page, support};
use marline_lab::scenario::Side;

/// A query for an address of v4.example.test, in hexadecimal.
const QUERY: &str = "123401000001000000000000027634076578616d706c6504746573740000010001";

#[test]
fn connections_names_and_datagrams_go_through_it_and_back_after_down() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-all", &[]) else { return };
    assert!(world.goes_directly());
    assert!(!world.fetches(&page("www.example.test", 10)), "the router does not resolve names");
    world.up("--path wifi --path lte --control up.sock --qlog traces");
    for host in ["www.example.test", TARGET_V4, &format!("[{TARGET_V6}]")] {
        assert_eq!(world.run(&format!("curl -sf -m 20 {} | wc -c", page(host, 5_000))), "5000");
    }
    assert_ne!(world.seen_from(TARGET_V4), WIFI);
    // A program that binds to an interface's address does not bypass it either, as browsers try for WebRTC.
    let bound = world.run(&format!("./seen-from {TARGET_V4} {} {WIFI}", MIRRORS[0]));
    assert_ne!(bound, WIFI);
    let names =
        world.run("dig +short +time=5 www.example.test A; dig +short @10.0.1.99 v4.example.test A");
    assert_eq!(
        names,
        format!("{TARGET_V4}\n{TARGET_V4}"),
        "a private resolver's query is answered"
    );
    let tcp = world.run("dig +short +tcp +time=5 www.example.test AAAA");
    assert_eq!(tcp, TARGET_V6);
    // A closed port is refused promptly, as at the target.
    let refused = world.output(&format!("curl -s -m 20 http://{TARGET_V4}:9"));
    assert_eq!(refused.status.code(), Some(7), "connection refused");
    assert!(world.run("marline path --control up.sock").contains("wifi"));
    let status = world.run("marline status --control up.sock");
    let wifi = status.lines().find(|line| line.starts_with("wifi ")).expect("the path");
    assert!(wifi.contains("usable") && wifi.contains(WIFI), "{status}");
    assert!(status.lines().all(|line| line.len() <= 80), "{status}");
    let none = world.output("marline status --control nowhere.sock");
    assert_eq!(none.status.code(), Some(3));
    assert_eq!(world.run("marline down"), "stopped");
    let traces = support::plotted(&world.dir().join("traces"), "client-").expect("complete traces");
    assert!(traces.iter().any(|said| said.contains(" B new data, ")), "{traces:?}");
    assert_eq!(world.left(), "");
    assert!(world.goes_directly());
    assert_eq!(world.run("marline down"), "`marline up` was not running");
}

#[test]
fn the_local_network_stays_where_it_is() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-lan", &[]) else { return };
    let neighbor = format!("python3 -m http.server --bind {NEIGHBOR} 8000");
    world.hosts.program(Side::Server, &neighbor);
    world.up("--path wifi --path lte");
    world
        .wait_until("the neighbor's page", || world.fetches(&format!("http://{NEIGHBOR}:8000/on")));
    let route = world.run(&format!("ip route get {NEIGHBOR}"));
    assert!(route.contains("dev wifi"), "{route}");
    // A local host reaches a service of this machine.
    let service = world.spawn(&format!("exec python3 -m http.server --bind {WIFI} 8000"));
    let begun =
        format!("until curl -sf -m 5 -o page http://{WIFI}:8000/on; do sleep 0.1; done; cat page");
    let text = world.hosts.shell(Side::Server, &begun);
    assert!(text.contains("resolv_conf"), "{text}");
    let mut service = service;
    let _ = service.kill();
    let _ = service.wait();
}

#[test]
fn nothing_leaves_around_it() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-leak", &["tshark"]) else { return };
    world.hosts.shell(Side::Client, "ip -6 addr add 2001:db8:1::2/64 dev wifi nodad");
    world.hosts.shell(Side::Client, "ip -6 route add default via fe80::1 dev wifi");
    world.up("--path wifi --path lte");
    let watch = world.watch("not udp port 7777 and not arp and not icmp6 and not igmp");
    for host in ["www.example.test", TARGET_V4, &format!("[{TARGET_V6}]")] {
        assert!(world.fetches(&page(host, 2_000)), "{host}");
    }
    world.seen_from(TARGET_V4);
    world.run(&format!("./seen-from {TARGET_V4} {} {WIFI}", MIRRORS[0]));
    // The system answers an unexpected packet with an error that quotes it. This must not leave to the local
    // network either.
    world.run(&format!(
        "python3 -c 'import socket
for _ in range(5):
    s = socket.socket(type=socket.SOCK_DGRAM)
    s.sendto(bytes.fromhex(\"{QUERY}\"), (\"{NEIGHBOR}\", 53))
    s.close()'; sleep 1"
    ));
    // Neither refused nor unassigned destinations.
    world.output(&format!("ping -c 1 -W 1 {OTHER_V4}; curl -s -m 5 http://203.0.113.99:{HTTP}/1"));
    world.output("./seen-from 2001:db8:7::99 9 :: 1; dig +time=1 +tries=1 @9.9.9.9 example.test");
    let around = world.seen_by(watch);
    assert_eq!(around, "");
}

#[test]
fn a_download_goes_on_when_wifi_dies() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-dies", &[]) else { return };
    world.up("--path wifi --path lte");
    let download =
        world.spawn(&format!("curl -sf -m 60 {} | sha256sum", page(TARGET_V4, 8_000_000)));
    std::thread::sleep(std::time::Duration::from_millis(1_000));
    world.hosts.net.command("wifi", "down").expect("an order");
    let output = download.wait_with_output().expect("output");
    let (out, err) = support::texts(&output);
    assert!(output.status.success() && !out.starts_with("e3b0c442"), "{out}{err}");
    // Names and datagrams as well.
    assert_eq!(world.run("dig +short +time=10 v4.example.test A"), TARGET_V4);
    assert_ne!(world.seen_from(TARGET_V4), WIFI);
}
