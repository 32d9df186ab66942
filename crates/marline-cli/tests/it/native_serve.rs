//! Tests of `marline serve` in front of real services, with stock clients: a kernel's Multipath TCP (with `mptcpize`)
//! and plain TCP, over two networks between namespaces. Needs root.

use super::support;
use super::support::native::{LARGE, start_nginx, start_sshd, testbed};
use super::support::testbed::{Testbed, Until};

/// Asserts that the client's kernel used Multipath TCP on this many connections without fallback.
fn used_mptcp(testbed: &Testbed, connections: u64) {
    let count = |name: &str| testbed.counter("client", name);
    assert!(count("MPTcpExtMPCapableSYNACKRX") >= connections, "no MPTCP was spoken");
    assert!(count("MPTcpExtMPJoinSynAckRx") >= 1, "the second network was not used");
    for name in ["MPCapableFallbackSYNACK", "MPCapableFallbackACK", "DSSCorruptionFallback"] {
        assert_eq!(count(&format!("MPTcpExt{name}")), 0, "{name}");
    }
}

#[test]
fn curl_fetches_from_nginx_which_learns_the_client_address() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx"]) else { return };
    start_nginx(&mut testbed, "", "127.0.0.1:8080 proxy_protocol", 8080);
    for version in ["v1", "v2"] {
        let serve = testbed.start(
            "server",
            &format!(
                "marline serve --listen 0.0.0.0:80 --listen [::]:80 --to 127.0.0.1:8080 \
                 --proxy-protocol {version} --signal 10.91.2.1 --signal fd91:2::1"
            ),
            Until::Says("listening on [::]:80"),
        );
        for (name, client) in [("four.example", "10.91.1.2"), ("six.example", "fd91:1::2")] {
            for wrapper in ["mptcpize run", ""] {
                let text = testbed.run(
                    "client",
                    &format!(
                        "{wrapper} curl -sS --fail -D head -o large http://{name}/large
                        curl -sS --fail -o sums http://{name}/sums
                        sha256sum --check --ignore-missing sums; cat head"
                    ),
                );
                assert!(text.contains("large: OK"), "{text}");
                assert!(text.contains(&format!("X-Client: {client}|127.0.0.1")), "{text}");
            }
        }
        testbed.signal(serve, "TERM");
        assert!(testbed.wait(serve), "SIGTERM is an orderly end");
    }
    used_mptcp(&testbed, 4);
}

#[test]
fn fifty_streams_of_http_2_share_one_connection() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx", "h2load", "openssl"]) else {
        return;
    };
    testbed.run(
        "server",
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem \
            -out cert.pem -days 1 -subj /CN=four.example 2> /dev/null
        chmod a+r key.pem",
    );
    let listen = "127.0.0.1:8443 ssl http2; ssl_certificate cert.pem; ssl_certificate_key key.pem";
    start_nginx(&mut testbed, "", listen, 8443);
    let serve = "marline serve --listen 10.91.1.1:443 --to 127.0.0.1:8443 --signal 10.91.2.1";
    testbed.start("server", serve, Until::Says("listening on"));
    let text = testbed.run(
        "client",
        "mkdir got
        fetch='mptcpize run curl -sS --fail --insecure --http2'
        $fetch -o sums https://four.example/sums
        $fetch --parallel --parallel-max 50 -D head -o 'got/f#1' 'https://four.example/f[1-50]'
        cd got
        sha256sum --check --ignore-missing --quiet ../sums && echo all are right
        ls | wc -l
        grep -i x-connection ../head | sort -u | wc -l",
    );
    assert!(text.contains("all are right\n50\n1\n"), "{text}");
    let load = "mptcpize run h2load -n 500 -c 2 -m 50 https://four.example/f7";
    let text = testbed.run("client", load);
    assert!(text.contains("500 succeeded, 0 failed, 0 errored"), "{text}");
    used_mptcp(&testbed, 4);
}

