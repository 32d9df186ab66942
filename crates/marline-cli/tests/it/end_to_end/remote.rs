//! Tests of remote forwards (-R): visitors at the server reach a target of the client, over two links one of which
//! fails, after a restart of the server, and only if the server allows it.

use super::support;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::support::{Running, start_client, start_server};
use super::{ended, http_target, link, pattern};
use marline_testkit::free_address;

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the answer to a GET of `size` bytes through `address`.
fn get(address: SocketAddr, size: usize) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /{size} HTTP/1.1\r\n\r\n")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

fn is_whole(answer: &[u8], size: usize) -> bool {
    let mut expected = vec![0; size];
    pattern(0, &mut expected);
    answer.ends_with(&expected)
}

/// Waits until the forward works, at most a minute. Returns the time.
fn works_again(address: SocketAddr) -> Duration {
    let from = Instant::now();
    while !get(address, 1_000).is_ok_and(|answer| is_whole(&answer, 1_000)) {
        assert!(from.elapsed() < PATIENCE, "the remote forward is not back");
        std::thread::sleep(Duration::from_millis(50));
    }
    from.elapsed()
}

#[test]
fn visitors_use_both_links_and_the_listener_outlives_the_loss_of_all() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let remote = free_address().to_string();
    let server = start_server(dir.path(), &["--allow-remote", &remote]);
    // Nothing gets through between 4 s and 7 s.
    let rate = "rate=20M,delay=5ms";
    let (mut one_link, one) = link(dir.path(), server.address, rate, &["4s down", "7s up"]);
    let (mut two_link, two) = link(dir.path(), server.address, rate, &["2s down", "7s up"]);
    let paths = [format!("127.0.0.1={one}"), format!("127.0.0.2={two}")];
    let forward = format!("{remote}:{}", http_target());
    let flags = ["--path", &paths[0], "--path", &paths[1], "-R", &forward];
    let (mut client, _) = start_client(dir.path(), &server.invite_file, &flags);
    let address = client.address_after("remote forward listening on ");
    assert_eq!(address.to_string(), remote);
    const SIZE: usize = 16 << 20;
    let begun = Instant::now();
    let answer = get(address, SIZE).unwrap();
    assert!(is_whole(&answer, SIZE), "{} bytes", answer.len());
    eprintln!("16 MiB to a visitor in {:?}", begun.elapsed());
    let control = get(address, 10).unwrap();
    assert!(is_whole(&control, 10));
    let (one, _) = ended(&mut one_link);
    let (two, _) = ended(&mut two_link);
    assert!(one.min(two) > SIZE as u64 / 8, "{one} and {two} bytes");
}

#[test]
fn a_killed_server_listens_again_when_it_is_back() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let remote = free_address().to_string();
    let mut server = start_server(dir.path(), &["--allow-remote", &remote]);
    let path = format!("127.0.0.1={}", server.address);
    let forward = format!("{remote}:{}", http_target());
    let flags = ["--path", &path, "-R", &forward];
    let (mut client, _) = start_client(dir.path(), &server.invite_file, &flags);
    let address = client.address_after("remote forward listening on ");
    assert!(is_whole(&get(address, 1_000).unwrap(), 1_000));
    server.process.signal("KILL");
    server.process.end();
    assert!(TcpStream::connect(address).is_err());
    let mut again = Running::start(
        dir.path(),
        &["server", "--config", "server.toml", "--allow-remote", &remote],
    );
    again.line_with("listening on ");
    eprintln!("back {:?} after the server", works_again(address));
    // A client that was killed gets its own address again.
    client.signal("KILL");
    client.end();
    let (mut client, _) = start_client(dir.path(), &server.invite_file, &flags);
    client.address_after("remote forward listening on ");
    assert!(is_whole(&get(address, 1_000).unwrap(), 1_000));
    client.signal("TERM");
    assert!(client.wait(PATIENCE), "SIGTERM is an orderly end");
    let from = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(from.elapsed() < PATIENCE, "the port no longer leads to a target");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_server_says_which_flag_allows_it_and_sighup_does() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let remote = free_address().to_string();
    let mut server = start_server(dir.path(), &[]);
    let path = format!("127.0.0.1={}", server.address);
    let forward = format!("{remote}:{}", http_target());
    let flags = ["--path", &path, "-R", &forward];
    let (mut client, _) = start_client(dir.path(), &server.invite_file, &flags);
    let flag = format!("--allow-remote {remote}");
    assert!(client.line_with("--allow-remote").contains(&flag));
    assert!(server.process.line_with("--allow-remote").contains(&flag));
    let file = dir.path().join("server.toml");
    let made = std::fs::read_to_string(&file).unwrap();
    let change = |rule: &str| {
        std::fs::write(&file, format!("{made}allow-remote = [\"{rule}\"]\n")).unwrap();
    };
    change(&format!("first@{remote}"));
    server.process.signal("HUP");
    server.process.line_with("changed: allow-remote");
    drop(client);
    let (mut client, _) = start_client(dir.path(), &server.invite_file, &flags);
    let address = client.address_after("remote forward listening on ");
    assert!(is_whole(&get(address, 1_000).unwrap(), 1_000));
    // A forward whose permission is removed ends immediately.
    change("other@127.0.0.1:1");
    server.process.signal("HUP");
    assert!(client.line_with("remote forward (-R) ").contains(&flag));
    assert!(TcpStream::connect(address).is_err());
}
