//! Tests of `marline upgrade`: a server is replaced by another process of the same program without effect on its
//! connections, or the upgrade fails without any effect.

mod failures;
mod load;
mod memory;
mod native;
mod paths;

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::end_to_end::udp::Association;
use super::support;
use super::support::socks::{echo, echo_target, open};
use super::support::{Running, ServerSide, run_err, run_ok, start_client, start_server};
use marline_testkit::free_port;

/// Time limit for any expected state.
const PATIENCE: Duration = Duration::from_secs(40);

/// A server that is upgraded, and its successors.
pub(crate) struct Upgraded {
    pub(crate) first: ServerSide,
    control: PathBuf,
    pub(crate) successors: Vec<u32>,
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        for pid in &self.successors {
            end(*pid);
        }
    }
}

/// A successor process, identified by the output of `marline upgrade`. It is not a child of the test, and ends with
/// it.
pub(crate) struct TookOver(u32);

impl TookOver {
    pub(crate) fn told_by(said: &str) -> TookOver {
        TookOver(pid_told(said))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0
    }
}

impl Drop for TookOver {
    fn drop(&mut self) {
        end(self.0);
    }
}

/// Returns the process id of the successor in the output of `marline upgrade`.
fn pid_told(said: &str) -> u32 {
    let pid = said.strip_prefix("process ").and_then(|rest| rest.split(' ').next());
    pid.and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("no number in {said:?}"))
}

/// Kills a process that is not a child.
fn end(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a number");
    // The process may have ended.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Returns true if a process has ended and its memory is freed: it is gone, or a zombie.
pub(crate) fn is_gone(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.contains("VmRSS:")
}

pub(crate) fn wait_until_gone(pid: u32) {
    let until = Instant::now() + PATIENCE;
    while !is_gone(pid) {
        assert!(Instant::now() < until, "process {pid} does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Upgraded {
    /// Returns a server that allows targets on loopback, with its control socket in `dir`.
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Upgraded {
        let control = dir.join("server.control");
        let mut all = vec!["--allow", "127.0.0.0/8", "--control", control.to_str().expect("text")];
        all.extend_from_slice(flags);
        let first = start_server(dir, &all);
        Upgraded { first, control, successors: Vec::new() }
    }

    fn control(&self) -> &str {
        self.control.to_str().expect("text")
    }

    /// Runs an upgrade, which must succeed. Returns the id of the previously newest process.
    pub(crate) fn upgrade(&mut self, dir: &Path) -> u32 {
        let before = self.successors.last().copied().unwrap_or(self.first.process.id());
        let said = run_ok(dir, &["upgrade", "--control", self.control()]);
        self.successors.push(pid_told(&said));
        before
    }

    /// Returns the number of processes of the server that still run.
    fn living(&self) -> usize {
        let all = self.successors.iter().copied().chain([self.first.process.id()]);
        all.filter(|pid| !is_gone(*pid)).count()
    }
}

/// Returns a client over these paths on loopback.
fn client(dir: &Path, server: &Upgraded, flags: &[&str]) -> (Running, SocketAddr) {
    let paths = ["--path", "127.0.0.1", "--path", "127.0.0.2", "--warm", "0"];
    let all: Vec<&str> = paths.iter().chain(flags).copied().collect();
    start_client(dir, &server.first.invite_file, &all)
}

/// Returns a UDP service that answers with the source port of the request.
fn port_teller() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("its address");
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&from.port().to_be_bytes(), from);
        }
    });
    address
}

/// Returns the source port of the server for this application.
fn port_seen(application: &Association, teller: SocketAddr) -> Vec<u8> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        application.send(teller, b"who");
        if let Some((_, port)) = application.recv(Duration::from_millis(500)) {
            return port;
        }
    }
    panic!("no answer over UDP");
}

/// One stream and one UDP mapping per process: each continues in its process, which ends with them.
fn goes_on_over_ten(carrier: &str, shards: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let mut server = Upgraded::start(dir, &["--shards", shards]);
    let (_client, socks) = client(dir, &server, &["--carrier", carrier]);
    let (target, teller) = (echo_target(), port_teller());
    let application = Association::open(socks);
    let port = port_seen(&application, teller);
    let mut streams = vec![open(socks, target).expect("a stream")];
    for round in 0..10 {
        server.upgrade(dir);
        for (number, stream) in streams.iter_mut().enumerate() {
            echo(stream, format!("{round}: still {number}").as_bytes());
        }
        streams.push(open(socks, target).expect("another stream"));
        echo(streams.last_mut().expect("one"), &[round; 100_000]);
        assert_eq!(port_seen(&application, teller), port, "the mapping stays in its process");
    }
    assert!(!is_gone(server.first.process.id()), "the first process has the first stream");
    drop(streams);
    for middle in &server.successors[..9] {
        wait_until_gone(*middle);
    }
    assert_eq!(server.living(), 2, "the newest, and the oldest with the mapping");
    echo(
        &mut open(socks, target).expect("a stream"),
        b"each process ends with its last connection",
    );
}

#[test]
fn a_stream_and_a_mapping_go_on_over_ten_upgrades() {
    let _others = support::among_others();
    goes_on_over_ten("udp", "1");
}

#[test]
fn a_stream_and_a_mapping_survive_ten_upgrades_with_shards() {
    let _others = support::among_others();
    goes_on_over_ten("auto", "4");
}

#[test]
fn a_stream_and_a_mapping_survive_ten_upgrades_over_tcp() {
    let _others = support::among_others();
    goes_on_over_ten("tcp", "2");
}

/// A process ends with its last connection, including the first process.
#[test]
fn a_process_ends_with_its_last_connection_or_at_the_limit() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let mut server = Upgraded::start(dir, &["--upgrade-limit", "3s", "--drain", "1s"]);
    let (_client, socks) = client(dir, &server, &["--carrier", "udp"]);
    let target = echo_target();
    let mut kept = open(socks, target).expect("a stream");
    server.upgrade(dir);
    echo(&mut kept, b"before the limit");
    drop(kept);
    assert!(server.first.process.wait(PATIENCE), "the process ends in an orderly way");
    let mut kept = open(socks, target).expect("a stream");
    let before = server.upgrade(dir);
    echo(&mut kept, b"before the limit");
    wait_until_gone(before);
    assert!(
        !matches!(std::io::Read::read(&mut kept, &mut [0]), Ok(1..)),
        "the connection was cut off"
    );
    echo(&mut open(socks, target).expect("a stream"), b"through the newest process");
}

/// `marline serve` with frames: streams without proxy and TLS.
#[test]
fn a_front_is_upgraded_too() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let target = echo_target().to_string();
    let listen = format!("127.0.0.1:{}", free_port());
    let flags = ["serve", "--listen", &listen, "--to", &target, "--carrier", "udp"];
    let mut front = Running::start(dir, &flags);
    front.line_with("listening on ");
    // Found without being named, also the second time, because the older one makes way.
    let mut successors = Vec::new();
    for _ in 0..2 {
        let said = run_ok(dir, &["upgrade"]);
        successors.push(pid_told(&said));
    }
    assert!(front.wait(PATIENCE), "it had no connections");
    wait_until_gone(successors[0]);
    end(successors[1]);
}
