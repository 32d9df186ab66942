//! Tests of a fleet in namespaces: four servers behind a balancer without support for Multipath TCP. Subflows and
//! connections of one session stay at one member in spite of changes of clients' addresses and of members. Needs
//! root, nft and python3.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::support::testbed::{Testbed, Until};
use super::support::{self, write_private};
use super::upgrade::TookOver;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fleet/world.sh");
const STREAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fleet/streams.py");
const FRESH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fleet/fresh.py");
const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fleet/kernel.py");
const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fleet/service.py");
const MEMBERS: [&str; 4] = ["m1", "m2", "m3", "m4"];
/// The address that clients know, which is the balancer's.
const COMMON: &str = "203.0.113.7";
/// First SOCKS5 port of the clients.
const PORT: usize = 20_000;
/// Time limit for any expected state.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time within which a new connection of a client whose member has died reaches another one: 3 s for a silent
/// waiting connection, 750 ms for the member's own address (docs/operate/fleet.md), and an allowance for a busy
/// machine.
const ELSEWHERE_S: f64 = 3.75 + 11.25;
/// Time within which connections of a member end once it has returned: it does not know them, and proves it (ten
/// seconds, docs/operate/deploy.md, and an allowance for a busy machine).
const DISOWNED_S: f64 = 10.0 + 20.0;

/// Seconds after which connections of an absent member end, counted from the proof that the network works
/// (`RECEIVE_IDLE_LIMIT` of the dialer), with an allowance for a busy machine.
const GIVEN_UP_S: std::ops::RangeInclusive<f64> = 100.0..=140.0;

/// The fleet, its clients, and their streams. Successor processes end before their namespaces.
struct Fleet {
    took_over: Vec<TookOver>,
    testbed: Testbed,
    clients: usize,
    streams: usize,
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

/// Returns the namespaces, if this machine supports them, with the program in their PATH.
fn world(dir: &Path) -> Option<Testbed> {
    Testbed::of_marline(dir, SCRIPT, &["nft", "python3", "curl", "ss"])
}

/// Joins that arrived at members which do not know their connections.
fn joins_astray(testbed: &Testbed) -> u64 {
    let of = |member: &&str| {
        let page = testbed.run(member, "curl -sS --fail http://127.0.0.1:9102/metrics");
        let line = page.lines().find(|line| line.contains("mp_join_no_token"));
        let line = line.unwrap_or_else(|| panic!("no counter of joins:\n{page}"));
        line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")
    };
    MEMBERS.iter().map(of).sum()
}

impl Fleet {
    /// Four members, and this many clients with this many open streams each.
    fn start(dir: &Path, carrier: &str, clients: usize, each: usize) -> Option<Fleet> {
        let testbed = world(dir)?;
        let mut fleet = Fleet { took_over: Vec::new(), testbed, clients, streams: clients * each };
        let (config, invite) = (dir.join("fleet.toml"), dir.join("client/invite"));
        let config = config.display();
        // All members have one key, one set of clients, and one public address.
        let init = format!(
            "marline server --init --config {config} --listen 0.0.0.0:7777 --public {COMMON}:7777"
        );
        write_private(&invite, &fleet.testbed.run("net", &init));
        for member in MEMBERS {
            let service = format!("python3 -u {SERVICE} {member}");
            fleet.testbed.start(member, &service, Until::Says("ready"));
            fleet.begin(member);
        }
        for number in 0..clients {
            let client = format!(
                "marline client --invite-file invite --path wlan0 --path wwan0 --warm 0 \
                 --carrier {carrier} --socks5 127.0.0.1:{} --control ./control-{number}",
                PORT + number
            );
            fleet.testbed.start("client", &client, Until::Says("socks5 listening"));
        }
        let streams = format!("python3 -u {STREAMS} {PORT} {clients} {each}");
        fleet.testbed.start("client", &streams, Until::Says("ready"));
        fleet.all_answer("after the start");
        Some(fleet)
    }

    /// Starts a member.
    fn begin(&mut self, member: &str) {
        let number = &member[1..];
        let server = format!(
            "marline server --config {} --listen 0.0.0.0:7777 --listen 0.0.0.0:7778 \
             --advertise 9.9.{number}.1:7778 --allow 127.0.0.0/8 --control ./control --metrics 127.0.0.1:9102",
            self.testbed.dir.join("fleet.toml").display()
        );
        self.testbed.start(member, &server, Until::Says("listening on 0.0.0.0:7778"));
    }

