use marline_policy::{Decision, Forecast, Scheduler as _, SubflowId, SubflowView};
use marline_testkit::views::{Stream, ms, view};
use marline_time::{Duration, Instant};

use super::*;

const GAP: Duration = ms(100);

/// A message of 100 bytes every 100 ms on paths with RTTs of 50 and 80 ms. By default, each message is answered before
/// the next one.
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

    /// Creates a setup with a trusted path.
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
        self.views[usize::from(subflow.0)].last_sent_at = self.now;
        Some(subflow)
    }

    fn send(&mut self) -> usize {
        self.stream.written += 100;
        std::iter::from_fn(|| self.ask()).count()
    }

    fn answer(&mut self) {
        self.views.iter_mut().for_each(|view| view.last_rx_at = self.now);
        self.stream.ack(self.stream.written);
    }

    /// Sends a message and its answer. Returns the number of paths used initially.
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

    /// Sets the forecast number of episodes of trouble per second for a path.
    fn troubled(&mut self, id: usize, troubles: f32) {
        let answer = self.views[id].srtt.unwrap();
        self.views[id].forecast = Forecast::with_quantiles([answer; 3], troubles, None);
    }

    /// Returns the number of messages until one is sent on a single path.
    fn copied(&mut self) -> usize {
        (0..1_000).take_while(|_| self.message() == 2).count()
    }
}

#[test]
fn a_new_connection_is_redundant_until_its_paths_are_known_for_a_while() {
    let mut setup = Setup::new(AutoRedundantConfig::default());
    // These are two seconds of messages.
    assert_eq!(setup.copied(), 20);
    setup.views[0].forecast = Forecast::default();
    assert_eq!(setup.message(), 2, "nothing is known about it");
}

#[test]
fn copies_are_made_immediately_while_trouble_is_likely_before_the_answer() {
    let mut setup = Setup::trusted();
    // A message is exposed for the 100 ms since the previous one: 0.5 %, 5 %, and 0.8 %.
    setup.troubled(0, 0.05);
    assert_eq!(setup.message(), 1);
    setup.troubled(0, 0.5);
    assert_eq!(setup.message(), 2);
    setup.troubled(0, 0.08);
    assert_eq!(setup.message(), 1);
    // On a longer path, messages are exposed for longer.
    setup.views[0].srtt = Some(ms(150));
    setup.views[1].srtt = Some(ms(180));
    setup.troubled(0, 0.08);
    assert_eq!(setup.message(), 2);
}

#[test]
fn trouble_that_may_have_begun_between_messages_counts() {
    let mut setup = Setup::trusted();
    setup.troubled(0, 0.05);
    assert_eq!(setup.message(), 1);
    for _ in 0..4 {
        setup.now += GAP;
        setup.answer();
    }
    assert_eq!(setup.message(), 2);
}

#[test]
fn a_late_answer_is_hedged() {
    let mut setup = Setup::trusted();
    setup.now += ms(56);
    setup.views[0].last_rx_at = setup.now;
    assert_eq!(setup.ask(), Some(SubflowId(1)));
}

#[test]
fn the_risk_is_that_of_the_path_that_carries() {
    let mut setup = Setup::trusted();
    setup.troubled(1, 5.0);
    assert_eq!(setup.message(), 1, "the other path's trouble does not affect this message");
    // A path that comes up again has no history.
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
    setup.views[1].last_rx_at = long_ago;
    assert_eq!(setup.send(), 2, "the speed of the path is unknown");
    setup.answer();
    setup.now += Duration::from_secs(5);
    assert_eq!(setup.send(), 2, "nothing is known about either path");
    assert_eq!(setup.message(), 1);
}

#[test]
fn with_a_tail_of_one_nothing_is_risky() {
    let config = AutoRedundantConfig { tail: 1.0, ..AutoRedundantConfig::default() };
    let mut setup = Setup::new(config);
    setup.copied();
    setup.troubled(0, 100.0);
    assert_eq!((0..50).map(|_| setup.message()).max(), Some(1));
}
