//! Tests of upgrades under load: busy streams, and continuous new ones.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ring::digest::{Context, SHA256};

use super::super::end_to_end::pattern;
use super::*;

/// Sends until stopped, and reads the echoes. Returns the number of bytes. The hashes must agree.
fn carry(mut stream: TcpStream, number: u64, enough: &AtomicBool) -> usize {
    stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    let mut reader = stream.try_clone().expect("another handle");
    let reading = std::thread::spawn(move || {
        let (mut hash, mut buffer, mut came) = (Context::new(&SHA256), vec![0; 16 << 10], 0);
        loop {
            match reader.read(&mut buffer).expect("the stream goes on") {
                0 => return (hash.finish(), came),
                len => {
                    hash.update(&buffer[..len]);
                    came += len;
                }
            }
        }
    });
    let (mut hash, mut chunk, mut sent) = (Context::new(&SHA256), vec![0; 8 << 10], 0);
    while !enough.load(Ordering::Relaxed) || sent == 0 {
        pattern(number << 32 | sent as u64, &mut chunk);
        stream.write_all(&chunk).expect("the stream goes on");
        hash.update(&chunk);
        sent += chunk.len();
        // In total less than a busy machine carries. Otherwise the end would wait for buffered data.
        std::thread::sleep(Duration::from_millis(100));
    }
    stream.shutdown(std::net::Shutdown::Write).expect("an end");
    let (came, bytes) = reading.join().expect("no panic");
    assert_eq!((came.as_ref(), bytes), (hash.finish().as_ref(), sent), "stream {number}");
    sent
}

/// Runs this many streams over this many upgrades. New streams are opened meanwhile, and none may be refused.
fn under_load(carrier: &str, shards: &str, streams: u64, upgrades: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let mut server = Upgraded::start(dir, &["--shards", shards]);
    let (_client, socks) = client(dir, &server, &["--carrier", carrier]);
    let target = echo_target();
    let (enough, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    let bytes: usize = std::thread::scope(|scope| {
        let enough = &enough;
        let begun: Vec<TcpStream> =
            (0..streams).map(|_| open(socks, target).expect("a stream")).collect();
        let carried: Vec<_> = begun
            .into_iter()
            .zip(0..)
            .map(|(stream, number)| scope.spawn(move || carry(stream, number, enough)))
            .collect();
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                let mut stream = open(socks, target).expect("new streams are never refused");
                echo(&mut stream, b"new");
                opened.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        for _ in 0..upgrades {
            std::thread::sleep(Duration::from_millis(700));
            server.upgrade(dir);
            // New streams are opened after each upgrade.
            let (before, until) = (opened.load(Ordering::Relaxed), Instant::now() + PATIENCE);
            while opened.load(Ordering::Relaxed) < before + 20 {
                assert!(Instant::now() < until, "no new streams after an upgrade");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        enough.store(true, Ordering::Relaxed);
        carried.into_iter().map(|stream| stream.join().expect("no stream is lost")).sum()
    });
    let opened = opened.load(Ordering::Relaxed);
    println!(
        "{carrier}, {shards} shards: {streams} streams, {upgrades} upgrades: {} MB each way, 0 lost; {opened} opened \
         meanwhile",
        bytes / 1_000_000
    );
    let newest = *server.successors.last().expect("upgraded");
    for pid in server.successors.iter().copied().chain([server.first.process.id()]) {
        if pid != newest {
            wait_until_gone(pid);
        }
    }
}

#[test]
fn a_hundred_streams_under_load_lose_nothing() {
    let _others = support::among_others();
    under_load("udp", "2", 100, 2);
}

#[test]
fn a_hundred_streams_over_tcp_under_load_lose_nothing() {
    let _others = support::among_others();
    under_load("tcp", "1", 30, 2);
}

/// Applications of a forward that send first, one after the other on a recently used connection: a replaced process
/// closes such a connection while the next request, and the data sent ahead with it, are on their way.
#[test]
fn applications_that_send_first_are_answered_across_upgrades() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let mut server = Upgraded::start(dir, &[]);
    let (target, invite) = (echo_target(), server.first.invite_file.clone());
    let (invite, forward) = (invite.to_str().expect("text"), format!("0:{target}"));
    let words =
        ["client", "--invite-file", invite, "--path", "127.0.0.1", "--warm", "0", "-L", &forward];
    let mut client = Running::start(dir, &words);
    let near = client.address_after("forward listening on ");
    let (enough, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask = || {
        while !enough.load(Ordering::Relaxed) {
            let mut stream = TcpStream::connect(near).expect("the client");
            stream.set_read_timeout(Some(PATIENCE)).expect("an option");
            stream.write_all(b"first").expect("room");
            stream.shutdown(std::net::Shutdown::Write).expect("an end");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("no connection breaks");
            assert_eq!(answer, b"first");
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let asking = [scope.spawn(ask), scope.spawn(ask)];
        for _ in 0..4 {
            server.upgrade(dir);
            let (before, until) = (answered.load(Ordering::Relaxed), Instant::now() + PATIENCE);
            while answered.load(Ordering::Relaxed) < before + 100 {
                let failed = asking.iter().any(std::thread::ScopedJoinHandle::is_finished);
                assert!(Instant::now() < until && !failed, "no answers after an upgrade");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        enough.store(true, Ordering::Relaxed);
    });
}

/// ```text
/// cargo test -p marline-cli --test it upgrade::load:: -- --nocapture --include-ignored
/// ```
#[test]
#[ignore = "takes minutes: cargo xtask nightly upgrades"]
fn a_hundred_streams_lose_nothing_over_twenty_upgrades() {
    let _alone = support::lock_exclusively();
    for (carrier, shards) in [("udp", "1"), ("auto", "4"), ("tcp", "2")] {
        under_load(carrier, shards, 100, 20);
    }
}
