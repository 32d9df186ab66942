//! Streams that all end at the same moment: packets per stream at each end, the time until all have ended, the effect
//! on new streams, and the memory.
//!
//! Client and server use this machine's own address if it has one, because the health of paths over loopback is not
//! checked.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::beside::Echo;
use crate::silent::{self, CONCURRENT_STREAMS};
use crate::support::{Running, processor_time, resident_kib, run_ok, write_private};
use marline_testkit::{free_address, free_port};

/// Interval between new streams.
const PROBES: Duration = Duration::from_millis(100);
/// Time after which a new stream counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between checks of memory and remaining connections.
const LOOKS: Duration = Duration::from_millis(100);
/// Time by which all streams must have ended.
const LONGEST: Duration = Duration::from_secs(150);

/// A process of the program, with the address of its metrics.
struct End {
    process: Running,
    metrics: SocketAddr,
}

/// Counters of one end.
#[derive(Copy, Clone, Default)]
struct Counted {
    segments: u64,
    repeated: u64,
    open: u64,
    bad: u64,
}

impl End {
    fn start(dir: &Path, args: &[&str]) -> End {
        let metrics = free_address();
        let text = metrics.to_string();
        let process = Running::start(dir, &[args, &["--metrics", &text]].concat());
        End { process, metrics }
    }

    fn counted(&self) -> Counted {
        let mut stream = TcpStream::connect(self.metrics).expect("metrics");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let sum = |name: &str| {
            let lines = text.lines().filter(|line| line.starts_with(name));
            let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            values.sum::<f64>() as u64
        };
        Counted {
            segments: sum("marline_core_events_total{event=\"segments_out\"}"),
            repeated: sum("marline_core_events_total{event=\"duplicate_data\"}"),
            open: sum("marline_connections "),
            bad: sum("marline_address_pair_degraded_total"),
        }
    }
}

