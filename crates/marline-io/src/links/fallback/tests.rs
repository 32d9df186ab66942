use super::*;
use crate::links::pace::DataDirection;

const LINK: u16 = 0x8003;

fn ends() -> FlowEnds {
    FlowEnds::new([192, 0, 2, 9].into(), ([203, 0, 113, 7], 7_777).into())
}

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn orders(routes: &mut Routes) -> Vec<Order> {
    core::iter::from_fn(|| routes.poll_order()).collect()
}

/// Runs the timers up to `until`, answering the probes if `answers`. Returns the orders with their times.
fn run(routes: &mut Routes, until: Instant, answers: bool) -> Vec<(Instant, Order)> {
    let mut log = Vec::new();
    let mut ids = 1..;
    while let Some(at) = routes.next_timeout().filter(|at| *at <= until) {
        routes.on_timeout(at);
        while let Some(order) = routes.poll_order() {
            if let Order::Probe(ends) = order {
                let id = ids.next().unwrap();
                routes.probes(ends, id);
                if answers {
                    routes.on_link_answer(at + Duration::from_millis(40), ends, id);
                }
            }
            log.push((at, order));
        }
    }
    log
}

/// Orders of a link attempt at this time: open the link and probe with a datagram.
fn opens(at: Instant) -> [(Instant, Order); 2] {
    [(at, Order::Open(ends())), (at, Order::Probe(ends()))]
}

/// Creates a route that has moved to its link.
fn on_link(now: Instant) -> Routes {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(now, ends());
    let opened = run(&mut routes, now + Duration::from_secs(1), false);
    assert_eq!(opened, opens(now + INITIAL_ANSWER_TIMEOUT));
    routes.on_link_opened(now + Duration::from_millis(540), ends(), LINK);
    expect_move_to_link(&mut routes, now + Duration::from_millis(640));
    routes
}

/// Expects a probe after the link is established, and the move to the link at `at`.
fn expect_move_to_link(routes: &mut Routes, at: Instant) {
    assert_eq!(orders(routes), [Order::Probe(ends())]);
    assert_eq!(run(routes, at, false), [(at, Order::Use(ends(), LINK))]);
}

/// The server or this process is short of CPU time: the link is established first, and the answer to the datagram
/// arrives soon after.
#[test]
fn datagrams_get_as_much_time_again_as_the_link_took() {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(ms(0), ends());
    assert_eq!(run(&mut routes, ms(1_000), false), opens(ms(500)));
    routes.on_link_opened(ms(900), ends(), LINK);
    assert_eq!(orders(&mut routes), [Order::Probe(ends())]);
    assert_eq!(routes.next_timeout(), Some(ms(1_300)));
    routes.on_udp_received(ms(1_250), ends());
    assert_eq!(orders(&mut routes), [Order::Close(LINK)]);
    assert_eq!(routes.next_timeout(), None);
}

/// Sends segments of 1,000 bytes at this rate for some seconds; one in ten is repeated.
fn download(routes: &mut Routes, from: Instant, bits_per_s: u64, seconds: u64) -> Instant {
    let gap = Duration::from_nanos(8_000_000_000_000 / bits_per_s);
    let (mut now, mut seq) = (from, 0_u32);
    while now < from + Duration::from_secs(seconds) {
        let mut bytes = vec![0; 1_020];
        bytes[4..8].copy_from_slice(&seq.to_be_bytes());
        bytes[12] = 5 << 4;
        let times = if seq.is_multiple_of(10_000) { 2 } else { 1 };
        let segments = core::iter::repeat_n(&bytes[..], times);
        routes.on_timeout(now);
        let flow = from.as_millis();
        routes.on_segments(now, ends(), flow, DataDirection::Down, segments);
        (now, seq) = (now + gap, seq + 1_000);
    }
    now
}

