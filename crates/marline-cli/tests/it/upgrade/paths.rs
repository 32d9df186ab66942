//! Tests of paths of connections in an older process: joins, address changes, and failing paths.

use super::*;

/// A subflow that is opened after two upgrades reaches its connection in the oldest process.
fn joins_reach(carrier: &str, shards: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let mut server = Upgraded::start(dir, &["--shards", shards]);
    let control = dir.join("client.control");
    let control = control.to_str().expect("text");
    let (_client, socks) = client(dir, &server, &["--carrier", carrier, "--control", control]);
    let path = |which: &str, change: &str| {
        run_ok(dir, &["path", "--control", control, which, change]);
    };
    path("127.0.0.2", "down");
    let target = echo_target();
    // The other path may already be in use.
    let until = Instant::now() + PATIENCE;
    let mut stream = loop {
        match open(socks, target) {
            Ok(stream) => break stream,
            Err(code) => assert!(Instant::now() < until, "no stream: {code}"),
        }
    };
    echo(&mut stream, b"over the first path");
    server.upgrade(dir);
    let mut second = open(socks, target).expect("a stream");
    server.upgrade(dir);
    path("127.0.0.2", "up");
    let until = Instant::now() + PATIENCE;
    // An answered join is an established subflow.
    loop {
        let said = run_ok(dir, &["monitor", "--table", "--once", "--json", "--control", control]);
        let all: serde_json::Value =
            serde_json::from_str(said.lines().next().expect("a line")).expect("JSON");
        let joined = |connection: &serde_json::Value| {
            let subflows = connection["subflows"].as_array().expect("a list");
            let established = |flow: &serde_json::Value| {
                flow["state"] == "ESTABLISHED"
                    && flow["local"].as_str().is_some_and(|local| local.starts_with("127.0.0.2:"))
            };
            subflows.iter().any(established)
        };
        let all = all.as_array().expect("a list");
        if all.len() >= 2 && all.iter().all(joined) {
            break;
        }
        assert!(Instant::now() < until, "no joins: {said}");
        std::thread::sleep(Duration::from_millis(50));
    }
    path("127.0.0.1", "down");
    for round in 0..3u8 {
        echo(&mut stream, &[round; 50_000]);
        echo(&mut second, &[round; 50_000]);
    }
    assert!(!is_gone(server.first.process.id()));
    drop((stream, second));
    assert!(server.first.process.wait(PATIENCE), "the process ends with its stream");
}

#[test]
fn joins_reach_the_process_that_has_the_connection() {
    let _others = support::among_others();
    joins_reach("udp", "1");
    joins_reach("udp", "4");
}

#[test]
fn joins_over_tcp_reach_the_process_of_their_connection() {
    let _others = support::among_others();
    joins_reach("tcp", "2");
}
