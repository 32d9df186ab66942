//! Benchmark of two endpoints in memory, on one CPU: the throughput of the core alone, and the
//! memory of idle connections. No sockets and no link: a batch sent by one endpoint is handed to
//! the other at once.
//!
//! `cargo bench -p marline-core --bench memory` prints
//! - bulk goodput over one and two subflows (MTU 1500, IPv4, TCP checksums computed and verified),
//!   per second of CPU time, so that other load on the machine counts little;
//! - memory per established idle connection in an endpoint with 10,000 of them.
//!
//! `-- bulk [MEGABYTES] [SUBFLOWS]` and `-- idle [CONNECTIONS]` run one of them, for a profiler.

mod pair;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pair::Pair;

/// Counts what is allocated; the work is the system allocator's.
struct Counting;

static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as u64, Relaxed);
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise about `layout` is the one `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: `memory` came from `alloc` above, that is, from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MEGABYTE: u64 = 1_000_000;
/// Compared byte by byte before the clock starts.
const CHECKED_BYTES: u64 = 16 << 20;
const BULK_MEGABYTES: u64 = 4_000;

fn main() {
    // Cargo adds `--bench`; names and numbers are ours.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let number = |at: usize, default: u64| {
        words.get(at).map_or(default, |word| word.parse().expect("a number"))
    };
    match words.first().map(String::as_str) {
        Some("bulk") => bulk(number(1, BULK_MEGABYTES), number(2, 1)),
        Some("idle") => idle(number(1, 10_000)),
        Some(other) => panic!("`{other}`: bulk or idle"),
        None => {
            bulk(BULK_MEGABYTES, 1);
            bulk(BULK_MEGABYTES, 2);
            idle(10_000);
        }
    }
}

/// One stream from client to server. Over several subflows they take turns: in memory the first
/// is never full, and a scheduler that prefers the lowest RTT would leave the others idle.
fn bulk(megabytes: u64, subflows: u64) {
    let scheduler = if subflows > 1 { "round-robin" } else { "min-rtt" };
    let mut pair = Pair::connect(1, subflows as usize, scheduler);
    pair.check_content(CHECKED_BYTES);
    let (segments, allocations) = (pair.segments(), ALLOCATIONS.load(Relaxed));
    let (cpu, start) = (cpu_seconds(), wall_clock());
    pair.transfer(megabytes * MEGABYTE);
    let (cpu, wall) = (cpu_seconds() - cpu, start.elapsed().as_secs_f64());
    let segments = (pair.segments() - segments) as f64;
    let allocations = (ALLOCATIONS.load(Relaxed) - allocations) as f64;
    let gigabits = megabytes as f64 * 8.0 / 1e3;
    println!(
        "bulk in memory, {subflows} subflow(s): {:.1} Gbit/s of CPU time ({:.1} of wall time), \
         {:.3} CPU-s per GB, {:.0} ns and {:.4} allocations per segment",
        gigabits / cpu,
        gigabits / wall,
        cpu / (megabytes as f64 / 1e3),
        cpu * 1e9 / segments,
        allocations / segments,
    );
    println!("  scheduler {scheduler}, payload sent per subflow: {:?}", pair.sent_per_subflow());
}

/// Established connections that say nothing, on both sides.
fn idle(connections: u64) {
    let before = LIVE_BYTES.load(Relaxed);
    let pair = Pair::connect(connections as usize, 1, "min-rtt");
    let both = LIVE_BYTES.load(Relaxed) - before;
    println!(
        "{connections} idle connections: {} bytes per connection and end ({:.1} MB for both ends)",
        both / connections / 2,
        both as f64 / 1e6,
    );
    drop(pair);
}

/// CPU time of this process's only thread so far.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux's schedstat");
    let nanos = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    nanos.expect("nanoseconds on the CPU") / 1e9
}

#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a bench measures")]
fn wall_clock() -> std::time::Instant {
    std::time::Instant::now()
}
