use marline_policy::{Forecast, Health, Quantile, Rule, SubflowId, SubflowView, UnreachableCause};
use marline_testkit::views::{Stream, backup, drain, full, ms, send, view};

use marline_time::{Instant, Rate};

use super::*;

/// Builds a path with this answer time and 8 Mbit/s, which is 1,000 bytes per millisecond.
fn path(id: u8, answer_ms: u64) -> SubflowView {
    let rate = Some(Rate::from_mbit(8));
    let forecast =
        Forecast::with_quantiles([ms(answer_ms), ms(answer_ms), ms(answer_ms + 20)], 0.0, rate);
    SubflowView { forecast, delivery_rate: rate, ..view(id, answer_ms) }
}

/// Adds `troubles` episodes of trouble per second to a path.
fn risky(view: SubflowView, troubles: f32) -> SubflowView {
    let answer = |quantile| view.forecast.answer(quantile).unwrap();
    let answers = [answer(Quantile::P50), answer(Quantile::P90), answer(Quantile::P99)];
    SubflowView {
        forecast: Forecast::with_quantiles(answers, troubles, Some(Rate::from_mbit(8))),
        ..view
    }
}

fn overdue(view: SubflowView) -> SubflowView {
    SubflowView { overdue_at: Some(Instant::from_millis(900)), bytes_in_flight: 1_000, ..view }
}

fn next(auto: &mut Auto, stream: &Stream, paths: &[SubflowView]) -> Decision {
    auto.next_send(&stream.context(paths))
}

/// Creates a scheduler without a budget for copies.
fn without_copies() -> Auto {
    let budget = BudgetConfig { share: 0.0, rate: Rate::ZERO };
    Auto::new(AutoConfig { budget, ..AutoConfig::default() })
}

fn run(id: u8, start: u64, end: u64) -> Decision {
    let Decision::Send { subflow, range } = send(id, start, end) else { unreachable!() };
    Decision::SendRun { subflow, range }
}

#[test]
fn a_burst_is_split_where_the_other_path_is_as_early() {
    let (mut auto, mut stream) = (without_copies(), Stream::new(50_000));
    let mut paths = [path(0, 20), path(1, 40)];
    // Half of each round trip is the way back: 10 and 20 ms. In ten milliseconds, 10,000 bytes are delivered.
    assert_eq!(next(&mut auto, &stream, &paths), run(0, 0, 10_000));
    stream.apply(SubflowId(0), marline_testkit::views::range(0, 10_000));
    paths[0].forecast = paths[0].forecast.delayed_by(ms(11));
    assert!(matches!(
        next(&mut auto, &stream, &paths),
        Decision::SendRun { subflow: SubflowId(1), .. }
    ));
}

#[test]
fn data_waits_for_a_full_path_that_delivers_all_of_it_sooner() {
    let (mut auto, stream) = (without_copies(), Stream::new(2_000));
    let busy = SubflowView { bytes_in_flight: 1_000, ..full(path(0, 20)) };
    assert_eq!(next(&mut auto, &stream, &[busy, path(1, 200)]), Decision::Wait);
    // More data than the path delivers in that time does not wait, and no data waits for a path on which nothing is in
    // flight.
    let much = Stream::new(400_000);
    assert!(next(&mut auto, &much, &[busy, path(1, 200)]).data().is_some());
    let stuck = SubflowView { bytes_in_flight: 0, ..busy };
    assert!(next(&mut auto, &stream, &[stuck, path(1, 200)]).data().is_some());
}

