//! Downloads that their applications do not read.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::strangers::come;
use super::support::{self, Running, ServerSide, start_client, start_client_by, start_server_by};
use super::traffic::{Openings, Source, exchange, open_paced, send_and_compare, take_all};
use super::{LIMIT, MemoryCgroup, Watch, runtime, until};

/// ```text
/// cargo test -p marline-cli --test it memory:: -- --ignored --nocapture
/// ```
#[test]
#[ignore = "takes half a minute: cargo xtask nightly memory"]
fn five_hundred_unread_downloads_do_not_end_a_server_in_512_mb() {
    const STREAMS: u32 = 500;
    const FIRST: u64 = 2_000_000;
    const LENGTH: u64 = 8_000_000;
    let _alone = support::lock_exclusively();
    let Some(runtime) = runtime() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let Some(group) = MemoryCgroup::with_limit(LIMIT).map(Arc::new) else { return };
    let start = |dir: &_, args: &[&str]| group.start(dir, args);
    let mut server = start_server_by(dir.path(), &["--allow", "127.0.0.0/8"], start);
    let path = format!("127.0.0.1={}", server.address);
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let watch = Watch::over("server", &group);
    let source = Source::start(dir.path(), LENGTH);
    // Each application reads for a while and then stops, so that the stream's buffers have grown with its rate.
    let openings = Openings { count: STREAMS, per_second: 50, first: FIRST };
    let opened = runtime.block_on(open_paced(socks, &source, openings));
    watch.settled(Duration::from_secs(40));
    watch.report(opened.downloads.len());
    assert_eq!(server.process.ended(), None, "the server ended; {}", watch.peak());
    watch.held_its_limit();
    assert_eq!(opened.errors, [""; 0], "not all were opened");
    runtime.block_on(take_all(opened.downloads, LENGTH));
    assert_eq!(server.process.ended(), None, "the server ended while it was read");
    watch.held_its_limit();
}

/// Unread streams of one client, and the length of each.
const UNREAD: u32 = 4_096;
const UNREAD_LENGTH: u64 = 1_000_000;
/// Number of streams that are finally read.
const READ_AFTER_ALL: usize = 64;
/// Number of handshakes by unauthenticated peers.
const STRANGERS: u32 = 10_000;
/// Exchanges of the honest application: alone, and again once all unread streams are open.
const EXCHANGES: usize = 400;
/// Length of a transfer of the honest application, in bytes.
const SENT: usize = 4_000_000;
/// Delay that counts as noise regardless of the p99 alone, because the machine has other work meanwhile.
const NOISE: Duration = Duration::from_millis(5);

/// The end whose memory is limited.
#[derive(Copy, Clone, PartialEq)]
enum Limited {
    Server,
    Client,
}

/// A server, a client with many streams, and an honest application. The application uses another client of the same
/// server, or the client whose memory is limited.
struct Hosts {
    server: ServerSide,
    clients: Vec<Running>,
    busy: SocketAddr,
    honest: SocketAddr,
}

impl Hosts {
    fn start(dir: &Path, limited: Limited, group: &MemoryCgroup) -> Hosts {
        let inside = |dir: &Path, args: &[&str]| group.start(dir, args);
        let start = |which| -> &dyn Fn(&Path, &[&str]) -> Running {
            if limited == which { &inside } else { &Running::start }
        };
        let most = (UNREAD + 200).to_string();
        let flags = ["--allow", "127.0.0.0/8", "--max-connections", &most];
        let server = start_server_by(dir, &flags, start(Limited::Server));
        let path = format!("127.0.0.1={}", server.address);
        let flags = ["--path", &path, "--max-connections", &most];
        let (client, busy) =
            start_client_by(dir, &server.invite_file, &flags, start(Limited::Client));
        let mut hosts = Hosts { server, clients: vec![client], busy, honest: busy };
        if limited == Limited::Server {
            let add = ["server", "--config", "server.toml", "credential", "add", "honest"];
            let invite = dir.join("honest");
            support::write_private(&invite, &support::run_ok(dir, &add));
            // Unauthenticated peers and heavy users share the limits of their address. The honest client has
            // another address.
            let path = path.replace("127.0.0.1=", "127.0.0.3=");
            let (client, honest) = start_client(dir, &invite, &["--path", &path]);
            hosts.clients.push(client);
            hosts.honest = honest;
        }
        hosts
    }

    /// Returns the process whose memory is limited.
    fn limited(&self, limited: Limited) -> &Running {
        if limited == Limited::Server { &self.server.process } else { &self.clients[0] }
    }

