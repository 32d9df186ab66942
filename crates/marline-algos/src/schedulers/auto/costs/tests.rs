use marline_policy::{
    BudgetState, Decision, Forecast, Rule, Scheduler, SchedulerContext, SubflowId, SubflowView,
    Terms,
};
use marline_testkit::views::{Stream, backup, full, ms, range, set, unreachable, view};
use marline_time::{Instant, Rate};

use crate::schedulers::auto::judge::{Decider, Verdict};
use crate::schedulers::auto::{Auto, AutoConfig, BudgetConfig};

const WIFI: SubflowId = SubflowId(0);
const LTE: SubflowId = SubflowId(1);

/// Builds a path with this answer time and 8 Mbit/s that was just used.
fn path(id: SubflowId, answer_ms: u64) -> SubflowView {
    let rate = Some(Rate::from_mbit(8));
    let forecast =
        Forecast::with_quantiles([ms(answer_ms), ms(answer_ms), ms(answer_ms + 20)], 0.0, rate);
    let last_sent_at = Instant::from_millis(990);
    SubflowView { forecast, delivery_rate: rate, last_sent_at, ..view(id.0, answer_ms) }
}

fn metered(view: SubflowView) -> SubflowView {
    SubflowView { metered: true, ..view }
}

fn asleep(view: SubflowView) -> SubflowView {
    SubflowView { wake_share: 1.0, last_sent_at: Instant::ZERO, ..view }
}

/// Makes the answer of a path with data in flight overdue by `since_ms` beyond the p99.
fn overdue(view: SubflowView, since_ms: u64) -> SubflowView {
    let overdue_at = Some(Instant::from_millis(1_000 - since_ms));
    SubflowView { overdue_at, bytes_in_flight: 1_000, ..view }
}

fn spending() -> BudgetState {
    BudgetState { terms: AutoConfig::default().terms, ..BudgetState::default() }
}

fn decide(spending: &BudgetState, stream: &Stream, paths: &[SubflowView]) -> Verdict {
    Decider(spending).decide(&stream.context(paths))
}

/// Returns the path chosen for new data, and the rule.
fn placed(bytes: u64, paths: &[SubflowView]) -> (Option<SubflowId>, Rule) {
    let verdict = decide(&spending(), &Stream::new(bytes), paths);
    (verdict.decision.data().map(|(id, _)| id), verdict.rule)
}

#[test]
fn a_metered_path_gets_new_data_only_if_the_others_are_too_slow() {
    let lte = metered(path(LTE, 20));
    // Data would arrive 40 ms earlier.
    assert_eq!(placed(300, &[path(WIFI, 100), lte]), (Some(WIFI), Rule::Spared));
    assert_eq!(placed(300, &[path(WIFI, 15), lte]), (Some(WIFI), Rule::First));
    // Half of 300 ms minus half of 20 ms exceeds `patience`.
    assert_eq!(placed(300, &[path(WIFI, 300), lte]), (Some(LTE), Rule::First));
    // Data waits for a full path while it answers.
    let busy = SubflowView { bytes_in_flight: 50_000, ..full(path(WIFI, 40)) };
    assert_eq!(placed(300, &[busy, lte]), (None, Rule::Spared));
    assert_eq!(placed(300, &[overdue(busy, 200), lte]), (Some(LTE), Rule::First));
    let stuck = SubflowView { bytes_in_flight: 0, ..busy };
    assert_eq!(placed(300, &[stuck, lte]), (Some(LTE), Rule::First));
    assert_eq!(placed(300, &[unreachable(path(WIFI, 40), 500), lte]), (Some(LTE), Rule::First));
}

#[test]
fn bulk_uses_a_metered_path_only_if_the_other_is_slower_than_its_rate() {
    let slow = |kbit: u64| {
        let rate = Some(Rate::from_bits_per_s(kbit * 1_000));
        let forecast = Forecast::with_quantiles([ms(40), ms(40), ms(60)], 0.0, rate);
        let busy = SubflowView { bytes_in_flight: 20_000, cwnd: kbit * 5, ..path(WIFI, 40) };
        full(SubflowView { forecast, delivery_rate: rate, ..busy })
    };
    let lte = metered(path(LTE, 20));
    assert_eq!(placed(3_000_000, &[slow(8_000), lte]), (None, Rule::Spared));
    assert_eq!(placed(3_000_000, &[slow(500), lte]).0, Some(LTE));
    // Even if no rate limits the cost.
    let dear = Terms { metered_rate: Rate::ZERO, ..spending().terms };
    let spending = BudgetState { terms: dear, ..spending() };
    let verdict = decide(&spending, &Stream::new(3_000_000), &[slow(500), lte]);
    assert_eq!((verdict.decision, verdict.rule), (Decision::Wait, Rule::Spared));
}

