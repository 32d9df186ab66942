//! End-to-end tests of the proxy as processes: curl -> SOCKS5 -> client -> two emulated links ->
//! server -> HTTP.
//!
//! `MARLINE_HEAVY=1` moves 256 MiB each way instead of 12.

mod crowds;
mod http;
mod limits;
mod refusals;
mod remote;
mod restarts;
mod seeds;
mod signals;
mod socks_four;
pub(crate) mod udp;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::support;
use super::support::{Running, run_ok, start_client, start_server, texts, write_private};
use marline_testkit::need;
use ring::digest::{Context, SHA256, digest};

/// Bytes that depend on their position and do not repeat within a segment.
pub(crate) fn pattern(offset: u64, out: &mut [u8]) {
    for (index, byte) in out.iter_mut().enumerate() {
        let at = offset + index as u64;
        *byte = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8;
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns an HTTP server: GET /N returns N bytes of the pattern, PUT returns the SHA-256 of the received content.
fn http_target() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
    address
}

pub(crate) fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = |text: &str| text.trim().parse::<u64>().unwrap_or_default();
    let mut buf = vec![0; 64 * 1024];
    if head.starts_with("PUT ") {
        let field = head.lines().find(|l| l.to_ascii_lowercase().starts_with("content-length:"));
        let mut left = field.map_or(0, |line| length(&line[15..]));
        if head.to_ascii_lowercase().contains("100-continue") {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut sum = Context::new(&SHA256);
        while left > 0 {
            let most = buf.len().min(left as usize);
            let read = stream.read(&mut buf[..most])?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            sum.update(&buf[..read]);
            left -= read as u64;
        }
        let text = hex(sum.finish().as_ref());
        return write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n{text}");
    }
    let size = length(head.split([' ', '/']).nth(2).unwrap_or_default());
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")?;
    let mut sent = 0;
    while sent < size {
        let most = buf.len().min((size - sent) as usize);
        pattern(sent, &mut buf[..most]);
        stream.write_all(&buf[..most])?;
        sent += most as u64;
    }
    Ok(())
}

fn curl(socks: SocketAddr, seconds: u64) -> Command {
    let mut command = Command::new("curl");
    let socks = socks.to_string();
    command.args(["--silent", "--show-error", "--fail", "--socks5-hostname", &socks]);
    command.args(["--max-time", &seconds.to_string(), "--noproxy", ""]);
    command.stdin(Stdio::null());
    command
}

/// Returns a link to the server that fails and returns.
fn link(dir: &Path, to: SocketAddr, spec: &str, at: &[&str]) -> (Running, SocketAddr) {
    let to = to.to_string();
    let mut args = vec!["link", "--json", "--listen", "127.0.0.1:0", "--to", &to];
    for command in at {
        args.extend_from_slice(&["--at", command]);
    }
    args.push(spec);
    let mut process = Running::start_command(support::marline_lab(dir, &args), "link");
    let address = process.address_after("listening on ");
    (process, address)
}

/// Ends a link. Returns the bytes delivered in both directions together, and those dropped while down.
fn ended(link: &mut Running) -> (u64, u64) {
    link.signal("INT");
    let report = link.line_with("delivered_bytes");
    let report: serde_json::Value = serde_json::from_str(&report).expect("a report");
    let sum = |field: &str| {
        ["up", "down"].iter().map(|way| report[way][field].as_u64().expect("a count")).sum()
    };
    (sum("delivered_bytes"), sum("dropped_outage"))
}

fn size() -> u64 {
    let heavy = std::env::var("MARLINE_HEAVY").is_ok_and(|value| value == "1");
    if heavy { 256 << 20 } else { 12 << 20 }
}

#[test]
fn curl_in_both_directions_over_two_links_one_of_which_dies_and_returns() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    // Slow enough that the cut occurs during both transfers.
    let rate = if size() > 100 << 20 { "rate=200M,delay=5ms" } else { "rate=20M,delay=5ms" };
    let cuts = ["2s down", "4s up", "6s down", "9s up"];
    let (mut wifi_link, wifi) = link(dir.path(), server.address, rate, &cuts);
    let (mut lte_link, lte) = link(dir.path(), server.address, &rate.replace("5ms", "25ms"), &[]);
    let paths = [format!("127.0.0.1={wifi}"), format!("127.0.0.2={lte}")];
    let flags = ["--path", &paths[0], "--path", &paths[1]];
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);

    let target = http_target();
    let mut content = vec![0; size() as usize];
    pattern(0, &mut content);
    let expected = hex(digest(&SHA256, &content).as_ref());

    let down = dir.path().join("down");
    let url = format!("http://localhost:{}/{}", target.port(), size());
    let start = Instant::now();
    let output = curl(socks, 150).arg("--output").arg(&down).arg(&url).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    assert_eq!(hex(digest(&SHA256, &std::fs::read(&down).unwrap()).as_ref()), expected);

    let up = dir.path().join("up");
    std::fs::write(&up, &content).unwrap();
    let output = curl(socks, 150).arg("--upload-file").arg(&up).arg(&url).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    assert_eq!(texts(&output).0, expected);

    let (wifi, lost) = ended(&mut wifi_link);
    let (lte, _) = ended(&mut lte_link);
    let mib = |bytes: u64| bytes >> 20;
    eprintln!(
        "{} MiB each way in {:.1} s together; wifi carried {} MiB and lost {lost} packets, lte {} MiB",
        mib(size()),
        start.elapsed().as_secs_f64(),
        mib(wifi),
        mib(lte)
    );
    // Both paths carried a real share, and the cut hit running traffic.
    assert!(wifi > size() / 8 && lte > size() / 8 && lost > 0);
}

