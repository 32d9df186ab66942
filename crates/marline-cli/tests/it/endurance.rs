//! Endurance tests: churn, many streams, and abrupt ends. Small versions run with all tests, and `cargo xtask
//! endurance` runs the large ones and prints their results (docs/research/endurance.md). Needs root.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::support;
use super::support::nginx::page;
use super::support::{
    Beside, Running, ServerSide, processor_time, resident_kib, start_client, start_server,
};
use marline_testkit::{free_address, need};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

/// Resources used by a process.
#[derive(Copy, Clone, Debug, Default)]
struct Held {
    kib: u64,
    descriptors: usize,
    /// CPU time so far in ms, whose growth must not accelerate.
    processor_ms: u128,
}

impl Held {
    fn by(process: u32) -> Held {
        let descriptors =
            std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count);
        let processor_ms = processor_time(process).as_millis();
        Held { kib: resident_kib(process), descriptors, processor_ms }
    }
}

/// nginx on loopback, with a small page.
fn nginx(dir: &Path) -> (Beside, SocketAddr) {
    page(Path::new("nginx"), dir, &"x".repeat(1_000))
}

/// Fetches the page over a new connection of the kernel, with Multipath TCP or plain TCP.
fn fetch(server: SocketAddr, source: Ipv4Addr, mptcp: bool) -> io::Result<()> {
    let protocol = if mptcp { Protocol::MPTCP } else { Protocol::TCP };
    let mut socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    socket.connect_timeout(&server.into(), Duration::from_secs(20))?;
    socket.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut page = Vec::new();
    socket.read_to_end(&mut page)?;
    if page.starts_with(b"HTTP/1.1 200") && page.ends_with(b"xxxx") {
        return Ok(());
    }
    Err(io::Error::other(format!("{} bytes came", page.len())))
}

fn mptcp_works() -> bool {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).is_ok()
}

