//! Tests of the HTTP proxy on the SOCKS5 port, with curl: tunnels, requests in absolute-form with content, the PAC
//! file, refusals.

use super::support;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use marline_testkit::need;
use ring::digest::{SHA256, digest};

use super::support::{Running, start_client, start_server, texts};
use super::{hex, http_target, pattern};

const FLAGS: [&str; 2] = ["--allow", "127.0.0.0/8"];
const SIZE: usize = 3 << 20;

fn curl(proxy: SocketAddr) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", ""]);
    command.args(["--proxy", &format!("http://{proxy}")]).stdin(Stdio::null());
    command
}

fn content() -> Vec<u8> {
    let mut content = vec![0; SIZE];
    pattern(0, &mut content);
    content
}

#[test]
fn curl_works_in_both_directions_over_http_with_and_without_a_tunnel_and_after_a_restart() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_server(dir.path(), &FLAGS);
    let path = format!("127.0.0.1={}", server.address);
    let (_client, proxy) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let url = format!("http://localhost:{}/{SIZE}", http_target().port());
    let up = dir.path().join("up");
    std::fs::write(&up, content()).unwrap();
    let both_ways = |how: &[&str]| {
        let output = curl(proxy).args(how).arg("--fail").arg(&url).output().unwrap();
        assert!(output.status.success(), "{how:?}: {}", texts(&output).1);
        assert!(output.stdout == content(), "{how:?}: {} bytes", output.stdout.len());
        let mut upload = curl(proxy);
        upload.args(how).arg("--fail").arg("--upload-file").arg(&up).arg(&url);
        let output = upload.output().unwrap();
        assert_eq!(texts(&output).0, hex(digest(&SHA256, &content()).as_ref()), "{how:?}");
    };
    both_ways(&[]);
    both_ways(&["--proxytunnel"]);
    both_ways(&["--http1.0"]);
    server.process.signal("KILL");
    server.process.end();
    let mut again =
        Running::start(dir.path(), &["server", "--config", "server.toml", FLAGS[0], FLAGS[1]]);
    again.line_with("listening on ");
    both_ways(&[]);
}

#[test]
fn http_responses_carry_connection_close() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &FLAGS);
    let path = format!("127.0.0.1={}", server.address);
    let (_client, proxy) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let (one, two) = (http_target(), http_target());
    // One curl with three requests to two targets, for which it would reuse one connection if possible.
    let urls = [one, two, one].map(|target| format!("http://{target}/7"));
    let output = curl(proxy).args(["--verbose", "--fail"]).args(&urls).output().unwrap();
    let (_, told) = texts(&output);
    assert!(output.status.success(), "{told}");
    assert_eq!(output.stdout.len(), 3 * 7);
    assert_eq!(told.matches("< Connection: close").count(), 3, "{told}");
}

#[test]
fn refusals_and_the_pac_file_reach_curl() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &[]);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, proxy) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let ask = |how: &[&str], url: &str| {
        let format = ["--write-out", " %{http_code} %{http_connect}"];
        texts(&curl(proxy).args(how).args(format).arg(url).output().unwrap()).0
    };
    let refused = ask(&[], "http://127.0.0.1:9/");
    assert!(refused.contains("--allow 127.0.0.1") && refused.ends_with(" 403 000"), "{refused}");
    assert!(client.line_with("--allow").contains("--allow 127.0.0.1"));
    let refused = ask(&["--proxytunnel"], "http://127.0.0.1:9/");
    assert!(refused.ends_with(" 000 403"), "{refused}");

    let pac = |url: &str, how: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--noproxy", "*", "--write-out", " %{http_code}"]).args(how);
        texts(&command.arg(url).output().unwrap()).0
    };
    let script = pac(&format!("http://{proxy}/proxy.pac"), &[]);
    assert!(script.contains(&format!("SOCKS5 {proxy}; PROXY {proxy}")), "{script}");
    assert!(script.ends_with(" 200"), "{script}");
    // A site whose name resolves to this machine.
    let url = format!("http://evil.example:{}/proxy.pac", proxy.port());
    let resolve = format!("evil.example:{}:127.0.0.1", proxy.port());
    assert!(pac(&url, &["--resolve", &resolve]).ends_with(" 421"));
}
