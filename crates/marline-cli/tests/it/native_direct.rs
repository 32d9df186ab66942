//! Tests of `marline client --direct` with real servers: a kernel's Multipath TCP (with `mptcpize`), and plain TCP
//! after fallback, over two networks between namespaces. Needs root.

use super::support;
use super::support::native::{LARGE, start_nginx, start_sshd, testbed};
use super::support::testbed::{Testbed, Until};

const CLIENT: &str = "marline client --direct --path net1 --path net2 --socks5 127.0.0.1:1080";

/// Fetches by both names through the SOCKS5 port, and compares the result with the original.
fn fetch(testbed: &Testbed, port: u16) {
    for name in ["four.example", "six.example"] {
        let curl = "curl -sS --fail --socks5-hostname 127.0.0.1:1080";
        let text = testbed.run(
            "client",
            &format!(
                "rm -f large sums
                {curl} -o large http://{name}:{port}/large
                {curl} -o sums http://{name}:{port}/sums
                sha256sum --check --ignore-missing sums"
            ),
        );
        assert!(text.contains("large: OK"), "{text}");
    }
}

/// Lets the kernel announce its second address and accept joins to both.
fn announce(testbed: &Testbed) {
    testbed.run(
        "server",
        "ip mptcp endpoint add 10.91.2.1 dev eth2 signal
        ip mptcp endpoint add fd91:2::1 dev eth2 signal",
    );
}

#[test]
fn curl_reaches_a_kernel_that_speaks_mptcp() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx"]) else { return };
    announce(&testbed);
    start_nginx(&mut testbed, "mptcpize run", "[::]:80 ipv6only=off", 80);
    let client = testbed.start("client", CLIENT, Until::Says("socks5 listening"));
    fetch(&testbed, 80);
    let count = |name: &str| testbed.counter("server", name);
    assert!(count("MPTcpExtMPCapableACKRX") >= 4);
    assert!(count("MPTcpExtMPJoinAckRx") >= 2, "the second network was not used");
    assert_eq!(count("MPTcpExtMPCapableFallbackACK"), 0);
    let log = testbed.log(client);
    assert!(log.contains("over Multipath TCP") && !log.contains("over plain TCP"), "{log}");
}

#[test]
fn curl_reaches_a_server_that_does_not_and_the_log_says_so() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx"]) else { return };
    start_nginx(&mut testbed, "", "[::]:80 ipv6only=off", 80);
    let client = testbed.start("client", CLIENT, Until::Says("socks5 listening"));
    let events = testbed.start("client", "marline monitor", Until::Says(""));
    // The monitor prints nothing before an event, and may miss the first fetch.
    fetch(&testbed, 80);
    fetch(&testbed, 80);
    assert!(testbed.log(client).contains("over plain TCP"), "{}", testbed.log(client));
    assert!(testbed.log_with(events, "FALLBACK").contains("FALLBACK"));
    let text = testbed.run(
        "client",
        "curl -sS --socks5-hostname 127.0.0.1:1080 http://four.example:81/ 2>&1 || echo code $?",
    );
    assert!(text.contains("code 97"), "a refused connection is reported as such: {text}");
}

#[test]
fn ssh_goes_straight_to_a_kernel_that_speaks_mptcp() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["ssh", "sshd", "ssh-keygen"]) else { return };
    announce(&testbed);
    start_sshd(&mut testbed, "10.91.1.1", 22, "mptcpize run");
    testbed.start("client", CLIENT, Until::Says("socks5 listening"));
    for way in ["--socks5 127.0.0.1:1080", "--direct --path net1 --path net2"] {
        let text = testbed.run(
            "client",
            &format!(
                "head -c 3000000 /dev/urandom > sent
                ssh() {{ command ssh -F ssh_config -o ProxyCommand=\"marline -q connect {way} %h %p\" \
                    four.example \"$@\"; }}
                ssh 'tee copy | sha256sum' < sent
                sha256sum < sent
                ssh cat copy | sha256sum"
            ),
        );
        let sums: Vec<&str> = text.lines().collect();
        assert!(sums.len() == 3 && sums.iter().all(|sum| *sum == sums[0]), "{way}: {text}");
    }
    assert!(testbed.counter("server", "MPTcpExtMPCapableACKRX") >= 4);
    assert!(testbed.counter("server", "MPTcpExtMPJoinAckRx") >= 1);
}

#[test]
fn a_name_is_reached_despite_dead_families_and_dead_paths() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx", "nft"]) else { return };
    start_nginx(&mut testbed, "mptcpize run", "[::]:80 ipv6only=off", 80);
    testbed.start("client", CLIENT, Until::Says("socks5 listening"));
    let curl = "curl -sS --fail -m 10 --socks5-hostname 127.0.0.1:1080 -o /dev/null";
    let fetch = format!("{curl} http://server.example/sums && echo done");
    testbed.run(
        "server",
        "nft add table inet t
        nft add chain inet t dead '{ type filter hook prerouting priority 0; policy accept; }'",
    );
    for dead in ["meta nfproto ipv6", "meta nfproto ipv4", "iifname eth1", "iifname eth2"] {
        testbed.run(
            "server",
            &format!("nft flush chain inet t dead; nft add rule inet t dead {dead} drop"),
        );
        let text = testbed.run("client", &fetch);
        assert_eq!(text, "done\n", "{dead}");
    }
}

