//! Tests of a client's warnings about paths over which its server does not answer: a network that drops UDP, a
//! captive portal that rejects it, a missing path, a server that has stopped. Each is reported once, by name, and
//! withdrawn when it recovers.

use std::time::Duration;

use super::support::native::start_nginx;
use super::support::testbed::{Testbed, Until};
use super::support::{self, CURL};
use super::testbed;

const PATHS: &str = "--path wlan0 --path wwan0";
/// A request whose result is ignored.
const ASK: &str = "curl -sS -o /dev/null --max-time 30 --socks5-hostname 127.0.0.1:1080 \
                   http://127.0.0.1:8080/f1 || true";

/// Starts the server and a client, behind a router with this rule. Returns their numbers.
fn start(testbed: &mut Testbed, rule: &str) -> (usize, usize) {
    start_nginx(testbed, "", "127.0.0.1:8080", 8080);
    let init = "marline server --init --config s.toml --listen 9.9.9.1:7777 --public 9.9.9.1:7777";
    let word = testbed.run("server", init);
    support::write_private(&testbed.dir.join("client/invite"), &word);
    let chain = "nft add table ip portal
        nft 'add chain ip portal through { type filter hook forward priority 0; }'";
    testbed.run("nat", chain);
    router(testbed, rule);
    let serve = "marline server --config s.toml --allow 127.0.0.0/8";
    let server = testbed.start("server", serve, Until::Says("listening on"));
    // A client with UDP alone. The other carriers are tested in `udp_blocked`.
    let client = format!(
        "marline client --invite-file invite --carrier udp {PATHS} --socks5 127.0.0.1:1080 --control c"
    );
    (server, testbed.start("client", &client, Until::Says("socks5 listening")))
}

/// Changes the router's rule for packets.
fn router(testbed: &Testbed, rule: &str) {
    let add = format!("nft 'add rule ip portal through {rule}'");
    testbed.run("nat", &format!("nft flush chain ip portal through\n{add}"));
}

/// Repeats the request until this condition holds.
fn ask_until(testbed: &Testbed, test: &str) {
    testbed.run("client", &format!("until {test}; do {ASK}; sleep 0.5; done"));
}

fn warnings(testbed: &Testbed, client: usize, word: &str) -> usize {
    testbed.log(client).lines().filter(|line| line.contains("WARN") && line.contains(word)).count()
}

const DROP: &str = "ip saddr 192.168.1.0/24 meta l4proto udp drop";
const PORTAL: &str =
    "ip saddr 192.168.1.0/24 meta l4proto udp reject with icmp type admin-prohibited";

#[test]
fn a_network_that_drops_or_forbids_udp_is_named_once_and_taken_back() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    let (_, client) = start(&mut testbed, DROP);
    let events = testbed.start("client", "marline monitor --control c", Until::Says(""));
    testbed.run("client", ASK);
    let silent = "path wlan0 to 9.9.9.1:7777: no answer for";
    testbed.log_with(client, silent);
    ask_until(&testbed, "marline path --control c | grep -q 'block UDP port 7777'");
    let listed = testbed.run("client", "marline path --control c");
    assert!(listed.contains("wlan0  up,unreachable"), "{listed}");
    assert!(listed.contains("wwan0  9.9.9.1:7777  answers (last received"), "{listed}");
    let json = testbed.run("client", "marline path --control c --json");
    assert!(json.contains(r#""reach":"no-answer""#) && json.contains(r#""tries":"#), "{json}");
    assert_eq!(warnings(&testbed, client, silent), 1, "{}", testbed.log(client));
    router(&testbed, "accept");
    ask_until(&testbed, "marline path --control c | grep -q 'wlan0  up,usable'");
    testbed.log_with(client, "path wlan0 works again: 9.9.9.1:7777 answers");
    router(&testbed, PORTAL);
    ask_until(
        &testbed,
        "marline path --control c | tr '\\n' ' ' | grep -q 'up,unreachable.*prohibited'",
    );
    let portal = "192.168.1.1 reports: administratively prohibited (ICMP)";
    testbed.log_with(client, portal);
    testbed.run("client", ASK);
    assert_eq!(warnings(&testbed, client, portal), 1, "{}", testbed.log(client));
    let events = testbed.log(events);
    let names =
        ["PATH_FAILED paths=wlan0 reach=no-answer", "PATH_WORKS paths=wlan0", "=prohibited"];
    for name in names {
        assert!(events.contains(name), "{name} is missing in {events}");
    }
}

#[test]
fn no_usable_path_is_logged_once_and_a_dead_server_refuses() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    let (server, client) = start(&mut testbed, "meta l4proto udp drop");
    // The request fails by the client's answer (97: refused by a proxy) after its ten seconds.
    let asked = "curl -s -o /dev/null --max-time 18 -w '%{exitcode} %{time_total}' \
                 --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:8080/f1 || true";
    let ended = testbed.run("client", asked);
    println!("curl without a path: {ended}");
    assert!(ended.starts_with("97 "), "{ended}");
    let log =
        testbed.log_with(client, "no path reaches 9.9.9.1:7777 over UDP (wlan0: no answer for");
    assert!(log.contains("wwan0: no answer for"), "{log}");
    assert!(log.contains("does this network let UDP out?"), "{log}");
    assert_eq!(warnings(&testbed, client, "no path reaches"), 1, "{log}");
    let listed = testbed.run("client", "marline path --control c");
    assert_eq!(listed.matches(",unreachable ").count(), 2, "{listed}");
    assert_eq!(status(&testbed), 2, "no path works");
    router(&testbed, "accept");
    ask_until(&testbed, &format!("{CURL} -o /dev/null http://127.0.0.1:8080/f1"));
    testbed.log_with(client, "works again: 9.9.9.1:7777 answers");
    testbed.signal(server, "TERM");
    testbed.wait(server);
    ask_until(
        &testbed,
        "marline path --control c | tr '\\n' ' ' | grep -q 'up,unreachable.*refused'",
    );
    testbed.log_with(client, "refused by the server: nothing listens on this port");
    let listed = testbed.run("client", "marline path --control c");
    assert!(listed.contains("9.9.9.1:7777: refused by the server"), "{listed}");
}

