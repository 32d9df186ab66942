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
//! A few words of memory and a comparison for each segment; what they tell decides nothing.

use marline_time::{Duration, Instant};

/// The shortest hole that is told.
pub(super) const SHORTEST: Duration = Duration::from_millis(100);

/// Since when something is due; far in the future where nothing is.
#[derive(Copy, Clone, Debug)]
pub(super) struct DeliveryWatch {
    sending: Instant,
    receiving: Instant,
}

impl Default for DeliveryWatch {
    fn default() -> Self {
        DeliveryWatch { sending: Instant::FAR_FUTURE, receiving: Instant::FAR_FUTURE }
    }
}

/// Begins, goes on or ends the wait: what it was, if it was a hole.
fn moved(since: &mut Instant, now: Instant, due: bool, usual: Duration) -> Option<Instant> {
    let before = core::mem::replace(since, if due { now } else { Instant::FAR_FUTURE });
    (before < now && now.since(before) >= SHORTEST + usual).then_some(before)
}

impl DeliveryWatch {
    /// Data may have gone out: the peer owes a DATA_ACK if it is `outstanding`.
    pub(super) fn on_sent(&mut self, now: Instant, outstanding: bool) {
        if outstanding && self.sending == Instant::FAR_FUTURE {
            self.sending = now;
        }
    }

    /// The DATA_ACK moved, and data is still `outstanding`; a round trip takes `usual`. Since when it was waited for,
    /// if too long.
    pub(super) fn on_acked(
        &mut self,
        now: Instant,
        outstanding: bool,
        usual: Duration,
    ) -> Option<Instant> {
        moved(&mut self.sending, now, outstanding, usual)
    }

    /// Bytes came in order; `due`: more are known of. Since when they were waited for, if too long.
    pub(super) fn on_in_order(&mut self, now: Instant, due: bool) -> Option<Instant> {
        moved(&mut self.receiving, now, due, Duration::ZERO)
    }

    /// Something else came that tells whether more is due.
    pub(super) fn on_rest(&mut self, now: Instant, due: bool) {
        if !due {
            self.receiving = Instant::FAR_FUTURE;
        } else if self.receiving == Instant::FAR_FUTURE {
            self.receiving = now;
        }
    }

    /// Since when the peer owes a DATA_ACK, and since when data.
    pub(super) fn due_since(&self) -> (Option<Instant>, Option<Instant>) {
        let known = |since: Instant| (since != Instant::FAR_FUTURE).then_some(since);
        (known(self.sending), known(self.receiving))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(at: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(at)
    }

    #[test]
    fn an_acknowledgment_is_late_by_what_it_takes_beyond_a_round_trip() {
        let rtt = Duration::from_millis(60);
        let mut watch = DeliveryWatch::default();
        watch.on_sent(ms(1_000), true);
        watch.on_sent(ms(1_050), true);
        assert_eq!(watch.due_since().0, Some(ms(1_000)));
        assert_eq!(watch.on_acked(ms(1_159), true, rtt), None);
        // From the last one that moved on.
        assert_eq!(watch.on_acked(ms(1_319), false, rtt), Some(ms(1_159)));
        // Nothing is out: nothing is late, however long it takes.
        assert_eq!(watch.due_since().0, None);
        watch.on_sent(ms(9_000), false);
        assert_eq!(watch.on_acked(ms(9_500), false, rtt), None);
    }

    #[test]
    fn a_pause_of_the_peer_is_no_hole() {
        let mut watch = DeliveryWatch::default();
        assert_eq!(watch.on_in_order(ms(0), false), None);
        assert_eq!(watch.on_in_order(ms(5_000), false), None);
        // What waits behind a hole is due since it came.
        watch.on_rest(ms(5_010), true);
        watch.on_rest(ms(5_090), true);
        assert_eq!(watch.on_in_order(ms(5_110), true), Some(ms(5_010)));
        assert_eq!(watch.on_in_order(ms(5_209), true), None);
        // The peer said meanwhile that this was all.
        watch.on_rest(ms(5_300), false);
        assert_eq!(watch.on_in_order(ms(6_000), false), None);
    }
}
