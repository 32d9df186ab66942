//! TCP timestamps (RFC 7323): distinguishing transmissions, and protection against wrapped sequence
//! numbers (PAWS).
//!
//! The clock ticks in milliseconds and has an offset that differs by subflow. Finer ticks would wrap within hours,
//! and a peer that was idle for that long would drop our segments (RFC 7323 section 5.5). RTT samples come from the
//! scoreboard, so no precision is lost.

use marline_policy::Ssn;
use marline_time::{Duration, Instant};
use marline_wire::Timestamps;

/// Age at which a remembered TSval becomes invalid (RFC 7323 section 5.5).
const MAX_TIMESTAMP_AGE: Duration = Duration::from_secs(24 * 86_400);

/// The timestamp state of one subflow.
#[derive(Copy, Clone, Debug)]
pub(super) struct TimestampState {
    /// True if timestamps are offered or, after the handshake, agreed on.
    pub(super) enabled: bool,
    offset: u32,
    /// TS.Recent: the peer's TSval to be echoed.
    recent: u32,
    recent_at: Instant,
    /// Last.ACK.sent: the position that our last ACK acknowledged.
    last_ack_sent: Ssn,
}

impl TimestampState {
    pub(super) const fn new(enabled: bool, offset: u32) -> Self {
        TimestampState {
            enabled,
            offset,
            recent: 0,
            recent_at: Instant::ZERO,
            last_ack_sent: Ssn(0),
        }
    }

    /// Our TSval at this time.
    pub(super) const fn value(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }

    /// Option for a segment; the echo counts only on segments with ACK.
    pub(super) const fn option(&self, now: Instant, ack: bool) -> Timestamps {
        Timestamps { value: self.value(now), echo: if ack { self.recent } else { 0 } }
    }

    /// Records the first TSval of the peer, from its SYN.
    pub(super) fn start(&mut self, now: Instant, peer: Option<Timestamps>) {
        match peer {
            Some(timestamps) if self.enabled => {
                self.recent = timestamps.value;
                self.recent_at = now;
            }
            _ => self.enabled = false,
        }
    }

    /// PAWS: true if a segment with this TSval is an old duplicate.
    pub(super) fn is_old(&self, now: Instant, value: u32) -> bool {
        (value.wrapping_sub(self.recent) as i32) < 0
            && now.since(self.recent_at) <= MAX_TIMESTAMP_AGE
    }

    /// True if an old TSval is less than `reach` old, assuming that the peer's clock ticks in milliseconds. Its segment
    /// was then reordered with slightly newer ones, and is not from an earlier wrap of the sequence numbers.
    pub(super) const fn is_reordered(&self, value: u32, reach: Duration) -> bool {
        (self.recent.wrapping_sub(value) as u128) <= reach.as_millis()
    }

    /// Handles an acceptable segment that starts at `start`.
    pub(super) fn on_accepted(&mut self, now: Instant, value: u32, start: Ssn) {
        if start <= self.last_ack_sent && !self.is_old(now, value) {
            self.recent = value;
            self.recent_at = now;
        }
    }

    pub(super) const fn on_ack_sent(&mut self, rcv_nxt: Ssn) {
        self.last_ack_sent = rcv_nxt;
    }

    /// Position that our last ACK acknowledged.
    pub(super) const fn last_ack_sent(&self) -> Ssn {
        self.last_ack_sent
    }

    /// End of the tick of `echo`; `None` if it is in the future or too far back.
    pub(super) fn sent_at(&self, now: Instant, echo: u32) -> Option<Instant> {
        let age_ms = self.value(now).wrapping_sub(echo);
        if age_ms > i32::MAX as u32 {
            return None;
        }
        let tick_ms = now.as_millis().checked_sub(u64::from(age_ms))?;
        Some(Instant::from_nanos(tick_ms * 1_000_000 + 999_999))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_values_are_seen_across_the_wrap_and_forgotten_after_weeks() {
        let mut state = TimestampState::new(true, 0);
        let now = Instant::from_secs(100);
        state.start(now, Some(Timestamps { value: 5, echo: 0 }));
        assert!(state.is_old(now, u32::MAX));
        assert!(!state.is_old(now, 5));
        assert!(!state.is_old(now + Duration::from_secs(25 * 86_400), u32::MAX));
    }

    #[test]
    fn an_echo_names_its_tick() {
        let state = TimestampState::new(true, u32::MAX - 10);
        let sent = Instant::from_micros(20_700);
        let value = state.value(sent);
        let heard = Instant::from_millis(55);
        assert_eq!(state.sent_at(heard, value), Some(Instant::from_nanos(20_999_999)));
        assert_eq!(state.sent_at(sent, value.wrapping_add(5)), None);
    }

    #[test]
    fn only_the_next_expected_segment_updates_the_echo() {
        let mut state = TimestampState::new(true, 0);
        let now = Instant::from_secs(1);
        state.start(now, Some(Timestamps { value: 5, echo: 0 }));
        state.on_ack_sent(Ssn(1));
        state.on_accepted(now, 9, Ssn(1_401));
        assert_eq!(state.option(now, true).echo, 5);
        state.on_accepted(now, 7, Ssn(1));
        assert_eq!(state.option(now, true).echo, 7);
        assert_eq!(state.option(now, false).echo, 0);
    }
}
