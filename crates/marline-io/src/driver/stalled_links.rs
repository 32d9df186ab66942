//! Watch over links: ends those whose peer acknowledges nothing.
//!
//! *Problem.* A network that is silent swallows what a link sends, and the kernel repeats it: a full segment a second,
//! on both sides, until TCP_USER_TIMEOUT. Where only large packets are lost, as the MTU of the path has become smaller
//! and no ICMP says so, it repeats them for ever.
//!
//! *How.* While something is sent on a link and nothing is read, the kernel is asked a few times a second how it is
//! getting on. A link that has made no progress after several timeouts is reset. What it held leaves by other paths, and
//! a client dials again: a SYN of 60 bytes a second, which is answered within a second of the network's return. If it is
//! answered at once, segments were too large (`link_tasks.rs`).

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use marline_time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::links::{LinkStream, Links, count};
use super::state::Watch;
use crate::sys::link::TcpInfo;

/// How often the kernel is asked.
const LOOK: Duration = Duration::from_millis(250);
/// A link is stalled after so long without progress, or after so many of its round trips, ...
const PATIENCE: Duration = Duration::from_millis(1_500);
const PATIENCE_RTTS: u32 = 3;
/// ... and so many timeouts.
const TIMEOUTS: u8 = 3;

/// What is known of a link's progress.
#[derive(Debug)]
pub(super) struct Progress {
    /// Something was sent since something was read.
    unheard: AtomicBool,
    /// Bytes that the peer had acknowledged at the last look, and since when these were all.
    acknowledged: Mutex<Option<(u64, Instant)>>,
    stalled: AtomicBool,
    watch: Arc<Notify>,
}

impl Progress {
    pub(super) fn new(watch: &Arc<Notify>) -> Self {
        Progress {
            unheard: AtomicBool::new(false),
            acknowledged: Mutex::new(None),
            stalled: AtomicBool::new(false),
            watch: Arc::clone(watch),
        }
    }

    pub(super) fn on_sent(&self) {
        if !self.unheard.swap(true, Ordering::Relaxed) {
            self.watch.notify_one();
        }
    }

    pub(super) fn on_read(&self) {
        self.unheard.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_unheard(&self) -> bool {
        self.unheard.load(Ordering::Relaxed)
    }

    pub(super) fn set_stalled(&self) {
        self.stalled.store(true, Ordering::Relaxed);
    }

    /// It was ended by the watch.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Whether there was none for too long, as the kernel says now.
    fn judge(&self, now: Instant, info: &TcpInfo) -> bool {
        let mut known = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        if info.unacknowledged == 0 {
            *known = None;
            return false;
        }
        let since = match *known {
            Some((bytes, since)) if bytes == info.acknowledged_bytes => since,
            _ => now,
        };
        *known = Some((info.acknowledged_bytes, since));
        let patience = PATIENCE.max(info.rtt * PATIENCE_RTTS);
        info.timeouts >= TIMEOUTS && now.saturating_duration_since(since) >= patience
    }
}

/// Starts the watch over these links, unless it runs.
pub(super) fn start(links: &Arc<Links>) {
    links.watcher.get_or_init(|| {
        let task = tokio::spawn(watch(Arc::downgrade(links), Arc::clone(&links.watch)));
        Watch(task.abort_handle())
    });
}

async fn watch(links: Weak<Links>, sent: Arc<Notify>) {
    loop {
        sent.notified().await;
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(links) = links.upgrade() else { return };
            if !end_stalled(&links) {
                break;
            }
        }
    }
}

/// Ends links that are stalled. Whether others may be, later.
fn end_stalled(links: &Links) -> bool {
    let mut waiting = false;
    for link in links.unheard() {
        let LinkStream::Tcp(stream) = &link.stream else { continue };
        // What is sent from here on counts again.
        link.progress.on_read();
        let Ok(info) = TcpInfo::of(stream) else { continue };
        if link.progress.judge(Instant::now(), &info) {
            count(&links.counters.silent);
            link.abort();
        } else if info.unacknowledged > 0 {
            link.progress.on_sent();
            waiting = true;
        }
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_stalled_after_timeouts_without_progress_and_some_round_trips() {
        let (begun, progress) = (Instant::now(), Progress::new(&Arc::default()));
        let at = |ms| begun + Duration::from_millis(ms);
        let info = |unacknowledged, acknowledged_bytes, timeouts, rtt_ms| TcpInfo {
            timeouts,
            unacknowledged,
            acknowledged_bytes,
            rtt: Duration::from_millis(rtt_ms),
        };
        assert!(!progress.judge(at(0), &info(3, 100, 0, 20)));
        assert!(!progress.judge(at(1_400), &info(3, 100, 3, 20)), "too early");
        assert!(!progress.judge(at(1_500), &info(3, 100, 2, 20)), "few timeouts: a slow path");
        assert!(progress.judge(at(1_500), &info(3, 100, 3, 20)));
        assert!(!progress.judge(at(1_500), &info(3, 100, 3, 600)), "a few round trips");
        assert!(!progress.judge(at(1_600), &info(3, 101, 3, 20)), "progress");
        assert!(!progress.judge(at(2_900), &info(3, 101, 3, 20)));
        assert!(!progress.judge(at(9_000), &info(0, 104, 0, 20)), "all is there");
        assert!(!progress.judge(at(9_100), &info(1, 104, 5, 20)), "sent after that");
    }
}
