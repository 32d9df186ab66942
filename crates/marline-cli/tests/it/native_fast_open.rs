//! Tests of TCP Fast Open from `marline client --direct` to a kernel's servers, by plain TCP and by Multipath TCP, and
//! over networks that swallow or strip what belongs to it. Needs root.

use super::support;
use super::support::native::{start_nginx, testbed};
use super::support::testbed::{Testbed, Until};

/// The kernel answers on port 80 by plain TCP, on 81 by Multipath TCP, on 82 by plain TCP again, where the client has
/// no rule.
const CLIENT: &str = "marline client --direct --path net1 --path net2 --fast-open 80 --fast-open 81 \
    --fast-open 90 --socks5 127.0.0.1:1080 -L 7080:four.example:80 -L 7081:four.example:81 \
    -L 7082:four.example:82 --metrics 127.0.0.1:9100 --pcap captures";

/// Says whether the kernel took the question from the SYN.
const SERVER: &str = "
import socket, threading
def answer(s):
    question = b''
    while not question.endswith(b'\\n'):
        more = s.recv(1000)
        if not more: return
        question += more
    early = s.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 8)[5] & 32
    assert question in (b'question\\n', b'GET /\\n'), question
    s.sendall(b'early' if early else b'late')
    s.close()
def listen(port, protocol):
    l = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.setsockopt(socket.SOL_TCP, socket.TCP_FASTOPEN, 16)
    l.bind(('10.91.1.1', port))
    l.listen(16)
    while True:
        s, _ = l.accept()
        threading.Thread(target=answer, args=(s,), daemon=True).start()
for port, protocol in ((80, 0), (81, 262), (82, 0)):
    threading.Thread(target=listen, args=(port, protocol)).start()
print('ready')
";

/// Asks once for each word of the command line: the port of a forward, or `socks:PORT`; tells what was answered, and
/// that it took long where it did.
const ASK: &str = "
import socket, struct, sys, time
told = []
for way in sys.argv[1:]:
    begun = time.monotonic()
    if way.startswith('socks:'):
        s = socket.create_connection(('127.0.0.1', 1080), 15)
        name = b'four.example'
        s.sendall(b'\\5\\1\\0')
        assert s.recv(2) == b'\\5\\0'
        s.sendall(b'\\5\\1\\0\\3' + bytes([len(name)]) + name + struct.pack('!H', int(way[6:])))
        reply = s.recv(10)
        assert reply[:2] == b'\\5\\0', reply
    else:
        s = socket.create_connection(('127.0.0.1', int(way)), 15)
    s.sendall(b'question\\n')
    answer = b''
    try:
        while True:
            more = s.recv(10)
            if not more: break
            answer += more
    except ConnectionResetError:
        answer = b'reset'
    slow = ' slow' if time.monotonic() - begun > 0.8 else ''
    told.append(answer.decode() + slow)
print(', '.join(told))
";

/// A testbed whose server runs, and the client; its number.
fn start(dir: &std::path::Path, programs: &[&str]) -> Option<(Testbed, usize)> {
    let programs = [&["python3", "curl"], programs].concat();
    let mut testbed = testbed(dir, &programs)?;
    std::fs::write(testbed.dir.join("server/answer.py"), SERVER).unwrap();
    std::fs::write(testbed.dir.join("client/ask.py"), ASK).unwrap();
    testbed.run("server", "sysctl -qw net.ipv4.tcp_fastopen=3");
    testbed.start("server", "python3 -u answer.py", Until::Says("ready"));
    let client = testbed.start("client", CLIENT, Until::Says("socks5 listening"));
    Some((testbed, client))
}

fn ask(testbed: &Testbed, ways: &str) -> String {
    testbed.run("client", &format!("python3 ask.py {ways}"))
}