#[test]
fn a_radio_sleeps_unless_much_is_to_be_saved() {
    let lte = asleep(path(LTE, 20));
    assert_eq!(placed(300, &[path(WIFI, 300), lte]), (Some(WIFI), Rule::Spared));
    // While the radio is awake, a packet costs almost nothing.
    let awake = SubflowView { wake_share: 0.01, ..lte };
    assert_eq!(placed(300, &[path(WIFI, 300), awake]), (Some(LTE), Rule::First));
    // 200 kB take 200 ms, 4 MB take four seconds.
    let busy = SubflowView { bytes_in_flight: 50_000, ..full(path(WIFI, 40)) };
    assert_eq!(placed(200_000, &[busy, lte]), (None, Rule::Spared));
    assert_eq!(placed(4_000_000, &[busy, lte]).0, Some(LTE));
    // Of two costly paths, the cheaper one is used.
    assert_eq!(placed(300, &[asleep(path(WIFI, 90)), metered(lte)]).0, Some(WIFI));
}

/// Returns the copy made of a segment that `WIFI` carries.
fn copied(spending: &BudgetState, paths: &[SubflowView]) -> Option<(SubflowId, Rule)> {
    let mut stream = Stream::new(1_000);
    stream.apply(WIFI, range(0, 1_000));
    let verdict = decide(spending, &stream, paths);
    verdict.decision.data().map(|(id, _)| (id, verdict.rule))
}

#[test]
fn copies_on_a_metered_path_use_its_own_budget_too() {
    let paths = [path(WIFI, 100), metered(path(LTE, 20))];
    let with = |spent| BudgetState { path_budgets: vec![(LTE, spent)], ..spending() };
    assert_eq!(copied(&with(0.0), &paths), Some((LTE, Rule::End)));
    assert_eq!(copied(&with(1.0), &paths), None);
    // Late data may spend up to twice the budget, even if the common budget is unlimited.
    let late = [overdue(path(WIFI, 100), 300), paths[1]];
    assert_eq!(copied(&with(1.1), &late), Some((LTE, Rule::Late)));
    assert_eq!(copied(&with(2.0), &late), None);
    assert_eq!(copied(&BudgetState { unlimited: true, ..with(2.0) }, &late), None);
    assert_eq!(
        copied(&BudgetState { unlimited: true, ..with(0.9) }, &paths),
        Some((LTE, Rule::End))
    );
    // Another path's budget does not matter.
    assert!(
        copied(&BudgetState { path_budgets: vec![(WIFI, 2.0)], ..spending() }, &paths).is_some()
    );
}

#[test]
fn a_sleeping_radio_is_woken_for_a_dying_path_but_not_to_explore() {
    let lte = asleep(path(LTE, 20));
    assert_eq!(copied(&spending(), &[path(WIFI, 100), lte]), None);
    assert_eq!(copied(&spending(), &[overdue(path(WIFI, 100), 20), lte]), None);
    let cheap = Terms { wake: ms(100), ..spending().terms };
    let cheap = BudgetState { terms: cheap, ..spending() };
    assert_eq!(copied(&cheap, &[overdue(path(WIFI, 40), 20), lte]), None);
    let dying = overdue(path(WIFI, 40), 900);
    assert_eq!(copied(&cheap, &[dying, lte]), Some((LTE, Rule::Late)));
    // With an unlimited budget, sleeping radios do not matter.
    let unlimited = BudgetState { unlimited: true, ..spending() };
    assert_eq!(copied(&unlimited, &[path(WIFI, 100), lte]), Some((LTE, Rule::Late)));
    // A free path is explored with a copy that saves no time. A path whose radio dozes is not.
    let unused = SubflowView { last_sent_at: Instant::ZERO, ..path(LTE, 400) };
    let spent = BudgetState { spent: 0.9, ..spending() };
    let explored = |view| copied(&spent, &[path(WIFI, 20), view]);
    assert_eq!(explored(unused), Some((LTE, Rule::Explore)));
    assert_eq!(explored(SubflowView { wake_share: 0.1, ..unused }), None);
    // A metered path is explored rarely, and only while most of its budget is left.
    assert_eq!(explored(metered(unused)), None);
    let late = |spending: &BudgetState| {
        let wifi = SubflowView { last_sent_at: Instant::from_millis(3_090), ..path(WIFI, 20) };
        let (mut stream, paths) = (Stream::new(1_000), [wifi, metered(unused)]);
        stream.apply(WIFI, range(0, 1_000));
        let mut cx = stream.context(&paths);
        cx.now = Instant::from_millis(3_100);
        Decider(spending).decide(&cx).rule
    };
    assert_eq!(late(&spent), Rule::Explore);
    assert_ne!(
        late(&BudgetState { path_budgets: vec![(LTE, 0.6)], ..spent.clone() }),
        Rule::Explore
    );
}

