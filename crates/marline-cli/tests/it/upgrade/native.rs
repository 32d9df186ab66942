//! Tests of upgrades of a front with native TCP and a kernel's Multipath TCP as the client, in namespaces. Only the
//! first process has capabilities: its successors could open neither a raw socket nor a port below 1024. Needs
//! root.

use super::super::support::native::testbed;
use super::super::support::testbed::{Testbed, Until};
use super::*;

const AS_NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs \
                         --inh-caps=-all,+net_raw,+net_bind_service --ambient-caps=-all,+net_raw,+net_bind_service \
                         --bounding-set=-all,+net_raw,+net_bind_service";

/// Echoes lines. After "get", sends until data arrives or the other end is gone, and then sends the sum of its
/// data.
const SERVICE: &str = "
import hashlib, os, socket, threading, time
def serve(s):
    f = s.makefile('rb')
    for line in f:
        if line != b'get\\n':
            s.sendall(line)
            continue
        sum = hashlib.sha256()
        s.setblocking(False)
        while True:
            try:
                s.recv(1)
                break
            except BlockingIOError: pass
            block = os.urandom(40000)
            sum.update(block)
            s.setblocking(True)
            s.sendall(block)
            s.setblocking(False)
            time.sleep(0.01)
        s.setblocking(True)
        s.sendall(sum.digest())
        break
    s.close()
l = socket.create_server(('127.0.0.1', 8080), backlog=64)
print('ready')
while True:
    s, _ = l.accept()
    threading.Thread(target=serve, args=(s,), daemon=True).start()
";

/// A transfer, a session of lines, or repeated sessions, until the file `enough` exists. A session sends nothing
/// while the file `quiet` exists. Any error ends it.
const CLIENT: &str = "
import hashlib, os, socket, sys, time
def connect():
    family = socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM, 262)
    s.settimeout(15)
    s.connect((sys.argv[2], int(sys.argv[3])))
    return s
def enough(): return os.path.exists('enough')
def echo(s, text):
    line = (text + '\\n').encode()
    s.sendall(line)
    got = b''
    while not got.endswith(b'\\n'):
        more = s.recv(4096)
        assert more, 'ended'
        got += more
    assert got == line, (got, line)
def get():
    s = connect(); s.sendall(b'get\\n'); print('begun', flush=True)
    sum, n, tail, told = hashlib.sha256(), 0, b'', False
    while True:
        more = s.recv(1 << 16)
        if not more: break
        n += len(more)
        tail += more
        sum.update(tail[:-32])
        tail = tail[-32:]
        if enough() and not told:
            told = True
            s.sendall(b'.')
    assert told and sum.digest() == tail, 'sums differ'
    print('whole', n, 'bytes')
def session():
    s = connect(); n = 0; longest = 0
    while not enough() or n == 0:
        at = time.monotonic()
        echo(s, 'line %d' % n)
        longest = max(longest, time.monotonic() - at)
        if n == 0: print('begun', flush=True)
        n += 1
        time.sleep(0.02)
        while os.path.exists('quiet'): time.sleep(0.02)
    s.close()
    print('whole', n, 'lines, longest %.3f s' % longest)
def many():
    n = 0
    while not enough() or n == 0:
        with connect() as s: echo(s, 'new')
        if n == 0: print('begun', flush=True)
        n += 1
        time.sleep(0.01)
    print('whole', n, 'sessions')
globals()[sys.argv[1]]()
";

/// A service behind a front, with the successors of the front.
struct Front {
    testbed: Testbed,
    first: usize,
    successors: Vec<TookOver>,
    /// Address for clients.
    to: &'static str,
}

impl Front {
    fn start(dir: &Path) -> Option<Front> {
        let serve = "serve --listen 10.91.1.1:80 --to 127.0.0.1:8080 --qlog ./run/traces";
        Front::start_as(dir, "", serve, "10.91.1.1 80")
    }

    /// Starts this subcommand after this shell command, for clients that connect to `to`.
    fn start_as(dir: &Path, before: &str, serve: &str, to: &'static str) -> Option<Front> {
        let mut testbed = testbed(dir, &["python3", "setpriv", "pgrep"])?;
        let prepare = format!(
            "chmod a+rx {0} {0}/bin .; mkdir run\n{before}\nchown -R nobody run",
            dir.display()
        );
        testbed.run("server", &prepare);
        std::fs::write(testbed.dir.join("server/service.py"), SERVICE).expect("a file");
        std::fs::write(testbed.dir.join("client/client.py"), CLIENT).expect("a file");
        testbed.start("server", "python3 -u service.py", Until::Says("ready"));
        let serve = format!("{AS_NOBODY} marline {serve} --control ./run/control");
        let first = testbed.start("server", &serve, Until::Says("listening on"));
        Some(Front { testbed, first, successors: Vec::new(), to })
    }

