//! Progress of a link: detects a peer that does not acknowledge.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use marline_time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::edge::tcp::TcpInfo;

/// Time without progress after which a link is stalled. It also has to be this many round trips.
const PATIENCE: Duration = Duration::from_millis(1_500);
const PATIENCE_RTTS: u32 = 3;
/// Number of retransmission timeouts that a stalled link must have had.
const TIMEOUTS: u8 = 3;

/// Progress of a link.
#[derive(Debug)]
pub(super) struct Progress {
    /// Set when data was sent after the last read.
    unheard: AtomicBool,
    /// Number of bytes that the peer had acknowledged at the last check, and the time at which that number was
    /// reached.
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

    /// Returns true if the link was closed because it was stalled.
    pub(super) fn was_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Returns true if there was no progress for too long, according to the kernel's current data.
    pub(super) fn is_stalled(&self, now: Instant, info: &TcpInfo) -> bool {
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
        assert!(!progress.is_stalled(at(0), &info(3, 100, 0, 20)));
        assert!(!progress.is_stalled(at(1_400), &info(3, 100, 3, 20)), "too early");
        assert!(!progress.is_stalled(at(1_500), &info(3, 100, 2, 20)), "few timeouts: a slow path");
        assert!(progress.is_stalled(at(1_500), &info(3, 100, 3, 20)));
        assert!(!progress.is_stalled(at(1_500), &info(3, 100, 3, 600)), "a few round trips");
        assert!(!progress.is_stalled(at(1_600), &info(3, 101, 3, 20)), "progress");
        assert!(!progress.is_stalled(at(2_900), &info(3, 101, 3, 20)));
        assert!(!progress.is_stalled(at(9_000), &info(0, 104, 0, 20)), "all is there");
        assert!(!progress.is_stalled(at(9_100), &info(1, 104, 5, 20)), "sent after that");
    }
}
