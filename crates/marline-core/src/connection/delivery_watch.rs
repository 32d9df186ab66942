//! Watch over delivery: since when something is due in either direction of the stream, for observers.
//!
//! *Problem.* What a person notices of a network is holes: times in which something should have arrived and nothing
//! did. An application that pauses leaves the same silence, so silence alone is no hole. The bytes that an application
//! got do not tell the two apart; what the protocol knows does.
//!
//! *Sending*: data is out that was not DATA_ACKed. The hole is the time from when that began, or from the last DATA_ACK
//! that moved, to the next that moves. A round trip of it is what delivery takes anyway, so the hole counts once it is
//! [`SHORTEST`] longer than that.
//!
//! *Receiving*: data is here that cannot be read, as something before it is missing; or the peer marks its last data
//! (MP_IDLE) and what came last was not marked. The hole is the time without a byte in order since. A peer that falls
//! silent with nothing of that kind is not known to owe anything, and its silence is not called a hole.
//!
//! Four bytes of memory for each direction, to which times are right to a tick of 65.5 µs, and a comparison for each
//! segment. What they tell decides nothing.

use marline_time::{Duration, Instant};

use crate::compact_instant::NonZeroCompactInstant;

/// The shortest hole that is told.
pub(super) const SHORTEST: Duration = Duration::from_millis(100);

/// Since when something is due in one direction, or that nothing is. Every connection has two, so it takes four bytes.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct DeliveryWatch(Option<NonZeroCompactInstant>);

impl DeliveryWatch {
    /// Something is due, from now on unless it was before; or nothing is.
    pub(super) fn note(&mut self, now: Instant, due: bool) {
        match (due, self.0) {
            (true, None) => self.0 = Some(NonZeroCompactInstant::of(now)),
            (true, Some(_)) => {}
            (false, _) => self.0 = None,
        }
    }

    /// Delivery went on, and more is `due` or not; it takes as long as is `usual`. Since when it was waited for, if
    /// that is a hole.
    pub(super) fn moved(&mut self, now: Instant, due: bool, usual: Duration) -> Option<Instant> {
        let next = due.then(|| NonZeroCompactInstant::of(now));
        let before = core::mem::replace(&mut self.0, next)?;
        // Nearly always.
        if before.is_within(SHORTEST.as_nanos() as u64, now) {
            return None;
        }
        let since = before.near(now);
        (now.since(since) >= SHORTEST + usual).then_some(since)
    }

    /// Since when something is due: an instant near this one, within a day.
    pub(super) fn due_since(self, near: Instant) -> Option<Instant> {
        Some(self.0?.near(near))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(at: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(at)
    }

    /// A tick of error at both ends.
    fn about(told: Option<Instant>, at_ms: u64) -> bool {
        told.is_some_and(|told| {
            told.max(ms(at_ms)).since(told.min(ms(at_ms))) < Duration::from_micros(140)
        })
    }

    #[test]
    fn an_acknowledgment_is_late_by_what_it_takes_beyond_a_round_trip() {
        let rtt = Duration::from_millis(60);
        let mut watch = DeliveryWatch::default();
        watch.note(ms(1_000), true);
        watch.note(ms(1_050), true);
        assert!(about(watch.due_since(ms(1_080)), 1_000));
        assert_eq!(watch.moved(ms(1_159), true, rtt), None);
        // From the last one that moved on.
        assert!(about(watch.moved(ms(1_320), false, rtt), 1_159));
        // Nothing is out: nothing is late, however long it takes.
        assert_eq!(watch.due_since(ms(1_400)), None);
        watch.note(ms(9_000), false);
        assert_eq!(watch.moved(ms(9_500), false, rtt), None);
    }

    #[test]
    fn a_pause_of_the_peer_is_no_hole() {
        let mut watch = DeliveryWatch::default();
        assert_eq!(watch.moved(ms(0), false, Duration::ZERO), None);
        assert_eq!(watch.moved(ms(5_000), false, Duration::ZERO), None);
        // What waits behind a hole is due since it came.
        watch.note(ms(5_010), true);
        watch.note(ms(5_090), true);
        assert!(about(watch.moved(ms(5_111), true, Duration::ZERO), 5_010));
        assert_eq!(watch.moved(ms(5_210), true, Duration::ZERO), None);
        // The peer said meanwhile that this was all.
        watch.note(ms(5_300), false);
        assert_eq!(watch.moved(ms(6_000), false, Duration::ZERO), None);
    }
}