    /// Runs an upgrade. Returns the id of the previously newest process.
    fn upgrade(&mut self) -> u32 {
        let before = self.newest();
        let said = self.testbed.run("server", "marline upgrade --control ./run/control");
        self.successors.push(TookOver::told_by(&said));
        before
    }

    fn newest(&self) -> u32 {
        match self.successors.last() {
            Some(newest) => newest.pid(),
            None => {
                let find = "pgrep --ns $$ --nslist net -u nobody -f '^marline serve'";
                self.testbed.run("server", find).trim().parse().expect("a number")
            }
        }
    }

    fn client(&mut self, what: &str) -> usize {
        let command = format!("python3 client.py {what} {}", self.to);
        self.testbed.start("client", &command, Until::Says("begun"))
    }

    /// Waits for the end of a client, which must have lost nothing.
    fn whole(&mut self, client: usize) -> String {
        let good = self.testbed.wait(client);
        let log = self.testbed.log(client);
        assert!(good && log.contains("whole"), "{log}\n{}", self.testbed.log(self.first));
        log.lines().last().unwrap_or_default().to_owned()
    }
}

#[test]
fn a_kernels_connections_go_on_over_three_upgrades() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut front) = Front::start(dir.path()) else { return };
    go_on_over_three_upgrades(&mut front);
    // Traces of each process, for connections before and after.
    let drawn = support::plotted(&dir.path().join("server/run/traces"), "").expect("whole traces");
    assert!(drawn.len() >= 6, "{drawn:?}");
    assert!(drawn.iter().all(|said| said.contains(" B new data, ")), "{drawn:?}");
}

#[test]
fn connections_of_two_shards_survive_three_upgrades() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let serve = "serve --shards 2 --listen 10.91.1.1:80 --to 127.0.0.1:8080";
    let Some(mut front) = Front::start_as(dir.path(), "", serve, "10.91.1.1 80") else { return };
    go_on_over_three_upgrades(&mut front);
}

fn go_on_over_three_upgrades(front: &mut Front) {
    front.testbed.run("client", "ip mptcp limits set subflows 4 add_addr_accepted 0");
    let mut clients = vec![front.client("get"), front.client("session"), front.client("many")];
    let first = front.newest();
    let mut middle = Vec::new();
    for _ in 0..3 {
        middle.push(front.upgrade());
        clients.push(front.client("session"));
        // New sessions meanwhile, each of which would fail if it were refused.
        std::thread::sleep(Duration::from_millis(500));
    }
    // Each connection joins over the second network at its own process, and then continues over that network alone.
    let joined = front.testbed.counter("client", "MPTcpExtMPJoinSynAckRx");
    front.testbed.run("client", "ip mptcp endpoint add 10.91.2.2 dev net2 subflow");
    let until = Instant::now() + PATIENCE;
    while front.testbed.counter("client", "MPTcpExtMPJoinSynAckRx") < joined + 5 {
        assert!(
            Instant::now() < until,
            "{}",
            front.testbed.run("client", "nstat -asz | grep MPTcp")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(middle.iter().all(|pid| !is_gone(*pid)), "each has a session");
    front.testbed.run("client", "ip link set net1 down");
    std::thread::sleep(Duration::from_millis(1_500));
    // This ends the remaining subflows of the first network sooner.
    front.testbed.run("client", "ip link set net1 up; touch enough");
    for client in clients {
        println!("{}", front.whole(client));
    }
    assert!(middle.contains(&first));
    for pid in middle {
        wait_until_gone(pid);
    }
    // No segment arrived at an unguarded port, which the kernel would have answered.
    assert_eq!(front.testbed.counter("server", "TcpOutRsts"), 0);
    for name in
        ["MPTcpExtMPCapableFallbackACK", "MPTcpExtMPCapableFallbackSYNACK", "MPTcpExtMPFailRx"]
    {
        assert_eq!(front.testbed.counter("client", name), 0, "{name}");
    }
}

#[test]
fn an_older_process_that_is_killed_leaves_nothing_and_a_newer_one_leaves_the_older() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut front) = Front::start(dir.path()) else { return };
    let lost = front.client("session");
    let first = front.upgrade();
    let resets = front.testbed.counter("client", "TcpEstabResets");
    // No line is in transit: the service's kernel would reset its answer to a dead process.
    front.testbed.run("client", "touch quiet; sleep 0.5");
    end(first);
    front.testbed.run("client", "rm quiet");
    // The remaining process does not know the connection, and resets it. (A kernel then waits for a join, by
    // default for a minute.)
    let until = Instant::now() + PATIENCE;
    while front.testbed.counter("client", "TcpEstabResets") == resets {
        assert!(Instant::now() < until, "no reset: {}", front.testbed.log(lost));
        std::thread::sleep(Duration::from_millis(50));
    }
    front.testbed.signal(lost, "TERM");
    assert!(!front.testbed.wait(lost));
    wait_until_gone(first);
    let kept = front.client("session");
    let guards = |front: &Front| front.testbed.run("server", "ss -Hltn sport = :80 | wc -l");
    assert_eq!(guards(&front), "1\n");
    let second = front.upgrade();
    assert_eq!(guards(&front), "1\n", "one guard, shared by both processes");
    let third = front.newest();
    end(third);
    wait_until_gone(third);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_gone(second));
    front.testbed.run("client", "touch enough");
    println!("{}", front.whole(kept));
    wait_until_gone(second);
    assert_eq!(guards(&front), "0\n");
    assert_eq!(front.testbed.counter("server", "TcpOutRsts"), 0);
}

