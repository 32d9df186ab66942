//! Reasons in words, and as lines that can be parsed.

use marline_policy::{
    BadRecord, BudgetState, Decision, Dsn, Forecast, Forecaster, Grounds, Inputs, Question, Reason,
    Reinjection, ReinjectionCause, RepairsDue, Rule, SchedulerContext, SubflowId, SubflowView,
    Terms,
};
use marline_testkit::views::{
    self, MSS, Stream, degraded, full, ms, paced, range, send, set, view,
};
use marline_time::{Instant, Rate};

const WIFI: SubflowId = SubflowId(0);
const LTE: SubflowId = SubflowId(1);

fn name(id: SubflowId) -> String {
    if id == WIFI { "wifi".to_owned() } else { "lte".to_owned() }
}

/// A reason for this decision between two paths, for these grounds.
fn reason(decision: Decision, grounds: Grounds) -> Reason {
    let paths = [view(0, 20), view(1, 40)];
    let (stream, spending) =
        (Stream::new(5_000), BudgetState { spent: 0.36, ..BudgetState::default() });
    let ((), inputs) = Inputs::record(&stream.context(&paths), &spending, |_| ());
    Reason { question: Question::Next, decision, more_ranges: Vec::new(), grounds, inputs }
}

fn words(decision: Decision, grounds: Grounds) -> String {
    reason(decision, grounds).text(&name)
}

const fn by(rule: Rule, path: SubflowId) -> Grounds {
    Grounds { path: Some(path), ..Grounds::without_times(rule) }
}

#[test]
fn the_text_of_new_data_names_the_path_of_first_arrival() {
    let run = Decision::SendRun { subflow: WIFI, range: range(0, 14_000) };
    let first = Grounds { arrives_us: Some(31_400), ..by(Rule::First, WIFI) };
    assert_eq!(
        words(run, Grounds { other: Some(LTE), other_us: Some(1_250_000), ..first }),
        "14 kB of new data on wifi, where it arrives within 31 ms; on lte it would be 1.2 s"
    );
    assert_eq!(
        words(run, first),
        "14 kB of new data on wifi, where it arrives within 31 ms; no other path has room"
    );
    let unknown = Grounds { arrives_us: Some(u64::MAX), ..first };
    assert_eq!(
        words(run, Grounds { other: Some(LTE), other_us: Some(u64::MAX), ..unknown }),
        "14 kB of new data on wifi, which has no forecast yet; lte has no forecast yet"
    );
    let mut alone = reason(run, first);
    alone.inputs.paths.pop();
    assert!(alone.text(&name).ends_with("; there is no other path"));
    assert_eq!(
        words(run, by(Rule::LastReceived, WIFI)),
        "14 kB of new data on wifi: every path is in trouble, and this one received data most recently"
    );
}

#[test]
fn the_text_of_a_wait_names_its_cause() {
    let waits = |grounds| words(Decision::Wait, grounds);
    let judged = Grounds { arrives_us: Some(80_000), ..by(Rule::FullPathFaster, LTE) };
    assert_eq!(
        waits(Grounds { other: Some(WIFI), other_us: Some(30_000), ..judged }),
        "new data waits for wifi, which is full now but delivers all of it within 30 ms; on lte a segment \
         would take 80 ms"
    );
    assert_eq!(
        waits(Grounds { rule: Rule::WouldBlock, ..judged }),
        "new data waits: lte would deliver it within 80 ms, but faster paths would have to wait for it, because the \
         window or buffer would be full"
    );
    assert_eq!(waits(Grounds::without_times(Rule::NoRoom)), "new data waits: no path has room");
    assert_eq!(waits(Grounds::without_times(Rule::NoPath)), "nothing is sent: no path can send");
    assert_eq!(
        waits(Grounds::without_times(Rule::Nothing)),
        "there is no data to send, and none worth a copy"
    );
    let later = Decision::WaitUntil(Instant::from_millis(1_012));
    assert_eq!(
        words(later, Grounds::without_times(Rule::Recheck)),
        "no copy is worth its cost yet; next check in 12 ms"
    );
}

