//! Downloads that their applications read slowly.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::support::{self, start_client_by, start_server_by};
use super::traffic::{Request, Source};
use super::{LIMIT, MemoryCgroup, Watch, runtime};

const STREAMS: u32 = 10_000;
/// How many are opened in a second.
const PER_SECOND: u32 = 250;
/// What each reads at once.
const PIECE: u64 = 4_096;
/// How often each reads: the source is much faster.
const PAUSE: Duration = Duration::from_secs(2);
/// What each must get.
const ENOUGH: u64 = 64 << 10;

/// The reading of all.
#[derive(Default)]
struct Readers {
    /// How many have enough by now.
    served: AtomicU32,
    failed: AtomicU32,
}

impl Readers {
    /// Opens a download and reads a piece of it every now and then until all have enough; the longest wait for one.
    async fn read_slowly(&self, request: Request, socks: SocketAddr) -> io::Result<Duration> {
        let mut download = request.open(socks).await?;
        let mut longest = Duration::ZERO;
        while self.served.load(Relaxed) + self.failed.load(Relaxed) < STREAMS {
            tokio::time::sleep(PAUSE).await;
            let begun = Instant::now();
            download.take_until(download.taken + PIECE).await.map_err(|error| {
                io::Error::new(error.kind(), format!("{error} after {} bytes", download.taken))
            })?;
            longest = longest.max(begun.elapsed());
            if download.taken == ENOUGH {
                self.served.fetch_add(1, Relaxed);
            }
        }
        Ok(longest)
    }
}

/// All streams are one client's: server and client hold ten thousand each, in 512 MB each.
#[test]
#[ignore = "takes two minutes: cargo xtask nightly memory"]
fn ten_thousand_slow_readers_all_progress() {
    let _alone = support::alone();
    let Some(runtime) = runtime() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let group = || MemoryCgroup::with_limit(LIMIT).map(Arc::new);
    let (Some(servers), Some(clients)) = (group(), group()) else { return };
    let most = (STREAMS + 200).to_string();
    let flags = ["--allow", "127.0.0.0/8", "--max-connections", &most];
    let start = |dir: &_, args: &[&str]| servers.start(dir, args);
    let mut server = start_server_by(dir.path(), &flags, start);
    let path = format!("127.0.0.1={}", server.address);
    let flags = ["--path", &path, "--max-connections", &most];
    let start = |dir: &_, args: &[&str]| clients.start(dir, args);
    let (mut client, socks) = start_client_by(dir.path(), &server.invite_file, &flags, start);
    let source = Source::start(dir.path(), u64::MAX);
    let watches = [Watch::over("server", &servers), Watch::over("client", &clients)];
    let begun = tokio::time::Instant::now();
    let readers = Arc::new(Readers::default());
    let (mut failures, mut longest) = (Vec::new(), Duration::ZERO);
    runtime.block_on(async {
        let mut reading = JoinSet::new();
        for number in 0..STREAMS {
            tokio::time::sleep_until(begun + Duration::from_secs(1) * number / PER_SECOND).await;
            let (readers, request) = (readers.clone(), source.request(number));
            reading.spawn(async move {
                let read = readers.read_slowly(request, socks).await;
                readers.failed.fetch_add(u32::from(read.is_err()), Relaxed);
                read
            });
        }
        println!("all are open or opening after {:.1} s", begun.elapsed().as_secs_f64());
        while let Some(one) = reading.join_next().await {
            match one.expect("no panic") {
                Ok(wait) => longest = longest.max(wait),
                Err(error) => failures.push(error.to_string()),
            }
        }
    });
    let took = begun.elapsed().as_secs_f64();
    let served = readers.served.load(Relaxed);
    println!(
        "{served} of {STREAMS} have {ENOUGH} bytes after {took:.1} s; the longest wait for {PIECE} of them: {longest:?}"
    );
    for watch in &watches {
        watch.report(STREAMS as usize);
    }
    for watch in &watches {
        watch.held_its_limit();
    }
    assert_eq!((server.process.ended(), client.ended()), (None, None));
    let some = &failures[..failures.len().min(5)];
    assert!(failures.is_empty(), "{} failed: {some:?}", failures.len());
    assert_eq!(served, STREAMS);
}