/// What the client counted of its SYNs with data: sent, taken, refused, swallowed.
fn counts(testbed: &Testbed) -> [u64; 4] {
    let text = testbed.run("client", "curl -sS http://127.0.0.1:9100/metrics");
    ["syn_tx", "taken", "refused", "swallowed"].map(|name| {
        let name = format!("marline_core_events_total{{event=\"fast_open_{name}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    })
}

/// The first connection asks for a cookie, and those after it bring their question with the SYN: however the
/// application says where to, by plain TCP and by Multipath TCP, and nowhere without a rule.
#[test]
fn questions_go_with_the_syn_once_there_is_a_cookie() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some((mut testbed, client)) = start(dir.path(), &["nginx", "tshark"]) else { return };
    start_nginx(&mut testbed, "", "10.91.1.1:90 fastopen=16", 90);
    assert_eq!(ask(&testbed, "7080 7080 7080"), "late, early, early\n");
    assert_eq!(ask(&testbed, "7081 7081 7081"), "early, early, early\n", "Multipath TCP");
    assert_eq!(ask(&testbed, "socks:80 socks:81"), "early, early\n");
    assert_eq!(ask(&testbed, "7082 socks:82"), "late, late\n", "no rule");
    assert_eq!(counts(&testbed), [7, 7, 0, 0]);
    // A proxy's requests are there before their target is asked; curl waits for the answer to its CONNECT.
    for flags in ["-x http://127.0.0.1:1080", "-p -x http://127.0.0.1:1080"] {
        let before = testbed.counter("server", "TcpExtTCPFastOpenPassive");
        let fetch = format!(
            "curl -sS --fail {flags} http://four.example:90/sums | cmp - sums && echo same"
        );
        testbed.run("client", "cp ../server/web/sums .");
        assert_eq!(testbed.run("client", &fetch), "same\n", "{flags}");
        assert_eq!(testbed.counter("server", "TcpExtTCPFastOpenPassive"), before + 1, "{flags}");
    }
    assert_eq!(counts(&testbed), [9, 9, 0, 0]);
    assert_eq!(testbed.counter("server", "TcpExtTCPFastOpenPassiveFail"), 0);
    assert!(testbed.counter("server", "MPTcpExtMPCapableSYNRX") >= 4);
    assert_eq!(testbed.counter("server", "MPTcpExtMPCapableFallbackACK"), 0);
    // To a closed port: an application that was told to go ahead is reset.
    testbed.run(
        "server",
        "nft add table inet t
        nft add chain inet t c '{ type filter hook prerouting priority 0; }'
        nft add rule inet t c tcp dport 81 reject with tcp reset",
    );
    assert_eq!(ask(&testbed, "socks:81"), "reset\n");
    testbed.signal(client, "TERM");
    assert!(testbed.wait(client), "SIGTERM is an orderly end");
    // A second witness.
    let count = |filter: &str| {
        let command =
            format!("for f in captures/*; do tshark -r $f -Y '{filter}' || exit; done | wc -l");
        testbed.run("client", &format!("set -o pipefail; {command}")).trim().parse::<u32>().unwrap()
    };
    let syn = "tcp.flags.syn == 1 && tcp.flags.ack == 0";
    assert_eq!(count(&format!("{syn} && tcp.len == 9 && tcp.options.tfo.cookie")), 8);
    let both = "tcp.len == 9 && tcp.options.mptcp.subtype == 0 && tcp.options.tfo.cookie";
    assert_eq!(count(&format!("{syn} && {both}")), 8, "each with MP_CAPABLE");
    assert_eq!(count(&format!("{syn} && tcp.dstport == 82 && tcp.options.tfo")), 0);
    let answers = "tcp.flags.syn == 1 && tcp.flags.ack == 1";
    assert_eq!(count(&format!("{answers} && tcp.ack == 10")), 7, "with what the SYN brought");
    assert_eq!(count(&format!("{answers} && tcp.options.tfo.cookie")), 1);
}

/// SYNs with data are swallowed: two connections cost a second, and from then on the network is spared.
#[test]
fn a_network_that_swallows_syns_with_data_costs_two_timers() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some((testbed, _)) = start(dir.path(), &["nft"]) else { return };
    assert_eq!(ask(&testbed, "7080 7080"), "late, early\n");
    // A SYN without data is no longer than its two headers.
    testbed.run(
        "server",
        "nft add table inet t
        nft add chain inet t c '{ type filter hook prerouting priority 0; }'
        nft add rule inet t c 'tcp flags & (syn | ack) == syn ip length > 80 counter drop'",
    );
    let told = ask(&testbed, "7080 socks:81 7080 7081");
    assert_eq!(told, "late slow, late slow, late, late\n");
    assert_eq!(counts(&testbed), [3, 1, 0, 2]);
    let rules = testbed.run("server", "nft list chain inet t c");
    assert!(rules.contains("packets 2 "), "{rules}");
}

/// Options of Fast Open are taken out on the way: nothing is slower than without, and the data comes again.
#[test]
fn a_network_that_strips_the_option_costs_no_time() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some((testbed, _)) = start(dir.path(), &["nft"]) else { return };
    assert_eq!(ask(&testbed, "7080 7080"), "late, early\n");
    testbed.run(
        "server",
        "nft add table inet t
        nft add chain inet t c '{ type filter hook prerouting priority 0; }'
        nft add rule inet t c 'tcp flags syn reset tcp option fastopen'",
    );
    assert_eq!(ask(&testbed, "7080 7081 socks:81"), "late, late, late\n");
    assert_eq!(counts(&testbed), [4, 1, 3, 0]);
    testbed.run("server", "nft flush chain inet t c");
    assert_eq!(ask(&testbed, "7080 7081"), "early, early\n", "the cookie is still good");
}
