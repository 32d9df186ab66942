//! Pacer: spreads a window over the round trip instead of sending it as a burst.
//!
//! The rate is the congestion controller's own, or the window over SRTT times 2 in slow start and 1.2 after (as in
//! Linux; the factor makes the window the limit, not the pacer). Segments are sent in bursts of about a millisecond, at
//! least two segments, so that batching still works. Between bursts, the pacer allows nothing. The first window of a
//! subflow is not paced, because the path is still unknown and the first bytes are the most urgent.
//!
//! Credit from a pause is limited to two bursts, so that a message after a pause is sent immediately.

use marline_time::{Duration, Instant, Rate};

/// Duration of one burst at the pacing rate.
const BURST_NANOS: u64 = 1_000_000;
/// Minimum size of a burst in segments.
const BURST_SEGMENTS: u64 = 2;
/// Number of fraction bits in the cost per byte.
const SHIFT: u32 = 16;
/// The arithmetic saturates beyond this SRTT.
const MAX_SRTT_NANOS: u64 = 1 << 40;

/// State of the pacer.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    enabled: bool,
    /// Bytes still to be sent without pacing.
    free: u64,
    /// Nanoseconds per byte, `SHIFT` fraction bits; 0 while no rate is known.
    cost: u64,
    burst_nanos: u64,
    /// Time in nanoseconds until which the pacer is busy with the bytes already sent.
    paid_until: u64,
    closed_until: Instant,
}

impl Pacer {
    pub(super) fn new(enabled: bool, free: u64) -> Self {
        Pacer { enabled, free, ..Pacer::default() }
    }

