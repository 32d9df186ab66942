//! Arrival time estimate of a segment handed to a subflow now, for the schedulers that weigh a slow
//! path against fast ones (`blocking.rs`, `completion.rs`).

use marline_policy::SubflowView;
use marline_time::{Duration, Rate};

/// The way of a segment over `view` if `under_way` bytes are to leave with or before it: as long as the
/// last ones took, or longer if so much waits. `None` without an RTT.
///
/// With nothing under way, SRTT tells of another time: were it believed, a path that has been bad once
/// would never be asked again whether it still is. What can be hoped for is its smallest RTT.
pub(super) fn one_way(view: &SubflowView, under_way: u64) -> Option<Duration> {
    let srtt = view.srtt?;
    let idle = view.bytes_in_flight == 0;
    let rtt = if idle { view.min_rtt.unwrap_or(srtt) } else { srtt };
    let way_back = view.min_rtt.unwrap_or(rtt) / 2;
    let carried = view.delivery_rate.filter(|rate| *rate != Rate::ZERO);
    let queued = carried.map_or(Duration::ZERO, |rate| rate.time_for(under_way));
    Some(rtt.max(queued.min(rtt * 2)).saturating_sub(way_back))
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::{ms, view};

    use super::*;

    #[test]
    fn what_waits_counts_up_to_two_round_trips_and_an_idle_path_has_no_past() {
        let path = SubflowView {
            srtt: Some(ms(200)),
            min_rtt: Some(ms(100)),
            delivery_rate: Some(Rate::from_mbit(8)),
            bytes_in_flight: 1_000,
            ..view(0, 100)
        };
        // 8 Mbit/s are 1,000 bytes a millisecond; 50 ms are the way back.
        for (under_way, expected_ms) in [(1_000, 150), (250_000, 200), (900_000, 350)] {
            assert_eq!(one_way(&path, under_way), Some(ms(expected_ms)), "{under_way}");
        }
        let idle = SubflowView { bytes_in_flight: 0, ..path };
        assert_eq!(one_way(&idle, 1_000), Some(ms(50)));
        assert_eq!(one_way(&SubflowView { srtt: None, ..path }, 1_000), None);
    }
}
