//! What a client says of paths over which its server does not answer: a network that drops UDP, a captive
//! portal that objects, no path at all, a server that is gone. Told once, by name, and taken back.

use super::support::native::start_nginx;
use super::support::world::{Until, World};
use super::{CURL, support, world};

const PATHS: &str = "--path wlan0 --path wwan0";
/// A request whose outcome does not matter.
const ASK: &str = "curl -sS -o /dev/null --max-time 30 --socks5-hostname 127.0.0.1:1080 \
                   http://127.0.0.1:8080/f1 || true";

/// The server and a client, behind a router with this rule. Gives their numbers.
fn start(world: &mut World, rule: &str) -> (usize, usize) {
    start_nginx(world, "", "127.0.0.1:8080", 8080);
    let init = "marline server --init --config s.toml --listen 9.9.9.1:7777 --public 9.9.9.1:7777";
    let word = world.run("server", init);
    support::write_private(&world.dir.join("client/invite"), &word);
    let chain = "nft add table ip portal
        nft 'add chain ip portal through { type filter hook forward priority 0; }'";
    world.run("nat", chain);
    router(world, rule);
    let serve = "marline server --config s.toml --allow 127.0.0.0/8";
    let server = world.start("server", serve, Until::Says("listening on"));
    let client =
        format!("marline client --invite-file invite {PATHS} --socks5 127.0.0.1:1080 --control c");
    (server, world.start("client", &client, Until::Says("socks5 listening")))
}

/// What the router does with packets from now on.
fn router(world: &World, rule: &str) {
    let add = format!("nft 'add rule ip portal through {rule}'");
    world.run("nat", &format!("nft flush chain ip portal through\n{add}"));
}

/// Goes on asking until this is so.
fn ask_until(world: &World, test: &str) {
    world.run("client", &format!("until {test}; do {ASK}; sleep 0.5; done"));
}

fn warnings(world: &World, client: usize, word: &str) -> usize {
    world.log(client).lines().filter(|line| line.contains("WARN") && line.contains(word)).count()
}

const DROP: &str = "ip saddr 192.168.1.0/24 meta l4proto udp drop";
const PORTAL: &str =
    "ip saddr 192.168.1.0/24 meta l4proto udp reject with icmp type admin-prohibited";

#[test]
fn a_network_that_drops_or_forbids_udp_is_named_once_and_taken_back() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = world(dir.path()) else { return };
    let (_, client) = start(&mut world, DROP);
    let events = world.start("client", "marline monitor --control c", Until::Says(""));
    world.run("client", ASK);
    let silent = "path wlan0 to 9.9.9.1:7777: no answer for";
    world.log_with(client, silent);
    ask_until(&world, "marline path --control c | grep -q 'block UDP port 7777'");
    let listed = world.run("client", "marline path --control c");
    assert!(listed.contains("wlan0  up,no-answer"), "{listed}");
    assert!(listed.contains("wwan0  9.9.9.1:7777  answers (heard"), "{listed}");
    let json = world.run("client", "marline path --control c --json");
    assert!(json.contains(r#""health":"no-answer""#) && json.contains(r#""tries":"#), "{json}");
    assert_eq!(warnings(&world, client, silent), 1, "{}", world.log(client));
    router(&world, "accept");
    ask_until(&world, "marline path --control c | grep -q 'wlan0  up  '");
    world.log_with(client, "path wlan0 works again: 9.9.9.1:7777 answers");
    router(&world, PORTAL);
    ask_until(&world, "marline path --control c | grep -q up,prohibited");
    let portal = "192.168.1.1 says: administratively prohibited (ICMP)";
    world.log_with(client, portal);
    world.run("client", ASK);
    assert_eq!(warnings(&world, client, portal), 1, "{}", world.log(client));
    let events = world.log(events);
    let names =
        ["PATH_FAILED paths=wlan0 health=no-answer", "PATH_WORKS paths=wlan0", "=prohibited"];
    for name in names {
        assert!(events.contains(name), "{name} is missing in {events}");
    }
}

#[test]
fn where_no_path_is_left_one_line_says_so_and_a_server_that_is_gone_refuses() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = world(dir.path()) else { return };
    let (server, client) = start(&mut world, "meta l4proto udp drop");
    // The request fails by the client's word (97: a proxy said no) after its ten seconds.
    let asked = "curl -s -o /dev/null --max-time 18 -w '%{exitcode} %{time_total}' \
                 --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:8080/f1 || true";
    let ended = world.run("client", asked);
    println!("curl without a path: {ended}");
    assert!(ended.starts_with("97 "), "{ended}");
    let log = world.log_with(client, "no path reaches 9.9.9.1:7777 over UDP (wlan0: no answer for");
    assert!(log.contains("wwan0: no answer for"), "{log}");
    assert!(log.contains("does this network let UDP out?"), "{log}");
    assert_eq!(warnings(&world, client, "no path reaches"), 1, "{log}");
    let listed = world.run("client", "marline path --control c");
    assert_eq!(listed.matches("up,no-answer").count(), 2, "{listed}");
    router(&world, "accept");
    ask_until(&world, &format!("{CURL} -o /dev/null http://127.0.0.1:8080/f1"));
    world.log_with(client, "works again: 9.9.9.1:7777 answers");
    world.signal(server, "TERM");
    world.wait(server);
    ask_until(&world, "marline path --control c | grep -q up,refused");
    world.log_with(client, "refused by the server: nobody listens on this port");
    let listed = world.run("client", "marline path --control c");
    assert!(listed.contains("9.9.9.1:7777: refused by the server"), "{listed}");
}

