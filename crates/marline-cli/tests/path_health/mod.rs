//! What a client says of paths over which its server does not answer: a network that drops UDP, a captive
//! portal that objects, no path at all, a server that is gone. Told once, by name, and taken back.

use super::support::native::start_nginx;
use super::support::world::{Until, World};
use super::{CURL, support, world};

const PATHS: &str = "--path wlan0 --path wwan0";
/// A request whose outcome does not matter.
const ASK: &str = "curl -sS -o /dev/null --max-time 30 --socks5-hostname 127.0.0.1:1080 \
                   http://127.0.0.1:8080/f1 || true";

/// The server and a client. Gives their numbers.
fn start(world: &mut World) -> (usize, usize) {
    start_nginx(world, "", "127.0.0.1:8080", 8080);
    let init = "marline server --init --config s.toml --listen 9.9.9.1:7777 --public 9.9.9.1:7777";
    let word = world.run("server", init);
    support::write_private(&world.dir.join("client/invite"), &word);
    // What the router does with packets of the first network, or of all.
    let chain = "nft add table ip portal
        nft 'add chain ip portal through { type filter hook forward priority 0; }'";
    world.run("nat", chain);
    let serve = "marline server --config s.toml --allow 127.0.0.0/8";
    let server = world.start("server", serve, Until::Says("listening on"));
    let client =
        format!("marline client --invite-file invite {PATHS} --socks5 127.0.0.1:1080 --control c");
    let client = world.start("client", &client, Until::Says("socks5 listening"));
    (server, client)
}

fn router(world: &World, rule: &str) {
    world.run(
        "nat",
        &format!("nft flush chain ip portal through\nnft 'add rule ip portal through {rule}'"),
    );
}

/// Goes on asking until this is so.
fn ask_until(world: &World, test: &str) {
    world.run("client", &format!("until {test}; do {ASK}; sleep 0.5; done"));
}

fn warnings(world: &World, client: usize, word: &str) -> usize {
    world.log(client).lines().filter(|line| line.contains("WARN") && line.contains(word)).count()
}

#[test]
fn a_network_that_drops_or_forbids_udp_is_named_once_and_taken_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = world(dir.path()) else { return };
    let (_, client) = start(&mut world);
    router(&world, "ip saddr 192.168.1.0/24 meta l4proto udp drop");
    let events = world.start("client", "marline monitor --control c", Until::Says(""));
    world.run("client", ASK);
    let silent = "while it answers over wwan0: the network there seems to block UDP port 7777";
    world.log_with(client, silent);
    let listed = world.run("client", "marline path --control c");
    assert!(listed.contains("wlan0  up,no-answer") && listed.contains(silent), "{listed}");
    assert!(listed.contains("wwan0  9.9.9.1:7777  answers (heard"), "{listed}");
    let json = world.run("client", "marline path --control c --json");
    assert!(json.contains(r#""health":"no-answer""#) && json.contains(r#""tries":"#), "{json}");
    for _ in 0..4 {
        world.run("client", ASK);
    }
    assert_eq!(warnings(&world, client, "path wlan0"), 1, "{}", world.log(client));
    router(&world, "accept");
    world.run(
        "client",
        &format!(
            "until marline path --control c | grep -q 'wlan0  up  '; do {ASK}; sleep 0.5; done"
        ),
    );
    world.log_with(client, "path wlan0 works again: 9.9.9.1:7777 answers");
    router(
        &world,
        "ip saddr 192.168.1.0/24 meta l4proto udp reject with icmp type admin-prohibited",
    );
    let portal = "192.168.1.1 says: administratively prohibited (ICMP), while it answers over wwan0: a captive portal";
    world.run(
        "client",
        &format!(
            "until marline path --control c | grep -q up,prohibited; do {ASK}; sleep 0.5; done"
        ),
    );
    world.log_with(client, portal);
    world.run("client", ASK);
    assert_eq!(warnings(&world, client, portal), 1, "{}", world.log(client));
    let events = world.log(events);
    for name in
        ["PATH_FAILED paths=wlan0 health=no-answer", "PATH_WORKS paths=wlan0", "health=prohibited"]
    {
        assert!(events.contains(name), "{name} is missing in {events}");
    }
}

#[test]
fn where_no_path_is_left_one_line_says_so_and_a_server_that_is_gone_refuses() {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = world(dir.path()) else { return };
    let (server, client) = start(&mut world);
    world.run("client", &format!("{CURL} -o /dev/null http://127.0.0.1:8080/f1"));
    router(&world, "meta l4proto udp drop");
    world.run("client", ASK);
    let log = world.log_with(client, "no path reaches 9.9.9.1:7777 over UDP (wlan0: no answer for");
    assert!(log.contains("wwan0: no answer for"), "{log}");
    assert!(log.contains("does this network let UDP out?"), "{log}");
    assert_eq!(warnings(&world, client, "no path reaches"), 1, "{log}");
    let listed = world.run("client", "marline path --control c");
    assert_eq!(listed.matches("up,no-answer").count(), 2, "{listed}");
    router(&world, "accept");
    world.run(
        "client",
        &format!("until {CURL} -o /dev/null http://127.0.0.1:8080/f1; do sleep 0.2; done"),
    );
    world.log_with(client, "works again: 9.9.9.1:7777 answers");
    world.signal(server, "TERM");
    world.wait(server);
    world.run(
        "client",
        &format!("until marline path --control c | grep -q up,refused; do {ASK}; sleep 0.3; done"),
    );
    world.log_with(client, "refused by the server: nobody listens on this port");
    let listed = world.run("client", "marline path --control c");
    assert!(listed.contains("9.9.9.1:7777: refused by the server"), "{listed}");
}