#[test]
fn a_faster_link_is_kept_and_datagrams_are_retried_later() {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(ms(0), ends());
    routes.on_udp_received(ms(10), ends());
    let now = download(&mut routes, ms(10), 1_000_000, 5);
    assert_eq!(orders(&mut routes), [Order::Open(ends())]);
    routes.on_link_opened(now, ends(), LINK);
    assert_eq!(orders(&mut routes), [Order::Compare(ends(), LINK)]);
    assert!(routes.flows_on_links().is_empty(), "nothing is decided");
    let now = download(&mut routes, now, 40_000_000, 5);
    let [Order::Keep(_, rates)] = orders(&mut routes)[..] else { panic!("the link is not kept") };
    assert!(rates.udp_bits_per_s < 1_100_000 && rates.tcp_bits_per_s > 30_000_000, "{rates:?}");
    assert_eq!(routes.routes_faster_over_tcp(), [(ends(), rates)]);
    let log = run(&mut routes, now + Duration::from_secs(700), false);
    let [(left, Order::Leave(_, LeaveReason::NextComparison)), (_, Order::Close(LINK))] = log[..]
    else {
        panic!("{log:?}")
    };
    assert!(left >= now + Duration::from_secs(590), "{left:?}");
    // Datagrams are still policed: the link is kept for twice as long.
    let now = download(&mut routes, left, 1_000_000, 5);
    routes.on_link_opened(now, ends(), LINK);
    let now = download(&mut routes, now, 40_000_000, 5);
    assert!(matches!(
        orders(&mut routes)[..],
        [Order::Open(_), Order::Compare(..), Order::Keep(..)]
    ));
    let [(left, _), ..] = run(&mut routes, now + Duration::from_secs(2_000), false)[..] else {
        panic!("the link stays indefinitely")
    };
    assert!(left >= now + Duration::from_secs(1_190), "{left:?}");
}

/// A transfer that would have taken minutes with datagrams ends quickly on the link, and then no data follows.
#[test]
fn a_transfer_that_ends_during_a_trial_still_decides() {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(ms(0), ends());
    routes.on_udp_received(ms(10), ends());
    let now = download(&mut routes, ms(10), 1_000_000, 5);
    routes.on_link_opened(now, ends(), LINK);
    let now = download(&mut routes, now, 100_000_000, 1);
    assert!(routes.routes_faster_over_tcp().is_empty(), "the trial is not over");
    run(&mut routes, now + Duration::from_secs(4), false);
    let slower = routes.routes_faster_over_tcp();
    assert!(slower.len() == 1 && slower[0].1.tcp_bits_per_s > 20_000_000, "{slower:?}");
}

#[test]
fn a_link_that_is_not_faster_is_closed_and_not_soon_retried() {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(ms(0), ends());
    routes.on_udp_received(ms(10), ends());
    let now = download(&mut routes, ms(10), 5_000_000, 5);
    routes.on_link_opened(now, ends(), LINK);
    let now = download(&mut routes, now, 6_000_000, 5);
    let said = orders(&mut routes);
    let [.., Order::Leave(_, LeaveReason::NotFaster), Order::Close(LINK)] = said[..] else {
        panic!("{said:?}")
    };
    download(&mut routes, now, 5_000_000, 300);
    assert_eq!(orders(&mut routes), []);
}

#[test]
fn a_comparison_without_a_link_changes_nothing() {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(ms(0), ends());
    routes.on_udp_received(ms(10), ends());
    let now = download(&mut routes, ms(10), 1_000_000, 5);
    assert!(!routes.on_link_failure(now, ends(), Failure::Answered), "the failure is not logged");
    assert_eq!(orders(&mut routes), [Order::Open(ends())]);
    download(&mut routes, now, 1_000_000, 60);
    assert_eq!(orders(&mut routes), []);
}

#[test]
fn datagrams_that_are_answered_open_no_link() {
    let mut routes = Routes::new(UdpUse::Preferred);
    for at in (0..60_000).step_by(100) {
        routes.sent(ms(at), ends());
        routes.on_udp_received(ms(at), ends());
        assert_eq!(routes.next_timeout(), None);
    }
}

#[test]
fn a_link_established_after_an_answer_is_closed() {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(ms(0), ends());
    assert_eq!(run(&mut routes, ms(2_000), false), opens(ms(500)));
    routes.on_udp_received(ms(540), ends());
    routes.on_link_opened(ms(620), ends(), LINK);
    assert_eq!(orders(&mut routes), [Order::Close(LINK)]);
    assert_eq!(routes.next_timeout(), None);
}

#[test]
fn a_server_that_answered_before_gets_a_longer_timeout() {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(ms(0), ends());
    routes.on_udp_received(ms(40), ends());
    routes.sent(ms(100), ends());
    routes.sent(ms(900), ends());
    assert_eq!(routes.next_timeout(), Some(ms(1_600)), "the oldest datagram counts");
}

/// Flows become quiet one after the other, each a second after its last packet: this must not cause one probe per flow.
#[test]
fn quiet_flows_together_probe_the_server_once_a_second() {
    let mut routes = Routes::new(UdpUse::Preferred);
    for at in 0..1_000 {
        routes.sent(ms(at), ends());
        routes.on_udp_received(ms(at), ends());
    }
    let mut asked = Vec::new();
    for at in 1_000..4_000 {
        if routes.is_quiet(ms(at), &ends()) {
            asked.push(at);
            routes.sent(ms(at), ends());
        }
        if asked.last() == Some(&(at - 40)) {
            routes.on_udp_received(ms(at), ends());
        }
    }
    assert_eq!(asked, [1_999, 3_039]);
    assert_eq!(routes.next_timeout(), None);
}

