//! Tests of native TCP with several shards, over two networks between namespaces: `marline serve --shards 2` on raw
//! sockets and on the queues of TUN interfaces with the kernel's Multipath TCP as the client, and a `marline
//! server` with a `marline client`. Needs root.

use std::time::{Duration, Instant};

use super::native_serve::{self, EARLY};
use super::support::native::{start_nginx, testbed};
use super::support::testbed::{Testbed, Until};
use super::support::{self, CURL};

/// Number of concurrent connections, each with a subflow over both networks.
const CONNECTIONS: u64 = 48;

/// Echoes all data until the end.
const SERVICE: &str = "
import socket, threading
def serve(s):
    while True:
        more = s.recv(65536)
        if not more: break
        s.sendall(more)
    s.close()
l = socket.create_server(('127.0.0.1', 8080), backlog=256)
print('ready')
while True:
    s, _ = l.accept()
    threading.Thread(target=serve, args=(s,), daemon=True).start()
";

/// Opens all connections, waits until each has its second subflow, and then exchanges data on all of them with the
/// service, which must echo it correctly.
const CLIENT: &str = "
import hashlib, os, socket, subprocess, sys, threading, time
host, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
family = socket.AF_INET6 if ':' in host else socket.AF_INET
def connect():
    s = socket.socket(family, socket.SOCK_STREAM, 262)
    s.settimeout(30)
    s.connect((host, 80))
    s.sendall(b'first')
    got = b''
    while len(got) < 5: got += s.recv(5)
    assert got == b'first'
    return s
def joined():
    text = subprocess.run(['nstat', '-asz', 'MPTcpExtMPJoinSynAckRx'], capture_output=True, text=True).stdout
    return int(text.split('MPTcpExtMPJoinSynAckRx')[1].split()[0])
before = joined()
sockets = [connect() for _ in range(count)]
deadline = time.monotonic() + 20
while joined() - before < count and time.monotonic() < deadline: time.sleep(0.05)
print('joined', joined() - before, flush=True)
def send(s, n, sums):
    sum = hashlib.sha256()
    for at in range(0, size, 50000):
        block = os.urandom(50000)
        sum.update(block)
        s.sendall(block)
    s.shutdown(socket.SHUT_WR)
    sums[n][0] = sum.hexdigest()
def receive(s, n, sums):
    sum = hashlib.sha256()
    while True:
        more = s.recv(65536)
        if not more: break
        sum.update(more)
    sums[n][1] = sum.hexdigest()
sums = [[None, 'nothing'] for _ in sockets]
threads = [threading.Thread(target=way, args=(s, n, sums)) for n, s in enumerate(sockets) for way in (send, receive)]
for t in threads: t.start()
for t in threads: t.join()
print('whole', sum(went == came for went, came in sums))
# Ends by themselves, and new ones between the ends of old ones.
for _ in range(count):
    s = connect(); s.close()
print('again', count)
";

fn counter(metrics: &str, event: &str) -> u64 {
    let line = metrics.lines().find(|line| line.contains(&format!("event=\"{event}\"")));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    value.unwrap_or_else(|| panic!("{event} is none of\n{metrics}")) as u64
}

/// Returns the counts of both shards: joins, joins and segments that arrived at the wrong shard, and bad checksums.
fn counters(testbed: &Testbed) -> [u64; 4] {
    let metrics = testbed.run("server", "curl -sS --fail http://127.0.0.1:9000/metrics");
    let events = ["mp_join_ack_rx", "foreign_joins", "foreign_segments", "bad_checksums"];
    let counters = events.map(|event| counter(&metrics, event));
    println!("{events:?}: {counters:?}");
    counters
}

/// Returns the number of SYN/ACKs in the captures of each shard: of connections, and of joins.
fn answers(testbed: &Testbed, shard: usize) -> (u64, u64) {
    let command = format!(
        "set -o pipefail
        for f in captures/server-shard{shard}*; do
            tshark -r $f -Y 'tcp.flags.syn == 1 && tcp.flags.ack == 1' -T fields \
                -e tcp.options.mptcp.subtype || exit
        done"
    );
    let subtypes = testbed.run("server", &command);
    let count = |subtype: &str| subtypes.lines().filter(|line| *line == subtype).count() as u64;
    (count("0"), count("1"))
}