/// Returns the number of bytes received.
fn iperf3(testbed: &Testbed, way: &str) -> u64 {
    // The iperf3 server is busy for a moment after a test.
    let command = format!(
        "for try in $(seq 50); do
            mptcpize run iperf3 --json -c four.example -p 5201 -t 2 {way} > report || true
            grep -q 'server is busy' report || break
            sleep 0.1
        done
        cat report"
    );
    let text = testbed.run("client", &command);
    let report: serde_json::Value = serde_json::from_str(&text).expect("a report");
    assert!(report.get("error").is_none(), "{text}");
    let received = report["end"]["sum_received"]["bytes"].as_u64().expect("a sum");
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate");
    eprintln!("iperf3 {way}: {received} bytes, {:.0} Mbit/s", rate / 1e6);
    if received <= 1 << 20 {
        eprintln!("{text}");
    }
    received
}

#[test]
fn iperf3_in_both_directions() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["iperf3"]) else { return };
    testbed.start("server", "iperf3 -s -B 127.0.0.1 -p 5202", Until::Listens(5202));
    let serve = "marline serve --listen 10.91.1.1:5201 --to 127.0.0.1:5202 --signal 10.91.2.1";
    testbed.start("server", serve, Until::Says("listening on"));
    for way in ["", "--reverse", "--bidir"] {
        // About once in a hundred runs iperf3 counts nothing for one of two concurrent directions.
        let much = (0..3).any(|_| iperf3(&testbed, way) > 1 << 20);
        assert!(much, "{way}: three times next to nothing");
    }
    used_mptcp(&testbed, 6);
}

#[test]
fn ssh_logs_in_and_copies() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["ssh", "sshd", "ssh-keygen"]) else { return };
    start_sshd(&mut testbed, "127.0.0.1", 2222, "");
    let serve = "marline serve --listen 10.91.1.1:22 --to 127.0.0.1:2222 --signal 10.91.2.1";
    testbed.start("server", serve, Until::Says("listening on"));
    for wrapper in ["mptcpize run", ""] {
        let text = testbed.run(
            "client",
            &format!(
                "head -c 3000000 /dev/urandom > sent
                {wrapper} ssh -F ssh_config server.example 'tee copy | sha256sum' < sent
                sha256sum < sent
                {wrapper} ssh -F ssh_config server.example cat copy | sha256sum"
            ),
        );
        let sums: Vec<&str> = text.lines().collect();
        assert!(sums.len() == 3 && sums.iter().all(|sum| *sum == sums[0]), "{text}");
    }
    used_mptcp(&testbed, 2);
}

/// Returns the rules in docs/operate/deploy.md.
fn documented_rules() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/deploy.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```nft\n").nth(1).expect("an nft block");
    block.split("```").next().unwrap_or_default().to_owned()
}

#[test]
fn the_documented_firewall_lets_marline_through_and_another_does_not() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx", "nft"]) else { return };
    start_nginx(&mut testbed, "", "127.0.0.1:8080", 8080);
    for role in ["server", "client"] {
        std::fs::write(testbed.dir.join(role).join("rules"), documented_rules()).unwrap();
        testbed.run(role, "nft -f rules");
    }
    let serve = "marline serve --listen 0.0.0.0:80 --to 127.0.0.1:8080 --signal 10.91.2.1";
    testbed.start("server", serve, Until::Says("listening on"));
    let client = "marline client --direct --path net1 --path net2 --socks5 127.0.0.1:1080";
    testbed.start("client", client, Until::Says("socks5 listening"));
    for curl in ["mptcpize run curl", "curl --socks5-hostname 127.0.0.1:1080"] {
        let text = testbed.run(
            "client",
            &format!(
                "{curl} -sS --fail -o large http://four.example/large
                {curl} -sS --fail -o sums http://four.example/sums
                sha256sum --check --ignore-missing sums"
            ),
        );
        assert!(text.contains("large: OK"), "{curl}: {text}");
    }
    used_mptcp(&testbed, 2);
    testbed.run("server", "nft flush table inet marline; sed -i /dport/d rules; nft -f rules");
    let text = testbed.run("client", "curl -sS -m 3 http://four.example/sums 2>&1 || echo code $?");
    assert!(text.contains("code 28"), "dropped input arrived: {text}");
}

