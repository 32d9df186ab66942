//! Test of the memory of a replaced process, which must be released as its connections end, and not only with the
//! last one.

use std::io::Read;

use super::*;

/// Returns the anonymous memory of a process in kB, or 0 if it has ended.
fn anonymous_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.map_or(0, |line| {
        let number = line.trim().split(' ').next().unwrap_or_default();
        number.parse().expect("kB")
    })
}

/// Bytes per stream that wait for a target that does not read.
const WAITING_BYTES: usize = 400_000;

/// Returns a TCP service that reads nothing until `go` is set.
fn slow_target(go: std::sync::Arc<std::sync::atomic::AtomicBool>) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        let mut waiting = Vec::new();
        for stream in listener.incoming().flatten() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4_096).expect("an option");
            waiting.push(stream);
            if go.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
        }
    });
    address
}

fn given_back(streams: usize, kept: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let mut server = Upgraded::start(dir, &[]);
    let (_client, socks) = client(dir, &server, &["--carrier", "udp"]);
    let target = echo_target();
    let go = std::sync::Arc::default();
    let slow = slow_target(std::sync::Arc::clone(&go));
    echo(&mut open(socks, target).expect("a stream"), b"warm");
    let first = server.first.process.id();
    let idle = anonymous_kb(first);
    let mut all: Vec<_> = (0..streams).map(|_| open(socks, slow).expect("a stream")).collect();
    for stream in &mut all {
        stream.set_nonblocking(true).expect("an option");
        let mut sent = 0;
        while sent < WAITING_BYTES {
            match std::io::Write::write(stream, &[7; 50_000]) {
                Ok(len) => sent += len,
                Err(_) => break,
            }
        }
    }
    let mut left: Vec<_> = (0..kept).map(|_| open(socks, target).expect("a stream")).collect();
    left.iter_mut().for_each(|stream| echo(stream, &[1; 50_000]));
    // Data in transit arrives.
    let mut full = anonymous_kb(first);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = anonymous_kb(first);
        if now <= full + full / 50 {
            break;
        }
        full = now;
    }
    let full = full.max(anonymous_kb(first));
    server.upgrade(dir);
    go.store(true, std::sync::atomic::Ordering::Relaxed);
    drop(all);
    let _ = std::net::TcpStream::connect(slow);
    let until = Instant::now() + Duration::from_secs(100);
    // The limit is a quarter of their memory.
    while anonymous_kb(first) > idle + (full - idle) / 4 {
        assert!(Instant::now() < until, "{idle} kB idle, {full} full, {} now", anonymous_kb(first));
        left.iter_mut().for_each(|stream| echo(stream, b"still here"));
        std::thread::sleep(Duration::from_millis(500));
    }
    let after = anonymous_kb(first);
    println!(
        "{streams} streams: the old process has {:.1} MB idle, {:.1} MB with them, {:.1} MB with {kept} left, 0 at \
         its end",
        idle as f64 / 1e3,
        full as f64 / 1e3,
        after as f64 / 1e3
    );
    assert!(full > idle + streams as u64 * 10, "{full} kB is no load");
    for mut stream in left {
        echo(&mut stream, b"to the end");
        stream.shutdown(std::net::Shutdown::Write).expect("an end");
        assert_eq!(stream.read(&mut [0]).expect("its end"), 0);
    }
    assert!(server.first.process.wait(PATIENCE), "the process ends with its last connection");
    assert_eq!(anonymous_kb(first), 0);
}

/// ```text
/// cargo test -p marline-cli --test it upgrade::memory:: -- --nocapture --include-ignored
/// ```
#[test]
#[ignore = "takes a minute"]
fn memory_is_given_back_as_connections_end() {
    let _alone = support::lock_exclusively();
    given_back(800, 5);
    given_back(150, 5);
}
