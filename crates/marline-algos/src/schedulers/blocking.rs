//! Head-of-line blocking estimate under a bounded buffer: data on a slow subflow must not stall the
//! faster ones.
//!
//! *Problem.* All subflows share one receive window, and one send buffer holds what is not
//! DATA_ACKed. Data on a slow subflow arrives late; until then everything on the faster ones waits
//! behind it. If they could deliver more in that time than the buffer allows, they stall, or repeat
//! the slow subflow's data, which makes its transmission useless.
//!
//! *How.* A segment given to slow subflow S now is freed after D: S's RTT with its current queue,
//! except that the DATA_ACK returns on the fastest subflow. In D the faster ones deliver their rate
//! times D. If that and S's outstanding data exceed the buffer, S takes nothing now. D grows with
//! S's queue, so S is kept only as full as the buffer allows, and the deep queue of a slow path
//! stays empty.
//!
//! *Source.* The idea is that of BLEST (Ferlin et al., IFIP Networking 2016), which weighs the same
//! two quantities.
//!
//! *Differences.* BLEST takes the windows of the fast path for its rate and S's whole RTT for D,
//! with a factor that is learned from how often it blocks; that avoids S although much of its data
//! would arrive in time. Here the rate is the measured one if that is lower, and D ends with the
//! DATA_ACK. BLEST looks at the peer's window only; here the send buffer's largest size counts too.

use marline_policy::{SchedulerContext, SubflowView};
use marline_time::Rate;

use super::arrival::one_way;
use super::classes::{Class, members, rank};

/// Whether data given to `slow` now would leave the faster subflows of its class without room before
/// it is acknowledged.
pub(super) fn would_block(slow: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
    let arrival = one_way(slow, slow.bytes_in_flight);
    let (Some(class), Some(arrival)) = (Class::of(slow), arrival) else { return false };
    let faster = || members(cx.subflows, class).filter(|view| rank(view) < rank(slow));
    let Some(way_back) = faster().filter_map(|view| view.min_rtt).min() else { return false };
    let late = arrival + way_back / 2;
    let brought: u64 = faster().map(|view| rate(view).bytes_in(late)).sum();
    let bound = cx.window_end.since(cx.data_una).min(cx.send_limit);
    brought + slow.bytes_in_flight + u64::from(slow.mss) > bound
}

/// What a subflow brings home: as measured, but never more than its window allows.
pub(super) fn rate(view: &SubflowView) -> Rate {
    let by_window = view.srtt.map_or(Rate::ZERO, |srtt| Rate::over(view.cwnd, srtt));
    view.delivery_rate.map_or(by_window, |measured| measured.min(by_window))
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::{MSS, SILENT, Stream, full, view};
    use marline_time::Duration;

    use super::*;

    /// 8 Mbit/s at 20 ms beside 2 Mbit/s at 150 ms.
    fn pair() -> [SubflowView; 2] {
        let fast = SubflowView { delivery_rate: Some(Rate::from_mbit(8)), ..full(view(0, 20)) };
        let slow = SubflowView { delivery_rate: Some(Rate::from_mbit(2)), ..view(1, 150) };
        [fast, slow]
    }

    fn blocks(pair: &[SubflowView; 2], window: u64) -> bool {
        let stream = Stream { window, ..Stream::new(50_000) };
        would_block(&pair[1], &stream.context(pair))
    }

    #[test]
    fn the_slow_path_carries_what_comes_before_the_bound_is_reached() {
        let mut pair = pair();
        // 85 ms until the DATA_ACK; the fast one brings 85,000 bytes in that time.
        assert!(blocks(&pair, 85_000) && !blocks(&pair, 85_000 + u64::from(MSS)));
        pair[1].bytes_in_flight = 30_000;
        assert!(blocks(&pair, 110_000) && !blocks(&pair, 120_000));
        // A queue makes it later.
        pair[1].srtt = Some(Duration::from_millis(200));
        assert!(blocks(&pair, 160_000) && !blocks(&pair, 170_000));
    }

    #[test]
    fn the_fastest_never_blocks_and_the_unmeasured_is_judged_by_its_window() {
        let mut pair = pair();
        let stream = Stream { window: 1_000, ..Stream::new(50_000) };
        assert!(!would_block(&pair[0], &stream.context(&pair)));
        pair[0].delivery_rate = None;
        pair[0].cwnd = 10_000;
        // 10,000 bytes in 20 ms are 42,500 in 85 ms.
        assert!(blocks(&pair, 43_000) && !blocks(&pair, 44_000));
    }

    #[test]
    fn a_bad_time_is_not_held_against_an_idle_path() {
        let mut pair = pair();
        pair[1].srtt = Some(Duration::from_secs(3));
        assert!(!blocks(&pair, 90_000), "nothing is under way: who knows");
        pair[1].bytes_in_flight = u64::from(MSS);
        assert!(blocks(&pair, 90_000), "the answer is awaited");
    }

    #[test]
    fn a_silent_one_is_not_waited_for() {
        let mut pair = pair();
        pair[0].health = SILENT;
        assert!(!blocks(&pair, 1_000));
    }
}