#[test]
fn a_drain_finishes_open_connections_and_refuses_new_ones() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx"]) else { return };
    start_nginx(&mut testbed, "", "127.0.0.1:8080", 8080);
    let serve = "marline serve --listen 10.91.1.1:80 --to 127.0.0.1:8080 --drain 30s";
    let serve = testbed.start("server", serve, Until::Says("listening on"));
    testbed.run("client", "curl -sS --fail -o sums http://four.example/sums");
    let slow = "mptcpize run curl -sS --fail -N -o large 'http://four.example/large?rate=8m'";
    let slow = testbed.start("client", slow, Until::Says(""));
    let large = testbed.dir.join("client/large");
    support::under_way(&large, 1, LARGE);
    testbed.signal(serve, "TERM");
    testbed.log_with(serve, "stopping");
    // A connection made at this very moment may be accepted and reset. Later SYNs are refused.
    let refused = "for attempt in $(seq 50); do
            code=0
            curl -sS -m 5 http://four.example/sums > word 2>&1 || code=$?
            test $code = 7 && break
            sleep 0.1
        done
        echo code $code";
    let text = testbed.run("client", refused);
    assert!(text.contains("code 7\n"), "refused: {text}");
    support::under_way(&large, 1, LARGE);
    assert!(testbed.wait(slow), "{}", testbed.log(slow));
    assert!(testbed.run("client", "sha256sum --check --ignore-missing sums").contains("large: OK"));
    assert!(testbed.wait(serve), "an orderly end");
}

#[test]
fn ends_of_either_side_reach_the_other() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["python3"]) else { return };
    std::fs::write(testbed.dir.join("server/service.py"), SERVICE).unwrap();
    std::fs::write(testbed.dir.join("client/ends.py"), ENDS).unwrap();
    testbed.start("server", "python3 -u service.py", Until::Says("ready"));
    let serve = "marline serve --listen 10.91.1.1:80 --to 127.0.0.1:8080 --max-per-source 4";
    testbed.start("server", serve, Until::Says("listening on"));
    for protocol in ["tcp", "mptcp"] {
        let text = testbed.run("client", &format!("python3 ends.py {protocol}"));
        assert_eq!(text, "half closed\nreset by the service\nreset by us\nfull\n", "{protocol}");
    }
    assert!(testbed.counter("client", "MPTcpExtMPFastcloseRx") >= 1);
    assert!(testbed.counter("client", "MPTcpExtMPFastcloseTx") >= 1);
}

/// A kernel's client requests a cookie, and sends its next request with the SYN, with plain TCP and with Multipath
/// TCP. At a port without Fast Open only the SYN is acknowledged, and the request is sent again.
#[test]
fn a_kernels_question_comes_with_its_syn() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["python3", "tshark"]) else { return };
    std::fs::write(testbed.dir.join("server/service.py"), SERVICE).unwrap();
    std::fs::write(testbed.dir.join("client/early.py"), EARLY).unwrap();
    testbed.start("server", "python3 -u service.py", Until::Says("ready"));
    let serve = "marline serve --listen 10.91.1.1:80 --listen 10.91.1.1:81 --to 127.0.0.1:8080 \
                 --fast-open 80 --pcap captures";
    let serve = testbed.start("server", serve, Until::Says("listening on 10.91.1.1:81"));
    // The kernel keeps one cookie for all ports of an address.
    for (protocol, port, told) in [
        ("tcp", 80, "asked, taken, taken\n"),
        ("mptcp", 80, "taken, taken, taken\n"),
        ("tcp", 81, "asked, asked, asked\n"),
        ("mptcp", 81, "asked, asked, asked\n"),
    ] {
        let text = testbed.run("client", &format!("python3 early.py {protocol} {port} 3"));
        assert_eq!(text, told, "{protocol}, port {port}");
    }
    testbed.signal(serve, "TERM");
    assert!(testbed.wait(serve), "SIGTERM is an orderly end");
    // Independent check with captures: cookie requests, SYNs with data, and their acknowledgments.
    let count = |filter: &str| {
        let command = format!(
            "set -o pipefail; for f in captures/*; do tshark -r $f -Y '{filter}' || exit; done | wc -l"
        );
        testbed.run("server", &command).trim().parse::<u32>().unwrap()
    };
    let syn = "tcp.flags.syn == 1 && tcp.flags.ack == 0 && tcp.len == 10 && tcp.options.tfo.cookie";
    let asked = count(&format!("{syn} && tcp.dstport == 80"));
    assert_eq!(asked, 5, "{} packets, {}", count("tcp"), testbed.run("server", "ls -l captures"));
    assert!(count(&format!("{syn} && tcp.dstport == 81")) >= 1, "it was tried");
    let answers = "tcp.flags.syn == 1 && tcp.flags.ack == 1";
    assert_eq!(count(&format!("{answers} && tcp.ack == 11 && tcp.srcport == 80")), 5);
    assert_eq!(count(&format!("{answers} && tcp.ack == 11 && tcp.srcport == 81")), 0);
    assert_eq!(count(&format!("{answers} && tcp.options.tfo.cookie")), 1);
}