/// `marline serve` in front of nginx: this many connections in total, sixteen at a time. Memory and descriptors are
/// checked after a tenth and at the end.
fn churn(connections: u64) {
    if !need::root() || need::program("nginx").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (_nginx, backend) = nginx(dir.path());
    let (listen, to) = (free_address().to_string(), backend.to_string());
    let limits = ["--max-per-source", "4000"];
    let mut words = vec!["serve", "--listen", &listen, "--to", &to];
    words.extend_from_slice(&limits);
    let mut serve = Running::start(dir.path(), &words);
    let server = serve.address_after("listening on ");
    let begin = Held::by(serve.id());
    let multipath = mptcp_works();
    let (done, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        for worker in 0..16_u8 {
            let (done, failed) = (&done, &failed);
            scope.spawn(move || {
                // Each worker has its own source, or the ports of one would run out.
                let source = Ipv4Addr::new(127, 0, 1, worker + 1);
                loop {
                    let number = done.fetch_add(1, Ordering::Relaxed);
                    if number >= connections {
                        return;
                    }
                    if let Err(error) = fetch(server, source, multipath && number % 2 == 0) {
                        failed.fetch_add(1, Ordering::Relaxed);
                        eprintln!("connection {number}: {error}");
                    }
                }
            });
        }
        let mut next = connections / 10;
        while done.load(Ordering::Relaxed) < connections {
            std::thread::sleep(Duration::from_millis(20));
            let now = done.load(Ordering::Relaxed);
            if now >= next {
                samples.push((now, Held::by(serve.id())));
                next += connections / 10;
            }
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    // Closing connections count as held. TIME-WAIT lasts a minute, and its size is bounded.
    std::thread::sleep(Duration::from_secs(2));
    let end = Held::by(serve.id());
    let rate = connections as f64 / seconds;
    println!(
        "churn: {connections} connections in {seconds:.0} s ({rate:.0}/s), half of them MPTCP: {multipath}"
    );
    println!("  at the start {begin:?}");
    samples.iter().for_each(|(count, held)| println!("  after {count:>7} {held:?}"));
    let each_us = samples.windows(2).map(|pair| {
        let [(before, then), (after, now)] = pair else { return 0 };
        (now.processor_ms - then.processor_ms) * 1_000 / u128::from(after - before).max(1)
    });
    println!("  CPU time of each, us, from tenth to tenth: {:?}", each_us.collect::<Vec<_>>());
    println!("  2 s after the last one {end:?}; failed: {}", failed.load(Ordering::Relaxed));
    assert_eq!(failed.load(Ordering::Relaxed), 0, "every page arrived complete");
    let warm = samples.first().map_or(begin, |(_, held)| *held);
    // A fifth, and memory kept by allocators, once TIME-WAIT has filled (16,384 entries).
    let filled = samples.iter().find(|(count, _)| *count > 40_000).map_or(warm, |(_, held)| *held);
    let allowed = filled.kib + filled.kib / 5 + 8_192;
    assert!(end.kib <= allowed, "{} KiB, at most {allowed}", end.kib);
    assert!(end.descriptors <= begin.descriptors + 2, "{begin:?} {end:?}");
}

#[test]
fn a_front_survives_churn() {
    let _alone = support::lock_exclusively();
    churn(1_000);
}

#[test]
#[ignore = "takes minutes: cargo xtask endurance"]
fn a_front_survives_two_hundred_thousand_connections() {
    let _alone = support::lock_exclusively();
    churn(200_000);
}

/// Raises the limit on descriptors, up to the maximum for root.
pub(crate) fn raise_descriptors(wanted: u64) -> bool {
    let limit = Rlimit { current: Some(wanted), maximum: Some(wanted) };
    let enough = getrlimit(Resource::Nofile).current.is_none_or(|current| current >= wanted);
    enough || setrlimit(Resource::Nofile, limit).is_ok()
}

/// Environment variable that makes [`the_echo`] an echo service.
const ECHO: &str = "MARLINE_ENDURANCE_ECHO";

/// An echo service in a process with descriptors of its own. Dropping it ends the process.
pub(crate) struct Echo {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn echo(dir: &Path) -> Echo {
    let note = dir.join("echo");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", support::name_of_test(the_echo)]).env(ECHO, &note);
    let process = command.stdout(Stdio::null()).spawn().expect("a child process");
    let mut found = None;
    until("the echo listens", || {
        found = std::fs::read_to_string(&note).ok().and_then(|text| text.trim().parse().ok());
        found.is_some()
    });
    Echo { process, address: found.expect("an address") }
}

/// Not a test, but the other end for tests that need an echo. One thread per connection, with small stacks.
#[test]
#[ignore = "a part of other tests"]
fn the_echo() {
    let Some(note) = std::env::var_os(ECHO) else { return };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    std::fs::write(note, format!("{address}\n")).expect("a file");
    for mut stream in listener.incoming().flatten() {
        let serve = move || {
            let mut buffer = [0; 512];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(serve);
        drop(thread.expect("a thread"));
    }
}

/// Time limit for an answer on a stream. Ten thousand concurrent streams take long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Opens a stream through the proxy. A read fails after `PATIENCE`.
pub(crate) fn through(
    socks: SocketAddr,
    target: SocketAddr,
    patience: Duration,
) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(socks)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(&[5, 1, 0])?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer)?;
    let mut request = vec![5, 1, 0, 1, 127, 0, 0, 1];
    request.extend_from_slice(&target.port().to_be_bytes());
    stream.write_all(&request)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    if reply[1] == 0 { Ok(stream) } else { Err(io::Error::other(format!("SOCKS5: {}", reply[1]))) }
}

/// Sends two messages on each stream, all concurrently. Each must receive its own echoes.
fn echo_twice(open: &mut [TcpStream]) {
    for round in 0..2_u8 {
        for (number, stream) in open.iter_mut().enumerate() {
            let text = format!("stream {number} round {round} ................").into_bytes();
            stream.write_all(&text[..24]).expect("a write");
        }
        for (number, stream) in open.iter_mut().enumerate() {
            let text = format!("stream {number} round {round} ................").into_bytes();
            let mut got = [0; 24];
            stream.read_exact(&mut got).unwrap_or_else(|error| panic!("stream {number}: {error}"));
            assert_eq!(got, text[..24], "stream {number} has its own bytes");
        }
    }
}

/// Opens `count` streams through the proxy, eight at a time.
pub(crate) fn open_all(socks: SocketAddr, target: SocketAddr, count: usize) -> Vec<TcpStream> {
    const WORKERS: usize = 8;
    let mut open = Vec::with_capacity(count);
    std::thread::scope(|scope| {
        let share = count.div_ceil(WORKERS);
        let work: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let mine = share.min(count.saturating_sub(worker * share));
                let some = (0..mine).map(move |_| through(socks, target, PATIENCE));
                scope.spawn(move || some.collect::<io::Result<Vec<TcpStream>>>())
            })
            .collect();
        for part in work {
            open.extend(part.join().expect("no panic").expect("every stream opens"));
        }
    });
    assert_eq!(open.len(), count);
    open
}