    fn state(&self) -> Value {
        let text = std::fs::read(self.testbed.dir.join("client/state")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Waits until every stream has sent a message and received it back. Returns the state of all streams.
    fn all_answer(&self, when: &str) -> Value {
        self.all_answer_within(when, PATIENCE)
    }

    fn all_answer_within(&self, when: &str, patience: Duration) -> Value {
        let (begun, until) = (now_s(), Instant::now() + patience);
        loop {
            let state = self.state();
            let whole = state["open"].as_u64() == Some(self.streams as u64);
            if whole && state["all_answered_since"].as_f64().is_some_and(|since| since > begun) {
                println!("{when}: {state} after {:.1} s", now_s() - begun);
                return state;
            }
            assert!(Instant::now() < until, "{when}: {state}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn nothing_is_lost(&self, when: &str) -> Value {
        let state = self.all_answer(when);
        let none = serde_json::json!({});
        assert_eq!((&state["lost"], &state["silent"]), (&none, &none), "{when}: {state}");
        assert_eq!(state["refused"], 0, "{when}: {state}");
        state
    }

    /// Checks that a new connection through each client reaches a living member.
    fn check_new_connections_move(&self, dead: &str) {
        let fresh = format!("python3 {FRESH} {PORT} {}", self.clients);
        let said = self.testbed.run("client", &fresh);
        let mut slowest = 0.0;
        for line in said.lines() {
            let (seconds, member) = line.split_once(' ').expect("SECONDS MEMBER");
            assert!(MEMBERS.contains(&member) && member != dead, "{dead} is dead: {said}");
            slowest = f64::max(slowest, seconds.parse().expect("a number"));
        }
        assert_eq!(said.lines().count(), self.clients, "{said}");
        println!("{dead} is dead: new connections reach another member within {slowest:.1} s");
        assert!(slowest < ELSEWHERE_S, "{said}");
    }

    /// Waits until every connection has two subflows, over different paths to one member's own address.
    fn two_ways_to_one_member(&self) {
        let until = Instant::now() + PATIENCE;
        'look: loop {
            assert!(Instant::now() < until, "not all connections have two paths");
            let mut seen = 0;
            for number in 0..self.clients {
                let look =
                    format!("marline monitor --table --once --json --control ./control-{number}");
                let said = self.testbed.run("client", &look);
                let connections: Value = serde_json::from_str(&said).expect("JSON");
                for connection in connections.as_array().expect("a list") {
                    let ends = |end: &str| {
                        let subflows =
                            connection["subflows"].as_array().cloned().unwrap_or_default();
                        let end =
                            |subflow: &Value| subflow[end].as_str().expect("an end").to_owned();
                        subflows.iter().map(end).collect::<Vec<_>>()
                    };
                    let (local, remote) = (ends("local"), ends("remote"));
                    let astray = remote.iter().any(|at| at.starts_with(COMMON));
                    if astray || remote.len() != 2 || remote[0] != remote[1] || local[0] == local[1]
                    {
                        std::thread::sleep(Duration::from_millis(200));
                        continue 'look;
                    }
                    seen += 1;
                }
            }
            assert_eq!(seen, self.streams);
            return;
        }
    }

    /// Replaces the process of a member by an upgrade.
    fn upgrade(&mut self, member: &str) {
        let said = self.testbed.run(member, "marline upgrade --control ./control");
        self.took_over.push(TookOver::told_by(&said));
    }

    /// Returns the member with most streams, their number, and the numbers of the other members.
    fn fullest(&self) -> (&'static str, u64, String) {
        let state = self.state();
        let at = |member: &str| state["members"][member].as_u64().unwrap_or_default();
        let victim = *MEMBERS.iter().max_by_key(|member| at(member)).expect("there are four");
        let left = MEMBERS.iter().filter(|member| **member != victim).map(|member| &member[1..]);
        (victim, at(victim), left.collect::<Vec<_>>().join(" "))
    }

    /// Kills all processes of a member together, and removes it from the balancer. Clients are not notified.
    fn kill(&self, member: &str, left: &str) {
        // By namespace, because an older process may still exist. In one call, because otherwise one process would
        // reset the other's connections in between.
        let kill = "here=$(readlink /proc/self/ns/net); pids=; for exe in /proc/[0-9]*/exe; do \
                    pid=${exe#/proc/}; pid=${pid%/exe}; \
                    if [ \"$(readlink $exe)\" = \"$(readlink -f ../bin/marline)\" ] && \
                       [ \"$(readlink /proc/$pid/ns/net)\" = \"$here\" ]; then pids+=\" $pid\"; fi; done; \
                    kill -KILL $pids";
        self.testbed.run(member, kill);
        self.testbed.run("net", &format!("balance {left}"));
    }
}

/// Joins, a rebinding, a rolling upgrade, and the death of a member.
fn run_all_events(carrier: &str, clients: usize, each: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut fleet) = Fleet::start(dir.path(), carrier, clients, each) else { return };
    fleet.two_ways_to_one_member();
    assert_eq!(joins_astray(&fleet.testbed), 0);
    fleet.testbed.run("net", "rebind 198.51.100.2");
    fleet.nothing_is_lost("after a rebinding");
    for member in MEMBERS {
        fleet.upgrade(member);
    }
    fleet.nothing_is_lost("after a rolling upgrade");
    fleet.two_ways_to_one_member();
    assert_eq!(joins_astray(&fleet.testbed), 0);
    // The member with most streams dies.
    let (victim, had, left) = fleet.fullest();
    fleet.kill(victim, &left);
    // Clients notice by themselves: immediately for new connections, and for open ones when the member returns without
    // knowing them.
    fleet.check_new_connections_move(victim);
    fleet.begin(victim);
    let back_s = now_s();
    let after = fleet.all_answer(&format!("after {victim} was killed"));
    let took_s = now_s() - back_s;
    assert!(took_s < DISOWNED_S, "{took_s:.1} s after {victim} was back: {after}");
    only_these_were_lost(&after, victim, had);
    println!(
        "{carrier}: {} connections of {clients} clients with two paths each: a rebinding and a rolling upgrade, \
         0 lost, 0 joins astray; {} were lost with {victim} and moved to another member",
        fleet.streams, had
    );
}

/// Checks that this many streams of this member were lost, each once, and have moved to other members.
fn only_these_were_lost(state: &Value, member: &str, count: u64) {
    let lost = state["lost"].as_object().expect("a table");
    assert_eq!(
        lost.keys().collect::<Vec<_>>(),
        [member],
        "streams of other members were not lost: {state}"
    );
    assert_eq!(lost[member].as_u64(), Some(count), "each once: {state}");
    assert_eq!(state["silent"], serde_json::json!({}), "no application had to give up: {state}");
    assert_eq!(state["refused"], 0, "{state}");
    assert_eq!(state["members"][member].as_u64(), None, "{state}");
}

#[test]
fn fleet_joins_never_go_astray() {
    let _others = support::among_others();
    run_all_events("udp", 10, 4);
}

/// Clients of the kernel, without a program of ours at their end, respect flag C and join at a member's own
/// address.
#[test]
fn a_kernels_clients_join_the_right_member() {
    const CONNECTIONS: usize = 12;
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = world(dir.path()) else { return };
    for (member, number) in MEMBERS.iter().zip(1..) {
        let service = format!("python3 -u {SERVICE} {member}");
        testbed.start(member, &service, Until::Says("ready"));
        let front = format!(
            "marline serve --listen 0.0.0.0:7777 --listen 0.0.0.0:7778 --to 127.0.0.1:9000 \
             --advertise 9.9.{number}.1:7778 --control ./control --metrics 127.0.0.1:9102"
        );
        testbed.start(member, &front, Until::Says("listening on 0.0.0.0:7778"));
    }
    let endpoints = "ip mptcp limits set add_addr_accepted 4 subflows 4; \
                     ip mptcp endpoint add 192.168.1.2 dev wlan0 subflow fullmesh; \
                     ip mptcp endpoint add 10.70.0.2 dev wwan0 subflow fullmesh; mkfifo go";
    testbed.run("client", endpoints);
    let connect = format!("python3 -u {KERNEL} {COMMON} 7777 {CONNECTIONS}");
    let connected = testbed.start("client", &connect, Until::Says("ready"));
    testbed.run("client", "echo go > go");
    testbed.log_with(connected, "round");
    // From both addresses to the member's own address. Only the first subflow uses the balancer.
    let count = |which: &str| {
        let said = testbed.run("client", &format!("ss -Htn state established {which}"));
        said.lines().count()
    };
    let until = Instant::now() + PATIENCE;
    while count("dport = :7778") < 2 * CONNECTIONS {
        assert!(Instant::now() < until, "{}", testbed.run("client", "ss -tn; nstat -asz 'MPTcp*'"));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((count("dport = :7778"), count("dport = :7777")), (2 * CONNECTIONS, CONNECTIONS));
    assert_eq!(joins_astray(&testbed), 0);
    // The first path is lost: its addresses have changed, which native TCP does not survive.
    testbed.run("net", "rebind 198.51.100.2");
    testbed.run("client", "echo go > go");
    let until = Instant::now() + PATIENCE;
    while testbed.log(connected).matches("round").count() < 2 {
        assert!(Instant::now() < until, "{}", testbed.log(connected));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// ```text
/// cargo test -p marline-cli --test it fleet:: -- --nocapture --include-ignored
/// ```
#[test]
#[ignore = "takes minutes: cargo xtask nightly fleet"]
fn joins_of_two_thousand_streams_never_go_astray() {
    let _alone = support::lock_exclusively();
    run_all_events("tcp", 10, 4);
    run_all_events("udp", 50, 40);
}

/// The loss is never reported: the machine is off the network and does not return.
#[test]
#[ignore = "takes minutes: cargo xtask nightly fleet"]
fn connections_of_a_member_that_stays_away_are_given_up_in_two_minutes() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(fleet) = Fleet::start(dir.path(), "udp", 8, 2) else { return };
    fleet.two_ways_to_one_member();
    let (victim, had, left) = fleet.fullest();
    fleet.kill(victim, &left);
    fleet.testbed.run(victim, "ip link set eth0 down");
    // This shows the member's clients that the network works.
    fleet.check_new_connections_move(victim);
    let gone_s = now_s();
    let after = fleet.all_answer_within(&format!("without {victim}"), 2 * PATIENCE);
    let took_s = now_s() - gone_s;
    assert!(GIVEN_UP_S.contains(&took_s), "{took_s:.1} s: {after}");
    only_these_were_lost(&after, victim, had);
}
