//! Benchmark of links between namespaces, measured by the kernels at their ends: one-way delay
//! errors of UDP packets, and kernel TCP over two shaped paths, all on two processors.
//!
//! `cargo bench -p marline-emulator --bench tunnel` (as root; needs `ip`). `-- --quick` is shorter; other words select
//! links by their description: `-- rate=1G`.

#[path = "../tests/namespaces/mod.rs"]
mod namespaces;

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use marline_emulator::netns;
use marline_emulator::{DEFAULT_SPIN, RelayReport};
use marline_link::{DuplexSpec, RateSpec};
use namespaces::{Testbed, processor_time};
use quinn_udp::{RecvMeta, UdpSocketState};

const PAYLOAD: usize = 1_400;
const HEADERS: u64 = 28;
/// Number of processors that the links and both ends share.
const PROCESSORS: usize = 2;

fn main() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: namespaces and interfaces need root");
        return Ok(());
    }
    let quick = std::env::args().any(|word| word == "--quick");
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let chosen = |spec: &str| words.is_empty() || words.iter().any(|word| spec.contains(word));
    let scale = if quick { 4 } else { 1 };
    keep_to_processors()?;
    println!("links, senders and receivers on {PROCESSORS} processors");
    println!("one-way delay error: measured minus delay and serialization, {PAYLOAD} B datagrams");
    for (spec, packets, gap_us) in [
        ("rate=100M,delay=10ms", 8_000, 500),
        ("rate=20M,delay=10ms", 4_000, 1_000),
        ("rate=20M,delay=42.5ms", 1_000, 5_000),
    ] {
        for spin in [Duration::ZERO, DEFAULT_SPIN].into_iter().filter(|_| chosen(spec)) {
            precision(spec, packets / scale, Duration::from_micros(gap_us), spin)?;
        }
    }
    println!("TCP of the kernel, a connection over each of two paths, from the client");
    let seconds = if quick { 2 } else { 6 };
    for spec in [
        "rate=50M,delay=10ms",
        "rate=300M,delay=5ms,queue=20ms",
        "rate=500M,delay=5ms,queue=20ms",
        "rate=1G,delay=5ms,queue=20ms",
    ] {
        if chosen(spec) {
            throughput(spec, Duration::from_secs(seconds))?;
        }
    }
    Ok(())
}

/// Restricts the threads of this process to its first processors.
fn keep_to_processors() -> io::Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut kept = rustix::thread::CpuSet::new();
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    all.filter(|cpu| allowed.is_set(*cpu)).take(PROCESSORS).for_each(|cpu| kept.set(cpu));
    Ok(rustix::thread::sched_setaffinity(None, &kept)?)
}

fn precision(spec: &str, packets: u32, gap: Duration, spin: Duration) -> io::Result<()> {
    let testbed = Testbed::new("p", 1, spec, spin, &mut |_| None)?;
    let (client, server) = testbed.sockets()?;
    let state = UdpSocketState::new((&server).into())?;
    server.set_nonblocking(false)?;
    server.set_read_timeout(Some(Duration::from_secs(1)))?;
    let idle = processor_time()?;
    std::thread::sleep(Duration::from_millis(500));
    let idle = processor_time()?.saturating_sub(idle).as_secs_f64() / 0.5;
    let (began, before) = (Instant::now(), processor_time()?);
    let sender = std::thread::spawn(move || -> io::Result<()> {
        let mut datagram = [0; PAYLOAD];
        for _ in 0..packets {
            // Sent at least one gap apart, because a sender that overslept would measure the link's queue.
            std::thread::sleep(gap);
            datagram[..8].copy_from_slice(&wall_ns().to_be_bytes());
            client.send(&datagram)?;
        }
        Ok(())
    });
    let parsed: DuplexSpec = spec.parse().map_err(io::Error::other)?;
    let RateSpec::Constant(rate) = parsed.up.rate else {
        return Err(io::Error::other("a constant rate is needed"));
    };
    let expected = parsed.up.delay + rate.time_for(PAYLOAD as u64 + HEADERS);
    let expected = expected.as_nanos() as i64;
    let (mut at_interface, mut at_program) = (Vec::new(), Vec::new());
    let (mut datagram, mut meta) = ([0; 2_048], [RecvMeta::default()]);
    while at_program.len() < packets as usize {
        let mut slots = [IoSliceMut::new(&mut datagram)];
        let Ok(1..) = state.recv((&server).into(), &mut slots, &mut meta) else { break };
        let now = wall_ns();
        let sent = i64::from_be_bytes(datagram[..8].try_into().map_err(io::Error::other)?);
        let stamp = meta[0].timestamp.map_or(now, |at| at.as_nanos() as i64);
        at_interface.push((stamp - sent - expected) as f64 / 1e3);
        at_program.push((now - sent - expected) as f64 / 1e3);
    }
    let busy = (processor_time()?.saturating_sub(before)).as_secs_f64();
    let busy = busy / began.elapsed().as_secs_f64();
    sender.join().map_err(|_| io::Error::other("the sender panicked"))??;
    println!("{spec}, spin {} us, {} packets:", spin.as_micros(), at_program.len());
    println!("    at the interface {}", quantiles(at_interface));
    println!("    at the program   {}", quantiles(at_program));
    let report = testbed.emulator.report()?.remove(0);
    println!("    its own figure   {}", report.up.late);
    println!("    its thread: {:.1} % of a processor, idle {:.1} %", 100.0 * busy, 100.0 * idle);
    print_unreliability(&report);
    Ok(())
}