#[test]
fn a_path_is_chosen_by_its_median_and_awaited_by_its_p90() {
    let spread = |id: u8, answers: [u64; 3]| {
        let rate = Some(Rate::from_mbit(8));
        let forecast = Forecast::with_quantiles(answers.map(ms), 0.0, rate);
        SubflowView { forecast, delivery_rate: rate, ..view(id, answers[0]) }
    };
    let (mut auto, stream) = (without_copies(), Stream::new(1_000));
    // One in ten answers on the first path takes longer than any answer on the second.
    let paths = [spread(0, [20, 90, 120]), spread(1, [44, 44, 44])];
    assert_eq!(next(&mut auto, &stream, &paths), run(0, 0, 1_000));
    // When full, this path may not deliver sooner; a steady one will, regardless of the spent budget.
    let busy = |view: SubflowView| full(SubflowView { bytes_in_flight: 50_000, ..view });
    let unsure = [busy(spread(0, [20, 90, 120])), spread(1, [44, 44, 44])];
    assert_eq!(next(&mut auto, &stream, &unsure), run(1, 0, 1_000));
    let steady = [busy(spread(0, [20, 22, 25])), spread(1, [44, 44, 44])];
    assert_eq!(next(&mut auto, &stream, &steady), Decision::Wait);
    assert_eq!(next(&mut Auto::default(), &stream, &steady), Decision::Wait);
}

#[test]
fn small_messages_are_copied_while_the_budget_lasts() {
    let (mut auto, mut stream) = (Auto::default(), Stream::new(500));
    let paths = [path(0, 20), path(1, 40)];
    let sent = drain(&mut auto, &mut stream, &paths);
    assert_eq!(sent, [(0, 0, 500), (1, 0, 500)]);
    let sent = drain(&mut without_copies(), &mut Stream::new(500), &paths);
    assert_eq!(sent[0], (0, 0, 500));
    // A path that has not been used for a long time is still explored.
    assert_eq!(sent[1..], [(1, 0, 500)]);
}

#[test]
fn a_spent_budget_ends_copies() {
    let mut auto = Auto::default();
    let stream = Stream { data_una: 0, ..Stream::new(1_000) };
    let fresh = |id| SubflowView { last_sent_at: Instant::from_secs(1), ..path(id, 20) };
    let paths = [fresh(0), fresh(1)];
    let mut context = stream.context(&paths);
    context.repeated = 1_000_000;
    auto.count(&context);
    let mut sent = Stream::new(1_000);
    sent.apply(SubflowId(0), marline_testkit::views::range(0, 1_000));
    let mut context = sent.context(&paths);
    context.repeated = 1_000_000;
    assert_eq!(auto.next_send(&context), Decision::Wait);
    context.now += Duration::from_secs(12);
    let late = paths.map(|view| SubflowView { last_sent_at: context.now, ..view });
    context.subflows = &late;
    assert_eq!(auto.next_send(&context), send(1, 0, 1_000));
}

#[test]
fn without_a_limit_copies_never_end() {
    let mut auto =
        Auto::new(AutoConfig { budget: BudgetConfig::UNLIMITED, ..AutoConfig::default() });
    let mut sent = Stream::new(1_000);
    sent.apply(SubflowId(0), marline_testkit::views::range(0, 1_000));
    let paths =
        [0, 1].map(|id| SubflowView { last_sent_at: Instant::from_secs(1), ..path(id, 20) });
    let mut context = sent.context(&paths);
    context.repeated = 1_000_000_000;
    assert_eq!(auto.next_send(&context), run(1, 0, 1_000));
    assert_eq!(auto.spending.spent, 0.0);
}

#[test]
fn the_only_copy_is_not_put_on_a_path_in_trouble() {
    let (mut auto, stream) = (without_copies(), Stream::new(1_000));
    let troubled = risky(path(0, 20), 10.0);
    assert!(matches!(
        next(&mut auto, &stream, &[troubled, path(1, 24)]),
        Decision::SendRun { subflow: SubflowId(1), .. }
    ));
    // That path is better than nothing.
    assert!(next(&mut auto, &stream, &[troubled]).data().is_some());
}

#[test]
fn data_sent_on_an_overdue_path_is_copied_immediately() {
    let mut stream = Stream::new(1_000);
    let paths = [overdue(path(0, 20)), path(1, 300)];
    let sent = drain(&mut Auto::default(), &mut stream, &paths);
    assert_eq!(sent, [(0, 0, 1000), (1, 0, 1000)]);
}

