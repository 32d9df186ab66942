//! Delivery watch: records when data became due in either direction of the stream, for monitoring.
//!
//! *Problem.* Users notice delivery gaps: times in which data should have arrived and did not. A pause of the
//! application causes the same silence, so silence alone is not a gap. The delivered bytes do not distinguish the two
//! cases, but the protocol state does.
//!
//! *Sending*: data was sent and is not DATA_ACKed. The gap lasts from the start of this state, or from the last
//! DATA_ACK that advanced, to the next one. Up to a round trip is the normal delivery time, so a gap counts once it
//! is [`MIN_DELIVERY_GAP`] longer than that.
//!
//! *Receiving*: received data cannot be read because earlier data is missing, or the peer marks its last data
//! (MP_IDLE) and the last data had no mark. The gap is the time since the last in-order byte. A peer that falls
//! silent in other cases is not known to have more data, and its silence is not a gap.
//!
//! This takes four bytes of memory for each direction, with a resolution of 65.5 µs, and a comparison for each
//! segment. It influences no decision.

use marline_time::{Duration, Instant};

use crate::compact_instant::NonZeroCompactInstant;

/// Shortest gap that is reported.
pub(super) const MIN_DELIVERY_GAP: Duration = Duration::from_millis(100);

/// Time at which data became due in one direction, if any is due. Every connection has two of these, so each uses four
/// bytes.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct DeliveryWatch(Option<NonZeroCompactInstant>);

impl DeliveryWatch {
    /// Sets whether data is due. If it was due before, the start time does not change.
    pub(super) fn note(&mut self, now: Instant, due: bool) {
        match (due, self.0) {
            (true, None) => self.0 = Some(NonZeroCompactInstant::from_instant(now)),
            (true, Some(_)) => {}
            (false, _) => self.0 = None,
        }
    }

    /// Handles progress of delivery. `due` is true if more data is due, and `usual` is the normal delivery time.
    /// Returns the start of the wait if it was a gap.
    pub(super) fn on_progress(
        &mut self,
        now: Instant,
        due: bool,
        usual: Duration,
    ) -> Option<Instant> {
        let next = due.then(|| NonZeroCompactInstant::from_instant(now));
        let before = core::mem::replace(&mut self.0, next)?;
        // The wait is usually short.
        if before.is_within(MIN_DELIVERY_GAP.as_nanos() as u64, now) {
            return None;
        }
        let since = before.to_instant_near(now);
        (now.since(since) >= MIN_DELIVERY_GAP + usual).then_some(since)
    }

    /// Time at which data became due. `near` is an instant within a day of it.
    pub(super) fn due_since(self, near: Instant) -> Option<Instant> {
        Some(self.0?.to_instant_near(near))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(at: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(at)
    }

    /// Allows an error of one tick at both ends.
    fn about(told: Option<Instant>, at_ms: u64) -> bool {
        told.is_some_and(|told| {
            told.max(ms(at_ms)).since(told.min(ms(at_ms))) < Duration::from_micros(140)
        })
    }

    #[test]
    fn ack_delay_beyond_a_round_trip_counts_as_late() {
        let rtt = Duration::from_millis(60);
        let mut watch = DeliveryWatch::default();
        watch.note(ms(1_000), true);
        watch.note(ms(1_050), true);
        assert!(about(watch.due_since(ms(1_080)), 1_000));
        assert_eq!(watch.on_progress(ms(1_159), true, rtt), None);
        // The wait is counted from the last DATA_ACK that advanced.
        assert!(about(watch.on_progress(ms(1_320), false, rtt), 1_159));
        // Without data in flight, no time counts.
        assert_eq!(watch.due_since(ms(1_400)), None);
        watch.note(ms(9_000), false);
        assert_eq!(watch.on_progress(ms(9_500), false, rtt), None);
    }

    #[test]
    fn a_pause_of_the_peer_does_not_count_as_a_gap() {
        let mut watch = DeliveryWatch::default();
        assert_eq!(watch.on_progress(ms(0), false, Duration::ZERO), None);
        assert_eq!(watch.on_progress(ms(5_000), false, Duration::ZERO), None);
        // Data behind a gap is due from the time of its arrival.
        watch.note(ms(5_010), true);
        watch.note(ms(5_090), true);
        assert!(about(watch.on_progress(ms(5_111), true, Duration::ZERO), 5_010));
        assert_eq!(watch.on_progress(ms(5_210), true, Duration::ZERO), None);
        // Meanwhile the peer marked its last data.
        watch.note(ms(5_300), false);
        assert_eq!(watch.on_progress(ms(6_000), false, Duration::ZERO), None);
    }
}