/// Returns an address of this machine other than loopback, if it has one.
fn own_address() -> IpAddr {
    let found = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // Sends nothing, and only checks the routing tables.
        socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    found().unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Busy threads until this is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start(threads: usize) -> Busy {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Busy(over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns a server and a client in front of `target`, and the client's forward.
fn start(dir: &Path, count: usize, target: SocketAddr) -> (End, End, SocketAddr) {
    let own = own_address();
    let listen = SocketAddr::new(own, free_port()).to_string();
    let config = dir.join("server.toml");
    let config = config.to_str().expect("text");
    let invite = run_ok(dir, &["server", "--init", "--config", config, "--listen", &listen]);
    let invite_file = dir.join("invite");
    write_private(&invite_file, &invite);
    let most = (count + 1_000).to_string();
    let limit = ["--max-connections", most.as_str()];
    let arguments = ["server", "--config", config, "--allow", "127.0.0.0/8", limit[0], limit[1]];
    let mut server = End::start(dir, &arguments);
    server.process.line_with("listening on ");
    let (path, forward) = (format!("{own}={listen}"), format!("0:{target}"));
    let invite = invite_file.to_str().expect("text");
    let arguments = ["client", "--invite-file", invite, "--path", &path, "-L", &forward];
    let mut client = End::start(dir, &[&arguments[..], &limit[..]].concat());
    let forward = client.process.address_after("forward listening on ");
    (server, client, forward)
}

/// Results of new streams.
#[derive(Default)]
struct Probed {
    took: Vec<Duration>,
    lost: usize,
}

/// Opens one new stream at each interval until `over` is set.
async fn probe(forward: SocketAddr, over: Arc<AtomicBool>) -> Probed {
    let (mut probes, mut probed) = (JoinSet::new(), Probed::default());
    let mut number = 1 << 40;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        probes.spawn(async move {
            let begun = Instant::now();
            let stream = tokio::time::timeout(PATIENCE, silent::open(forward, number)).await??;
            let took = begun.elapsed();
            silent::close(stream).await.map(|()| took)
        });
        tokio::time::sleep(PROBES).await;
    }
    while let Some(ended) = probes.join_next().await {
        match ended.expect("no panic") {
            Ok(took) => probed.took.push(took),
            Err(error) => {
                eprintln!("a new stream: {error}");
                probed.lost += 1;
            }
        }
    }
    probed.took.sort();
    probed
}

async fn one_round(ends: &mut [End; 2], forward: SocketAddr, count: usize, busy: usize) {
    let (streams, unopened) = silent::open_all(&[forward], count, CONCURRENT_STREAMS).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let ids = [ends[0].process.id(), ends[1].process.id()];
    let (before, held) = ([0, 1].map(|end| ends[end].counted()), ids.map(resident_kib));
    let worked = ids.map(processor_time);
    let _busy = Busy::start(busy);
    let over = Arc::new(AtomicBool::new(false));
    let probes = tokio::spawn(probe(forward, Arc::clone(&over)));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let looks = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let mut most = [0; 2];
            while !over.load(Ordering::Relaxed) {
                most = [0, 1].map(|end| resident_kib(ids[end]).max(most[end]));
                std::thread::sleep(LOOKS);
            }
            most
        }
    });
    let begun = Instant::now();
    let mut closing: JoinSet<_> = streams.into_iter().map(silent::close).collect();
    let mut lost = 0;
    while let Some(closed) = closing.join_next().await {
        lost += usize::from(!matches!(closed, Ok(Ok(()))));
    }
    let read_s = begun.elapsed().as_secs_f64();
    let still_open = |counted: &[Counted; 2]| counted.iter().any(|counted| counted.open > 100);
    let mut after = [0, 1].map(|end| ends[end].counted());
    while still_open(&after) && begun.elapsed() < LONGEST {
        tokio::time::sleep(5 * LOOKS).await;
        after = [0, 1].map(|end| ends[end].counted());
    }
    let gone_s = begun.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    let probed = probes.await.expect("no panic");
    let most = looks.join().expect("no panic");
    let each = |of: fn(&Counted) -> u64| {
        [0, 1].map(|end| (of(&after[end]) - of(&before[end])) as f64 / count as f64)
    };
    let [datagrams, repeated] = [each(|c| c.segments), each(|c| c.repeated)];
    let bad: u64 = (0..2).map(|end| after[end].bad - before[end].bad).sum();
    let said: Vec<String> = ends.iter_mut().flat_map(|end| end.process.said()).collect();
    let rerouted = said.iter().filter(|line| line.contains("no answer over UDP")).count();
    let worked_s = [0, 1].map(|end| (processor_time(ids[end]) - worked[end]).as_secs_f64());
    println!(
        "    all ends read after {read_s:.1} s, all streams gone after {gone_s:.1} s ({} left), \
         lost {lost}, not opened {unopened}; server and client: datagrams per stream \
        {datagrams:.1?}, received twice {repeated:.2?}, CPU time {worked_s:.1?} s, resident \
        {held:?} KiB, at most {most:?} KiB; paths judged unusable {bad}, judged blocked {rerouted}",
        after[0].open + after[1].open
    );
    let longest = probed.took.last().copied().unwrap_or_default();
    let median = probed.took.get(probed.took.len() / 2).copied().unwrap_or_default();
    println!(
        "    new streams: {} lost of {}, longest {longest:.1?}, median {median:.1?}",
        probed.lost,
        probed.took.len() + probed.lost
    );
}

/// `what`: number of streams, and of busy threads.
pub(crate) fn measure(what: &str) {
    let (count, busy) = what.split_once(',').unwrap_or((what, "4"));
    let [count, busy]: [usize; 2] = [count, busy].map(|number| number.parse().expect("a number"));
    assert_eq!(silent::servers(count), 1, "descriptors for all of them");
    let echo = Echo::start();
    let dir = tempfile::tempdir().expect("a folder");
    let (server, client, forward) = start(dir.path(), count, echo.address);
    let mut ends = [server, client];
    println!("streams that end at the same moment: {count}, with {busy} busy threads");
    // A separate thread for the streams, because this one waits for metrics.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    for _ in 0..2 {
        runtime.block_on(one_round(&mut ends, forward, count, busy));
    }
}
