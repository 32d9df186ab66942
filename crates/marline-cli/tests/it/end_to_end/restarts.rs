//! Tests of servers that end in the middle of a download: the error that curl reports, and its time. The download's
//! length is not announced, so a clean end of stream would make it look complete.

use super::support;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use marline_testkit::need;

use super::curl;
use super::support::{Running, start_client, start_server};

/// Time after which a test counts as hanging. (The expected time is in the test's log, and at most ten seconds.)
const BOUND: Duration = Duration::from_secs(40);

/// Returns an HTTP server that sends a kilobyte every 10 ms until the client stops reading.
fn endless_target() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut request = [0; 4_096];
                let _ = stream.read(&mut request)?;
                stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n")?;
                loop {
                    stream.write_all(&[b'x'; 1_000])?;
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
    });
    address
}

/// Starts curl and waits until its download is running.
fn begin(socks: SocketAddr, dir: &Path) -> Child {
    let file = dir.join("down");
    let mut command = curl(socks, 300);
    command.arg("--no-buffer").arg("--output").arg(&file);
    let child = command.arg(format!("http://{}/", endless_target())).spawn().unwrap();
    let until = Instant::now() + BOUND;
    while std::fs::metadata(&file).map_or(0, |meta| meta.len()) < 50_000 {
        assert!(Instant::now() < until, "the download does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

/// Returns the time until curl ended. It must have failed.
fn fails_after(mut curl: Child) -> Duration {
    let from = Instant::now();
    loop {
        if let Some(status) = curl.try_wait().unwrap() {
            assert!(!status.success(), "a truncated download looks complete");
            return from.elapsed();
        }
        if from.elapsed() > BOUND {
            let _ = curl.kill();
            let _ = curl.wait();
            panic!("curl hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

const FLAGS: [&str; 2] = ["--allow", "127.0.0.0/8"];

#[test]
fn curl_fails_soon_after_a_killed_server_is_back() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    for paths in [&["127.0.0.1"][..], &["127.0.0.1", "127.0.0.2"]] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = start_server(dir.path(), &FLAGS);
        let words: Vec<String> =
            paths.iter().map(|path| format!("{path}={}", server.address)).collect();
        let flags: Vec<&str> = words.iter().flat_map(|word| ["--path", word]).collect();
        let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
        let curl = begin(socks, dir.path());
        server.process.signal("KILL");
        server.process.end();
        let mut again =
            Running::start(dir.path(), &["server", "--config", "server.toml", FLAGS[0], FLAGS[1]]);
        again.line_with("listening on ");
        let after = fails_after(curl);
        eprintln!("{} paths: curl ended {after:?} after the server was back", paths.len());
        // The server is usable again.
        let mut curl = begin(socks, dir.path());
        let _ = curl.kill();
        let _ = curl.wait();
    }
}

#[test]
fn streams_cut_off_by_a_drain_end_with_an_error() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    for who in ["server", "client"] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = start_server(dir.path(), &[FLAGS[0], FLAGS[1], "--drain", "1s"]);
        let path = format!("127.0.0.1={}", server.address);
        let flags = ["--path", path.as_str(), "--drain", "1s"];
        let (mut client, socks) = start_client(dir.path(), &server.invite_file, &flags);
        let curl = begin(socks, dir.path());
        let process = if who == "server" { &mut server.process } else { &mut client };
        process.signal("TERM");
        eprintln!("{who}: curl ended {:?} after SIGTERM", fails_after(curl));
        assert!(process.wait(BOUND), "an orderly end");
    }
}