#[test]
fn data_on_an_overdue_path_is_copied_before_new_data() {
    let (mut auto, mut stream) = (Auto::default(), Stream::new(100_000));
    stream.window = 20_000;
    while stream.sent() < 20_000 {
        let rest = marline_testkit::views::range(stream.sent(), 20_000);
        stream.apply(SubflowId(0), rest);
    }
    let decision = next(&mut auto, &stream, &[overdue(path(0, 20)), path(1, 300)]);
    assert!(
        matches!(decision, Decision::SendRun { subflow: SubflowId(1), range } if range.start == Dsn(0))
    );
    // A healthy path's data is not copied.
    let fresh = SubflowView { last_sent_at: Instant::from_secs(1), ..path(1, 300) };
    assert_eq!(next(&mut auto, &stream, &[path(0, 20), fresh]), Decision::Wait);
}

#[test]
fn backups_carry_no_copies_and_a_silent_path_is_not_chosen() {
    let mut stream = Stream::new(500);
    let sent = drain(&mut Auto::default(), &mut stream, &[path(0, 20), backup(path(1, 40))]);
    assert_eq!(sent, [(0, 0, 500)]);
    let cause = UnreachableCause::ProbeTimeout;
    let silent =
        SubflowView { health: Health::Unreachable { since: Instant::ZERO, cause }, ..path(0, 20) };
    let mut stream = Stream::new(500);
    let sent = drain(&mut Auto::default(), &mut stream, &[silent, path(1, 40)]);
    assert_eq!(sent, [(1, 0, 500)]);
}

#[test]
fn paths_without_a_forecast_are_still_used() {
    let unknown = |id| SubflowView {
        srtt: None,
        min_rtt: None,
        forecast: Forecast::default(),
        ..view(id, 1)
    };
    let mut stream = Stream::new(5_000);
    let sent = drain(&mut Auto::default(), &mut stream, &[unknown(0), unknown(1)]);
    assert!(sent.iter().any(|(_, start, _)| *start == 0) && stream.unsent().is_empty(), "{sent:?}");
}

/// Returns the next decision and its reason, checked against the logged line.
fn decide_with_reason(
    auto: &mut Auto,
    stream: &Stream,
    paths: &[SubflowView],
) -> (Decision, Reason) {
    let mut reasons = Vec::new();
    let decision = auto.explain_send(&stream.context(paths), &mut reasons);
    let [reason] = &reasons[..] else { panic!("one decision, {} reasons", reasons.len()) };
    let read = Reason::parse(&reason.record()).expect("the logged line");
    assert_eq!(&read, reason);
    assert_eq!(Auto::recompute(&read.question, &read.inputs).as_ref(), Some(reason));
    (decision, read)
}

#[test]
fn a_reason_holds_the_inputs_of_its_decision() {
    let mut stream = Stream::new(1_000);
    let paths = [overdue(path(0, 20)), path(1, 300)];
    let (mut auto, mut silent) = (Auto::default(), Auto::default());
    let mut rules = Vec::new();
    loop {
        let (decision, reason) = decide_with_reason(&mut auto, &stream, &paths);
        assert_eq!(
            decision,
            next(&mut silent, &stream, &paths),
            "recording reasons changes nothing"
        );
        rules.push(reason.grounds.rule);
        let Some((subflow, range)) = decision.data() else { break };
        stream.apply(subflow, range);
    }
    assert_eq!(rules[..3], [Rule::First, Rule::Late, Rule::Nothing]);
    // Other inputs would lead to another decision.
    let (_, mut reason) = decide_with_reason(&mut auto, &Stream::new(1_000), &paths);
    let first = reason.grounds.path;
    reason.inputs.paths.reverse();
    reason.inputs.paths[0].forecast = path(1, 2).forecast;
    let other = Auto::recompute(&reason.question, &reason.inputs).expect("a decision");
    assert_ne!(other.grounds.path, first);
}

