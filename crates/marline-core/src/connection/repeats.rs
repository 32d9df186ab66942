//! Repeats of segments without their own TCP timer: either at growing intervals, or counted until a segment from the
//! peer arrives (window probes, DATA_FINs, receiver probes).

use marline_time::{Duration, Instant};

/// Limit on repeats. With a timeout of 200 ms they span six seconds.
const MAX_REPEATS: u32 = 5;

/// Repeats after a retransmission timeout, at intervals that double.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Repeats {
    /// Time of the next repeat, and number of repeats so far.
    next: Option<(Instant, u32)>,
}

impl Repeats {
    /// No repeats.
    pub(super) const NONE: Repeats = Repeats { next: None };

    /// Starts repeats of a segment that is sent now.
    pub(super) fn begin(now: Instant, rto: Duration) -> Repeats {
        Repeats { next: Some((now + rto, 0)) }
    }

    /// Time of the next repeat.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }

    /// True if a repeat is due now. If it is no longer `wanted`, repeats end.
    pub(super) fn is_due(&mut self, now: Instant, rto: Duration, wanted: bool) -> bool {
        let Some((_, count)) = self.next.filter(|(at, _)| *at <= now) else { return false };
        let more = wanted && count + 1 < MAX_REPEATS;
        self.next = more.then(|| (now + rto * (2 << count), count + 1));
        wanted
    }
}

/// Time of the last probe, and number of consecutive unanswered ones.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct PendingProbes {
    at: Option<Instant>,
    /// Number of consecutive probes after which no segment from the peer has arrived.
    unanswered: u32,
}

impl PendingProbes {
    /// No probe was sent.
    pub(super) const NONE_SENT: PendingProbes = PendingProbes { at: None, unanswered: 0 };

    /// Time of the last probe.
    pub(super) const fn last_sent_at(&self) -> Option<Instant> {
        self.at
    }

    /// Records a new probe. The peer's last segment arrived at `last_rx_at`. Returns the number of consecutive
    /// unanswered probes.
    pub(super) fn record_probe_at(&mut self, now: Instant, last_rx_at: Option<Instant>) -> u32 {
        let silent = self.at.is_some_and(|at| last_rx_at.is_none_or(|heard| heard <= at));
        self.unanswered = if silent { self.unanswered.saturating_add(1) } else { 0 };
        self.at = Some(now);
        self.unanswered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: Duration = Duration::from_millis(200);

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn pauses_double_and_there_are_five() {
        let mut repeats = Repeats::begin(ms(0), RTO);
        assert!(!repeats.is_due(ms(199), RTO, true));
        for at in [200, 600, 1_400, 3_000, 6_200] {
            assert_eq!(repeats.next_timeout(), Some(ms(at)));
            assert!(repeats.is_due(ms(at), RTO, true));
        }
        assert_eq!(repeats.next_timeout(), None);
    }

    #[test]
    fn an_unneeded_repeat_is_canceled() {
        let mut repeats = Repeats::begin(ms(0), RTO);
        assert!(!repeats.is_due(ms(200), RTO, false));
        assert_eq!(repeats.next_timeout(), None);
    }
}
