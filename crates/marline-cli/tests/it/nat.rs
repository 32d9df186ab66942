//! Tests with a NAT that loses its mappings while connections pass it, as after a power cycle: the kernel's own
//! NAT, between namespaces. Connections over UDP survive unnoticed. Native ones continue on a new subflow. Needs
//! root.

mod path_health;

use std::path::Path;
use std::time::{Duration, Instant};

use super::support::native::{LARGE, start_nginx};
use super::support::testbed::{Testbed, Until};
use super::support::{self, CURL};
use super::upgrade::TookOver;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/nat_world.sh");

fn testbed(dir: &Path) -> Option<Testbed> {
    Testbed::of_marline(dir, SCRIPT, &["nft", "curl", "nginx", "python3"])
}

/// A service that sends a line, and another one after a silence.
const LATE: &str = "python3 -u -c '
import socket, time
listener = socket.create_server((\"127.0.0.1\", 8081))
print(\"ready\")
while True:
    stream, _ = listener.accept()
    stream.sendall(b\"early\\n\")
    time.sleep(4)
    stream.sendall(b\"late\\n\")
    stream.close()
'";

/// Starts the server, and a client with these paths. `marline server` logs address changes.
fn start(testbed: &mut Testbed, carrier: &str, paths: &str) -> usize {
    start_nginx(testbed, "", "127.0.0.1:8080", 8080);
    testbed.start("server", LATE, Until::Says("ready"));
    let init = "marline server --init --config s.toml --listen 9.9.9.1:7777 --public 9.9.9.1:7777";
    let word = testbed.run("server", init);
    support::write_private(&testbed.dir.join("client/invite"), &word);
    let serve =
        format!("marline -v server --config s.toml --allow 127.0.0.0/8 --carrier {carrier}");
    let server = testbed.start("server", &serve, Until::Says("listening on"));
    let client = format!(
        "marline client --invite-file invite {paths} --carrier {carrier} --socks5 127.0.0.1:1080"
    );
    testbed.start("client", &client, Until::Says("socks5 listening"));
    server
}

/// Fetches 32 MB in some three seconds, during which the NAT loses its mappings twice. Returns the result and the
/// duration.
fn download(testbed: &Testbed) -> (String, Duration) {
    let begin = Instant::now();
    testbed.run("client", "rm -f large sums");
    let fetch = format!(
        "{CURL} -o sums http://127.0.0.1:8080/sums
        {CURL} -N -o large 'http://127.0.0.1:8080/large?rate=8m' || echo \"curl ends with $?\"
        sha256sum --check --ignore-missing sums || true"
    );
    let large = testbed.dir.join("client/large");
    let said = std::thread::scope(|scope| {
        let fetching = scope.spawn(|| testbed.run("client", &fetch));
        // The second loss occurs after data has arrived over the mapping that followed the first.
        for share in [3, 2] {
            support::under_way(&large, LARGE / share, LARGE);
            testbed.run("nat", "nat forget");
        }
        fetching.join().expect("no panic")
    });
    (said, begin.elapsed())
}

/// Returns the number of changes of the client's addresses, as seen by the server.
fn moves(testbed: &Testbed, server: usize) -> usize {
    testbed.log(server).matches("moved").count()
}

#[test]
fn over_udp_a_nat_rebinding_goes_unnoticed_even_by_silent_streams() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    // There is no other path.
    let server = start(&mut testbed, "udp", "--path wlan0");
    let (said, took) = download(&testbed);
    assert!(said.contains("large: OK"), "{said}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(moves(&testbed, server) >= 2, "{}", testbed.log(server));
    // Upload: the sender's limit makes it last.
    let upload = format!(
        "head -c {SENT} /dev/urandom > sent
        {CURL} -H Expect: --limit-rate 8M -T sent http://127.0.0.1:8082/ | sha256sum; sha256sum < sent"
    );
    testbed.start("server", ECHO, Until::Says("ready"));
    let got = testbed.dir.join("server/got");
    let sums = std::thread::scope(|scope| {
        let sending = scope.spawn(|| testbed.run("client", &upload));
        support::under_way(&got, SENT / 3, SENT);
        testbed.run("nat", "nat forget");
        sending.join().expect("no panic")
    });
    let sums: Vec<&str> = sums.lines().collect();
    assert!(sums.len() == 2 && sums[0] == sums[1], "{sums:?}");
    // The client is silent when its address changes, and the server sends next.
    let listen = "marline -q connect --socks5 127.0.0.1:1080 127.0.0.1 8081 < /dev/null";
    let begin = Instant::now();
    let heard = std::thread::scope(|scope| {
        let hearing = scope.spawn(|| testbed.run("client", listen));
        std::thread::sleep(Duration::from_millis(1_500));
        testbed.run("nat", "nat forget");
        hearing.join().expect("no panic")
    });
    assert_eq!(heard, "early\nlate\n");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

/// The NAT loses mappings for connections of a replaced process, which must still receive packets from the new
/// addresses.
#[test]
fn over_udp_connections_of_a_replaced_process_are_found_again() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    let server = start(&mut testbed, "udp", "--path wlan0");
    let listen = "marline -q connect --socks5 127.0.0.1:1080 127.0.0.1 8081 < /dev/null";
    let (heard, (said, took), _newest) = std::thread::scope(|scope| {
        let hearing = scope.spawn(|| testbed.run("client", listen));
        let downloading = scope.spawn(|| download(&testbed));
        // Before the first loss.
        std::thread::sleep(Duration::from_millis(600));
        let said = testbed.run("server", "marline upgrade");
        assert!(said.contains("has taken over"), "{said}");
        let newest = TookOver::told_by(&said);
        (hearing.join().expect("no panic"), downloading.join().expect("no panic"), newest)
    });
    assert_eq!(heard, "early\nlate\n");
    assert!(said.contains("large: OK"), "{said}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(moves(&testbed, server) >= 2, "{}", testbed.log(server));
}

/// Size of an upload in bytes.
const SENT: u64 = 16_000_000;

/// A web server that writes an upload into the file `got` as it arrives, and answers with its bytes.
const ECHO: &str = "python3 -u -c '
from http.server import BaseHTTPRequestHandler, HTTPServer
class Echo(BaseHTTPRequestHandler):
    def do_PUT(self):
        length = left = int(self.headers[\"Content-Length\"])
        with open(\"got\", \"w+b\", buffering=0) as got:
            while left and (piece := self.rfile.read1(min(left, 65536))):
                got.write(piece)
                left -= len(piece)
            got.seek(0)
            body = got.read()
        self.send_response(200)
        self.send_header(\"Content-Length\", str(length))
        self.end_headers()
        self.wfile.write(body)
server = HTTPServer((\"127.0.0.1\", 8082), Echo)
print(\"ready\")
server.serve_forever()
'";

/// Native segments get another port like all others. The server does not know that connection and sends a reset,
/// which both ends of the subflow receive. Another subflow is opened immediately, even on the only path.
#[test]
fn native_connections_go_on_by_a_new_subflow() {
    let _others = support::among_others();
    for paths in ["--path wlan0", "--path wlan0 --path wwan0"] {
        let dir = tempfile::tempdir().expect("a folder");
        let Some(mut testbed) = testbed(dir.path()) else { return };
        start(&mut testbed, "raw", paths);
        let (said, took) = download(&testbed);
        eprintln!("{paths}: {took:?}");
        assert!(said.contains("large: OK"), "{paths}: {said}");
        assert!(took < Duration::from_secs(15), "{paths}: {took:?}");
    }
}

/// A NAT that silently drops packets without a mapping: the path is dead, and the other path continues.
#[test]
fn native_connections_leave_a_path_that_swallows_them() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    start(&mut testbed, "raw", "--path wlan0 --path wwan0");
    testbed.run("nat", "nat mute");
    for _ in 0..3 {
        let (said, took) = download(&testbed);
        eprintln!("mute: {took:?}");
        assert!(said.contains("large: OK"), "{said}");
        assert!(took < Duration::from_secs(15), "{took:?}");
    }
}

#[test]
fn the_doctor_names_a_rebinding_nat() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut testbed) = testbed(dir.path()) else { return };
    testbed.start("server", "marline doctor --listen 9.9.9.1:7000", Until::Says("listening on"));
    let doctor = "marline doctor --server 9.9.9.1:7000 --path wlan0";
    let said = testbed.run("client", doctor);
    assert!(said.contains("translates addresses or ports (NAT)"), "{said}");
    assert!(said.contains("no middlebox interferes with Multipath TCP"), "{said}");
    // A server that is not a responder, so that only this end reports.
    testbed.start("server", "python3 -m http.server --bind 9.9.9.1 8000", Until::Listens(8000));
    let other = testbed.run("client", "marline doctor --server 9.9.9.1:8000 --path wlan0 || true");
    assert!(other.contains("the SYN/ACK lacks the Multipath TCP option"), "{other}");
    let said = std::thread::scope(|scope| {
        let asking = scope.spawn(|| testbed.run("client", doctor));
        std::thread::sleep(Duration::from_millis(1_000));
        testbed.run("nat", "nat forget");
        asking.join().expect("no panic")
    });
    assert!(said.contains("157200 bytes echoed correctly"), "{said}");
    assert!(said.contains("drops NAT mappings of live connections"), "{said}");
}