/// Resources in use once the descriptors are freed and `small` accepts the memory, or after a timeout.
fn settled(
    processes: [u32; 2],
    begin: &[Held; 2],
    small: impl Fn(usize, &Held) -> bool,
) -> [Held; 2] {
    // Time to detect ends, a minute of TIME-WAIT, then some seconds until free pages are released.
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let held = processes.map(Held::by);
        let back = |at: usize| held[at].descriptors < begin[at].descriptors + 20;
        let all = (0..2).all(|at| back(at) && small(at, &held[at]));
        if all || Instant::now() > until {
            return held;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A client and a server with room for many streams, and an echo service behind them.
struct Proxy {
    echo: Echo,
    client: Running,
    server: ServerSide,
    socks: SocketAddr,
}

impl Proxy {
    /// Returns a proxy with room for `count` streams, or `None` if this machine has too few descriptors.
    fn for_streams(dir: &Path, count: usize) -> Option<Proxy> {
        if !raise_descriptors(count as u64 + 2_000) {
            need::skip("descriptors cannot be raised here");
            return None;
        }
        let most = (count + 200).to_string();
        let limits = ["--max-connections", most.as_str()];
        let server = start_server(dir, &["--allow", "127.0.0.0/8", limits[0], limits[1]]);
        let path = format!("127.0.0.1={}", server.address);
        let flags = ["--path", &path, limits[0], limits[1]];
        let (client, socks) = start_client(dir, &server.invite_file, &flags);
        Some(Proxy { echo: echo(dir), client, server, socks })
    }
}

/// Opens this many streams through the proxy, lets each echo a message twice while all are open, and closes them,
/// for several rounds. Their memory must be released each time and must not grow from round to round. It is
/// measured after `rest`.
fn streams(count: usize, rounds: usize, rest: Duration) {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(proxy) = Proxy::for_streams(dir.path(), count) else { return };
    let (socks, target) = (proxy.socks, proxy.echo.address);
    let both = [proxy.client.id(), proxy.server.process.id()];
    drop(open_all(socks, target, 1));
    let begin = both.map(Held::by);
    println!("streams: {count} concurrent\n  client, server at the start {begin:?}");
    for round in 1..=rounds {
        let start = Instant::now();
        let mut open = open_all(socks, target, count);
        let opened_s = start.elapsed().as_secs_f64();
        let echoes = Instant::now();
        echo_twice(&mut open);
        let echoes_s = echoes.elapsed().as_secs_f64();
        let held = both.map(Held::by);
        drop(open);
        println!(
            "  round {round}: opened in {opened_s:.1} s, two echoes on each in {echoes_s:.1} s"
        );
        println!("    with all open {held:?}");
        // An eighth of their memory, for TIME-WAIT and tables, and memory kept by allocators.
        let allowed =
            |at: usize| begin[at].kib + held[at].kib.saturating_sub(begin[at].kib) / 8 + KEPT_KIB;
        std::thread::sleep(rest);
        let end = settled(both, &begin, |at, held| held.kib <= allowed(at));
        println!("    after all were closed {end:?}");
        for at in 0..2 {
            let (begin, end) = (begin[at], end[at]);
            assert!(end.descriptors < begin.descriptors + 20, "descriptors: {begin:?} {end:?}");
            let allowed = allowed(at);
            assert!(end.kib <= allowed, "memory: {begin:?} {end:?}, {allowed} KiB allowed");
            let per_stream = held[at].kib.saturating_sub(begin.kib) / count as u64;
            assert!(per_stream <= PER_STREAM_KIB, "{per_stream} KiB for each stream");
        }
    }
}

/// Memory that may stay after streams were closed, in addition to a part of theirs.
const KEPT_KIB: u64 = 6_144;
/// Memory of an open stream at one end, with its part of shared memory.
const PER_STREAM_KIB: u64 = 48;

#[test]
fn the_proxy_carries_many_streams_and_gives_their_memory_back() {
    let _alone = support::lock_exclusively();
    // The memory released after a flood must exceed the memory that is always kept.
    streams(800, 2, Duration::ZERO);
}

/// Opens and closes streams repeatedly, each time within the minute in which the server remembers the last ports:
/// every stream gets a subflow and its bytes.
fn streams_again(count: usize, rounds: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(proxy) = Proxy::for_streams(dir.path(), count) else { return };
    let begun = Instant::now();
    for round in 1..=rounds {
        let mut open = open_all(proxy.socks, proxy.echo.address, count);
        echo_twice(&mut open);
        println!("  round {round}: over after {:.1} s", begun.elapsed().as_secs_f64());
    }
}

#[test]
fn streams_opened_again_within_time_wait_are_as_good_as_the_first() {
    let _alone = support::lock_exclusively();
    streams_again(500, 4);
}

#[test]
#[ignore = "takes minutes: cargo xtask endurance"]
fn ten_thousand_streams_opened_again_within_time_wait_are_as_good_as_the_first() {
    let _alone = support::lock_exclusively();
    streams_again(10_000, 3);
}

#[test]
#[ignore = "takes minutes: cargo xtask endurance"]
fn the_proxy_carries_ten_thousand_streams() {
    let _alone = support::lock_exclusively();
    streams(10_000, 1, Duration::ZERO);
}

#[test]
#[ignore = "takes minutes: cargo xtask endurance"]
fn memory_does_not_grow_from_round_to_round() {
    let _alone = support::lock_exclusively();
    // The minute of TIME-WAIT, and some seconds until free pages are released. Otherwise the next round would start
    // with memory of the last one.
    streams(2_000, 5, Duration::from_secs(75));
}

fn printed(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the traces that a killed process might leave on the machine: rules, namespaces, interfaces.
fn traces_left() -> [BTreeSet<String>; 3] {
    let lines = |text: String| text.lines().map(str::to_owned).collect();
    let links = printed("ip", &["-o", "link"]);
    let names = links.lines().filter_map(|line| Some(line.split(": ").nth(1)?.to_owned()));
    [
        lines(printed("nft", &["list", "ruleset"])),
        lines(printed("ip", &["netns", "list"])),
        names.collect(),
    ]
}

/// After kill -9 of each end, its port is free immediately, for the same program and others, and no traces are left.
#[test]
fn a_killed_process_leaves_no_port_or_rule_behind() {
    let _others = support::among_others();
    if !need::root() || need::program("nginx").is_none() || need::program("ip").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (_nginx, backend) = nginx(dir.path());
    let mine = format!("kl{}", std::process::id());
    let before = traces_left();
    let (listen, to) = (free_address().to_string(), backend.to_string());
    for round in 0..3 {
        let mut serve = Running::start(dir.path(), &["serve", "--listen", &listen, "--to", &to]);
        let server = serve.address_after("listening on ");
        fetch(server, Ipv4Addr::LOCALHOST, false)
            .unwrap_or_else(|error| panic!("{round}: {error}"));
        // A connection in use whose other end is killed.
        let mut held = TcpStream::connect(server).expect("a connection");
        held.write_all(b"GET / HTTP/1.0\r\n").expect("half a request");
        serve.signal("KILL");
        let _ = serve_ended(&mut serve);
        let plain = TcpListener::bind(server).expect("the port is free immediately");
        drop(plain);
    }
    let names = [format!("{mine}c"), format!("{mine}s")];
    for name in &names {
        assert!(Command::new("ip").args(["netns", "add", name]).status().expect("ip").success());
    }
    let path = "wifi,10.94.1.2/24,10.94.1.1/24,delay=1ms";
    let words = ["link", "--between", &names[0], &names[1], "--path", path];
    let mut link = Running::start_command(support::marline_lab(dir.path(), &words), "link");
    let has_link = || printed("ip", &["-n", &names[0], "-o", "link"]).contains("wifi");
    until("the link", has_link);
    link.signal("KILL");
    let _ = serve_ended(&mut link);
    until("the interface goes", || !has_link());
    for name in &names {
        assert!(Command::new("ip").args(["netns", "del", name]).status().expect("ip").success());
    }
    let other = echo(dir.path());
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let stream = through(socks, other.address, PATIENCE).expect("a stream");
    client.signal("KILL");
    let _ = serve_ended(&mut client);
    drop(TcpListener::bind(socks).expect("the port is free immediately"));
    drop(stream);
    let ServerSideEnd(address) = kill_server(server);
    drop(std::net::UdpSocket::bind(address).expect("the UDP port is free immediately"));
    // Other tests create namespaces concurrently. Ours must be gone.
    let after = traces_left();
    let rules: Vec<_> =
        after[0].difference(&before[0]).filter(|line| line.contains(&mine)).collect();
    assert!(rules.is_empty(), "{rules:?}");
    for set in &after[1..] {
        assert!(!set.iter().any(|name| name.contains(&mine)), "{set:?}");
    }
}

struct ServerSideEnd(SocketAddr);

fn kill_server(mut server: support::ServerSide) -> ServerSideEnd {
    server.process.signal("KILL");
    let _ = serve_ended(&mut server.process);
    ServerSideEnd(server.address)
}

fn serve_ended(process: &mut Running) -> bool {
    process.wait(Duration::from_secs(10))
}

pub(crate) fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !ready() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