/// The doctor with an invite: its words and whether it found a path.
fn doctor(world: &World, invite: &str) -> (String, bool) {
    let command = format!("marline doctor --invite-file {invite} {PATHS}");
    let output = world.command("client", &command, "30").output().expect("the doctor");
    let (out, err) = support::texts(&output);
    (format!("{out}{err}"), output.status.success())
}

#[test]
fn the_doctor_goes_the_way_of_an_invite_and_says_where_it_ends() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut world) = world(dir.path()) else { return };
    let (server, _) = start(&mut world, "accept");
    let (said, well) = doctor(&world, "invite");
    for word in ["UDP", "key", "credential", "MTU"] {
        for path in ["wlan0", "wwan0"] {
            let line = |l: &str| l.starts_with(&format!("works  {word} ")) && l.contains(path);
            assert!(said.lines().any(line), "{word} over {path} is missing in {said}");
        }
    }
    assert!(well && !said.contains("FAILS"), "{said}");
    let stranger = world.run("client", &format!("marline doctor --server 9.9.9.1:7777 {PATHS}"));
    assert!(stranger.contains("wlan0 to 9.9.9.1:7777: answers in"), "{stranger}");
    router(&world, DROP);
    let (said, well) = doctor(&world, "invite");
    assert!(well && said.contains("wlan0 to 9.9.9.1:7777: no answer within"), "{said}");
    assert!(said.contains("what is behind wlan0 seems to block UDP"), "{said}");
    router(&world, PORTAL);
    let (said, well) = doctor(&world, "invite");
    assert!(
        well && said.contains("192.168.1.1 says: administratively prohibited (ICMP)"),
        "{said}"
    );
    router(&world, "accept");
    // Another server's key, at this one's address.
    let init =
        "marline server --init --config other.toml --listen 9.9.9.1:7777 --public 9.9.9.1:7777";
    let word = world.run("server", init);
    support::write_private(&world.dir.join("client/other"), &word);
    let (said, well) = doctor(&world, "other");
    assert!(!well && said.contains("the server has another key than the invite names"), "{said}");
    // A credential that the server does not know any more.
    let word = world.run("server", "marline server --config s.toml credential add tablet");
    support::write_private(&world.dir.join("client/tablet"), &word);
    world.run("server", "marline server --config s.toml credential revoke tablet");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let (said, well) = doctor(&world, "tablet");
    assert!(!well && said.contains("the server refuses it: this credential is unknown"), "{said}");
    world.signal(server, "TERM");
    world.wait(server);
    let (said, well) = doctor(&world, "invite");
    assert!(!well && said.contains("refused by the server: nobody listens on UDP port"), "{said}");
}
