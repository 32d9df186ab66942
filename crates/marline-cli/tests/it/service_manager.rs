//! Tests of messages to a service manager, over a socket like systemd's.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::support::{self, marline, start_server};

const PATIENCE: Duration = Duration::from_secs(60);

/// The manager's end.
struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    fn at(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a time");
        Manager { socket }
    }

    /// Waits for a message that contains this line. Returns the whole message.
    fn hears(&self, line: &str) -> String {
        let until = Instant::now() + PATIENCE;
        let mut heard = Vec::new();
        while Instant::now() < until {
            let mut bytes = [0; 1_024];
            let Ok(length) = self.socket.recv(&mut bytes) else { continue };
            let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if message.lines().any(|said| said == line) {
                return message;
            }
            heard.push(message);
        }
        panic!("no {line:?} in {heard:?}");
    }
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &id]).status().expect("kill").success());
}

#[test]
fn a_client_says_when_it_is_ready_alive_reading_and_stopping() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let invite = server.invite_file.to_str().unwrap();
    let manager = Manager::at(&dir.path().join("notify"));
    let args =
        ["client", "--invite-file", invite, "--path", "127.0.0.1", "--socks5", "127.0.0.1:0"];
    let mut command = marline(dir.path(), &args);
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    // The id of a predecessor, which this process would have replaced.
    command.env("WATCHDOG_USEC", "600000").env("WATCHDOG_PID", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    manager.hears("READY=1");
    for _ in 0..3 {
        manager.hears("WATCHDOG=1");
    }
    signal(&child, "HUP");
    let reloading = manager.hears("RELOADING=1");
    assert!(reloading.lines().any(|line| line.starts_with("MONOTONIC_USEC=")), "{reloading}");
    manager.hears("READY=1");
    signal(&child, "TERM");
    manager.hears("STOPPING=1");
    assert!(child.wait().unwrap().success());
}
