use marline_policy::{SubflowId, SubflowView};
use marline_testkit::views::{Stream, ms, view};
use marline_time::{Duration, Instant};

use super::*;

const GAP: Duration = ms(100);

/// A message of 100 bytes every 100 ms on paths with RTTs of 50 and 80 ms; each is answered before
/// the next unless told otherwise.
struct Setup {
    scheduler: AutoRedundant,
    stream: Stream,
    views: [SubflowView; 2],
    now: Instant,
}

impl Setup {
    fn new(config: AutoRedundantConfig) -> Self {
        let scheduler = AutoRedundant::new(config);
        let (stream, views) = (Stream::new(0), [view(0, 50), view(1, 80)]);
        Setup { scheduler, stream, views, now: Instant::from_secs(1) }
    }

    /// One that has earned trust.
    fn trusted() -> Self {
        let mut setup = Setup::new(AutoRedundantConfig::default());
        let paths = (0..100).map(|_| setup.message()).last();
        assert_eq!(paths, Some(1), "each message on one path");
        setup
    }

    fn ask(&mut self) -> Option<SubflowId> {
        let context = SchedulerContext { now: self.now, ..self.stream.context(&self.views) };
        let Decision::Send { subflow, range } = self.scheduler.next_send(&context) else {
            return None;
        };
        self.stream.apply(subflow, range);
        Some(subflow)
    }

    fn send(&mut self) -> usize {
        self.stream.written += 100;
        std::iter::from_fn(|| self.ask()).count()
    }

    fn answer(&mut self) {
        self.views.iter_mut().for_each(|view| view.last_heard_at = self.now);
        self.stream.ack(self.stream.written);
    }

    /// A message and its answer; on how many paths it went at once.
    fn message(&mut self) -> usize {
        self.now += GAP / 2;
        self.answer();
        self.now += GAP / 2;
        self.send()
    }

    fn event(&mut self, event: SchedulerEvent) {
        let context = SchedulerContext { now: self.now, ..self.stream.context(&self.views) };
        self.scheduler.on_event(event, &context, &mut Vec::new());
    }

    /// Messages until one goes on one path alone.
    fn copied(&mut self) -> usize {
        (0..1_000).take_while(|_| self.message() == 2).count()
    }
}

#[test]
fn a_new_connection_is_redundant_until_the_path_has_earned_trust() {
    let mut setup = Setup::new(AutoRedundantConfig::default());
    let copied = setup.copied();
    assert!((10..=20).contains(&copied), "{copied}");
}

#[test]
fn one_loss_is_paid_for_shortly_and_many_for_longer() {
    let mut setup = Setup::trusted();
    setup.event(SchedulerEvent::ProbeTimeout(SubflowId(0)));
    let once = setup.copied();
    assert!((5..=12).contains(&once), "{once}");
    for _ in 0..20 {
        setup.event(SchedulerEvent::ProbeTimeout(SubflowId(0)));
        setup.message();
    }
    let often = setup.copied();
    assert!((25..=45).contains(&often), "{often}");
}

#[test]
fn what_the_core_calls_a_loss_and_a_late_answer_count_too() {
    let mut setup = Setup::trusted();
    setup.views[0].bytes_since_loss = 50_000;
    assert_eq!(setup.message(), 1);
    setup.views[0].bytes_since_loss = 100;
    assert_eq!(setup.message(), 2, "recovery found a loss");

    let mut setup = Setup::trusted();
    setup.now += ms(56);
    setup.views[0].last_heard_at = setup.now;
    assert_eq!(setup.ask(), Some(SubflowId(1)), "overdue: hedged");
    setup.now += ms(10);
    setup.ask();
    setup.answer();
    assert_eq!(setup.message(), 2, "and noted");
}

#[test]
fn timeouts_of_one_round_trip_are_one_event() {
    let mut once = Setup::trusted();
    once.event(SchedulerEvent::ProbeTimeout(SubflowId(0)));
    let mut thrice = Setup::trusted();
    for _ in 0..3 {
        thrice.event(SchedulerEvent::ProbeTimeout(SubflowId(0)));
        thrice.now += ms(10);
    }
    assert_eq!(thrice.copied(), once.copied());
}

#[test]
fn the_risk_is_that_of_the_path_that_carries() {
    let mut setup = Setup::trusted();
    setup.event(SchedulerEvent::SubflowRto(SubflowId(1)));
    assert_eq!(setup.message(), 1, "the other path's trouble is none of this message's");
    // A path that comes anew has no history.
    setup.event(SchedulerEvent::SubflowDown(SubflowId(0)));
    setup.event(SchedulerEvent::SubflowUp(SubflowId(0)));
    assert_eq!(setup.message(), 2);
}

#[test]
fn a_path_not_heard_for_long_gets_a_copy_and_an_idle_connection_both() {
    let mut setup = Setup::trusted();
    let long_ago = setup.now - Duration::from_secs(3);
    setup.now += GAP / 2;
    setup.answer();
    setup.views[1].last_heard_at = long_ago;
    assert_eq!(setup.send(), 2, "how fast is it? nobody knows");
    setup.answer();
    setup.now += Duration::from_secs(5);
    assert_eq!(setup.send(), 2, "nothing is known of either");
    assert_eq!(setup.message(), 1);
}

#[test]
fn with_a_tail_of_all_nothing_is_risky() {
    let risk = RiskConfig { tail: 1.0, ..RiskConfig::default() };
    let mut setup = Setup::new(AutoRedundantConfig { risk, ..AutoRedundantConfig::default() });
    setup.answer();
    assert_eq!((0..50).map(|_| setup.message()).max(), Some(1));
}
