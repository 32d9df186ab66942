//! Tests that nothing bypasses the tunnel: after the program is killed, through a link's resolver, and through a
//! service's port.

use super::super::run::targets::MIRRORS;
use super::endings::signal;
use super::{OTHER_V4, PUBLIC_V4, TARGET_V4, WIFI, World, hear, page, support};
use marline_lab::scenario::Side;
use rustix::process::Signal;

/// Filter for packets that leave the machine and belong neither to Marline nor to the link itself.
const AROUND: &str = "not port 7777 and not arp and not icmp6 and not igmp \
                      and not src host 10.0.1.1 and not src host 10.0.2.1";

/// Sends packets of each kind for some seconds, and ignores errors.
const SEND_ALL: &str = r#"
import socket, sys, time
end = time.monotonic() + float(sys.argv[1])
query = bytes.fromhex("123401000001000000000000027634076578616d706c6504746573740000010001")
def udp(to, payload):
    family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        s.sendto(payload, to)
def tcp(to):
    family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
    with socket.socket(family) as s:
        s.setblocking(False)
        s.connect_ex(to)
link = socket.if_nametoindex("wifi")
while time.monotonic() < end:
    for to in [("203.0.113.5", 9010), ("2001:db8:7::5", 9010)]:
        for send in [lambda: udp(to, b"?"), lambda: tcp((to[0], 8080))]:
            try: send()
            except OSError: pass
    for to in [("10.0.1.1", 53), ("9.9.9.9", 53), ("2620:fe::fe", 53), ("fe80::1", 53, 0, link)]:
        for send in [lambda: udp(to, query), lambda: tcp(to)]:
            try: send()
            except OSError: pass
    time.sleep(0.005)
"#;

/// Returns a machine with IPv6 on both links, whose router has a link-local address at which it could resolve names.
pub(super) fn world(name: &str) -> Option<World> {
    let world = World::set(name, &["tshark"])?;
    world.hosts.shell(Side::Server, "ip -6 addr add fe80::1/64 dev wifi nodad");
    world.hosts.shell(
        Side::Client,
        "ip -6 addr add 2001:db8:1::2/64 dev wifi nodad
         ip -6 route add default via fe80::1 dev wifi",
    );
    super::super::run::write_script(&world.dir().join("send-all.py"), SEND_ALL);
    Some(world)
}

#[test]
fn killed_alone_it_leaves_the_kill_switch_until_a_person_removes_it() {
    let _others = support::among_others();
    let Some(mut world) = world("up-held") else { return };
    let pid = world.up("--path wifi --path lte --kill-switch");
    assert!(world.fetches(&page("www.example.test", 100)));
    let watch = world.watch(AROUND);
    let sending = world.spawn("exec python3 send-all.py 4");
    signal(pid, Signal::KILL);
    world.wait_until("the interface is gone", || !world.run("ip link show").contains("marline0"));
    sending.wait_with_output().expect("output");
    assert_eq!(world.seen_by(watch), "");
    assert!(world.run("marline down").contains("kill switch"));
    assert_eq!(world.left(), "");
    assert!(world.goes_directly());
}

#[test]
fn names_are_not_asked_of_a_links_resolver() {
    let _others = support::among_others();
    for options in ["", "--kill-switch"] {
        let Some(mut world) = world("up-rdnss") else { return };
        let resolv_conf = world.dir().join("machine.conf");
        std::fs::write(&resolv_conf, "nameserver fe80::1%wifi\nsearch test\n").expect("write");
        world.up(&format!("--path wifi --path lte {options}"));
        let watch = world.watch(AROUND);
        let names = |name: &str| {
            let said = world.output(&format!("curl -sv -m 20 -o /dev/null {}", page(name, 100)));
            let text = std::fs::read_to_string(&resolv_conf).expect("read");
            assert!(said.status.success(), "{text}: {}", support::texts(&said).1);
        };
        names("www.example.test");
        // The search list applies.
        names("www.example");
        world.run("python3 send-all.py 1");
        assert_eq!(world.seen_by(watch), "", "{options}");
        assert_eq!(world.run("marline down"), "stopped");
        let text = std::fs::read_to_string(&resolv_conf).expect("read");
        assert_eq!(text.trim_end(), "nameserver fe80::1%wifi\nsearch test");
    }
}