#[test]
fn the_text_of_a_copy_names_savings_and_limit() {
    let copy = Decision::SendRun { subflow: LTE, range: range(0, 14_000) };
    let grounds = Grounds {
        other: Some(WIFI),
        arrives_us: Some(45_000),
        other_us: Some(31_000),
        other_late_us: Some(84_000),
        gain_us: Some(12_000),
        price_us: Some(3_210),
        ..by(Rule::Late, LTE)
    };
    assert_eq!(
        words(copy, grounds),
        "copy of 14 kB on lte: wifi's answer is due in 31 ms (p90 84 ms); a copy arrives in 45 ms and is expected to \
         save 12 ms, at a cost of 3.2 ms; 36% of the budget spent"
    );
    let late = Grounds { other_us: Some(0), other_late_us: Some(0), price_us: None, ..grounds };
    let mut free = reason(send(1, 4_500, 5_000), Grounds { rule: Rule::End, ..late });
    free.inputs.spending.unlimited = true;
    assert_eq!(
        free.text(&name),
        "copy of the last 500 bytes on lte: wifi's answer is late; a copy arrives in 45 ms and is expected to \
         save 12 ms; the budget has no limit"
    );
    let due = Grounds { other_us: Some(0), ..grounds };
    assert!(words(copy, due).contains("wifi's answer is due (p90 in 84 ms)"));
    let not_late = Grounds { other_us: None, other_late_us: None, ..grounds };
    assert!(words(copy, not_late).contains(": wifi is not late; a copy"));
    let mut unknown = reason(copy, not_late);
    unknown.inputs.paths[0].forecast = Forecast::default();
    assert!(unknown.text(&name).contains(": wifi has no forecast yet; a copy"));
    assert_eq!(
        words(send(1, 0, 500), by(Rule::Explore, LTE)),
        "copy of 500 bytes on lte to measure that path, which has carried nothing for 1.0 s"
    );
}

#[test]
fn the_text_of_a_reinjection_names_its_cause() {
    let item = Reinjection {
        range: range(0, 1_400),
        carried_by: set(&[0]),
        cause: ReinjectionCause::UnansweredProbe,
        since: Instant::ZERO,
    };
    let again =
        |decision, grounds| Reason { question: Question::Again(item), ..reason(decision, grounds) };
    let rescue = again(send(1, 0, 1_400), by(Rule::Rescue, LTE));
    assert_eq!(
        rescue.text(&name),
        "reinjection of 1.4 kB on lte: a probe on wifi was not answered"
    );
    let waits = again(Decision::Wait, by(Rule::RescueWaits, LTE));
    assert_eq!(
        waits.text(&name),
        "reinjection of 1.4 kB (a probe on wifi was not answered) waits: lte already carries it"
    );
    let unblock = Grounds { other: Some(LTE), ..by(Rule::Unblock, WIFI) };
    let mut blocked = reason(send(0, 0, 1_000), unblock);
    blocked.question = Question::WindowBlocked(WIFI);
    blocked.more_ranges = vec![range(1_000, 2_000)];
    assert_eq!(
        blocked.text(&name),
        "reinjection of 2.0 kB on wifi: the peer's window is full, and lte holds the oldest missing data"
    );
}