/// Sends requests that fit in the SYN. Prints whether the server accepted each from there.
pub(super) const EARLY: &str = "
import socket, sys, time
told = []
for n in range(int(sys.argv[3])):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262 if sys.argv[1] == 'mptcp' else 0)
    s.sendto(b'count.1234', socket.MSG_FASTOPEN, ('10.91.1.1', int(sys.argv[2])))
    s.settimeout(15)
    s.shutdown(socket.SHUT_WR)
    answer = s.recv(10)
    assert answer == b'4', f'answer {n}: {answer}'
    told.append('taken' if s.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 8)[5] & 32 else 'asked')
    while s.recv(10): pass
    s.close()
print(', '.join(told))
";

/// Answers "count" with the number of bytes up to the end, "reset" by a reset, "heard" with the result of the last
/// "listen". Other connections wait.
pub(super) const SERVICE: &str = "
import socket, struct, threading
last = ['nothing']
gone = threading.Event()
def serve(s):
    word = s.recv(6)
    if word == b'count.':
        n = 0
        while True:
            more = s.recv(65536)
            if not more: break
            n += len(more)
        s.sendall(str(n).encode())
    elif word == b'reset.':
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    elif word == b'listen':
        s.sendall(b'.')
        try:
            while s.recv(65536): pass
            last[0] = 'end'
        except ConnectionResetError:
            last[0] = 'reset'
        gone.set()
    elif word == b'heard?':
        gone.wait(10); gone.clear()
        s.sendall(last[0].encode())
    else:
        s.recv(1)
    s.close()
l = socket.create_server(('127.0.0.1', 8080))
print('ready')
while True:
    s, _ = l.accept()
    threading.Thread(target=serve, args=(s,), daemon=True).start()
";

const ENDS: &str = "
import socket, struct, sys, time
def connect():
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262 if sys.argv[1] == 'mptcp' else 0)
    s.settimeout(15)
    s.connect(('10.91.1.1', 80))
    return s
def all(s):
    out = b''
    while True:
        more = s.recv(65536)
        if not more: return out
        out += more
s = connect(); s.sendall(b'count.' + bytes(1000000)); s.shutdown(socket.SHUT_WR)
assert all(s) == b'1000000'; print('half closed')
s = connect(); s.sendall(b'reset.')
try: all(s); print('no reset')
except ConnectionResetError: print('reset by the service')
s = connect(); s.sendall(b'listen'); s.recv(1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()
s = connect(); s.sendall(b'heard?'); assert all(s) == b'reset'; print('reset by us')
s.close(); time.sleep(0.2)
kept = [connect() for _ in range(4)]
for s in kept: s.sendall(b'wait..')
time.sleep(0.2)
try:
    s = connect(); s.sendall(b'count.'); all(s); print('a fifth one')
except ConnectionResetError: print('full')
for s in kept: s.sendall(b'.'); all(s)
";