/// Runs the client against a running front over both networks, and checks the counts of the shards.
///
/// `least`: number of segments of each foreign join that arrive at the other shard. The kernel soon moves a flow to
/// the queue of the interface to which it is written.
fn both_shards_serve(testbed: &mut Testbed, front: usize, hosts: &[&str], least: u64) {
    std::fs::write(testbed.dir.join("client/client.py"), CLIENT).expect("a file");
    for host in hosts {
        let text = testbed.run("client", &format!("python3 client.py {host} {CONNECTIONS} 100000"));
        let (joined, rest) = text.split_once('\n').expect("lines");
        let joined: u64 = joined.trim_start_matches("joined ").parse().expect("a number");
        assert!(joined >= CONNECTIONS, "{host}: {text}");
        assert_eq!(rest, format!("whole {CONNECTIONS}\nagain {CONNECTIONS}\n"), "{host}");
    }
    let counters = counters(testbed);
    let [joined, foreign, segments, wrong] = counters;
    let all = CONNECTIONS * hosts.len() as u64;
    // Half of them, apart from chance.
    assert!(joined >= all && (joined / 4..=joined * 3 / 4).contains(&foreign), "{counters:?}");
    assert!(segments > least * foreign, "{counters:?}");
    assert_eq!(wrong, 0);
    for name in ["MPCapableFallbackSYNACK", "MPCapableFallbackACK", "DSSCorruptionFallback"] {
        assert_eq!(testbed.counter("client", &format!("MPTcpExt{name}")), 0, "{name}");
    }
    testbed.signal(front, "TERM");
    assert!(testbed.wait(front), "SIGTERM is an orderly end:\n{}", testbed.log(front));
    for shard in [0, 1] {
        let (connections, joins) = answers(testbed, shard);
        println!("shard {shard}: {connections} connections, {joins} joins");
        // Includes connections that were opened later.
        assert!(
            connections >= all / 2 && joins >= all / 4,
            "shard {shard}: {connections}, {joins}"
        );
    }
}

const PROGRAMS: [&str; 3] = ["python3", "curl", "tshark"];

#[test]
fn two_shards_on_raw_sockets_serve_a_kernels_clients() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &PROGRAMS) else { return };
    std::fs::write(testbed.dir.join("server/service.py"), SERVICE).expect("a file");
    testbed.start("server", "python3 -u service.py", Until::Says("ready"));
    let serve = "marline serve --shards 2 --listen 0.0.0.0:80 --listen [::]:80 --to 127.0.0.1:8080 \
                 --signal 10.91.2.1 --signal fd91:2::1 --pcap captures --metrics 127.0.0.1:9000";
    let front = testbed.start("server", serve, Until::Says("listening on [::]:80"));
    both_shards_serve(&mut testbed, front, &["10.91.1.1", "fd91:1::1"], 2);
}

/// A cookie from one shard is valid at the other, which then accepts the data of its SYNs.
#[test]
fn a_cookie_of_fast_open_is_good_at_either_shard() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &PROGRAMS) else { return };
    std::fs::write(testbed.dir.join("server/service.py"), native_serve::SERVICE).expect("a file");
    std::fs::write(testbed.dir.join("client/early.py"), EARLY).expect("a file");
    testbed.start("server", "python3 -u service.py", Until::Says("ready"));
    let serve = "marline serve --shards 2 --listen 10.91.1.1:80 --to 127.0.0.1:8080 --fast-open 80 \
                 --pcap captures";
    let front = testbed.start("server", serve, Until::Says("listening on"));
    let text = testbed.run("client", "python3 early.py tcp 80 24; python3 early.py mptcp 80 24");
    let taken = |count: usize| vec!["taken"; count].join(", ");
    assert_eq!(text, format!("asked, {}\n{}\n", taken(23), taken(24)));
    testbed.signal(front, "TERM");
    assert!(testbed.wait(front), "SIGTERM is an orderly end:\n{}", testbed.log(front));
    for shard in [0, 1] {
        let count = testbed.run(
            "server",
            &format!(
                "set -o pipefail
                for f in captures/server-shard{shard}*; do
                    tshark -r $f -Y 'tcp.flags.syn == 1 && tcp.flags.ack == 1 && tcp.ack == 11' || exit
                done | wc -l"
            ),
        );
        let count: u32 = count.trim().parse().expect("a number");
        // Half of them, apart from chance.
        assert!((8..=39).contains(&count), "shard {shard}: {count} SYNs with data of 47");
    }
}

