//! Tests of reloads requested through the control socket.

use std::net::TcpStream;

use super::support::socks::{echo, echo_target, open};
use super::support::{self, Running, start_server};
use super::{ask, until};
use marline_testkit::free_address;

/// Lines of the report on a reload that changes each kind of setting.
const REPORTED: [&str; 4] = [
    "applied: log-connections, path, socks5",
    "applied to new connections: datagram-policy, mode, path-manager, scheduler",
    "used by other commands only: dns",
    "needs a restart: keepalive (running: \"15s\", configured: \"14s\")",
];

#[test]
fn a_client_opens_and_closes_ports_and_paths_or_changes_nothing() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let file = dir.path().join("client.toml");
    let write = |socks5: &str, more: &str| {
        let text = format!(
            "invite-file = \"invite\"\nsocks5 = [{socks5}]\nwarm = 0\n{more}\nstate-file = \"state\"\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let (first, second) = (free_address(), free_address());
    let path = format!("path = [\"127.0.0.1={},name=wifi\"]", server.address);
    write(&format!("\"{first}\""), &path);
    let control = dir.path().join("control");
    let control = control.to_str().unwrap();
    let config = file.to_str().unwrap();
    let mut client =
        Running::start(dir.path(), &["client", "--config", config, "--control", control]);
    client.line_with("socks5 listening on ");
    let target = echo_target();
    let mut stream = open(first, target).unwrap();
    echo(&mut stream, b"before");
    let reload = |ok| ask(dir.path(), &["reload", "--control", control], ok);
    assert_eq!(reload(true), "no changes\n");

    // An error is reported with its place, and nothing else is applied.
    let holds = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holds.local_addr().unwrap();
    let (free_port, taken_too) = (format!("\"{second}\""), format!("\"{second}\", \"{taken}\""));
    for (socks5, more, says) in [
        (&free_port, "mode = \"psychic\"", "psychic"),
        (&free_port, "path-quota = [\"wifi=1GB\", \"wifi=2GB\"]", "given twice for the path wifi"),
        (&taken_too, &path, "cannot listen"),
        (&free_port, "nonsense = 1", "line 4"),
    ] {
        write(socks5, more);
        let error = reload(false);
        assert!(error.contains("keeping current") && error.contains(says), "{error}");
        assert!(TcpStream::connect(second).is_err(), "{says}: nothing was opened");
    }
    echo(&mut open(first, target).unwrap(), b"as before");

    // Another port, a second path, another mode, and a setting that cannot change.
    let both = format!(
        "path = [\"127.0.0.1={0},name=wifi\", \"127.0.0.2={0},name=lte,backup\"]",
        server.address
    );
    write(
        &format!("\"{second}\""),
        &format!(
            "{both}\nmode = \"redundant\"\nlog-connections = true\nkeepalive = \"14s\"\ndns = \"192.0.2.53\""
        ),
    );
    let told = reload(true);
    for line in REPORTED {
        assert!(told.contains(line), "{line}: {told}");
    }
    client.line_with("reload: changed settings that need a restart: keepalive");
    let mut new = open(second, target).unwrap();
    echo(&mut new, b"through the new port");
    echo(&mut stream, b"on the connection of the closed port");
    until("the old port is closed", || TcpStream::connect(first).is_err());
    let status = ask(dir.path(), &["status", "--control", control], true);
    assert!(status.contains("lte") && status.contains("auto,budget=unlimited"), "{status}");
    // And back: the path is removed, but its connections continue.
    write(&format!("\"{second}\""), &path);
    assert!(reload(true).contains("path"));
    let status = ask(dir.path(), &["status", "--control", control], true);
    assert!(!status.contains("lte"), "{status}");
    echo(&mut stream, b"still");
}

#[test]
fn a_server_gives_new_connections_another_mode() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control");
    let control = control.to_str().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8", "--control", control]);
    let path = format!("127.0.0.1={}", server.address);
    let flags = ["--path", &path, "--warm", "0"];
    let (_client, socks) = support::start_client(dir.path(), &server.invite_file, &flags);
    let target = echo_target();
    let mut before = open(socks, target).unwrap();
    echo(&mut before, b"before");
    let file = dir.path().join("server.toml");
    let made = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{made}\nmode = \"aggregate\"\n")).unwrap();
    let json = ask(dir.path(), &["reload", "--json", "--control", control], true);
    let told: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(told["for_new"], serde_json::json!(["datagram-policy", "mode", "scheduler"]));
    let mut after = open(socks, target).unwrap();
    echo(&mut after, b"after");
    let status = ask(dir.path(), &["status", "--control", control], true);
    assert!(status.contains("by auto auto,budget=0"), "{status}");
    echo(&mut before, b"unchanged");
}