#[test]
fn a_forward_survives_the_loss_of_a_network() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx"]) else { return };
    start_nginx(&mut testbed, "mptcpize run", "10.91.1.1:80", 80);
    let client = "marline client --direct --path net1 --path net2 -L 8080:four.example:80";
    testbed.start("client", client, Until::Says("forward listening"));
    let fetch = "curl -sS --fail -o sums http://127.0.0.1:8080/sums
        curl -sS --fail -N -o large 'http://127.0.0.1:8080/large?rate=8m'
        sha256sum --check --ignore-missing sums";
    // Packets to this address are lost silently.
    let lose = "ip link set net1 arp off; ip neigh flush dev net1
        ip neigh replace 10.91.1.1 lladdr 02:00:00:00:00:01 dev net1";
    let large = testbed.dir.join("client/large");
    let text = std::thread::scope(|scope| {
        let fetching = scope.spawn(|| testbed.run("client", fetch));
        support::under_way(&large, LARGE / 3, LARGE);
        testbed.run("client", lose);
        fetching.join().expect("no panic")
    });
    assert!(text.contains("large: OK"), "{text}");
    assert!(testbed.counter("server", "MPTcpExtMPJoinAckRx") >= 1);
}

#[test]
fn the_tunnel_to_our_own_server_can_be_native_too() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx"]) else { return };
    start_nginx(&mut testbed, "", "127.0.0.1:8080", 8080);
    let serve = "marline server --config s.toml --carrier raw --allow 127.0.0.0/8";
    let init = "marline server --init --config s.toml --listen 10.91.1.1:443 \
                --public 10.91.1.1:443";
    let word = testbed.run("server", init);
    support::write_private(&testbed.dir.join("client/invite"), &word);
    testbed.start("server", serve, Until::Says("listening on"));
    let client = CLIENT.replace("--direct", "--invite-file invite --carrier raw");
    testbed.start("client", &client, Until::Says("socks5 listening"));
    let text = testbed.run(
        "client",
        "curl='curl -sS --fail --socks5-hostname 127.0.0.1:1080'
        $curl -o sums http://127.0.0.1:8080/sums
        $curl -o large http://127.0.0.1:8080/large
        sha256sum --check --ignore-missing sums
        marline monitor --table --once",
    );
    assert!(text.contains("large: OK"), "{text}");
}

/// Answers with the received data up to the end, after a line whether some of it came with the SYN.
const OPEN_SERVER: &str = "
import socket, sys
l = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262 if sys.argv[1] == 'mptcp' else 0)
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.setsockopt(socket.SOL_TCP, socket.TCP_FASTOPEN, 16)
l.bind(('10.91.1.1', int(sys.argv[2])))
l.listen(16)
print('ready', flush=True)
while True:
    s, _ = l.accept()
    with_syn = s.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 8)[5] & 32
    got = b''
    while more := s.recv(65536): got += more
    s.sendall((b'with the SYN:' if with_syn else b'later:') + got)
    s.close()
";

/// Sends a number of bytes and an end to a forward in one write, four times.
const OPEN_CLIENT: &str = "
import os, socket, sys
for n in range(4):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=15)
    sent = os.urandom(int(sys.argv[2]))
    s.sendall(sent)
    s.shutdown(socket.SHUT_WR)
    got = b''
    while more := s.recv(65536): got += more
    when, got = got.split(b':', 1)
    assert got == sent, (len(got), len(sent))
    print(when.decode())
";

