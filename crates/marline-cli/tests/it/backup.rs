//! Tests of the guarantees in docs/operate/backup.md: restoring a server from its files, and changing its key
//! without an outage.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::support::socks::{echo, echo_target, open};
use super::support::{self, Running, run_ok, start_client, start_server, write_private};

/// Time limit for an expected state.
const PATIENCE: Duration = Duration::from_secs(60);
/// Files that the page says to save, for a server whose configuration is `server.toml`.
const SAVED: [&str; 4] = ["server.toml", "server.key", "server.clients", "server.state"];
const LOOPBACK: [&str; 2] = ["--allow", "127.0.0.0/8"];

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the number of bytes that the first client has used, as listed by the program.
fn used_bytes(dir: &Path) -> u64 {
    let args = ["server", "--config", "server.toml", "credential", "list", "--json"];
    let listed: serde_json::Value = serde_json::from_str(&run_ok(dir, &args)).expect("a list");
    listed["clients"][0]["month_bytes"].as_u64().unwrap_or_default()
}

fn start_again(dir: &Path) -> Running {
    let args = ["server", "--config", "server.toml", LOOPBACK[0], LOOPBACK[1]];
    let mut server = Running::start(dir, &args);
    server.line_with("listening on ");
    server
}

#[test]
fn a_server_restored_from_its_files_keeps_invites_and_usage() {
    let _others = support::among_others();
    let (old, new, kept) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut server = start_server(old.path(), &LOOPBACK);
    let path = format!("127.0.0.1={}", server.address);
    // The client's files are separate from the server's.
    let invite = kept.path().join("invite");
    std::fs::copy(&server.invite_file, &invite).unwrap();
    let (_client, socks) = start_client(kept.path(), &invite, &["--path", &path]);
    let target = echo_target();
    let mut stream = open(socks, target).expect("a stream");
    echo(&mut stream, &[7; 50_000]);
    until("the usage is written", || used_bytes(old.path()) >= 100_000);
    // Copied while the server runs.
    for name in SAVED {
        std::fs::copy(old.path().join(name), new.path().join(name)).expect(name);
    }
    server.process.signal("KILL");
    server.process.end();
    drop(old);
    let _server = start_again(new.path());
    until("a new stream with the old invite", || open(socks, target).is_ok());
    echo(&mut open(socks, target).expect("a stream"), b"restored");
    assert!(used_bytes(new.path()) >= 100_000, "earlier usage was lost");
}

#[test]
fn a_client_moves_to_a_server_with_another_key_and_its_open_stream_continues() {
    let _others = support::among_others();
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let old = start_server(dir.path(), &LOOPBACK);
    let new = start_server(other.path(), &LOOPBACK);
    let invite = dir.path().join("the-clients-invite");
    std::fs::copy(&old.invite_file, &invite).unwrap();
    let control = dir.path().join("control").display().to_string();
    let (mut client, socks) =
        start_client(dir.path(), &invite, &["--path", "127.0.0.1", "--control", &control]);
    let target = echo_target();
    let mut stream = open(socks, target).expect("a stream");
    echo(&mut stream, b"through the server with the old key");
    write_private(&invite, &std::fs::read_to_string(&new.invite_file).unwrap());
    run_ok(dir.path(), &["reload", "--control", &control]);
    let mut moved = open(socks, target).expect("a stream through the server with the new key");
    echo(&mut moved, b"through the server with the new key");
    echo(&mut stream, b"the old stream continues");
    // New streams do not depend on the old server.
    let revoke = ["server", "--config", "server.toml", "credential", "revoke", "first"];
    run_ok(dir.path(), &revoke);
    until("the revoked client's old stream ends", || is_broken(&mut stream));
    echo(&mut moved, b"the new stream is not affected");
    echo(
        &mut open(socks, target).expect("another stream"),
        b"other streams are not affected either",
    );
    client.signal("TERM");
    assert!(client.wait(PATIENCE));
}

#[test]
fn another_key_at_the_old_address_is_refused_with_words_and_the_right_one_is_accepted_again() {
    let _others = support::among_others();
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut server = start_server(dir.path(), &LOOPBACK);
    let invite = server.invite_file.clone();
    let (mut client, socks) = start_client(dir.path(), &invite, &["--path", "127.0.0.1"]);
    let target = echo_target();
    echo(&mut open(socks, target).expect("a stream"), b"by the right key");
    let key = dir.path().join("server.key");
    let kept = dir.path().join("kept.key");
    std::fs::copy(&key, &kept).unwrap();
    make_key(other.path(), server.address);
    std::fs::copy(other.path().join("server.key"), &key).unwrap();
    server.process.signal("KILL");
    server.process.end();
    let mut wrong = start_again(dir.path());
    assert!(open(socks, target).is_err(), "a stream by a key that the invite does not name");
    client.line_with("the server's key differs from the invite's");
    wrong.signal("KILL");
    wrong.end();
    std::fs::copy(&kept, &key).unwrap();
    let _server = start_again(dir.path());
    until("the right key is accepted again", || open(socks, target).is_ok());
}

/// Creates a key file with `server --init`.
fn make_key(dir: &Path, listen: SocketAddr) {
    let listen = listen.to_string();
    run_ok(dir, &["server", "--init", "--config", "server.toml", "--listen", &listen]);
}

fn is_broken(stream: &mut std::net::TcpStream) -> bool {
    use std::io::{Read, Write};
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut back = [0];
    stream.write_all(b"x").is_err()
        || match stream.read(&mut back) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
}
