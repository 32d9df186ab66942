//! Tests of quotas of paths and of credentials.

use super::support::socks::{echo, echo_target, open};
use super::support::{self, Running, start_client, start_server};
use super::{ask, look, pump, until};

#[test]
fn a_path_that_has_used_its_quota_is_left_and_stays_unused_after_a_crash() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let control = dir.path().join("control");
    let control = control.to_str().unwrap();
    let state = dir.path().join("state");
    let (lte, wifi) = (
        format!("127.0.0.1={},name=lte", server.address),
        format!("127.0.0.2={},name=wifi,backup", server.address),
    );
    let flags = [
        "--path",
        &lte,
        "--path",
        &wifi,
        "--path-quota",
        "lte=400kB,soft=50%",
        "--control",
        control,
        "--state-file",
        state.to_str().unwrap(),
    ];
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    let target = echo_target();
    let mut stream = open(socks, target).unwrap();
    // Both directions with headers: more than 200 kB and less than 400 kB.
    pump(&mut stream, 110_000).unwrap();
    client.line_with("lte: ");
    let status = ask(dir.path(), &["status", "--control", control], true);
    assert!(
        status.contains("lte: quota: ") && status.contains("beyond the soft limit"),
        "{status}"
    );
    pump(&mut stream, 200_000).unwrap();
    client.line_with("not used until the month ends");
    pump(&mut stream, 100_000).expect("the stream continues over the other path");
    let json = ask(dir.path(), &["status", "--json", "--control", control], true);
    let told: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(told["paths"][0]["quota"]["state"], "hard", "{json}");
    assert_eq!(told["paths"][0]["state"], "unreachable", "{json}");
    assert!(told["paths"][0]["reason"].as_str().unwrap().contains("used up"), "{json}");
    let kept = || std::fs::read_to_string(&state).unwrap_or_default();
    until("the usage is kept", || kept().contains("name = \"lte\""));
    until("all of it", || {
        let text = kept();
        let line = text.lines().find_map(|line| line.strip_prefix("period-bytes = "));
        line.is_some_and(|bytes| bytes.parse::<u64>().unwrap() >= 400_000)
    });
    client.signal("KILL");
    client.end();
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    let standing = || {
        let json = look(dir.path(), &["status", "--json", "--control", control]);
        let told: serde_json::Value = serde_json::from_str(&json).unwrap();
        told["paths"][0]["quota"]["state"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(standing(), "hard", "before the first connection");
    echo(&mut open(socks, target).unwrap(), b"over the other path from the first byte");
    // A corrupt file does not prevent the start, and counting restarts.
    client.signal("KILL");
    client.end();
    std::fs::write(&state, b"\xff\x00 garbage").unwrap();
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    assert_eq!(standing(), "within");
    echo(&mut open(socks, target).unwrap(), b"the stream continues");
    assert!(dir.path().join("state.bad").exists());
}

#[test]
fn a_client_over_its_quota_is_disconnected_with_the_reason() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let controls = ["server", "client"].map(|name| dir.path().join(format!("{name}.control")));
    let [at_server, at_client] = controls.each_ref().map(|path| path.to_str().unwrap());
    let mut server = start_server(dir.path(), &["--allow", "127.0.0.0/8", "--control", at_server]);
    let file = dir.path().join("server.toml");
    let made = std::fs::read_to_string(&file).unwrap();
    let allow = |quota: &str| {
        std::fs::write(&file, format!("{made}\nquota = [\"{quota}\"]\n")).unwrap();
        let told = ask(dir.path(), &["reload", "--control", at_server], true);
        assert_eq!(told, "applied: quota\n");
    };
    allow("first@200kB,soft=50%");
    let path = format!("127.0.0.1={}", server.address);
    let flags = ["--path", &path, "--control", at_client];
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    let target = echo_target();
    let mut stream = open(socks, target).unwrap();
    pump(&mut stream, 60_000).unwrap();
    server.process.line_with("beyond the soft limit");
    let ended = (0..600).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        pump(&mut stream, 10_000).err()
    });
    assert!(ended.is_some(), "existing connections end");
    server.process.line_with("quota used up");
    client.line_with("this client's quota of 200kB is used up");
    let output = support::run(dir.path(), &["status", "--control", at_client]);
    let (status, _) = support::texts(&output);
    assert_eq!(output.status.code(), Some(2), "{status}");
    assert!(status.contains("refused by the server: this client's quota"), "{status}");
    let invite = server.invite_file.to_str().unwrap();
    let said = support::run(dir.path(), &["doctor", "--invite-file", invite, "--path", &path]);
    let (text, _) = support::texts(&said);
    assert!(!said.status.success() && text.contains("quota of 200kB is used up"), "{text}");
    let status = ask(dir.path(), &["status", "--control", at_server], true);
    assert!(status.contains("first: quota: ") && status.contains("used up"), "{status}");
    assert!(status.contains("refused: ") && status.contains("quota "), "{status}");
    assert!(open(socks, target).is_err());
    // A raised quota takes effect immediately.
    allow("first@1GB");
    until("the client is served again", || {
        open(socks, target).is_ok_and(|mut stream| pump(&mut stream, 10_000).is_ok())
    });
    until("the status reports it", || {
        !look(dir.path(), &["status", "--control", at_client]).contains("refused by")
    });
    server.process.signal("TERM");
    server.process.wait(std::time::Duration::from_secs(30));
    let config = file.to_str().unwrap();
    let list = ["server", "--config", config, "credential", "list"];
    let text = ask(dir.path(), &list, true);
    assert!(text.contains("first: ") && text.contains(" of 1GB (0%)"), "{text}");
    let json = ask(dir.path(), &[&list[..], &["--json"]].concat(), true);
    let told: serde_json::Value = serde_json::from_str(&json).unwrap();
    let first = &told["clients"][0];
    assert!(first["month_bytes"].as_u64().unwrap() >= 200_000, "{json}");
    assert!(first["seen_unix_s"].is_u64() && first["to_targets"].as_u64().unwrap() >= 100_000);
    // If the file is corrupted while the server is stopped, the list reports this and still works, and the server
    // starts.
    let state = dir.path().join("server.state");
    std::fs::write(&state, "garbage").unwrap();
    let text = ask(dir.path(), &list, true);
    assert!(text.contains("never"), "{text}");
    let mut again = Running::start(dir.path(), &["server", "--config", config]);
    again.line_with("listening on ");
    assert!(dir.path().join("server.state.bad").exists());
}
