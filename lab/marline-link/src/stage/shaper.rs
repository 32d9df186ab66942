//! Rate stage: computes when the packet at the head of the queue has been sent.
//!
//! A mahimahi trace (Netravali et al., USENIX ATC 2015) lists milliseconds at which 1504 bytes may leave. The unused
//! part of an opportunity is available to the next packet if it is already waiting, and is lost otherwise. A packet
//! that does not fit waits for further opportunities. After the last line, the trace starts again. The last value is
//! its length.

use marline_time::{Duration, Instant, Rate};

use crate::trace::OPPORTUNITY_BYTES;
use crate::{RateConfig, Steps, TraceStart, trace::Opportunities};

/// Position in a trace.
#[derive(Copy, Clone, Debug, Default)]
struct Cursor {
    /// Index of the next unused opportunity, counted over all repetitions.
    next: u64,
    /// Bytes left of the previous opportunity, usable only at its time.
    credit: u64,
    /// Time of that opportunity, in trace time.
    credit_at_ms: u64,
}

/// The rate of one link.
#[derive(Clone, Debug)]
pub(crate) struct Shaper {
    rate: RateConfig,
    start: Instant,
    cursor: Cursor,
}

impl Shaper {
    pub(crate) fn new(rate: RateConfig, start: Instant) -> Self {
        Shaper { rate, start, cursor: Cursor::default() }
    }

    /// Time at which `bytes` have been sent if sending starts at `from`. `FAR_FUTURE` if the link is stopped.
    pub(crate) fn finish(&mut self, from: Instant, bytes: u64) -> Instant {
        match &self.rate {
            RateConfig::Unlimited => from,
            RateConfig::Constant(rate) => saturating_add(from, rate.time_for(bytes)),
            RateConfig::Steps(steps) => finish_steps(steps, self.start, from, bytes),
            RateConfig::Trace(trace) => {
                finish_trace(trace, &mut self.cursor, from.since(self.start), bytes)
                    .map_or(Instant::FAR_FUTURE, |elapsed| self.start + elapsed)
            }
        }
    }

    /// The rate for converting a queue limit given as a time. `None` if the rate is unlimited.
    pub(crate) fn reference_rate(&self, now: Instant) -> Option<Rate> {
        match &self.rate {
            RateConfig::Unlimited => None,
            RateConfig::Constant(rate) => Some(*rate),
            RateConfig::Steps(steps) => Some(steps.value_at(now.since(self.start)).0),
            RateConfig::Trace(trace) => Some(trace.trace.mean_rate()),
        }
    }
}

/// Returns `from + duration`, where the longest duration means never.
fn saturating_add(from: Instant, duration: Duration) -> Instant {
    if duration == Duration::MAX { Instant::FAR_FUTURE } else { from + duration }
}

fn finish_steps(steps: &Steps<Rate>, start: Instant, from: Instant, bytes: u64) -> Instant {
    let mut now = from;
    // Bits times 10^9, which equals a rate multiplied by nanoseconds.
    let mut left = u128::from(bytes) * 8_000_000_000;
    let mut idle_steps = 0;
    loop {
        let (rate, change) = steps.value_at(now.since(start));
        let rate = u128::from(rate.bits_per_s());
        let until = change.map_or(Instant::FAR_FUTURE, |elapsed| start + elapsed);
        let possible = rate * until.since(now).as_nanos();
        if rate > 0 && possible >= left {
            return now + Duration::from_nanos(left.div_ceil(rate) as u64);
        }
        idle_steps = if rate > 0 { 0 } else { idle_steps + 1 };
        if change.is_none() || idle_steps > steps.points().len() {
            return Instant::FAR_FUTURE;
        }
        left -= possible;
        now = until;
    }
}

/// Link time at which the bytes have been sent.
fn finish_trace(
    trace: &TraceStart<Opportunities>,
    cursor: &mut Cursor,
    from: Duration,
    bytes: u64,
) -> Option<Duration> {
    let slots = &trace.trace;
    let from_ns = marline_time::nanos(from + trace.start);
    let from_ms = from_ns.div_ceil(1_000_000);
    if cursor.credit_at_ms * 1_000_000 != from_ns {
        cursor.credit = 0;
    }
    if slots.time_ms(cursor.next) < from_ms {
        cursor.next = slots.first_at(from_ms);
    }
    let mut left = bytes;
    let mut at_ns = from_ns;
    loop {
        let used = left.min(cursor.credit);
        left -= used;
        cursor.credit -= used;
        if left == 0 {
            return Some(Duration::from_nanos(at_ns).saturating_sub(trace.start));
        }
        cursor.credit_at_ms = slots.time_ms(cursor.next);
        at_ns = cursor.credit_at_ms.checked_mul(1_000_000)?;
        cursor.credit = OPPORTUNITY_BYTES;
        cursor.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn trace(text: &str, start_ms: u64) -> Shaper {
        let trace = Arc::new(Opportunities::parse("t", text.as_bytes()).unwrap());
        let start = Duration::from_millis(start_ms);
        Shaper::new(RateConfig::Trace(TraceStart { trace, start }), Instant::ZERO)
    }

    #[test]
    fn each_opportunity_passes_1504_bytes_and_lends_the_rest_to_a_waiting_packet() {
        let mut shaper = trace("2\n2\n5\n10\n", 0);
        assert_eq!(shaper.finish(MS(0), 1000), MS(2));
        assert_eq!(shaper.finish(MS(2), 504), MS(2));
        assert_eq!(shaper.finish(MS(2), 1505), MS(5));
        // 1503 bytes of the opportunity at 5 were left, but no packet was waiting then.
        assert_eq!(shaper.finish(MS(6), 10), MS(10));
    }

    #[test]
    fn a_trace_wraps_at_its_last_value_and_starts_at_its_offset() {
        let mut shaper = trace("2\n10\n", 0);
        assert_eq!(shaper.finish(MS(11), 1504), MS(12));
        assert_eq!(shaper.finish(MS(12), 1504), MS(20));
        assert_eq!(shaper.finish(MS(1_000_005), 1504), MS(1_000_010));
        assert_eq!(trace("2\n10\n", 5).finish(MS(0), 1504), MS(5));
    }

    #[test]
    fn steps_are_integrated_across_their_changes() {
        let mbit = Rate::from_mbit;
        let points = vec![
            (Duration::ZERO, mbit(12)),
            (Duration::from_millis(1), Rate::ZERO),
            (Duration::from_millis(5), mbit(6)),
        ];
        let steps = Arc::new(Steps::new(points, None).unwrap());
        let mut shaper = Shaper::new(RateConfig::Steps(steps), Instant::ZERO);
        assert_eq!(shaper.finish(MS(0), 1500), MS(1));
        assert_eq!(shaper.finish(MS(0), 3000), MS(7));
        assert_eq!(shaper.finish(MS(2), 750), MS(6));
    }

    #[test]
    fn a_rate_that_stays_zero_never_finishes() {
        let none = Steps::new(vec![(Duration::ZERO, Rate::ZERO)], Some(Duration::from_secs(1)));
        let mut shaper = Shaper::new(RateConfig::Steps(Arc::new(none.unwrap())), Instant::ZERO);
        assert_eq!(shaper.finish(MS(3), 1), Instant::FAR_FUTURE);
        let mut stopped = Shaper::new(RateConfig::Constant(Rate::ZERO), Instant::ZERO);
        assert_eq!(stopped.finish(MS(3), 1), Instant::FAR_FUTURE);
    }
}