#[test]
fn reinjected_data_has_a_reason_too() {
    let mut stream = Stream::new(20_000);
    stream.window = 2_000;
    stream.apply(SubflowId(1), marline_testkit::views::range(0, 1_000));
    stream.apply(SubflowId(1), marline_testkit::views::range(1_000, 2_000));
    let paths = [path(0, 20), SubflowView { bytes_in_flight: 2_000, ..path(1, 300) }];
    let (mut actions, mut reasons) = (Vec::new(), Vec::new());
    let event = SchedulerEvent::PeerWindowBlocked { picked: SubflowId(0) };
    let mut auto = Auto::default();
    auto.explain_event(event, &stream.context(&paths), &mut actions, &mut reasons);
    assert_eq!((reasons.len(), reasons[0].grounds.rule), (1, Rule::Unblock));
    assert_eq!(reasons[0].more_ranges, [marline_testkit::views::range(1_000, 2_000)]);
    let item = Reinjection {
        range: marline_testkit::views::range(0, 1_000),
        carried_by: marline_testkit::views::set(&[1]),
        cause: marline_policy::ReinjectionCause::SubflowRto,
        since: Instant::from_millis(900),
    };
    let decision = auto.explain_reinjection(&item, &stream.context(&paths), &mut reasons);
    assert_eq!(decision, send(0, 0, 1_000));
    let item = Reinjection { carried_by: marline_testkit::views::set(&[0, 1]), ..item };
    auto.explain_reinjection(&item, &stream.context(&paths), &mut reasons);
    assert_eq!(reasons[2].grounds.rule, Rule::RescueWaits);
    for reason in &reasons {
        let read = Reason::parse(&reason.record()).expect("the logged line");
        assert_eq!(Auto::recompute(&read.question, &read.inputs).as_ref(), Some(reason));
    }
    // An event without a request has no reason.
    reasons.clear();
    auto.explain_event(
        SchedulerEvent::SendBufferBlocked,
        &stream.context(&paths[..1]),
        &mut actions,
        &mut reasons,
    );
    assert_eq!(reasons, []);
}

#[test]
fn delivered_data_is_not_copied() {
    let mut stream = Stream::new(4_000);
    for (id, start) in [(0, 0), (0, 1_000), (0, 2_000), (0, 3_000)] {
        let segment = marline_testkit::views::range(start, start + 1_000);
        assert_eq!(stream.apply(SubflowId(id), segment), segment);
    }
    let paths = [full(overdue(path(0, 200))), path(1, 40)];
    let first_copy = |stream: &Stream| next(&mut Auto::default(), stream, &paths).data().unwrap().1;
    // The oldest missing data blocks all the rest.
    assert_eq!(first_copy(&stream).start.0, 0);
    stream.deliver(marline_testkit::views::range(0, 1_000));
    assert_eq!(first_copy(&stream), marline_testkit::views::range(1_000, 2_000));
    // From the end backward, copies are made similarly while nothing is late. A recently used path is not explored.
    let used = SubflowView { last_sent_at: Instant::from_millis(1_000), ..path(1, 40) };
    let calm = [full(path(0, 200)), used];
    let copy = || next(&mut Auto::default(), &stream, &calm).data().unwrap().1;
    assert_eq!(copy(), marline_testkit::views::range(3_000, 4_000));
    stream.deliver(marline_testkit::views::range(3_000, 4_000));
    let copy = || next(&mut Auto::default(), &stream, &calm).data().unwrap().1;
    assert_eq!(copy(), marline_testkit::views::range(2_000, 3_000));
    stream.deliver(marline_testkit::views::range(1_000, 3_000));
    assert_eq!(next(&mut Auto::default(), &stream, &calm).data(), None);
}