/// Returns the exit status of `marline status`.
fn status(testbed: &Testbed) -> i32 {
    let output = testbed.command("client", "marline status --control c", "20").output();
    output.expect("marline status").status.code().expect("an exit status")
}

/// A portal's rejection of UDP does not affect a server that is reached over TCP, even after a long idle time.
#[test]
fn a_path_that_works_over_tcp_stays_usable_where_a_portal_rejects_udp() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    start(&mut testbed, PORTAL);
    let auto =
        "marline client --invite-file invite --path wlan0 --socks5 127.0.0.1:1081 --control auto";
    testbed.start("client", auto, Until::Says("socks5 listening"));
    let usable = "marline status --control auto | grep -q 'wlan0: over TCP, as UDP gets no answer'";
    testbed.run("client", &format!("until {usable}; do sleep 0.2; done"));
    for _ in 0..8 {
        testbed.run(
            "client",
            &format!("{usable}\nmarline path --control auto | grep -q 'wlan0  up,usable'"),
        );
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// A path whose interface goes down is unreachable, with the cause. The other path continues.
#[test]
fn a_path_whose_interface_is_down_is_unreachable() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    start(&mut testbed, "accept");
    ask_until(&testbed, "marline status --control c | grep -q 'wlan0  *usable'");
    let mut states = Vec::new();
    for (interface, exit) in [("wlan0", 0), ("wwan0", 2)] {
        testbed.run("client", &format!("ip link set {interface} down"));
        let down =
            format!("marline status --control c | grep -q '{interface}: the interface is down'");
        ask_until(&testbed, &down);
        states.push((status(&testbed), exit));
    }
    assert!(states.iter().all(|(is, exit)| is == exit), "{states:?}");
}

/// Runs the doctor with an invite. Returns its output and whether it found a path.
fn doctor(testbed: &Testbed, invite: &str) -> (String, bool) {
    let command = format!("marline doctor --invite-file {invite} {PATHS}");
    let output = testbed.command("client", &command, "30").output().expect("the doctor");
    let (out, err) = support::texts(&output);
    (format!("{out}{err}"), output.status.success())
}

#[test]
fn the_doctor_goes_the_way_of_an_invite_and_says_where_it_ends() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    let (server, _) = start(&mut testbed, "accept");
    let (said, well) = doctor(&testbed, "invite");
    for word in ["UDP", "TCP", "key", "credential", "MTU", "path"] {
        for path in ["wlan0", "wwan0"] {
            let line = |l: &str| l.starts_with(&format!("works  {word} ")) && l.contains(path);
            assert!(said.lines().any(line), "{word} over {path} is missing in {said}");
        }
    }
    assert!(well && !said.contains("FAILS"), "{said}");
    let stranger = testbed.run("client", &format!("marline doctor --server 9.9.9.1:7777 {PATHS}"));
    assert!(stranger.contains("wlan0 to 9.9.9.1:7777: answers in"), "{stranger}");
    router(&testbed, DROP);
    let (said, well) = doctor(&testbed, "invite");
    assert!(well && said.contains("wlan0 to 9.9.9.1:7777: no answer for"), "{said}");
    assert!(said.contains("wlan0: usable: over TCP, as UDP gets no answer"), "{said}");
    router(&testbed, PORTAL);
    let (said, well) = doctor(&testbed, "invite");
    assert!(
        well && said.contains("192.168.1.1 reports: administratively prohibited (ICMP)"),
        "{said}"
    );
    router(&testbed, "ip saddr 192.168.1.0/24 drop");
    let (said, well) = doctor(&testbed, "invite");
    assert!(well && said.contains("FAILS  path            wlan0: unreachable"), "{said}");
    assert!(said.contains("the network behind wlan0 is down or blocks it"), "{said}");
    router(&testbed, "accept");
    // The key of another server at this one's address.
    let init =
        "marline server --init --config other.toml --listen 9.9.9.1:7777 --public 9.9.9.1:7777";
    let word = testbed.run("server", init);
    support::write_private(&testbed.dir.join("client/other"), &word);
    let (said, well) = doctor(&testbed, "other");
    assert!(!well && said.contains("the server's key differs from the invite's"), "{said}");
    // A credential that was revoked.
    let word = testbed.run("server", "marline server --config s.toml credential add tablet");
    support::write_private(&testbed.dir.join("client/tablet"), &word);
    testbed.run("server", "marline server --config s.toml credential revoke tablet");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let (said, well) = doctor(&testbed, "tablet");
    assert!(!well && said.contains("refused by the server: unknown credential"), "{said}");
    testbed.signal(server, "TERM");
    testbed.wait(server);
    let (said, well) = doctor(&testbed, "invite");
    assert!(
        !well && said.contains("refused by the server: nothing listens on this port"),
        "{said}"
    );
}
