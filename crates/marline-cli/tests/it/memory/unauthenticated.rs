//! Connections of the native carrier whose peers never authenticate.

use std::sync::Arc;
use std::time::Duration;

use super::support;
use super::support::native::testbed;
use super::support::testbed::Until;
use super::{LIMIT, MemoryCgroup, Watch};

/// Number of connections, and of their source addresses.
const CONNECTIONS: usize = 3_100;
const ADDRESSES: usize = 6;
/// Server memory that each connection may use in bytes: its state, its handshake, and its small window until it is
/// authenticated.
const EACH: u64 = 40 << 10;

/// Connections of the kernel, alternately Multipath TCP and plain TCP. The first ones of each address start a TLS
/// handshake and stop, so that the others wait in the queue. These send as much as the window allows.
const STRANGERS: &str = "
import os, resource, socket, sys, time
count, sources = int(sys.argv[1]), [f'10.91.1.{n + 10}' for n in range(int(sys.argv[2]))]
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
HELLO = b'\\x16\\x03\\x01\\x40\\x00\\x01\\x00\\x3f\\xfc\\x03\\x03'
open_ones, refused = [], 0
def connect(number):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262 if number % 2 else 0)
    s.bind((sources[number % len(sources)], 0))
    s.settimeout(5)
    s.connect(('10.91.1.1', 443))
    s.setblocking(False)
    return s
# These have their turn first.
for number in range(16 * len(sources)):
    s = connect(number)
    s.send(HELLO)
    open_ones.append([s, 0, len(HELLO)])
time.sleep(0.5)
def pour(one):
    s, sent, most = one
    try:
        while one[1] < most: one[1] += s.send(HELLO + bytes(65536) if one[1] == 0 else bytes(65536))
    except BlockingIOError: pass
    except OSError: one[2] = 0
for number in range(len(open_ones), count):
    try: open_ones.append([connect(number), 0, 1 << 30])
    except OSError: refused += 1; continue
    pour(open_ones[-1])
print('all connections are open', flush=True)
while True:
    for one in open_ones: pour(one)
    alive = sum(1 for one in open_ones if one[2])
    print(f'{alive} are open, {refused} were refused; {sum(one[1] for one in open_ones)} bytes', flush=True)
    time.sleep(0.5)
";

#[test]
#[ignore = "takes half a minute: cargo xtask nightly memory"]
fn strangers_before_authentication_take_little_memory() {
    let _alone = support::lock_exclusively();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(group) = MemoryCgroup::with_limit(LIMIT).map(Arc::new) else { return };
    let Some(mut testbed) = testbed(dir.path(), &["python3"]) else { return };
    let init =
        "marline server --init --config s.toml --listen 10.91.1.1:443 --public 10.91.1.1:443";
    testbed.run("server", init);
    let serve = format!(
        "bash -c 'echo $$ > {}; exec marline server --config s.toml --carrier raw'",
        group.members().display()
    );
    let server = testbed.start("server", &serve, Until::Says("listening on"));
    let watch = Watch::over("server", &group);
    for number in 0..ADDRESSES {
        testbed.run("client", &format!("ip addr add 10.91.1.{}/24 dev net1", number + 10));
    }
    std::fs::write(testbed.dir.join("client/strangers.py"), STRANGERS).expect("a file");
    let come = format!("python3 -u strangers.py {CONNECTIONS} {ADDRESSES}");
    let strangers = testbed.start("client", &come, Until::Says(""));
    testbed.log_with(strangers, "all connections are open");
    // Longer than the server's time limit for a stalled authentication.
    std::thread::sleep(Duration::from_secs(15));
    let said = testbed.log(strangers);
    said.lines().step_by(4).for_each(|line| println!("{line}"));
    let log = testbed.log(server);
    log.lines().rev().take(5).for_each(|line| println!("{line}"));
    watch.report(CONNECTIONS);
    watch.held_its_limit();
    assert!(watch.is_alive(), "the server ended: {}", testbed.log(server));
    let (took, allowed) = (watch.peak().anon - watch.begin.anon, CONNECTIONS as u64 * EACH);
    assert!(took <= allowed, "{took} bytes for {CONNECTIONS} strangers, at most {allowed}");
}