#[test]
fn the_text_of_a_spared_path_names_the_time_lost() {
    let mut spared = reason(
        Decision::SendRun { subflow: WIFI, range: range(0, 300) },
        Grounds {
            other: Some(LTE),
            arrives_us: Some(70_000),
            other_us: Some(30_000),
            ..by(Rule::Spared, WIFI)
        },
    );
    spared.inputs.paths[1].metered = true;
    assert_eq!(
        spared.text(&name),
        "300 bytes of new data on wifi, where it arrives within 70 ms; lte would take 30 ms for a \
         segment, but is metered"
    );
    spared.decision = Decision::Wait;
    (spared.inputs.paths[1].metered, spared.inputs.paths[1].wake_share) = (false, 1.0);
    assert_eq!(
        spared.text(&name),
        "new data waits for wifi, which delivers all of it within 70 ms; lte would take 30 ms for a segment, \
         but has a radio that sleeps"
    );
    let sum = Decision::Repair { subflow: LTE, range: range(0, 28_000) };
    let repair = reason(sum, Grounds { other: Some(WIFI), ..by(Rule::Repair, LTE) });
    assert_eq!(
        repair.text(&name),
        "repair of 28 kB on lte: it replaces any one of these segments that wifi loses; 36% of the budget spent"
    );
    let mut copy = reason(send(1, 0, 1_000), by(Rule::Explore, LTE));
    copy.grounds.rule = Rule::End;
    copy.inputs.spending.path_budgets = vec![(LTE, 0.5)];
    let text = copy.text(&name);
    assert!(
        text.ends_with("36% of the budget spent, and 50% of what may be copied to lte"),
        "{text}"
    );
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let mut stream = Stream { window: 9_000, repairs: true, ..Stream::new(20_000) };
    stream.apply(WIFI, range(0, 1_000));
    let mut learned = Forecaster::default();
    for number in 1..40_u64 {
        let (sent_at, rtt) = (Instant::from_millis(50 * number), ms(20 + number * 7 % 13));
        let expected = learned.on_sent(sent_at, 1_000);
        learned.on_answer(sent_at + rtt, rtt, ms(0), &expected);
        learned.on_lost(sent_at + rtt);
    }
    let forecast = learned.forecast(stream.context(&[]).now).delayed_by(ms(3));
    let unknown = SubflowView {
        srtt: None,
        min_rtt: None,
        forecast: Forecast::default(),
        ..paced(view(3, 1), 77)
    };
    let paths = [
        SubflowView { forecast, overdue_at: Some(Instant::from_nanos(5)), ..full(view(0, 20)) },
        SubflowView {
            delivery_rate: Some(Rate::from_mbit(3)),
            metered: true,
            wake_share: 1.0 / 3.0,
            ssthresh: 77_000,
            ..degraded(view(1, 40))
        },
        views::gone(views::unreachable(views::backup(view(2, 40)), 7)),
        unknown,
    ];
    let terms = Terms { patience: ms(100), metered_rate: Rate::from_mbit(1), wake: ms(7) };
    let repairs_due = Some(RepairsDue { range: range(3, 9), count: 2 });
    let spending = BudgetState {
        spent: 1.0 / 3.0,
        path_budgets: vec![(LTE, 2.0 / 3.0), (SubflowId(3), f32::INFINITY)],
        terms,
        repairs_due,
        ..BudgetState::default()
    };
    let ask = |cx: &SchedulerContext<'_>| {
        let index = cx.mappings;
        let next = [index.next_not_on(LTE, Dsn(0)), index.next_not_on(LTE, Dsn(1_000))];
        (
            index.oldest(),
            index.newest(),
            next,
            index.last_not_on(WIFI, cx.written),
            index.mapping_at(Dsn(5)),
        )
    };
    let (answers, inputs) = Inputs::record(&stream.context(&paths), &spending, ask);
    let grounds = Grounds { other: Some(LTE), gain_us: Some(5), ..by(Rule::Late, WIFI) };
    let item = Reinjection {
        range: range(0, 1_000),
        carried_by: set(&[0, 31]),
        cause: ReinjectionCause::DataRto,
        since: Instant::from_nanos(123),
    };
    let mut reason =
        Reason { question: Question::Again(item), inputs, ..reason(send(1, 0, 1_000), grounds) };
    reason.more_ranges = vec![range(1, 2), range(4, 9)];
    let read = Reason::parse(&reason.record()).expect("what was written");
    assert_eq!(read, reason);
    assert_eq!(read.inputs.replay(ask), answers);
    assert!(answers.0.is_some() && !read.record().contains('\n'));
    reason.inputs.spending.spent = f32::INFINITY;
    for decision in [Decision::Wait, Decision::WaitUntil(Instant::from_nanos(9))] {
        reason.decision = decision;
        assert_eq!(Reason::parse(&reason.record()), Ok(reason.clone()));
    }
    // A query that was not recorded has no answer, even if the data existed.
    assert_eq!(read.inputs.replay(|cx| cx.mappings.mapping_at(Dsn(6))), None);
    assert_eq!(read.inputs.path(WIFI).map(|path| path.mss), Some(MSS));
}

#[test]
fn an_invalid_record_is_refused_with_the_wrong_field() {
    let line = reason(send(0, 0, 1_000), by(Rule::First, WIFI)).record();
    assert!(Reason::parse(&line).is_ok());
    assert!(Reason::parse(&format!("version=9 {line}")).is_ok(), "what is newer is ignored");
    let broken = |from: &str, to: &str| Reason::parse(&line.replace(from, to)).map(|_| ());
    assert_eq!(broken("rule=first", "rule=whim"), Err(BadRecord("rule")));
    assert_eq!(broken("spent=0.36", "spent=NaN"), Err(BadRecord("spent")));
    assert_eq!(broken("decision=send:0:", "decision=send:32:"), Err(BadRecord("decision")));
    assert_eq!(broken("id=1", "it=1"), Err(BadRecord("id")));
    assert_eq!(Reason::parse(""), Err(BadRecord("now_ns")));
    let error = Reason::parse("").expect_err("empty").to_string();
    assert_eq!(error, "cannot parse the decision record: field `now_ns` is missing or invalid");
}