#[test]
fn no_flow_probes_while_an_answer_is_due() {
    let mut routes = Routes::new(UdpUse::Preferred);
    assert!(routes.is_quiet(ms(0), &ends()), "nothing is known");
    routes.sent(ms(0), ends());
    assert!(!routes.is_quiet(ms(100), &ends()));
    routes.on_udp_received(ms(200), ends());
    assert!(!routes.is_quiet(ms(1_199), &ends()));
    assert!(routes.is_quiet(ms(1_200), &ends()));
}

#[test]
fn link_attempts_on_a_dead_network_back_off_and_end() {
    let mut routes = Routes::new(UdpUse::Preferred);
    let mut opened = Vec::new();
    for second in 0..200 {
        let now = Instant::from_secs(second);
        if second < 100 {
            routes.sent(now, ends());
        }
        for (at, order) in run(&mut routes, now, false) {
            if order == Order::Probe(ends()) {
                continue;
            }
            assert_eq!(order, Order::Open(ends()));
            routes.on_link_failure(at, ends(), Failure::Unanswered);
            opened.push(at.as_millis() / 1_000);
        }
    }
    assert!((6..12).contains(&opened.len()), "{opened:?}");
    assert!(*opened.last().unwrap() <= 131, "no client waits: {opened:?}");
}

#[test]
fn unanswered_probes_become_rarer_and_the_link_stays_in_use() {
    let mut routes = on_link(ms(0));
    let log = run(&mut routes, Instant::from_secs(600), false);
    assert!(log.iter().all(|(_, order)| *order == Order::Probe(ends())));
    assert!((20..30).contains(&log.len()), "{}", log.len());
}

#[test]
fn answers_in_a_row_bring_datagrams_back() {
    let mut routes = on_link(ms(0));
    let log = run(&mut routes, Instant::from_secs(60), true);
    let [.., (_, Order::Probe(_)), (left, Order::Leave(..)), (_, Order::Close(LINK))] = log[..]
    else {
        panic!("{log:?}")
    };
    assert!(left >= ms(640) + MIN_STAY.first && left < ms(6_000), "{left:?}");
    assert_eq!(routes.next_timeout(), None);
}

#[test]
fn a_single_answer_does_not_end_the_use_of_a_link() {
    let mut routes = on_link(ms(0));
    for round in 0..50 {
        let Some(at) = routes.next_timeout() else { break };
        routes.on_timeout(at);
        assert_eq!(orders(&mut routes), [Order::Probe(ends())], "round {round}");
        routes.probes(ends(), round);
        if round % 3 != 0 {
            routes.on_link_answer(at, ends(), round);
        }
    }
}

#[test]
fn an_answer_to_another_probe_id_is_ignored() {
    let mut routes = on_link(ms(0));
    for round in 0..10 {
        let at = routes.next_timeout().unwrap();
        routes.on_timeout(at);
        routes.probes(ends(), round);
        routes.on_link_answer(at, ends(), round + 100);
    }
    assert!(orders(&mut routes).iter().all(|order| *order == Order::Probe(ends())));
}

#[test]
fn each_mistaken_return_lengthens_the_stay_on_the_link() {
    let mut routes = on_link(ms(0));
    let mut last = Duration::ZERO;
    let mut began = ms(640);
    for round in 0..5 {
        let log = run(&mut routes, began + Duration::from_secs(400), true);
        let left = log.iter().find(|(_, order)| matches!(order, Order::Leave(..))).unwrap().0;
        let stay = left.since(began);
        assert!(stay >= last, "round {round}: {stay:?} after {last:?}");
        last = stay;
        routes.sent(left + Duration::from_secs(1), ends());
        let log = run(&mut routes, left + Duration::from_secs(10), false);
        let opened = log[0].0;
        assert_eq!(log[0].1, Order::Open(ends()));
        routes.on_link_opened(opened, ends(), LINK);
        began = opened + *CONFIRMATION_TIME.start();
        expect_move_to_link(&mut routes, began);
    }
    assert!(last >= MIN_STAY.first * 8, "{last:?}");
}