    fn are_alive(&mut self, watch: &Watch) {
        watch.held_its_limit();
        let processes = std::iter::once(&mut self.server.process).chain(&mut self.clients);
        for process in processes {
            assert_eq!(process.ended(), None, "a process ended; {}", watch.peak());
        }
    }
}

/// Assigns one process a processor of its own. The others, including this process with its sources and
/// applications, share the rest until this is dropped. Otherwise delays would be those of the kernel's scheduler.
struct OwnProcessor;

impl OwnProcessor {
    fn of(process: &Running, others: &[&Running]) -> OwnProcessor {
        Self::assign("0", process.id());
        if std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1) {
            let rest =
                || std::iter::once(std::process::id()).chain(others.iter().map(|other| other.id()));
            rest().for_each(|id| Self::assign("1-1023", id));
        }
        OwnProcessor
    }

    /// Assigns those of these processors that exist.
    fn assign(processors: &str, id: u32) {
        let arguments = ["-acp", processors, &id.to_string()];
        let set = std::process::Command::new("taskset").args(arguments).output();
        assert!(set.is_ok_and(|set| set.status.success()), "taskset -acp {processors} {id}");
    }
}

impl Drop for OwnProcessor {
    fn drop(&mut self) {
        Self::assign("0-1023", std::process::id());
    }
}

/// One client has thousands of streams that their applications do not read, and unauthenticated peers start
/// handshakes. An honest application waits at most twice as long for its exchanges as alone, and all its data
/// arrives.
fn an_honest_application_beside_unread_streams(limited: Limited) {
    let _alone = support::lock_exclusively();
    let Some(runtime) = runtime() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let Some(group) = MemoryCgroup::with_limit(LIMIT).map(Arc::new) else { return };
    let mut hosts = Hosts::start(dir.path(), limited, &group);
    let process = hosts.limited(limited);
    let others = std::iter::once(&hosts.server.process).chain(&hosts.clients);
    let others: Vec<_> = others.filter(|other| other.id() != process.id()).collect();
    let _own = OwnProcessor::of(process, &others);
    let source = Source::start(dir.path(), UNREAD_LENGTH);
    let (busy, honest, server) = (hosts.busy, hosts.honest, hosts.server.address);
    let echo = support::socks::echo_target();
    // A running server notices a new credential within a second.
    until("the honest client works", || exchange(honest, echo, 20, || false).is_ok());
    let alone = exchange(honest, echo, EXCHANGES, || false).expect("no other streams yet");
    println!("alone: {alone}");
    let watch = Watch::over(if limited == Limited::Server { "server" } else { "client" }, &group);
    let all_there = Arc::new(AtomicBool::new(false));
    let beside = std::thread::spawn({
        let all_there = all_there.clone();
        move || {
            let coming = exchange(honest, echo, EXCHANGES, || !all_there.load(Ordering::Relaxed))?;
            println!("while they come: {coming}");
            send_and_compare(honest, echo, SENT)?;
            let there = exchange(honest, echo, EXCHANGES, || false)?;
            println!("with all of them open: {there}");
            io::Result::Ok(coming.and(there))
        }
    });
    let (opened, strangers) = runtime.block_on(async {
        // Memory is tested here. At twice the pace the processors would be busy with the streams' bytes.
        let openings = Openings { count: UNREAD, per_second: 100, first: 0 };
        let strangers = if limited == Limited::Server { STRANGERS } else { 0 };
        tokio::join!(open_paced(busy, &source, openings), come(server, strangers, 250))
    });
    all_there.store(true, Ordering::Relaxed);
    let beside = beside.join().expect("no panic");
    println!("{strangers}");
    watch.report(opened.downloads.len());
    hosts.are_alive(&watch);
    assert_eq!(opened.errors, [""; 0], "not all were opened");
    let beside = beside.expect("no data of the honest application is lost");
    let allowed = alone.p99() * 2 + NOISE;
    assert!(
        beside.p99() <= allowed,
        "allowed: {allowed:?}; alone: {alone}; with all of them open: {beside}"
    );
    drop(strangers);
    let mut some = opened.downloads;
    some.truncate(READ_AFTER_ALL);
    runtime.block_on(take_all(some, UNREAD_LENGTH));
    hosts.are_alive(&watch);
}

#[test]
#[ignore = "takes a minute: cargo xtask nightly memory"]
fn a_server_in_512_mb_survives_4096_unread_streams() {
    an_honest_application_beside_unread_streams(Limited::Server);
}

#[test]
#[ignore = "takes a minute: cargo xtask nightly memory"]
fn a_client_in_512_mb_survives_4096_unread_streams() {
    an_honest_application_beside_unread_streams(Limited::Client);
}
