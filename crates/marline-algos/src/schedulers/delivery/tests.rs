use marline_policy::Forecast;
use marline_testkit::views::{MSS, Stream, UNREACHABLE, full, ms, paced, view};

use super::*;

/// Fills the window, with data in flight.
fn filled(view: SubflowView) -> SubflowView {
    SubflowView { bytes_in_flight: 10_000, ..full(view) }
}

/// Builds a forecast of answers after a nearly constant time.
fn steady(answer_ms: u64, rate: Option<Rate>) -> Forecast {
    Forecast::with_quantiles([ms(answer_ms); 3], 0.0, rate)
}

#[test]
fn arrival_counts_queued_bytes_but_not_the_return_path() {
    let forecast =
        Forecast::with_quantiles([ms(100), ms(120), ms(150)], 0.0, Some(Rate::from_mbit(8)));
    let path = SubflowView { forecast, ..view(0, 100) };
    // 8 Mbit/s are 1,000 bytes per millisecond; 50 ms are the way back. At p90, the time that the sender adds is
    // uncertain by half.
    assert_eq!(arrival_by(&path, 10_000, Quantile::P50), Some(ms(60)));
    assert_eq!(arrival(&path, 0), ms(70));
    assert_eq!(arrival(&path, 10_000), ms(85));
    let queued = SubflowView { forecast: forecast.delayed_by(ms(20)), ..path };
    assert_eq!(arrival(&queued, 10_000), ms(115));
    let unknown = SubflowView { forecast: Forecast::default(), ..path };
    assert_eq!(arrival_by(&unknown, 0, Quantile::P50), None);
    assert_eq!(arrival(&unknown, 0), Duration::MAX);
}

mod blocking {
    use super::*;

    /// Full path of 8 Mbit/s and 20 ms, next to a path of 150 ms.
    fn pair() -> [SubflowView; 2] {
        let fast = SubflowView { delivery_rate: Some(Rate::from_mbit(8)), ..filled(view(0, 20)) };
        [fast, view(1, 150)]
    }

    fn blocks(pair: &[SubflowView; 2], window: u64) -> bool {
        let stream = Stream { window, ..Stream::new(50_000) };
        let (slow, cx) = (&pair[1], stream.context(pair));
        Alternatives::find(slow, Class::Regular, OverdueWait::Forbidden, &cx)
            .is_some_and(|rivals| rivals.would_block(arrival(slow, MSS.into())))
    }

    #[test]
    fn the_slow_path_carries_data_that_arrives_before_the_bound() {
        let mut pair = pair();
        // The DATA_ACK takes 85 ms; in this time, the fast path delivers 85,000 bytes.
        assert!(blocks(&pair, 85_000) && !blocks(&pair, 85_000 + u64::from(MSS)));
        pair[1].bytes_in_flight = 30_000;
        assert!(blocks(&pair, 110_000) && !blocks(&pair, 120_000));
        // A queue of 50 ms delays it, by 75 ms in the worst of ten cases.
        pair[1].forecast = pair[1].forecast.delayed_by(ms(50));
        assert!(blocks(&pair, 190_000) && !blocks(&pair, 192_000));
    }

    #[test]
    fn the_fastest_never_blocks_and_the_unmeasured_is_judged_by_its_window() {
        let mut pair = pair();
        pair[1] = filled(pair[1]);
        let stream = Stream { window: 1_000, ..Stream::new(50_000) };
        let arrives = arrival(&pair[0], MSS.into());
        let cx = stream.context(&pair);
        let rivals = Alternatives::find(&pair[0], Class::Regular, OverdueWait::Forbidden, &cx)
            .expect("the slow one is busy");
        assert!(!rivals.would_block(arrives));
        pair[1].bytes_in_flight = 0;
        pair[0].delivery_rate = None;
        pair[0].cwnd = 10_000;
        // 10,000 bytes in 20 ms are 42,500 bytes in 85 ms.
        assert!(blocks(&pair, 43_000) && !blocks(&pair, 44_000));
    }

    #[test]
    fn a_silent_idle_or_overdue_path_does_not_block_others() {
        let with = |change: fn(&mut SubflowView)| {
            let mut pair = pair();
            change(&mut pair[0]);
            blocks(&pair, 1_000)
        };
        assert!(with(|_| ()));
        assert!(!with(|fast| fast.health = UNREACHABLE));
        assert!(!with(|fast| fast.bytes_in_flight = 0), "nothing would end the wait");
        assert!(!with(|fast| fast.overdue_at = Some(Instant::from_millis(999))));
        // For schedulers without copies to repair a wrong choice.
        let mut pair = pair();
        pair[0].overdue_at = Some(Instant::from_millis(999));
        let stream = Stream { window: 1_000, ..Stream::new(50_000) };
        let cx = stream.context(&pair);
        let rivals = Alternatives::find(&pair[1], Class::Regular, OverdueWait::Allowed, &cx);
        assert!(rivals.is_some_and(|rivals| rivals.would_block(ms(75))));
    }
}

mod completion {
    use super::*;