fn wall_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

fn quantiles(mut values_us: Vec<f64>) -> String {
    values_us.sort_by(f64::total_cmp);
    let at = |q: f64| values_us[((values_us.len() - 1) as f64 * q) as usize];
    format!(
        "p50 {:+.0} us, p95 {:+.0} us, p99 {:+.0} us, max {:+.0} us",
        at(0.50),
        at(0.95),
        at(0.99),
        at(1.0)
    )
}

fn throughput(spec: &str, time: Duration) -> io::Result<()> {
    /// Time for TCP to reach the link's rate.
    const WARM_UP: Duration = Duration::from_millis(500);
    let testbed = Testbed::new("t", 2, spec, DEFAULT_SPIN, &mut |_| None)?;
    let over = AtomicBool::new(false);
    let received = std::thread::scope(|scope| -> io::Result<u64> {
        let mut readers = Vec::new();
        for path in 0..2 {
            let to: SocketAddr = ([10, 90, path, 1], 5_000).into();
            let listener = netns::run_in(testbed.server(), || TcpListener::bind(to))?;
            let mut sending = netns::run_in(testbed.client(), || TcpStream::connect(to))?;
            let (mut receiving, _) = listener.accept()?;
            receiving.set_read_timeout(Some(Duration::from_secs(5)))?;
            let over = &over;
            scope.spawn(move || {
                let block = vec![7; 128 << 10];
                while !over.load(Ordering::Relaxed) && sending.write_all(&block).is_ok() {}
            });
            readers.push(scope.spawn(move || -> io::Result<u64> {
                let (mut block, mut bytes) = (vec![0; 256 << 10], 0);
                let begin = Instant::now();
                while begin.elapsed() < WARM_UP + time {
                    let length = receiving.read(&mut block)?;
                    if begin.elapsed() > WARM_UP {
                        bytes += length as u64;
                    }
                }
                over.store(true, Ordering::Relaxed);
                Ok(bytes)
            }));
        }
        let mut bytes = 0;
        for reader in readers {
            bytes += reader.join().map_err(|_| io::Error::other("a reader panicked"))??;
        }
        Ok(bytes)
    })?;
    let reports = testbed.emulator.report()?;
    let used = processor_time()?.as_secs_f64() / reports[0].running.as_secs_f64();
    let mbit = received as f64 * 8.0 / time.as_secs_f64() / 1e6;
    println!("{spec}: {mbit:.0} Mbit/s; the thread: {:.0} % of a processor", 100.0 * used);
    for report in &reports {
        let (queue, kernel) = (report.up.stats.dropped_queue, report.kernel_drops);
        println!("    {}: late {}", report.name, report.up.late);
        println!("           dropped: {queue} by the queue, {kernel} by the kernel");
        print_unreliability(report);
    }
    Ok(())
}

fn print_unreliability(report: &RelayReport) {
    report.doubts().iter().for_each(|doubt| println!("    UNRELIABLE: {doubt}"));
}