#[test]
fn backups_have_budgets_if_there_is_no_regular_path() {
    let paths = [backup(path(WIFI, 100)), backup(path(LTE, 20))];
    let with = |spent| BudgetState { path_budgets: vec![(LTE, spent)], ..spending() };
    assert_eq!(copied(&with(0.2), &paths), Some((LTE, Rule::End)));
    assert_eq!(copied(&with(1.0), &paths), None);
    // While there is a regular path, backups carry nothing.
    assert_eq!(copied(&with(0.0), &[path(WIFI, 100), paths[1]]), None);
}

#[test]
fn blocked_data_is_not_repeated_on_a_path_that_costs_too_much() {
    let mut stream = Stream { window: 3_000, ..Stream::new(9_000) };
    (0..3).for_each(|segment| {
        stream.apply(WIFI, range(segment * 1_000, segment * 1_000 + 1_000));
    });
    let slow = SubflowView { cwnd: 4_000, ..full(path(WIFI, 300)) };
    let repeats = |lte: SubflowView, spent: f32| {
        let mut auto = Auto::default();
        auto.spending.path_budgets = vec![(LTE, spent)];
        let (paths, mut out) = ([slow, lte], Vec::new());
        let event = marline_policy::SchedulerEvent::PeerWindowBlocked { picked: LTE };
        auto.on_event(event, &stream.context(&paths), &mut out);
        out.iter()
            .filter(|action| matches!(action, marline_policy::SchedulerAction::Reinject { .. }))
            .count()
    };
    assert!(repeats(path(LTE, 20), 0.0) > 0);
    assert!(repeats(metered(path(LTE, 20)), 0.9) > 0);
    assert_eq!(repeats(metered(path(LTE, 20)), 1.0), 0);
    assert_eq!(repeats(asleep(path(LTE, 20)), 0.0), 0);
}

#[test]
fn a_rescue_goes_where_it_costs_least() {
    let item = marline_policy::Reinjection {
        range: range(0, 1_000),
        carried_by: set(&[0]),
        cause: marline_policy::ReinjectionCause::SubflowRto,
        since: Instant::ZERO,
    };
    let stream = Stream::new(1_000);
    let dead = unreachable(path(WIFI, 40), 100);
    let goes = |paths: &[SubflowView]| {
        let cx: SchedulerContext<'_> = stream.context(paths);
        Auto::default().next_reinjection(&item, &cx).data().map(|(id, _)| id.0)
    };
    let third = path(SubflowId(2), 90);
    assert_eq!(goes(&[dead, metered(path(LTE, 20)), third]), Some(2));
    assert_eq!(goes(&[dead, asleep(path(LTE, 20)), third]), Some(2));
    assert_eq!(goes(&[dead, metered(path(LTE, 20)), asleep(third)]), Some(2));
    assert_eq!(goes(&[dead, metered(path(LTE, 20))]), Some(1));
}

#[test]
fn the_path_budget_is_a_share_of_all_new_data() {
    let config = AutoConfig {
        path_budget: BudgetConfig { share: 0.5, rate: Rate::ZERO },
        ..AutoConfig::default()
    };
    let mut auto = Auto::new(config);
    let (stream, mut paths) = (Stream::new(0), [path(WIFI, 20), metered(path(LTE, 20))]);
    auto.count(&stream.context(&paths));
    let mut sent = Stream { data_una: 64_000, ..Stream::new(64_000) };
    sent.ack(64_000);
    paths[1].bytes_copied = 16_000;
    auto.count(&sent.context(&paths));
    assert_eq!(auto.spending.path_budget(LTE), Some(0.5));
    assert_eq!(auto.spending.path_budget(WIFI), None);
}