#[test]
fn a_link_that_ends_is_replaced_immediately() {
    let mut routes = on_link(ms(0));
    routes.on_link_closed(ms(5_000), ends(), LINK);
    assert_eq!(orders(&mut routes), [Order::Leave(ends(), LeaveReason::LinkEnded)]);
    routes.sent(ms(5_001), ends());
    assert_eq!(run(&mut routes, ms(5_001), false), opens(ms(5_001)));
}

/// The path has failed. Its datagrams were not answered while it worked, so only a link detects its recovery.
#[test]
fn a_link_is_retried_at_a_constant_interval_where_datagrams_fail() {
    let mut routes = on_link(ms(0));
    routes.on_link_closed(ms(5_000), ends(), LINK);
    let mut tried = Vec::new();
    for _ in 0..6 {
        let now = tried.last().map_or(ms(5_000), |(_, at)| *at);
        routes.sent(now, ends());
        let log = run(&mut routes, now + Duration::from_secs(40), false);
        let opens = log.iter().find(|(_, order)| *order == Order::Open(ends())).unwrap().0;
        // In the meantime, the kernel has retransmitted its SYN.
        let ended = opens + Duration::from_secs(8);
        routes.on_link_failure(ended, ends(), Failure::Unanswered);
        tried.push((opens, ended));
    }
    assert!(tried.windows(2).all(|pair| pair[1].0 == pair[0].1), "{tried:?}");
}

#[test]
fn only_an_immediate_successor_learns_of_a_stalled_link() {
    let mut routes = on_link(ms(0));
    routes.on_stalled(ms(5_000), ends(), LINK + 1);
    assert!(!routes.take_stall(ms(5_000), &ends()), "another link");
    routes.on_stalled(ms(5_000), ends(), LINK);
    assert!(routes.take_stall(ms(5_001), &ends()) && !routes.take_stall(ms(5_001), &ends()));
    routes.on_stalled(ms(6_000), ends(), LINK);
    assert!(!routes.take_stall(ms(8_000), &ends()), "too late");
}

#[test]
fn a_network_error_opens_a_link_and_counts_if_that_fails() {
    let mut routes = Routes::new(UdpUse::Preferred);
    routes.sent(ms(0), ends());
    assert!(routes.refused(ms(1), ends()));
    assert_eq!(run(&mut routes, ms(1), false), opens(ms(0)));
    assert!(routes.refused(ms(2), ends()), "while the link is tried");
    assert!(routes.on_link_failure(ms(3), ends(), Failure::Answered), "news");
    assert!(!routes.refused(ms(4), ends()));
    assert!(!routes.on_link_failure(ms(5), ends(), Failure::Answered), "no longer new");
}

#[test]
fn only_a_refused_link_backs_off_without_datagrams() {
    let pauses = |failure: Failure| -> Vec<u64> {
        let mut routes = Routes::new(UdpUse::Never);
        let mut now = ms(0);
        let mut pause = |_| {
            routes.sent(now, ends());
            let opened = run(&mut routes, now + Duration::from_secs(40), false)[0].0;
            routes.on_link_failure(opened, ends(), failure);
            opened.since(core::mem::replace(&mut now, opened)).as_millis()
        };
        (0..6).map(&mut pause).map(|pause| pause as u64).collect()
    };
    assert_eq!(pauses(Failure::Unanswered), [0, 1_000, 1_000, 1_000, 1_000, 1_000]);
    assert_eq!(pauses(Failure::Answered), [0, 1_000, 2_000, 4_000, 8_000, 16_000]);
}

#[test]
fn without_datagrams_a_link_is_opened_immediately_and_never_left() {
    let mut routes = Routes::new(UdpUse::Never);
    routes.sent(ms(7), ends());
    assert_eq!(run(&mut routes, ms(7), false), [(ms(7), Order::Open(ends()))]);
    routes.on_link_opened(ms(9), ends(), LINK);
    assert_eq!(orders(&mut routes), [Order::Use(ends(), LINK)]);
    assert_eq!(routes.next_timeout(), None);
}

#[test]
fn datagram_only_clients_keep_no_routes() {
    let mut routes = Routes::new(UdpUse::Always);
    routes.sent(ms(0), ends());
    assert!(routes.routes.is_empty());
}

#[test]
fn the_table_is_bounded_and_a_removed_address_closes_its_link() {
    let mut routes = on_link(ms(0));
    for port in 0..1_000 {
        routes.sent(
            ms(u64::from(port) + 1_000),
            FlowEnds::new(ends().local, ([203, 0, 113, 7], port).into()),
        );
    }
    assert_eq!(routes.routes.len(), MAX_ROUTES);
    routes.forget(ends().local);
    assert_eq!(orders(&mut routes), [Order::Close(LINK)]);
    assert!(routes.routes.is_empty());
}
