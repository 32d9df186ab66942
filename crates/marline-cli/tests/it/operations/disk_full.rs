//! Tests of a full disk that later has room again, for log, captures, traces and state.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use marline_testkit::{free_address, free_port, need};

use super::support::native::testbed;
use super::support::socks::{echo, echo_target, open};
use super::support::testbed::{Until, namespaces_work};
use super::support::{self, SERVICES, run_ok, start_client, write_private};
use super::{metric, until};

/// A server in a mount namespace of its own. It ends with the test.
struct Contained(Child);

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates a disk with room for about 36 kB.
const DISK: &str = "mount -t tmpfs -o size=256k none disk && head -c 220000 /dev/zero >disk/filler";

/// Starts the server that was set up in `dir`, on such a disk. Also returns the address of its metrics.
fn start(unshare: &Path, dir: &Path) -> (Contained, SocketAddr) {
    std::fs::create_dir(dir.join("disk")).unwrap();
    let metrics = free_address();
    let script = format!(
        "{DISK} && exec {} server --config server.toml --allow 127.0.0.0/8 --state-file disk/state \
         --pcap disk/pcap --qlog disk/qlog --metrics {metrics} --log-connections 2>disk/log",
        env!("CARGO_BIN_EXE_marline")
    );
    let mut command = Command::new(unshare);
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    command.current_dir(dir).env("XDG_RUNTIME_DIR", dir).env_remove("RUNTIME_DIRECTORY");
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    (Contained(command.spawn().unwrap()), metrics)
}

/// Returns true if a trace continues after missing events. It must be complete before them.
fn goes_on(text: impl AsRef<str>) -> bool {
    let Ok(recording) = marline_qlog::read(text.as_ref()) else { return false };
    let missing = recording.records.iter().position(|record| record.name == "events_missed");
    missing.is_some_and(|at| {
        assert!(recording.records[at].number("count").is_some_and(|count| count > 0));
        recording.records.len() > at + 1
    })
}

fn any_goes_on(directory: &Path) -> bool {
    let files = std::fs::read_dir(directory).unwrap();
    files.flatten().any(|file| std::fs::read_to_string(file.path()).is_ok_and(goes_on))
}

