//! Quiescence check: whether every other thread is asleep.
//!
//! packetdrill makes calls that may block on a second thread, without a lock: while that thread is on its
//! way into a call, or back from one, the main thread goes on and lets time pass. In real time that
//! is harmless; in virtual time the whole script may be over before the call has begun. So whoever is about to
//! let time pass first waits until the other threads sleep: in a call of ours that blocks, or in
//! packetdrill, waiting for work.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait (real time): something else keeps a thread busy, and the script had better fail than hang.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(30);

/// Waits until no other thread of this process runs or wants to.
pub(crate) fn wait_for_others() {
    let start = Instant::now();
    while others_run() && start.elapsed() < PATIENCE {
        thread::sleep(PAUSE);
    }
}

fn others_run() -> bool {
    let Ok(own) = fs::read_link("/proc/thread-self") else { return false };
    let Some(own) = own.file_name() else { return false };
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    tasks.flatten().filter(|task| task.file_name() != own).any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        state_of(&stat) == Some('R')
    })
}

/// The state letter of `/proc/PID/stat`: the first word behind the name, which may hold anything.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_found_behind_any_name() {
        assert_eq!(state_of("12 (a) b) R) S 1 2"), Some('S'));
        assert_eq!(state_of("12 (worker) R 1"), Some('R'));
        assert_eq!(state_of(""), None);
    }
}
