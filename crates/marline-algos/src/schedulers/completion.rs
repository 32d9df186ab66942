//! Completion time estimate: data on a slow subflow must not arrive after everything else has.
//!
//! *Problem.* The fast subflow's window is full, a slow one has room. Under load that room is
//! useful. But when little is left to send, the fast one completes all of it before the slow one's
//! segment has even arrived: a burst spread over both completes only with the slow one. This recurs
//! after each pause, since the fast one begins with its restart window.
//!
//! *How.* A segment given to slow subflow S now arrives after S's one-way time with its present
//! queue. The fastest one, F, delivers the unsent data in rounds: in each round trip it sends a
//! window, twice the previous one while in slow start, but no more than its path was seen to carry.
//! If F's last byte arrives no later than S's segment, S takes nothing now. If the send buffer is
//! full the application has more to write, and nothing is held back.
//!
//! *Source.* The question is ECF's (Lim et al., CoNEXT 2017; `ecf.rs`).
//!
//! *Differences.* ECF counts whole windows of the present size in whole round trips, which makes a
//! fast path that is just starting look slow, and compares round trips, not arrivals. It keeps a
//! margin and a hysteresis; here each segment is decided separately by the amount of unsent data:
//! under load there is always more.

use marline_policy::{Phase, SchedulerContext, SubflowView};
use marline_time::Duration;

use super::arrival::one_way;
use super::classes::{Class, members, rank};

/// Rounds that are counted; what takes longer is load.
const MAX_ROUNDS: u32 = 32;

/// Whether the fastest subflow of its class would have brought all that is unsent before a segment that
/// `slow` took now arrives.
pub(super) fn comes_too_late(slow: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
    let arrival = one_way(slow, slow.bytes_in_flight + u64::from(slow.mss));
    let (Some(class), Some(arrival)) = (Class::of(slow), arrival) else { return false };
    let fastest = members(cx.subflows, class).min_by_key(|view| rank(view));
    let Some(fast) = fastest.filter(|fast| rank(fast) < rank(slow)) else { return false };
    // A window that a lost segment shuts does not open after one round trip.
    if fast.phase != Phase::Open || fast.bytes_queued > 0 {
        return false;
    }
    let left = cx.written.since(cx.unsent.start);
    if writer_has_more(cx) {
        return false;
    }
    brings_by(fast, left, arrival)
}

/// Whether the end of what was written is none: writers are woken before the buffer is empty, and fill it again.
pub(super) fn writer_has_more(cx: &SchedulerContext<'_>) -> bool {
    cx.written.since(cx.data_una) >= cx.send_limit / 4 * 3
}

/// Whether `view`, whose window is full, has brought `left` bytes by `limit`.
fn brings_by(view: &SubflowView, left: u64, limit: Duration) -> bool {
    let Some(srtt) = view.srtt else { return false };
    let one_way = srtt.saturating_sub(view.min_rtt.unwrap_or(srtt) / 2);
    let starting = view.cwnd < view.ssthresh;
    // A rate that was seen while there was little to send is no limit: it grows with the window.
    let carried = view.delivery_rate.map_or(u64::MAX, |rate| rate.bytes_in(srtt));
    let mut round = view.cwnd.max(1);
    let (mut left, mut begins) = (left, Duration::ZERO);
    for _ in 0..MAX_ROUNDS {
        if starting {
            round = (round * 2).min(carried.max(view.cwnd * 2));
        }
        if left <= round {
            let part = srtt.as_nanos() * u128::from(left) / u128::from(round);
            let arrival = begins + Duration::from_nanos(part as u64) + one_way;
            return arrival <= limit;
        }
        left -= round;
        begins += srtt;
        if begins + one_way > limit {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::{MSS, Stream, full, view};
    use marline_time::Rate;

    use super::*;

    /// 13 ms, starting with ten segments, beside 85 ms at 20 Mbit/s.
    fn pair() -> [SubflowView; 2] {
        let fast = full(view(0, 13));
        let fast = SubflowView { cwnd: 10_000, ssthresh: u64::MAX, ..fast };
        [fast, SubflowView { delivery_rate: Some(Rate::from_mbit(20)), ..view(1, 85) }]
    }

    fn too_late(pair: &[SubflowView; 2], left: u64) -> bool {
        let stream = Stream::new(left);
        comes_too_late(&pair[1], &stream.context(pair))
    }

    #[test]
    fn a_burst_that_the_fast_one_ends_sooner_stays_on_it() {
        let mut pair = pair();
        // 42.5 ms on the slow one. The fast one: 20 kB until 13 ms, 60 until 26, 140 until 39, and
        // 6.5 ms on the way: 36 ms of sending, 121 kB.
        assert!(too_late(&pair, 120_000) && !too_late(&pair, 125_000));
        // In congestion avoidance 10 kB a round: 27 kB.
        pair[0].ssthresh = 10_000;
        assert!(too_late(&pair, 27_000) && !too_late(&pair, 29_000));
    }

    #[test]
    fn a_path_is_not_thought_to_carry_more_than_it_did() {
        let mut pair = pair();
        // 25 kB in 13 ms.
        pair[0].delivery_rate = Some(Rate::from_bits_per_s(25_000 * 8 * 1_000 / 13));
        pair[0].cwnd = 20_000;
        // 25 kB would be less than a window in slow start lets go at once: 40 kB a round.
        assert!(too_late(&pair, 110_000) && !too_late(&pair, 113_000));
    }

    #[test]
    fn what_waits_on_the_slow_one_makes_it_later() {
        let mut pair = pair();
        assert!(!too_late(&pair, 150_000));
        // 300 kB at 20 Mbit/s are 120 ms.
        pair[1].bytes_in_flight = 300_000;
        assert!(too_late(&pair, 150_000));
    }

    #[test]
    fn nobody_waits_for_a_window_that_a_loss_shut() {
        let mut pair = pair();
        pair[0].phase = Phase::Recovery;
        assert!(!too_late(&pair, 1_000));
        pair[0].phase = Phase::Open;
        pair[0].bytes_queued = 1;
        assert!(!too_late(&pair, 1_000));
    }

    #[test]
    fn a_bad_time_is_not_held_against_an_idle_path() {
        let mut pair = pair();
        pair[1].srtt = Some(Duration::from_secs(1));
        pair[1].min_rtt = Some(Duration::from_millis(9));
        assert!(!too_late(&pair, 50_000), "nothing is under way: who knows");
        pair[1].bytes_in_flight = 1_000;
        assert!(too_late(&pair, 50_000), "the answer is awaited");
    }

    #[test]
    fn a_writer_that_waits_for_room_has_more_to_say() {
        let pair = pair();
        assert!(too_late(&pair, 100_000));
        let stream = Stream { window: 130_000, ..Stream::new(100_000) };
        assert!(!comes_too_late(&pair[1], &stream.context(&pair)));
    }

    #[test]
    fn nobody_waits_for_the_slow_or_for_the_unmeasured() {
        let pair = pair();
        let stream = Stream::new(u64::from(MSS));
        assert!(!comes_too_late(&pair[0], &stream.context(&pair)));
        let unknown = [pair[0], SubflowView { srtt: None, ..pair[1] }];
        assert!(!comes_too_late(&unknown[1], &stream.context(&unknown)));
    }
}
