//! Tests of `marline-lab link` as a process: commands on its socket, statistics at its end.

use super::support;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A process that is killed even if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(control: &mut BufReader<UnixStream>, order: &str) -> Value {
    writeln!(control.get_mut(), "{order}").expect("order");
    let mut line = String::new();
    control.read_line(&mut line).expect("answer");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn a_link_obeys_and_reports() {
    let _others = support::among_others();
    let directory = tempfile::tempdir().expect("directory");
    let socket = directory.path().join("link.sock");
    let server = UdpSocket::bind("127.0.0.1:0").expect("bind");
    server.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let to = server.local_addr().expect("address").to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_marline-lab"))
        .args(["link", "--listen", "127.0.0.1:0", "--to", &to, "--json", "delay=1ms", "--control"])
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut running = Running(child);
    let mut said = BufReader::new(running.0.stderr.take().expect("standard error"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let address = line.split_once("listening on ").and_then(|(_, rest)| rest.split(',').next());
    let address: SocketAddr = address.expect("an address").parse().expect("an address");
    // The process drops all privileges, even if root started it.
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.0.id()));
    let status = status.expect("its status");
    assert!(status.contains("CapEff:\t0000000000000000\n"), "{status}");
    let mut control = BufReader::new(connect(&socket));

    let client = UdpSocket::bind("127.0.0.1:0").expect("bind");
    client.send_to(b"first", address).expect("send");
    let mut buffer = [0; 64];
    let (length, _) = server.recv_from(&mut buffer).expect("through the link");
    assert_eq!(&buffer[..length], b"first");
    assert_eq!(ask(&mut control, "down")["ok"], true);
    assert_eq!(ask(&mut control, "stats")["ok"]["up"]["is_up"], false);
    assert_eq!(ask(&mut control, "up")["ok"], true);
    assert_eq!(ask(&mut control, "set loss=100%,up.delay=5ms")["ok"], true);
    let refused = ask(&mut control, "set speed=9");
    assert!(refused["error"].as_str().is_some_and(|text| text.contains("speed")), "{refused}");
    client.send_to(b"lost", address).expect("send");
    let mut stats = Value::Null;
    for _ in 0..2_000 {
        stats = ask(&mut control, "stats")["ok"].take();
        if stats["up"]["dropped_loss"] == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stats["up"]["dropped_loss"], 1, "{stats}");
    assert_eq!(ask(&mut control, "quit")["ok"], true);
    let out = BufReader::new(running.0.stdout.take().expect("standard output"));
    let last: Value = serde_json::from_reader(out).expect("final statistics");
    assert_eq!((&last["up"]["offered_packets"], &last["clients"]), (&2.into(), &1.into()));
    assert!(running.0.wait().expect("end").success());
    assert!(!socket.exists());
}

/// The socket appears right after the first line.
fn connect(socket: &std::path::Path) -> UnixStream {
    for _ in 0..2_000 {
        if let Ok(stream) = UnixStream::connect(socket) {
            return stream;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no control socket at {}", socket.display());
}

#[test]
fn a_wrong_description_is_refused_in_words() {
    let _others = support::among_others();
    let output = Command::new(env!("CARGO_BIN_EXE_marline-lab"))
        .args(["link", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "rate=fast"])
        .output()
        .expect("run");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("rate=fast"), "{said}");
}
