//! Targets of connections: nobody who watches a program is shown them, its owner included, unless its log is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::ask;
use super::support::socks::{echo, open};
use super::support::{self, free_address, start_client, start_server};

/// An address that nothing else has.
const TARGET: &str = "127.77.66.55";

/// What a page's viewer is sent within this time.
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
    // One that has ended is in the logs, one that has not is on the pages.
    let mut ended = open(socks, target).unwrap();
    echo(&mut ended, b"gone soon");
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
    drop(stream);
    // Who asks for details in the log of his own client has it there.
    assert!(of_client.contains(TARGET), "{of_client}");
}
