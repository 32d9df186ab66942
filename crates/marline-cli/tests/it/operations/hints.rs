//! Test of hints about a path's fading signal.

use super::support::socks::{echo, echo_target, open};
use super::support::{self, start_server};
use super::{ask, until};

#[test]
fn a_path_whose_signal_fades_carries_nothing_new_at_either_end_until_it_is_steady() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let [at_server, at_client] = ["server-control", "control"].map(|name| dir.path().join(name));
    let [at_server, at_client] = [&at_server, &at_client].map(|path| path.to_str().unwrap());
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8", "--control", at_server]);
    let paths = [("127.0.0.1", "wifi"), ("127.0.0.2", "lte")]
        .map(|(local, name)| format!("{local}={},name={name}", server.address));
    // On a machine without a radio the reader finds nothing, and does not change hints given manually.
    let flags = ["--path", &paths[0], "--path", &paths[1], "--wifi-signal", "on", "--warm", "0"];
    let flags = [&flags[..], &["--control", at_client]].concat();
    let (_client, socks) = support::start_client(dir.path(), &server.invite_file, &flags);
    let mut stream = open(socks, echo_target()).unwrap();
    echo(&mut stream, &[7; 50_000]);
    let path = |change: &[&str], ok| {
        ask(dir.path(), &[&["path", "--control", at_client], change].concat(), ok)
    };
    until("both paths carry the connection", || {
        let status = ask(dir.path(), &["status", "--control", at_client], true);
        status.matches("usable").count() == 2
    });
    assert!(path(&["wifi", "hint"], false).contains("HINT"));
    assert!(path(&["wifi", "backup", "fading"], false).contains("takes no argument"));
    path(&["wifi", "hint", "fading"], true);
    assert!(path(&[], true).contains("up,fading"), "{}", path(&[], true));
    let table =
        |control| ask(dir.path(), &["monitor", "--table", "--once", "--control", control], true);
    until("the server was notified", || table(at_server).contains("degraded"));
    assert!(table(at_client).contains("degraded"), "{}", table(at_client));
    // Payload sent by the client on each path.
    let sent = || {
        let text = ask(dir.path(), &["status", "--json", "--control", at_client], true);
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        ["wifi", "lte"].map(|name| {
            let paths = status["paths"].as_array().unwrap();
            let path = paths.iter().find(|path| path["name"] == name).unwrap();
            path["bytes_sent"].as_u64().unwrap()
        })
    };
    let before = sent();
    echo(&mut stream, &[7; 200_000]);
    let after = sent();
    // Retransmissions for a silent path may use any path, but new data must not use this one.
    assert!(after[0] - before[0] < 20_000, "{before:?} {after:?}");
    assert!(after[1] - before[1] >= 200_000, "{before:?} {after:?}");
    path(&["wifi", "hint", "steady"], true);
    assert!(!path(&[], true).contains("fading"));
    until("the server was notified of the change", || !table(at_server).contains("degraded"));
}