#[test]
fn refusals_reach_curl_and_name_the_flag_on_both_sides() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_server(dir.path(), &[]);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let target = http_target();
    let output = curl(socks, 20).arg(format!("http://{target}/5")).output().unwrap();
    assert_eq!(output.status.code(), Some(97), "curl's code for a refusing proxy");
    assert!(client.line_with("--allow").contains("--allow 127.0.0.1"));
    assert!(server.process.line_with("--allow").contains("--allow 127.0.0.1"));
}

#[test]
fn a_revoked_client_and_a_wrong_invite_get_a_clear_error() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let target = http_target();
    let port = target.port().to_string();
    let connect = |invite: &Path| {
        let invite = invite.to_str().unwrap();
        let args =
            ["connect", "--invite-file", invite, "--path", &path, "127.0.0.1", port.as_str()];
        support::run(dir.path(), &args)
    };
    assert!(connect(&server.invite_file).status.success());

    let other = tempfile::tempdir().unwrap();
    let listen = server.address.to_string();
    let foreign = run_ok(other.path(), &["server", "--init", "--listen", &listen]);
    let file = other.path().join("invite");
    write_private(&file, &foreign);
    let (_, error) = texts(&connect(&file));
    assert!(error.contains("key differs"), "{error}");

    run_ok(dir.path(), &["server", "--config", "server.toml", "credential", "revoke", "first"]);
    std::thread::sleep(Duration::from_millis(1_500));
    let (_, error) = texts(&connect(&server.invite_file));
    assert!(error.contains("revoked"), "{error}");
}

#[test]
fn connect_joins_standard_input_and_output() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let invite = server.invite_file.to_str().unwrap();
    let target = http_target();
    let (path, port) = (format!("127.0.0.1={}", server.address), target.port().to_string());
    let args = ["connect", "--invite-file", invite, "--path", &path, "localhost", &port];
    let mut command = support::marline(dir.path(), &args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    write!(input, "GET /300000 HTTP/1.1\r\n\r\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let mut expected = vec![0; 300_000];
    pattern(0, &mut expected);
    assert!(output.stdout.ends_with(&expected), "{} bytes", output.stdout.len());
}

#[test]
fn a_restarted_server_is_found_again() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--allow", "127.0.0.0/8"];
    let mut server = start_server(dir.path(), &flags);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let url = format!("http://{}/1000", http_target());
    let fetch = || curl(socks, 40).arg(&url).output().unwrap();
    assert!(fetch().status.success());
    server.process.signal("TERM");
    assert!(server.process.wait(Duration::from_secs(20)), "SIGTERM is an orderly end");
    let mut again =
        Running::start(dir.path(), &["server", "--config", "server.toml", flags[0], flags[1]]);
    again.line_with("listening on ");
    let output = fetch();
    assert!(output.status.success(), "{}", texts(&output).1);
    client.signal("INT");
    assert!(client.wait(Duration::from_secs(20)), "SIGINT is an orderly end");
}

#[test]
fn no_answer_names_path_and_firewall() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let word = run_ok(dir.path(), &["server", "--init", "--listen", &address]);
    write_private(&dir.path().join("invite"), &word);
    let args = ["connect", "--invite-file", "invite", "--path", "127.0.0.1", "example.org", "80"];
    let error = support::run_err(dir.path(), &args);
    for part in ["127.0.0.1", "UDP", "firewall", &address] {
        assert!(error.contains(part), "{part} not in {error}");
    }
}