#[test]
fn an_unmeasured_path_is_tried_beside_a_full_one() {
    // A second subflow has just joined one that has work to do.
    let stream = Stream { window: 20_000, ..Stream::new(50_000) };
    let busy = SubflowView { bytes_in_flight: 10_000, ..full(path(0, 20)) };
    let unknown =
        SubflowView { bytes_in_flight: 3_000, forecast: Forecast::default(), ..path(1, 40) };
    // It is unknown whether the new subflow would block the other, so it is tried.
    let decision = next(&mut without_copies(), &stream, &[busy, unknown]);
    assert_eq!(decision.data().map(|(subflow, _)| subflow), Some(SubflowId(1)));
}

#[test]
fn the_capacity_of_limited_metered_and_backup_paths_is_not_free() {
    let stream = Stream::new(0);
    let capacity = |second| free_capacity(&stream.context(&[path(0, 20), second]));
    assert_eq!(capacity(path(1, 40)), Rate::from_mbit(16));
    let costly = [
        SubflowView { limited: true, ..path(1, 40) },
        SubflowView { metered: true, ..path(1, 40) },
        backup(path(1, 40)),
    ];
    for second in costly {
        assert_eq!(capacity(second), Rate::from_mbit(8));
    }
}

#[test]
fn the_end_of_a_short_message_is_repeated_on_its_path_if_that_is_free_and_lost_something() {
    let now = Stream::new(1).context(&[]).now;
    let decide = |change: fn(SubflowView) -> SubflowView, bytes: u64| {
        let mut stream = Stream::new(bytes);
        for id in 0..2 {
            stream.apply(SubflowId(id), marline_testkit::views::range(0, bytes));
        }
        let sent = |view| SubflowView {
            last_sent_at: now - ms(5),
            newest_sent_at: Some(now - ms(5)),
            bytes_in_flight: bytes,
            ..view
        };
        let other = SubflowView { newest_sent_at: None, ..sent(path(1, 200)) };
        next(&mut Auto::default(), &stream, &[change(sent(risky(path(0, 20), 0.1))), other])
    };
    let repeat = Decision::RepeatNewest { subflow: SubflowId(0) };
    assert_eq!(decide(|view| view, 500), repeat);
    // A quarter of a round trip has not passed; there are no losses; the path is limited; or it is a burst.
    let waits =
        decide(|view| SubflowView { newest_sent_at: Some(view.last_sent_at + ms(2)), ..view }, 500);
    assert_eq!(waits, Decision::WaitUntil(now + ms(2)));
    assert_ne!(decide(|view| SubflowView { forecast: path(0, 20).forecast, ..view }, 500), repeat);
    assert_ne!(decide(|view| SubflowView { limited: true, ..view }, 500), repeat);
    assert_ne!(decide(|view| SubflowView { metered: true, ..view }, 500), repeat);
    assert_ne!(decide(|view| view, 50_000), repeat);
}

#[test]
fn the_little_data_of_a_very_slow_path_is_copied_before_new_data() {
    let slow = |answer_ms: u64, held: u64| SubflowView {
        overdue_at: Some(Instant::from_millis(900 + answer_ms)),
        bytes_in_flight: held,
        ..path(1, answer_ms)
    };
    let decide = |answer_ms, held| {
        let mut stream = Stream::new(900_000);
        stream.apply(SubflowId(1), marline_testkit::views::range(0, held));
        let mut auto = Auto::default();
        auto.next_send(&stream.context(&[path(0, 20), slow(answer_ms, held)]))
    };
    // 10,000 bytes take ten milliseconds on the fast path, and a copy saves a second.
    assert_eq!(decide(4_000, 10_000), run(0, 0, 1_000));
    // 500,000 bytes would take too much of the fast path's capacity, and a tenth of a second saved is too little.
    assert_ne!(decide(4_000, 500_000), run(0, 0, 1_000));
    assert_ne!(decide(200, 10_000), run(0, 0, 1_000));
}
