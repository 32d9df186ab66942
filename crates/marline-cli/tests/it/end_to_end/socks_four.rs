//! Tests of SOCKS4 and SOCKS4a on the SOCKS5 port, with curl.

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use marline_testkit::need;

use super::support::{start_client, start_server, texts};
use super::{http_target, pattern, support};

const SIZE: usize = 1 << 20;
const USER: &str = "user-of-socks-four";
/// Exit status of curl if the proxy refuses (CURLE_PROXY). A name that curl itself cannot resolve gives another
/// one.
const PROXY_REFUSED: i32 = 97;

fn curl(version: &str, proxy: SocketAddr, url: &str) -> Output {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--noproxy", ""]);
    command.args([version, &proxy.to_string(), "--proxy-user", &format!("{USER}:"), "--ipv4", url]);
    command.stdin(Stdio::null()).output().expect("curl runs")
}

#[test]
fn curl_by_socks_four_reaches_addresses_and_by_four_a_names_that_the_server_resolves() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, proxy) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let mut content = vec![0; SIZE];
    pattern(0, &mut content);
    let port = http_target().port();
    for (version, host) in
        [("--socks4", "127.0.0.1"), ("--socks4a", "127.0.0.1"), ("--socks4a", "localhost")]
    {
        let output = curl(version, proxy, &format!("http://{host}:{port}/{SIZE}"));
        assert!(output.status.success(), "{version} {host}: {}", texts(&output).1);
        assert!(output.stdout == content, "{version} {host}: {} bytes", output.stdout.len());
    }
    // The server forbids the first target and finds no address for the second. Both are refusals of the proxy.
    for (version, host) in [("--socks4", "10.0.0.1"), ("--socks4a", "nowhere.invalid")] {
        let output = curl(version, proxy, &format!("http://{host}:{port}/1"));
        let said = texts(&output).1;
        assert_eq!(output.status.code(), Some(PROXY_REFUSED), "{version} {host}: {said}");
    }
    client.signal("TERM");
    assert!(client.wait(Duration::from_secs(60)));
    let said = client.said().join("\n");
    assert!(said.contains("nowhere.invalid"), "the log was not read: {said}");
    assert!(!said.contains(USER), "the user id reached the log: {said}");
}