#[test]
fn two_shards_on_the_queues_of_an_interface_serve_a_kernels_clients() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &PROGRAMS) else { return };
    std::fs::write(testbed.dir.join("server/service.py"), SERVICE).expect("a file");
    testbed.start("server", "python3 -u service.py", Until::Says("ready"));
    // A separate host behind the machine, with an address for each network.
    testbed.run(
        "server",
        "for n in 1 2; do
            ip tuntap add mode tun name inner$n multi_queue
            ip link set inner$n up
            ip route add 10.92.$n.1 dev inner$n
        done
        sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0",
    );
    testbed.run(
        "client",
        "ip route add 10.92.1.1 via 10.91.1.1; ip route add 10.92.2.1 via 10.91.2.1",
    );
    let tun = "--carrier tun --tun inner1=10.92.1.1 --tun inner2=10.92.2.1";
    let serve = format!(
        "marline serve --shards 2 {tun} --listen 10.92.1.1:80 --to 127.0.0.1:8080 --signal 10.92.2.1 \
         --pcap captures --metrics 127.0.0.1:9000"
    );
    let front = testbed.start("server", &serve, Until::Says("listening on"));
    both_shards_serve(&mut testbed, front, &["10.92.1.1"], 1);
}

/// Fetches the 50 files of the web server concurrently, twice. All arrive complete, on connections of both shards.
const FETCH: &str = "
CURL -o sums http://127.0.0.1:8080/sums
for round in 1 2; do
    rm -f f[0-9]*
    seq 50 | xargs -P 50 -I N CURL -o fN 'http://127.0.0.1:8080/fN?rate=100k'
    sha256sum --check --quiet --ignore-missing sums
    ls f[0-9]* | wc -l
done";

/// Streams of a client at a server with two shards, half of which have their second subflow at the other shard.
/// They survive the loss of the network over which most of them started.
#[test]
fn two_shards_of_a_server_have_the_streams_of_a_client_between_them() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &[&PROGRAMS[..], &["nginx"]].concat()) else {
        return;
    };
    start_nginx(&mut testbed, "", "127.0.0.1:8080", 8080);
    let at = "10.91.1.1:7777";
    let init = format!("marline server --init --config s.toml --listen {at} --public {at}");
    let invite = testbed.run("server", &init);
    support::write_private(&testbed.dir.join("client/invite"), &invite);
    let serve = "marline server --config s.toml --allow 127.0.0.0/8 --carrier raw --shards 2 --pcap captures \
                 --metrics 127.0.0.1:9000";
    let server = testbed.start("server", serve, Until::Says("listening on"));
    let client = "marline client --invite-file invite --carrier raw --path net1 --path net2 --socks5 127.0.0.1:1080";
    testbed.start("client", client, Until::Says("socks5 listening"));
    let before = Instant::now();
    let fetched = std::thread::scope(|scope| {
        let fetching = scope.spawn(|| testbed.run("client", &FETCH.replace("CURL", CURL)));
        std::thread::sleep(Duration::from_secs(2));
        testbed.run("server", "ip link set eth1 down");
        fetching.join().expect("no panic")
    });
    println!("fetched in {:?}", before.elapsed());
    assert_eq!(fetched, "50\n50\n");
    let counters = counters(&testbed);
    // Half of them, apart from chance. Fetched data arrives at the other shard.
    let [joined, foreign, segments, wrong] = counters;
    assert!(joined >= 40 && (joined / 8..=joined * 7 / 8).contains(&foreign), "{counters:?}");
    assert!(segments > 10 * foreign && wrong == 0, "{counters:?}");
    testbed.signal(server, "TERM");
    assert!(testbed.wait(server), "SIGTERM is an orderly end:\n{}", testbed.log(server));
    let answered = [0, 1].map(|shard| answers(&testbed, shard));
    println!("connections and joins answered by the shards: {answered:?}");
    assert!(answered.iter().all(|(connections, joins)| *connections >= 6 && *joins >= 6));
}