#[test]
fn a_service_stays_reachable_for_the_peer_that_is_connected_and_for_nothing_else() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-inbound", &[]) else { return };
    // TCP and UDP on one port, like BitTorrent.
    let mut service = world.spawn(&format!(
        "exec python3 -c 'import socket
s = socket.create_server((\"{WIFI}\", 6881))
c, _ = s.accept()
while (b := c.recv(100)): c.sendall(b)'"
    ));
    let peer = world.hosts.program(
        Side::Server,
        &format!(
            "python3 -c 'import socket, time, os
while True:
    try: s = socket.create_connection((\"{WIFI}\", 6881), 20, (\"{OTHER_V4}\", 0)); break
    except OSError: time.sleep(0.1)
def echo():
    s.sendall(b\"hello\"); assert s.recv(100) == b\"hello\"
echo(); open(\"talking\", \"w\").write(\"x\")
while not os.path.exists(\"is-up\"): time.sleep(0.1)
echo(); print(\"still there\", flush=True)
while not os.path.exists(\"over\"): time.sleep(0.1)'"
        ),
    );
    world.wait_until("a connection", || world.dir().join("talking").exists());
    world.up("--path wifi --path lte --kill-switch");
    std::fs::write(world.dir().join("is-up"), "").expect("write");
    hear(&peer, "still there");
    let from_its_port = |to: &str, kind: &str| {
        world.run(&format!(
            "python3 -c 'import socket
s = socket.socket(type=socket.{kind})
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind((\"0.0.0.0\", 6881)); s.connect((\"{to}\", 9))
print(s.getsockname()[0])' 2> /dev/null || true"
        ))
    };
    for to in [TARGET_V4, OTHER_V4] {
        assert_ne!(from_its_port(to, "SOCK_DGRAM"), WIFI, "UDP to {to}");
    }
    let tcp = |to: &str| {
        world.run(&format!("ip route get {to} ipproto tcp sport 6881 dport 9 2>&1 || true"))
    };
    assert!(tcp(OTHER_V4).contains("wifi"), "{}", tcp(OTHER_V4));
    assert!(!tcp(TARGET_V4).contains("wifi"), "{}", tcp(TARGET_V4));
    assert_ne!(world.run(&format!("./seen-from {TARGET_V4} {}", MIRRORS[0])), WIFI);
    // The exception ends with the connection.
    std::fs::write(world.dir().join("over"), "").expect("write");
    world.wait_until("the exception ends", || !world.left().contains("sport 6881"));
    let _ = service.kill();
    let _ = service.wait();
}

/// A resolver at the router's link-local address, which forwards to the real one.
const LINK_RESOLVER: &str = r#"
import socket
link = socket.if_nametoindex("wifi")
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(("fe80::1", 53, 0, link))
print("ready", flush=True)
while True:
    query, client = s.recvfrom(2000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
        ask.settimeout(2)
        ask.sendto(query, ("203.0.113.7", 53))
        s.sendto(ask.recv(2000), client)
"#;

#[test]
fn names_that_are_direct_are_asked_of_the_links_resolver_and_their_hosts_pass_the_kill_switch() {
    let _others = support::among_others();
    let Some(mut world) = world("up-rdnss-by") else { return };
    super::super::run::write_script(&world.dir().join("resolver.py"), LINK_RESOLVER);
    hear(&world.hosts.program(Side::Server, "python3 resolver.py"), "ready");
    let resolv_conf = world.dir().join("machine.conf");
    std::fs::write(&resolv_conf, "nameserver fe80::1%wifi\n").expect("write");
    let pid = world.up("--path wifi --path lte --bypass direct.example.test --kill-switch");
    assert_ne!(world.seen_from(PUBLIC_V4), WIFI);
    assert_eq!(world.run("dig +short +time=5 direct.example.test A"), PUBLIC_V4);
    assert_eq!(world.seen_from(PUBLIC_V4), WIFI);

    // A file written by a DHCP client is the one that is restored.
    let text = || std::fs::read_to_string(&resolv_conf).expect("read");
    std::fs::write(&resolv_conf, "nameserver 10.0.1.77\n").expect("write");
    world.wait_until("the file has the tunnel's resolver again", || {
        text().contains("nameserver 198.18.0.1")
    });
    assert!(world.fetches(&page("www.example.test", 100)));
    world.run(&format!("kill -KILL $(cat /proc/{pid}/task/{pid}/children) {pid}"));
    world.wait_until("the interface is gone", || !world.run("ip link show").contains("marline0"));
    assert!(text().contains("nameserver 198.18.0.1"), "the kill switch stays on");
    world.run("marline down");
    assert_eq!(text(), "nameserver 10.0.1.77\n");
    assert!(world.goes_directly());
}

#[test]
fn a_failure_while_it_runs_leaves_the_kill_switch() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-failed", &[]) else { return };
    let (lines, _) = world.start("--path wifi --path lte --kill-switch");
    hear(&lines, "goes through the server");
    world.run("ip link del marline0");
    hear(&lines, "the kill switch stays on");
    let output = world.output(&format!("./seen-from {TARGET_V4} {} 0.0.0.0 1", MIRRORS[0]));
    assert!(!output.status.success(), "traffic bypasses the tunnel: {output:?}");
    // A later `up` without a kill switch takes over the existing one, and `down` then removes it.
    world.up("--path wifi --path lte");
    assert!(world.fetches(&page("www.example.test", 100)));
    assert_eq!(world.run("marline down"), "stopped");
    assert_eq!(world.left(), "");
    assert!(world.goes_directly());
}

#[test]
fn a_locked_machine_reaches_its_server_by_name_and_stays_closed_after_a_stop() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-lockdown", &[]) else { return };
    // The strict filter checks the reverse path, which is closed.
    world.hosts.shell(Side::Client, "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter");
    let resolv_conf = world.dir().join("machine.conf");
    std::fs::write(&resolv_conf, format!("nameserver {TARGET_V4}\n")).expect("write");
    std::fs::write(world.dir().join("up.toml"), "path = ['wifi']\n[up]\nlockdown = true\n")
        .expect("write");
    let closed = |world: &World| {
        let output = world.output(&format!("./seen-from {TARGET_V4} {} 0.0.0.0 1", MIRRORS[0]));
        assert!(!output.status.success(), "traffic bypasses the tunnel: {output:?}");
    };
    assert!(world.goes_directly());
    world.hosts.shell(
        Side::Server,
        &format!(
            "umask 077; marline server --init --config named.toml --listen {TARGET_V4}:7777 \
             --public v4.example.test:7777 > invite 2> /dev/null"
        ),
    );
    // The server does not run.
    let (lines, pid) = world.start("--config up.toml");
    hear(&lines, "locked down");
    closed(&world);
    signal(pid, Signal::KILL);
    assert!(world.run("marline down").contains("kill switch"));
    assert!(world.goes_directly());

    let server = "./on server.conf marline server --config named.toml --allow 203.0.113.0/24";
    hear(&world.hosts.program(Side::Server, server), "listening on");
    // As at boot, even if the configuration cannot be read.
    assert!(!world.output("marline up --lockdown-only --config missing.toml").status.success());
    closed(&world);
    world.run("marline up --lockdown-only --config up.toml");
    closed(&world);
    let pid = world.up("--config up.toml");
    assert!(world.fetches(&page("www.example.test", 100)));
    signal(pid, Signal::TERM);
    world.wait_until("the interface is gone", || !world.run("ip link show").contains("marline0"));
    closed(&world);
    world.run("marline down --after-crash");
    closed(&world);
    world.up("--config up.toml");
    assert!(world.fetches(&page("www.example.test", 100)));
    assert_eq!(world.run("marline down"), "stopped; kill switch removed");
    assert_eq!(world.left(), "");
    assert!(world.goes_directly());
    assert_eq!(world.run("cat /proc/sys/net/ipv4/conf/all/rp_filter"), "1");
    assert_eq!(
        std::fs::read_to_string(&resolv_conf).expect("read"),
        format!("nameserver {TARGET_V4}\n")
    );
}