/// Returns the number of files in a directory with this prefix, and their total size.
fn written(dir: &std::path::Path, begins: &str) -> (usize, u64) {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(begins));
    let sizes: Vec<u64> = files.map(|file| file.metadata().unwrap().len()).collect();
    (sizes.len(), sizes.iter().sum())
}

#[test]
fn captures_and_traces_begin_and_end_on_a_running_program() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control");
    let control = control.to_str().unwrap();
    // Two shards: each has capture files of its own, and they share the traces.
    let flags = ["--allow", "127.0.0.0/8", "--control", control, "--shards", "2"];
    let server = start_server(dir.path(), &flags);
    let path = format!("127.0.0.1={}", server.address);
    let flags = ["--path", &path, "--warm", "0"];
    let (_client, socks) = support::start_client(dir.path(), &server.invite_file, &flags);
    let target = echo_target();
    let mut before = open(socks, target).unwrap();
    echo(&mut before, b"before");
    let file = dir.path().join("server.toml");
    let made = std::fs::read_to_string(&file).unwrap();
    let (pcap, qlog) = (dir.path().join("pcap"), dir.path().join("qlog"));
    let write = |more: &str| std::fs::write(&file, format!("{made}\n{more}\n")).unwrap();
    let reload = |ok| ask(dir.path(), &["reload", "--control", control], ok);

    write(&format!("pcap = {pcap:?}\nqlog = {qlog:?}"));
    assert_eq!(reload(true), "applied: pcap\napplied to new connections: qlog\n");
    // Existing connections are captured, and new ones also have a trace.
    echo(&mut before, &[5; 20_000]);
    until("the earlier connection is captured", || written(&pcap, "server-shard").1 > 40_000);
    assert_eq!(written(&qlog, "server-").0, 0, "no trace without its beginning");
    let mut after = open(socks, target).unwrap();
    echo(&mut after, &[6; 20_000]);
    until("there is a trace", || written(&qlog, "server-").1 > 1_000);

    // If the directory cannot be created, everything stays unchanged.
    write(&format!("pcap = {:?}\nqlog = {qlog:?}", file.join("below-a-file")));
    let error = reload(false);
    assert!(error.contains("keeping current") && error.contains("below-a-file"), "{error}");
    let so_far = written(&pcap, "server-shard").1;
    echo(&mut after, &[7; 20_000]);
    until("the trace continues", || written(&pcap, "server-shard").1 > so_far + 40_000);

    // Without the settings, the files end complete, and connections are not affected.
    write("");
    assert!(reload(true).starts_with("applied: pcap\n"));
    let [captured, traced] = [written(&pcap, "server-shard").1, written(&qlog, "server-").1];
    echo(&mut after, &[8; 50_000]);
    echo(&mut open(socks, target).unwrap(), &[9; 50_000]);
    let now = [written(&pcap, "server-shard").1, written(&qlog, "server-").1];
    assert_eq!(now, [captured, traced], "nothing more is written");
    let trace = std::fs::read_dir(&qlog).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&trace).unwrap();
    marline_qlog::read(text.as_ref()).expect("a trace that can be read");
}