#[test]
fn an_upgrade_with_other_addresses_or_threads_is_refused() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(front) = Front::start(dir.path()) else { return };
    // Another address or another carrier: the file at the program's path is what is started.
    let other = |flags: &str| {
        let script =
            format!("#!/bin/sh\nexec {}/bin/marline serve {flags}\n", dir.path().display());
        std::fs::write(front.testbed.dir.join("server/other"), script).expect("a file");
        let upgrade = "chmod a+x other; chmod a+rx .
            ! marline upgrade --control ./run/control --program ./other 2>&1";
        front.testbed.run("server", upgrade)
    };
    let said = other("--listen 10.91.1.1:8000 --to 127.0.0.1:8080");
    assert!(said.contains("Operation not permitted") || said.contains("10.91.1.1:80 "), "{said}");
    let said = other("--listen 10.91.1.1:80 --to 127.0.0.1:8080 --carrier udp");
    assert!(said.contains("needs a restart"), "{said}");
    let said = other("--listen 10.91.1.1:80 --to 127.0.0.1:8080 --shards 2");
    assert!(said.contains("number of threads") && said.contains("needs a restart"), "{said}");
    front.testbed.run("client", "touch enough; python3 client.py session 10.91.1.1 80");
}

/// A session from before the upgrade and one from after it both continue.
fn goes_on(mut front: Front) {
    let old = front.client("session");
    let first = front.upgrade();
    let new = front.client("session");
    let second = front.upgrade();
    let newest = front.client("session");
    std::thread::sleep(Duration::from_millis(500));
    assert!(!is_gone(first) && !is_gone(second));
    front.testbed.run("client", "touch enough");
    for client in [old, new, newest] {
        println!("{}", front.whole(client));
    }
    assert_eq!(front.testbed.counter("server", "TcpOutRsts"), 0);
}

#[test]
fn connections_by_ipv6_go_on_too() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let serve = "serve --listen [::]:80 --to 127.0.0.1:8080";
    let Some(front) = Front::start_as(dir.path(), "", serve, "fd91:1::1 80") else { return };
    goes_on(front);
}

#[test]
fn a_host_behind_an_interface_is_upgraded_too() {
    let _others = support::among_others();
    for (queues, shards) in [("", 1), (" multi_queue", 2)] {
        let dir = tempfile::tempdir().expect("a folder");
        let before = format!(
            "mkdir dev; mount -t tmpfs -o dev,mode=755 none dev
            mknod -m 666 dev/tun c 10 200; mount --bind dev/tun /dev/net/tun
            ip tuntap add mode tun name tun0 user nobody{queues}
            ip addr add 10.91.9.1/24 dev tun0
            ip link set tun0 up
            sysctl -qw net.ipv4.ip_forward=1"
        );
        let serve = format!(
            "serve --shards {shards} --carrier tun --tun tun0=10.91.9.2 --listen 10.91.9.2:80 \
             --to 127.0.0.1:8080"
        );
        let Some(front) = Front::start_as(dir.path(), &before, &serve, "10.91.9.2 80") else {
            return;
        };
        goes_on(front);
    }
}

#[test]
fn the_proxy_server_is_upgraded_too() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let before = "marline server --init --config run/server.toml --listen 10.91.1.1:80 --public 10.91.1.1:80 > invite
        install -m 600 invite ../client/invite";
    let serve = "server --config run/server.toml --carrier raw --allow 127.0.0.0/8";
    let Some(mut front) = Front::start_as(dir.path(), before, serve, "127.0.0.1 9000") else {
        return;
    };
    let client = "marline client --invite-file invite --carrier raw --path net1 --path net2 --warm 0 \
                  -L 9000:127.0.0.1:8080";
    front.testbed.start("client", client, Until::Listens(9000));
    goes_on(front);
}
