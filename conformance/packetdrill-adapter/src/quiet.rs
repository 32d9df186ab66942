//! Quiescence check: waits until all other threads are asleep.
//!
//! packetdrill makes calls that may block on a second thread, without a lock. While that thread enters or leaves a
//! call, the main thread continues and lets time pass. In real time that is harmless, but in virtual time the whole
//! script may end before the call has begun. Therefore a thread that is about to let time pass first waits until
//! the other threads sleep: in a blocking call of ours, or in packetdrill, waiting for work.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum wait in real time, so that the script fails instead of hanging if a thread stays busy.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_micros(30);

/// Waits until no other thread of this process is running or runnable.
pub(crate) fn wait_until_threads_idle() {
    let start = Instant::now();
    while has_other_running_threads() && start.elapsed() < IDLE_TIMEOUT {
        thread::sleep(CHECK_INTERVAL);
    }
}

fn has_other_running_threads() -> bool {
    let Ok(own) = fs::read_link("/proc/thread-self") else { return false };
    let Some(own) = own.file_name() else { return false };
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    tasks.flatten().filter(|task| task.file_name() != own).any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        thread_state(&stat) == Some('R')
    })
}

/// Returns the state letter from `/proc/PID/stat`: the first word after the name, which may contain any character.
fn thread_state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_found_behind_any_name() {
        assert_eq!(thread_state("12 (a) b) R) S 1 2"), Some('S'));
        assert_eq!(thread_state("12 (worker) R 1"), Some('R'));
        assert_eq!(thread_state(""), None);
    }
}
