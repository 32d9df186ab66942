//! Memory of a whole client or server process in a cgroup of 512 MB: neither a client with many unread streams nor
//! unauthenticated peers may end the process or delay the others. `cargo xtask nightly memory` runs these tests. Needs
//! root.

mod slow_readers;
mod strangers;
mod traffic;
mod unauthenticated;
mod unread;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::endurance::{raise_descriptors, through, until};
use super::support;
use super::support::cgroup::{MemoryCgroup, MemoryUse};
use marline_testkit::need;

/// Limit of the cgroup, in bytes.
const LIMIT: u64 = 512 << 20;
/// Descriptors of this process, which simulates applications and unauthenticated peers. Not all systems allow more.
const DESCRIPTORS: u64 = 20_000;

/// Returns a runtime for applications and sources, with descriptors for them. `None` and a message if there are too
/// few.
fn runtime() -> Option<tokio::runtime::Runtime> {
    if !need::root() {
        return None;
    }
    if !raise_descriptors(DESCRIPTORS) {
        need::skip("descriptors cannot be raised here");
        return None;
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Some(builder.worker_threads(2).enable_all().build().expect("a runtime"))
}

/// Samples the memory of a cgroup and keeps the peak.
struct Watch {
    group: Arc<MemoryCgroup>,
    name: &'static str,
    begin: MemoryUse,
    peak: Arc<Mutex<MemoryUse>>,
    over: Arc<AtomicBool>,
}

impl Watch {
    /// Starts to sample. The measurements are printed with this name.
    fn over(name: &'static str, group: &Arc<MemoryCgroup>) -> Watch {
        let begin = group.memory();
        println!("{name} at the start: {begin}");
        let (peak, over) = (Arc::new(Mutex::new(begin)), Arc::new(AtomicBool::new(false)));
        let (watched, highest, end) = (group.clone(), peak.clone(), over.clone());
        std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let now = watched.memory();
                let mut highest = highest.lock().unwrap_or_else(PoisonError::into_inner);
                *highest = highest.or_larger(&now);
                drop(highest);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Watch { group: group.clone(), name, begin, peak, over }
    }

    fn peak(&self) -> MemoryUse {
        *self.peak.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while a process is in the cgroup.
    fn is_alive(&self) -> bool {
        let members = std::fs::read_to_string(self.group.members());
        members.is_ok_and(|members| !members.trim().is_empty())
    }

    /// Waits until the memory has hardly changed for five seconds, at most for `patience`.
    fn settled(&self, patience: Duration) {
        const REST: Duration = Duration::from_secs(5);
        let until = Instant::now() + patience;
        let (mut since, mut last) = (Instant::now(), self.group.memory());
        while since.elapsed() < REST && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(200));
            let now = self.group.memory();
            if now.total().abs_diff(last.total()) > 2 << 20 {
                (since, last) = (Instant::now(), now);
            }
        }
    }

    /// Prints the peak, and the growth per stream.
    fn report(&self, streams: usize) {
        let (begin, peak) = (self.begin, self.peak());
        let each = |peak: u64, begin: u64| peak.saturating_sub(begin) as f64 / 1e3 / streams as f64;
        println!(
            "{} at its peak: {peak}; for each of {streams} streams {:.1} kB: anon {:.1}, sock {:.1}, kernel {:.1}",
            self.name,
            each(peak.total(), begin.total()),
            each(peak.anon, begin.anon),
            each(peak.sock, begin.sock),
            each(peak.kernel, begin.kernel)
        );
    }

    /// Asserts that the kernel killed nothing in the cgroup, and that the peak is within the limit with socket buffers
    /// included, which version 1 of cgroups does not charge.
    fn held_its_limit(&self) {
        let (kills, peak) = (self.group.oom_kills(), self.peak());
        assert_eq!(
            kills, 0,
            "{}: the kernel killed a process for lack of memory; {peak}",
            self.name
        );
        assert!(peak.total() <= LIMIT, "{}: beyond the limit: {peak}", self.name);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