    /// Path of 13 ms that starts with ten segments, next to a path of 85 ms.
    fn pair() -> [SubflowView; 2] {
        let fast = SubflowView { cwnd: 10_000, ssthresh: u64::MAX, ..filled(view(0, 13)) };
        [fast, view(1, 85)]
    }

    fn sooner(pair: &[SubflowView; 2], stream: &Stream) -> bool {
        let (slow, cx) = (&pair[1], stream.context(pair));
        let arrives = arrival(slow, MSS.into());
        let sooner = Alternatives::find(slow, Class::Regular, OverdueWait::Forbidden, &cx)
            .and_then(|rivals| rivals.earlier_full_path(arrives, send_time_by_answers));
        sooner.is_some_and(|(id, all)| id == SubflowId(0) && all < arrives)
    }

    fn too_late(pair: &[SubflowView; 2], left: u64) -> bool {
        sooner(pair, &Stream::new(left))
    }

    #[test]
    fn a_burst_that_the_fast_one_ends_sooner_stays_on_it() {
        let mut pair = pair();
        // The slow path takes 42.5 ms. The fast path sends 20 kB until 13 ms, 60 kB until 26 ms, 140 kB until 39 ms,
        // and takes 6.5 ms to deliver: 36 ms of sending yield 121 kB.
        assert!(too_late(&pair, 120_000) && !too_late(&pair, 125_000));
        // Congestion avoidance sends 10 kB per round: 27 kB.
        pair[0].ssthresh = 10_000;
        assert!(too_late(&pair, 27_000) && !too_late(&pair, 29_000));
    }

    #[test]
    fn the_delivery_rate_limits_what_a_path_is_expected_to_carry() {
        let mut pair = pair();
        // 36 ms, of which a third is uncertain, are 24,000 bytes.
        pair[0].forecast = steady(13, Some(Rate::from_mbit(8)));
        assert!(too_late(&pair, 23_900) && !too_late(&pair, 24_100));
    }

    #[test]
    fn a_queue_on_the_slow_path_makes_it_later() {
        let mut pair = pair();
        assert!(!too_late(&pair, 150_000));
        pair[1].forecast = pair[1].forecast.delayed_by(ms(120));
        assert!(too_late(&pair, 150_000));
    }

    #[test]
    fn an_idle_path_is_not_rated_by_its_best_round_trip() {
        let mut pair = pair();
        pair[1] = SubflowView { forecast: steady(495, None), min_rtt: Some(ms(9)), ..pair[1] };
        assert!(too_late(&pair, 150_000));
        // Nor is it rated by its last measured RTT if the forecast differs.
        pair[1] = SubflowView { forecast: steady(12, None), srtt: Some(ms(495)), ..pair[1] };
        assert!(!too_late(&pair, 5_000));
    }

    #[test]
    fn a_path_whose_window_stays_shut_is_not_waited_for() {
        let with = |change: fn(&mut SubflowView)| {
            let mut pair = pair();
            change(&mut pair[0]);
            too_late(&pair, 1_000)
        };
        assert!(with(|_| ()));
        assert!(!with(|fast| fast.phase = Phase::Recovery), "a window closed by a loss");
        assert!(!with(|fast| fast.bytes_queued = 1));
        assert!(!with(|fast| fast.bytes_in_flight = 0));
        assert!(!with(|fast| fast.overdue_at = Some(Instant::from_millis(999))));
        assert!(!with(|fast| fast.forecast = Forecast::default()), "nothing is known about it");
        assert!(with(|fast| *fast = paced(*fast, 1_010)), "its pacer opens");
        assert!(!with(|fast| *fast = paced(*fast, 1_040)), "too late");
    }

    #[test]
    fn a_writer_waiting_for_room_counts_as_having_more_data() {
        let pair = pair();
        assert!(too_late(&pair, 100_000));
        assert!(!sooner(&pair, &Stream { window: 130_000, ..Stream::new(100_000) }));
    }

    #[test]
    fn windows_are_counted_whole_or_answer_by_answer() {
        let path = SubflowView { cwnd: 10_000, ssthresh: 10_000, ..view(0, 20) };
        let whole = [9_999, 10_000, 35_000].map(|bytes| send_time_by_windows(&path, bytes));
        assert_eq!(whole, [ms(0), ms(20), ms(60)].map(Some));
        let avoiding = [0, 5_000, 35_000].map(|bytes| send_time_by_answers(&path, bytes));
        assert_eq!(avoiding, [ms(0), ms(10), ms(70)].map(Some));
        let path = SubflowView { ssthresh: u64::MAX, ..path };
        let starting = [0, 10_000, 20_000, 40_000, 60_000].map(|b| send_time_by_answers(&path, b));
        assert_eq!(starting, [ms(0), ms(10), ms(20), ms(30), ms(40)].map(Some));
        assert_eq!(send_time_by_answers(&SubflowView { srtt: None, ..path }, 1), None);
        let tiny = SubflowView { cwnd: 0, ..path };
        assert!(send_time_by_answers(&tiny, u64::MAX).is_some(), "no overflow");
    }
}
