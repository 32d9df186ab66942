//! Downloads that their applications read slowly.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::support::{self, Running, start_client_by, start_server_by};
use super::traffic::{Request, Source};
use super::{LIMIT, MemoryCgroup, Watch, runtime};
use marline_testkit::free_port;

const STREAMS: u32 = 10_000;
/// Limits on opened streams per second, and on concurrent openings. The speed of opening is not tested.
const PER_SECOND: u32 = 250;
const OPENING: usize = 250;
/// Number of bytes that an application reads at a time.
const PIECE: u64 = 4_096;
/// Time between two reads. The source is much faster.
const PAUSE: Duration = Duration::from_secs(5);
/// Each stream must receive a piece within this time, continuously.
const PERIOD: Duration = Duration::from_secs(30);
/// Bytes that each stream must receive: more than the buffers of the application's own socket hold.
const ENOUGH: u64 = 64 << 10;

/// Progress of all readers.
#[derive(Default)]
struct Readers {
    /// Readers that have [`ENOUGH`].
    served: AtomicU32,
    failed: AtomicU32,
}

impl Readers {
    /// Opens a download and reads a piece at a time until all readers have enough. Returns the longest wait for a
    /// piece.
    async fn read_slowly(
        &self,
        request: Request,
        socks: SocketAddr,
        opening: OwnedSemaphorePermit,
    ) -> io::Result<Duration> {
        let opened = request.open(socks).await;
        let mut download = opened.map_err(|error| in_stage("while it was opened", &error))?;
        drop(opening);
        let mut longest = Duration::ZERO;
        while self.served.load(Relaxed) + self.failed.load(Relaxed) < STREAMS {
            tokio::time::sleep(PAUSE).await;
            let begun = Instant::now();
            let taken = download.take_until(download.taken + PIECE).await;
            let stage =
                if download.taken < ENOUGH { "while it read" } else { "after it had enough" };
            taken.map_err(|error| in_stage(stage, &error))?;
            longest = longest.max(begun.elapsed());
            if download.taken == ENOUGH {
                self.served.fetch_add(1, Relaxed);
            }
        }
        Ok(longest)
    }
}

/// Adds the stage of a failure to an error.
fn in_stage(stage: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("{stage}: {error}"))
}

/// Prints the memory that a process charges to its budget, by kind. `marline status` would also list ten thousand
/// connections.
fn print_charges(name: &str, metrics: SocketAddr) -> io::Result<()> {
    let mut stream = std::net::TcpStream::connect(metrics)?;
    stream.set_read_timeout(Some(PERIOD))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let charges = page.lines().filter_map(|line| line.strip_prefix("marline_memory_"));
    println!("{name}: {}", charges.collect::<Vec<_>>().join(", "));
    Ok(())
}

/// Counts failures by text.
fn by_cause(failures: &[String]) -> BTreeMap<&str, usize> {
    let mut causes = BTreeMap::new();
    failures.iter().for_each(|failure| *causes.entry(failure.as_str()).or_default() += 1);
    causes
}

/// A server and a client in 512 MB each.
struct Ends {
    server: Running,
    client: Running,
    socks: SocketAddr,
    metrics: [(&'static str, SocketAddr); 2],
}

impl Ends {
    fn start(dir: &Path, servers: &MemoryCgroup, clients: &MemoryCgroup) -> Ends {
        let most = (STREAMS + 200).to_string();
        let metrics = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let [at_server, at_client] = metrics.map(|address| address.to_string());
        let flags = ["--allow", "127.0.0.0/8", "--max-connections", &most, "--metrics", &at_server];
        let server = start_server_by(dir, &flags, |dir, args| servers.start(dir, args));
        let path = format!("127.0.0.1={}", server.address);
        let flags = ["--path", &path, "--max-connections", &most, "--metrics", &at_client];
        let start = |dir: &Path, args: &[&str]| clients.start(dir, args);
        let (client, socks) = start_client_by(dir, &server.invite_file, &flags, start);
        let metrics = [("server", metrics[0]), ("client", metrics[1])];
        Ends { server: server.process, client, socks, metrics }
    }

    fn print_charges(&self) {
        for (name, metrics) in self.metrics {
            print_charges(name, metrics).unwrap_or_else(|error| println!("{name}: {error}"));
        }
    }
}

/// All streams belong to one client: server and client hold ten thousand each, in 512 MB each.
#[test]
#[ignore = "takes three minutes: cargo xtask nightly memory"]
fn ten_thousand_slow_readers_all_progress() {
    let _alone = support::lock_exclusively();
    let Some(runtime) = runtime() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let group = || MemoryCgroup::with_limit(LIMIT).map(Arc::new);
    let (Some(servers), Some(clients)) = (group(), group()) else { return };
    let mut ends = Ends::start(dir.path(), &servers, &clients);
    let source = Source::start(dir.path(), u64::MAX);
    let watches = [Watch::over("server", &servers), Watch::over("client", &clients)];
    let begun = tokio::time::Instant::now();
    let readers = Arc::new(Readers::default());
    let (mut failures, mut longest) = (Vec::new(), Duration::ZERO);
    runtime.block_on(async {
        let (mut reading, opening) = (JoinSet::new(), Arc::new(Semaphore::new(OPENING)));
        for number in 0..STREAMS {
            tokio::time::sleep_until(begun + Duration::from_secs(1) * number / PER_SECOND).await;
            let (readers, request, socks) = (readers.clone(), source.request(number), ends.socks);
            let opening = opening.clone().acquire_owned().await.expect("the stream stays open");
            reading.spawn(async move {
                let read = readers.read_slowly(request, socks, opening).await;
                readers.failed.fetch_add(u32::from(read.is_err()), Relaxed);
                read
            });
        }
        println!("all are open or opening after {:.1} s", begun.elapsed().as_secs_f64());
        ends.print_charges();
        while let Some(one) = reading.join_next().await {
            match one.expect("no panic") {
                Ok(wait) => longest = longest.max(wait),
                Err(error) => failures.push(error.to_string()),
            }
        }
    });
    let (took, served) = (begun.elapsed().as_secs_f64(), readers.served.load(Relaxed));
    println!("{served} of {STREAMS} have {ENOUGH} bytes after {took:.1} s");
    println!("the longest wait for {PIECE} of them: {longest:?}");
    ends.print_charges();
    watches.iter().for_each(|watch| watch.report(STREAMS as usize));
    watches.iter().for_each(Watch::held_its_limit);
    assert_eq!((ends.server.ended(), ends.client.ended()), (None, None));
    assert!(failures.is_empty(), "{} failed: {:?}", failures.len(), by_cause(&failures));
    assert_eq!(served, STREAMS);
    assert!(longest <= PERIOD, "a stream received nothing for {longest:?}");
}