    /// Turns pacing on or off.
    pub(super) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
        self.closed_until = Instant::ZERO;
    }

    /// Paces `window` bytes per `srtt`, scaled by `percent`; a full segment has at most `segment` bytes.
    pub(super) fn set_window(&mut self, window: u64, srtt: Duration, percent: u64, segment: u64) {
        let srtt = u64::try_from(srtt.as_nanos()).unwrap_or(u64::MAX).min(MAX_SRTT_NANOS);
        let share = window.max(1).saturating_mul(percent) / 100;
        self.set_cost((srtt << SHIFT) / share.max(1), segment);
    }

    /// Paces at the rate of the congestion controller.
    pub(super) fn set_rate(&mut self, rate: Rate, segment: u64) {
        self.set_cost((8_000_000_000 << SHIFT) / rate.bits_per_s().max(1_000), segment);
    }

    fn set_cost(&mut self, cost: u64, segment: u64) {
        self.cost = cost;
        self.burst_nanos = BURST_NANOS.max(self.pacing_nanos(BURST_SEGMENTS * segment));
    }

    fn pacing_nanos(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.cost) >> SHIFT
    }

    /// Records sent bytes.
    pub(super) fn on_sent(&mut self, now: Instant, bytes: u64) {
        if !self.enabled || self.cost == 0 {
            return;
        }
        if self.free > 0 {
            self.free = self.free.saturating_sub(bytes);
            return;
        }
        let now_nanos = now.as_nanos();
        // Credit from idle time or a late wake-up is limited to two bursts.
        let floor = now_nanos.saturating_sub(2 * self.burst_nanos);
        self.paid_until = self.paid_until.max(floor).saturating_add(self.pacing_nanos(bytes));
        if self.paid_until > now_nanos {
            self.closed_until =
                Instant::from_nanos(self.paid_until.saturating_add(self.burst_nanos));
        }
    }

    /// Number of segments of `len` bytes that the pacer allows now: at least one, even if none is due.
    pub(super) fn segments_before_closing(&self, now: Instant, len: u64) -> u64 {
        if !self.enabled || self.cost == 0 {
            return u64::MAX;
        }
        if self.free > 0 {
            return self.free.div_ceil(len.max(1));
        }
        let now_nanos = now.as_nanos();
        let paid = self.paid_until.max(now_nanos.saturating_sub(2 * self.burst_nanos));
        // The last segment is the one whose pacing time goes beyond `now`.
        let credit = now_nanos.saturating_sub(paid);
        credit / self.pacing_nanos(len).max(1) + 1
    }

    /// Time at which the pacer allows the next segment; `None` if it allows one now.
    pub(super) fn next_send_at(&self, now: Instant) -> Option<Instant> {
        (self.closed_until > now).then_some(self.closed_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1_400;

    fn run(pacer: &mut Pacer, start: Instant, until: Instant) -> (u64, u64) {
        let (mut now, mut sent, mut wakes) = (start, 0, 0);
        while now < until {
            match pacer.next_send_at(now) {
                Some(at) => {
                    now = at;
                    wakes += 1;
                }
                None => {
                    pacer.on_sent(now, MSS);
                    sent += MSS;
                }
            }
        }
        (sent, wakes)
    }

    #[test]
    fn the_rate_holds_and_bursts_are_about_a_millisecond() {
        let mut pacer = Pacer::new(true, 0);
        // 1.25 MB per 20 ms at 120 % = 600 Mbit/s
        pacer.set_window(1_250_000, Duration::from_millis(20), 120, MSS);
        let (sent, wakes) = run(&mut pacer, Instant::from_secs(1), Instant::from_secs(2));
        let rate = Rate::over(sent, Duration::from_secs(1));
        assert!(rate > Rate::from_mbit(595) && rate < Rate::from_mbit(605), "{rate}");
        assert!((900..=1_010).contains(&wakes), "{wakes}");
    }

    #[test]
    fn a_slow_path_gets_two_segments_at_a_time() {
        let mut pacer = Pacer::new(true, 0);
        pacer.set_rate(Rate::from_mbit(1), MSS);
        let (sent, wakes) = run(&mut pacer, Instant::from_secs(1), Instant::from_secs(11));
        let rate = Rate::over(sent, Duration::from_secs(10));
        assert!(rate > Rate::from_bits_per_s(985_000) && rate < Rate::from_bits_per_s(1_015_000));
        assert!(sent / wakes < 4 * MSS, "{sent} in {wakes}");
    }

    #[test]
    fn a_late_wakeup_grants_at_most_two_bursts() {
        let mut pacer = Pacer::new(true, 0);
        // A segment of 1,400 bytes in 7 ms.
        pacer.set_rate(Rate::from_bits_per_s(1_600_000), MSS);
        let now = Instant::from_secs(1);
        let mut sent = 0;
        while pacer.next_send_at(now).is_none() {
            pacer.on_sent(now, MSS);
            sent += 1;
        }
        assert_eq!(sent, 5);
        let pause = pacer.next_send_at(now).unwrap().since(now);
        assert_eq!(pause.as_micros() / 1_000, 21, "{pause:?}");
        let (bytes, _) = run(&mut pacer, now, now + Duration::from_secs(10));
        let rate = Rate::over(bytes, Duration::from_secs(10));
        assert!(rate > Rate::from_bits_per_s(1_580_000), "{rate}");
        assert!(rate < Rate::from_bits_per_s(1_620_000), "{rate}");
    }

    #[test]
    fn the_first_window_and_an_unknown_rate_are_not_paced() {
        let mut pacer = Pacer::new(true, 10 * MSS);
        pacer.on_sent(Instant::from_secs(1), 100 * MSS);
        assert_eq!(pacer.next_send_at(Instant::from_secs(1)), None);
        pacer.set_rate(Rate::from_mbit(1), MSS);
        for _ in 0..10 {
            pacer.on_sent(Instant::from_secs(1), MSS);
            assert_eq!(pacer.next_send_at(Instant::from_secs(1)), None);
        }
        for _ in 0..5 {
            pacer.on_sent(Instant::from_secs(1), MSS);
        }
        assert!(pacer.next_send_at(Instant::from_secs(1)).is_some());
    }
}