/// The first bytes of a forward's application go with the SYN once the target's kernel has given a cookie, at the
/// configured ports. The rest follows, and nothing twice. Fast Open is not used with a kernel that supports
/// Multipath TCP.
#[test]
fn first_bytes_go_with_the_syn_to_targets_that_take_them() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["python3"]) else { return };
    std::fs::write(testbed.dir.join("server/open.py"), OPEN_SERVER).unwrap();
    std::fs::write(testbed.dir.join("client/open.py"), OPEN_CLIENT).unwrap();
    testbed.run("server", "sysctl -qw net.ipv4.tcp_fastopen=3");
    for (protocol, port) in [("tcp", 80), ("tcp", 81), ("mptcp", 82)] {
        let server = format!("python3 open.py {protocol} {port}");
        testbed.start("server", &server, Until::Says("ready"));
    }
    let client = "marline client --direct --path net1 --path net2 --fast-open 80 --fast-open 82 \
                  -L 8080:four.example:80 -L 8081:four.example:81 -L 8082:four.example:82";
    testbed.start("client", client, Until::Says("8082"));
    let ask =
        |port: u16, bytes: u32| testbed.run("client", &format!("python3 open.py {port} {bytes}"));
    assert_eq!(ask(8081, 100), "later\n".repeat(4), "unexpected port");
    assert_eq!(ask(8080, 100), format!("later\n{}", "with the SYN\n".repeat(3)));
    assert_eq!(ask(8080, 50_000), "with the SYN\n".repeat(4), "as much as has room");
    // The address gave its cookie with plain TCP, so Fast Open is tried.
    let multipath = ask(8082, 100);
    assert!(multipath.ends_with(&"later\n".repeat(3)), "{multipath}");
    assert_eq!(testbed.counter("server", "MPTcpExtMPCapableACKRX"), 4);
    // A host that supports Multipath TCP at one port may at another.
    assert_eq!(ask(8080, 100), "later\n".repeat(4));
}

/// A network that drops SYNs with data delays two connections by a second, and is remembered.
#[test]
fn a_network_that_swallows_fast_open_goes_without() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["python3", "nft"]) else { return };
    std::fs::write(testbed.dir.join("server/open.py"), OPEN_SERVER).unwrap();
    std::fs::write(testbed.dir.join("client/open.py"), OPEN_CLIENT).unwrap();
    testbed.run("server", "sysctl -qw net.ipv4.tcp_fastopen=3");
    testbed.start("server", "python3 open.py tcp 80", Until::Says("ready"));
    let client = "marline client --direct --path net1 --fast-open 80 -L 8080:four.example:80";
    testbed.start("client", client, Until::Says("8080"));
    let ask = |testbed: &Testbed| testbed.run("client", "python3 open.py 8080 100");
    assert_eq!(ask(&testbed), format!("later\n{}", "with the SYN\n".repeat(3)));
    testbed.run(
        "server",
        "nft add table inet t
        nft add chain inet t swallow '{ type filter hook prerouting priority -300; policy accept; }'
        nft add rule inet t swallow 'tcp flags & (syn | ack) == syn meta length > 100 counter drop'",
    );
    assert_eq!(ask(&testbed), "later\n".repeat(4));
    let rules = testbed.run("server", "nft list chain inet t swallow");
    assert!(rules.contains("counter packets 2 "), "{rules}");
}

/// A client that only receives learns only by its keepalives that its server was killed and restarted: nothing is
/// in flight, so no retransmission could be answered by a reset.
#[test]
fn a_download_fails_soon_after_a_killed_native_server_is_back() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "python3"]) else { return };
    // A kilobyte every 10 ms without an announced length, so that an end of the stream would look like the end of
    // the content.
    let source = "
import http.server, time
class Endless(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b\"x\" * 1000)
            time.sleep(0.01)
http.server.ThreadingHTTPServer((\"127.0.0.1\", 8080), Endless).serve_forever()";
    std::fs::write(testbed.dir.join("server/endless.py"), source).unwrap();
    testbed.start("server", "python3 endless.py", Until::Listens(8080));
    testbed.run(
        "server",
        "marline server --init --config s.toml --listen 10.91.1.1:443 --public 10.91.1.1:443 \
         --invite-out ../client/invite",
    );
    let serve = "bash -c 'echo $$ > pid; exec marline server --config s.toml --carrier raw \
                 --allow 127.0.0.0/8'";
    testbed.start("server", serve, Until::Says("listening on"));
    let client = CLIENT.replace("--direct", "--invite-file invite --carrier raw");
    testbed.start("client", &client, Until::Says("socks5 listening"));
    let download = "bash -c 'curl -sS -N -o down --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:8080/ \
                    || echo \"curl failed with $?\"; echo over'";
    let curl = testbed.start("client", download, Until::Says(""));
    testbed.run(
        "client",
        "for n in {1..200}; do test $(stat -c %s down || echo 0) -gt 50000 && exit; sleep 0.1
         done; exit 1",
    );
    testbed.run("server", "kill -KILL $(cat pid)");
    testbed.start("server", serve, Until::Says("listening on"));
    let from = std::time::Instant::now();
    let said = testbed.log_with(curl, "over");
    eprintln!("curl ended {:?} after the server was back", from.elapsed());
    assert!(said.contains("curl failed with"), "a truncated download looks complete: {said}");
}