#[test]
fn a_server_on_a_full_disk_continues_and_writes_again_when_there_is_room() {
    let (Some(unshare), Some(tshark)) = (need::program("unshare"), need::program("tshark")) else {
        return;
    };
    if !namespaces_work() {
        return;
    }
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let init = ["server", "--init", "--config", "server.toml", "--listen", &listen];
    let invite_file = dir.path().join("invite");
    write_private(&invite_file, &run_ok(dir.path(), &init));
    let (server, metrics) = start(&unshare, dir.path());
    // Each command becomes the next one by exec, so the process id is the server's, and the disk is in its
    // namespace.
    let inside = PathBuf::from(format!("/proc/{}/root", server.0.id()));
    let inside = inside.join(dir.path().join("disk").strip_prefix("/").unwrap());
    until("the metrics port listens", || std::net::TcpStream::connect(metrics).is_ok());
    let path = format!("127.0.0.1={listen}");
    let (_client, socks) = start_client(dir.path(), &invite_file, &["--path", &path]);
    let target = echo_target();
    // One stream that exists throughout, and others.
    let held = std::cell::RefCell::new(open(socks, target).unwrap());
    let exchange = |bytes: usize| {
        echo(&mut open(socks, target).unwrap(), &vec![7; bytes]);
        echo(&mut held.borrow_mut(), &[8; 10]);
    };

    until("the captures find no room", || {
        exchange(5_000);
        metric(metrics, "marline_capture_missing_packets_total") > 0
    });
    // Fills the rest of the disk, so that the log has no room.
    let mut fill = std::fs::File::create(inside.join("more")).unwrap();
    while std::io::Write::write_all(&mut fill, &[0; 4_096]).is_ok() {}
    until("the log finds no room", || {
        exchange(10);
        metric(metrics, "marline_log_lost_lines_total") > 2
    });
    until("the state file finds no room", || {
        exchange(10);
        metric(metrics, "marline_state_write_failures_total") > 0
    });
    let log = std::fs::read_to_string(inside.join("log")).unwrap();
    let [files, traces] = ["write the capture", "write traces"].map(|of| log.matches(of).count());
    assert!(files <= 2 && traces <= 1, "one warning for each file and for all traces:\n{log}");

    drop(fill);
    std::fs::remove_file(inside.join("more")).unwrap();
    std::fs::remove_file(inside.join("filler")).unwrap();
    let read = |name: &str| std::fs::read(inside.join(name)).unwrap_or_default();
    // Counted before, and retried automatically. Traffic would fill the disk with captures.
    until("the state is written", || {
        String::from_utf8_lossy(&read("state")).contains("name = \"first\"")
    });
    until("the log goes on", || {
        exchange(10);
        String::from_utf8_lossy(&read("log"))
            .contains("log lines before this one could not be written")
    });
    let capture = std::fs::read_dir(inside.join("pcap")).unwrap().next().unwrap().unwrap().path();
    let before = std::fs::metadata(&capture).unwrap().len();
    until("the captures go on", || {
        exchange(10);
        std::fs::metadata(&capture).unwrap().len() > before
    });
    until("a trace goes on and says what is missing", || {
        exchange(10);
        any_goes_on(&inside.join("qlog"))
    });
    // A copy, because the server continues to write.
    let copy = dir.path().join("copy.pcapng");
    until("the capture can be read to its end", || {
        std::fs::copy(&capture, &copy).unwrap();
        let output = Command::new(&tshark).arg("-r").arg(&copy).output().unwrap();
        let (out, err) = support::texts(&output);
        // The copy may have been made in the middle of a write.
        output.status.success() && !err.contains("cut short") && out.lines().count() > 10
    });
}

#[test]
fn a_front_on_a_full_disk_continues_and_writes_again_when_there_is_room() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "python3"]) else { return };
    let prepare = format!(
        "mkdir disk && {DISK}
        head -c 3000 /dev/urandom > small && head -c 3000000 /dev/urandom > large"
    );
    testbed.run("server", &prepare);
    testbed.start("server", SERVICES, Until::Says("ready"));
    let serve = "marline serve --listen 10.91.1.1:80 --to 127.0.0.1:8080 --pcap disk/pcap --qlog disk/qlog \
                 --metrics 127.0.0.1:9102 --log-connections 2> disk/log";
    testbed.start("server", serve, Until::Says("listening on"));
    // One stream that exists throughout, and others.
    let slow = "curl -sS --fail -o large http://10.91.1.1/large?40000";
    testbed.start("client", slow, Until::Says(""));
    let exchange = || {
        testbed.run(
            "client",
            "for n in 1 2 3; do curl -sS --fail -o got http://10.91.1.1/small; done",
        );
    };
    let counted = |name: &str| {
        let page = testbed.run("server", "curl -sS --fail http://127.0.0.1:9102/metrics");
        let line = page.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    until("the captures find no room", || {
        exchange();
        counted("marline_capture_missing_packets_total") > 0
    });
    testbed.run("server", "cat /dev/zero > disk/more 2> /dev/null || true");
    until("the log finds no room", || {
        exchange();
        counted("marline_log_lost_lines_total") > 2
    });
    testbed.run("server", "rm disk/more disk/filler");
    let size = || -> u64 {
        let said = testbed.run("server", "du -bs disk/pcap | cut -f1");
        said.trim().parse().unwrap()
    };
    let before = size();
    until("the log and the captures go on", || {
        exchange();
        let log = testbed.run("server", "cat disk/log");
        log.contains("log lines before this one could not be written") && size() > before
    });
    until("a trace goes on and says what is missing", || {
        exchange();
        let traces = testbed.run("server", "grep -l events_missed disk/qlog/* || true");
        traces.lines().any(|file| goes_on(testbed.run("server", &format!("cat {file}"))))
    });
}
