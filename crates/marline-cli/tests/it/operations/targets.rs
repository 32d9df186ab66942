//! Tests that targets of connections are hidden from all views, except for a client's owner on request, and in the
//! log if configured.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use marline_testkit::{free_address, need};

use super::support::socks::{echo, open};
use super::support::{self, start_client, start_server};
use super::{ask, until};

/// An address used for nothing else.
const TARGET: &str = "127.77.66.55";

/// Returns the events that a page's viewer receives within this time.
fn events(dashboard: SocketAddr) -> String {
    let mut stream = TcpStream::connect(dashboard).unwrap();
    stream
        .write_all(format!("GET /events HTTP/1.1\r\nHost: {dashboard}\r\n\r\n").as_bytes())
        .unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let (mut text, mut buffer) = (Vec::new(), [0; 10_000]);
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until && !String::from_utf8_lossy(&text).contains("\"connections\":[{") {
        let len = stream.read(&mut buffer).unwrap_or(0);
        text.extend_from_slice(&buffer[..len]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn metrics(at: SocketAddr) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn status_monitor_metrics_and_dashboard_do_not_say_where_connections_lead() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let controls = ["server", "client"].map(|name| dir.path().join(format!("{name}.control")));
    let [at_server, at_client] = controls.each_ref().map(|path| path.to_str().unwrap());
    let ports = [free_address(), free_address(), free_address(), free_address()];
    let texts = ports.map(|port| port.to_string());
    let watched =
        |at: usize| ["--metrics", &texts[at], "--dashboard", &texts[at + 1], "--log-connections"];
    let flags = [&["--allow", "127.0.0.0/8", "--control", at_server], &watched(0)[..]].concat();
    let mut server = start_server(dir.path(), &flags);
    let path = format!("127.0.0.1={}", server.address);
    let flags = [&["--path", &path, "--control", at_client], &watched(2)[..], &["-v"]].concat();
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    let listener = TcpListener::bind((TARGET, 0)).unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    let mut stream = open(socks, target).unwrap();
    echo(&mut stream, &[3; 100_000]);
    let mut said = Vec::new();
    for control in [at_server, at_client] {
        for args in [
            &["status"][..],
            &["status", "--json"],
            &["monitor", "--table", "--once"],
            &["monitor", "--table", "--once", "--json"],
        ] {
            let text = ask(dir.path(), &[args, &["--control", control]].concat(), true);
            said.push((format!("{args:?} of {control}"), text));
        }
    }
    // An ended connection is in the logs, an open one on the pages.
    let mut ended = open(socks, target).unwrap();
    echo(&mut ended, b"the connection ends soon");
    drop(ended);
    std::thread::sleep(Duration::from_millis(500));
    let everything = |process: &mut support::Running| process.said().join("\n");
    let (of_server, of_client) = (everything(&mut server.process), everything(&mut client));
    for (name, at) in [("server", 0), ("client", 2)] {
        let shown = [metrics(ports[at]), events(ports[at + 1])];
        for (what, shown) in ["metrics", "dashboard"].into_iter().zip(shown) {
            assert!(shown.len() > 300, "{what} of {name}: {shown}");
            said.push((format!("{what} of {name}"), shown));
        }
    }
    said.push(("log of server".to_owned(), of_server));
    for (what, text) in said {
        assert!(!text.contains(TARGET), "{what}: {text}");
    }
    told_to_its_owner_who_asks(dir.path(), [at_server, at_client], target);
    refused_to_others(Path::new(at_client));
    drop(stream);
    until("ended connections are not shown", || {
        let asked = ["status", "--targets", "--control", at_client];
        ask(dir.path(), &asked, true).ends_with("\nno open streams\n")
    });
    // The owner of a client can request a detailed log, which contains the target.
    assert!(of_client.contains(TARGET), "{of_client}");
}

/// Checks that the client reports the target of the open stream, its connection and its bytes. A server does not.
fn told_to_its_owner_who_asks(dir: &Path, [at_server, at_client]: [&str; 2], target: SocketAddr) {
    let text = ask(dir, &["status", "--targets", "--control", at_client], true);
    let row = text.lines().find(|line| line.contains("100kB ")).expect(&text);
    let columns: Vec<&str> = row.split_whitespace().collect();
    let [number, _, "s", "100kB", "100kB", shown] = columns[..] else { panic!("{text}") };
    assert_eq!(shown, target.to_string());
    let table = ask(dir, &["monitor", "--table", "--once", "--control", at_client], true);
    let of_table = |line: &str| line.split_whitespace().next() == Some(number);
    assert!(table.lines().any(of_table), "{number} is in {table}");
    let json = ask(dir, &["status", "--targets", "--json", "--control", at_client], true);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let open = &json["targets"][0];
    assert_eq!((&open["target"], &open["to_target"]), (&shown.into(), &100_000.into()), "{json}");
    let refused = ask(dir, &["status", "--targets", "--control", at_server], false);
    assert!(refused.contains("a server does not reveal") && !refused.contains(TARGET), "{refused}");
}

/// Sends a request to a control socket as another user, who may not be able to run our program.
const ASK: &str = r#"
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
try:
    control = socket.socket(socket.AF_UNIX)
    control.connect(sys.argv[1])
    control.sendall(b'{"cmd":"targets"}\n')
    print(control.recv(9999))
except OSError as error:
    print(error)
"#;

/// Checks that another user cannot connect, and gets no answer even if the socket's file were accessible to all.
fn refused_to_others(control: &Path) {
    let Some(python) = need::program("python3") else { return };
    // Only root can become another user.
    if !need::root() {
        return;
    }
    let ask_as = |user: &str| {
        let asked = Command::new(&python).args(["-c", ASK]).arg(control).arg(user).output();
        support::texts(&asked.expect("python")).0
    };
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
    };
    open(control.parent().expect("a folder"), 0o755);
    assert!(ask_as("0").contains(TARGET));
    let refused = ask_as("65534");
    assert!(refused.contains("Permission denied"), "{refused}");
    open(control, 0o666);
    assert!(ask_as("0").contains(TARGET));
    let unanswered = ask_as("65534");
    let ends = ["b''\n", "Broken pipe", "reset"];
    assert!(ends.iter().any(|end| unanswered.contains(end)), "{unanswered}");
}
