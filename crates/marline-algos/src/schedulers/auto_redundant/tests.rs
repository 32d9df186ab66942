use marline_policy::{SubflowId, SubflowView};
use marline_testkit::views::{Stream, ms, view};
use marline_time::{Duration, Instant};

use super::*;

const GAP: Duration = ms(100);

/// A message of 100 bytes every 100 ms on paths with RTTs of 50 and 80 ms; each is answered before
/// the next unless told otherwise.
struct Scene {
    scheduler: AutoRedundant,
    stream: Stream,
    views: [SubflowView; 2],
    now: Instant,
}

impl Scene {
    fn new(config: AutoRedundantConfig) -> Self {
        let scheduler = AutoRedundant::new(config);
        let (stream, views) = (Stream::new(0), [view(0, 50), view(1, 80)]);
        Scene { scheduler, stream, views, now: Instant::from_secs(1) }
    }

    /// One that has earned trust.
    fn trusted() -> Self {
        let mut scene = Scene::new(AutoRedundantConfig::default());
        let paths = (0..100).map(|_| scene.message()).last();
        assert_eq!(paths, Some(1), "each message on one path");
        scene
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
    let mut scene = Scene::new(AutoRedundantConfig::default());
    let copied = scene.copied();
    assert!((10..=20).contains(&copied), "{copied}");
}

#[test]
fn one_loss_is_paid_for_shortly_and_many_for_longer() {
    let mut scene = Scene::trusted();
    scene.event(SchedulerEvent::ProbeTimeout(SubflowId(0)));
    let once = scene.copied();
    assert!((5..=12).contains(&once), "{once}");
    for _ in 0..20 {
        scene.event(SchedulerEvent::ProbeTimeout(SubflowId(0)));
        scene.message();
    }
    let often = scene.copied();
    assert!((25..=45).contains(&often), "{often}");
}

#[test]
fn what_the_core_calls_a_loss_and_a_late_answer_count_too() {
    let mut scene = Scene::trusted();
    scene.views[0].bytes_since_loss = 50_000;
    assert_eq!(scene.message(), 1);
    scene.views[0].bytes_since_loss = 100;
    assert_eq!(scene.message(), 2, "recovery found a loss");

    let mut scene = Scene::trusted();
    scene.now += ms(56);
    scene.views[0].last_heard_at = scene.now;
    assert_eq!(scene.ask(), Some(SubflowId(1)), "overdue: hedged");
    scene.now += ms(10);
    scene.ask();
    scene.answer();
    assert_eq!(scene.message(), 2, "and noted");
}

#[test]
fn timeouts_of_one_round_trip_are_one_event() {
    let mut once = Scene::trusted();
    once.event(SchedulerEvent::ProbeTimeout(SubflowId(0)));
    let mut thrice = Scene::trusted();
    for _ in 0..3 {
        thrice.event(SchedulerEvent::ProbeTimeout(SubflowId(0)));
        thrice.now += ms(10);
    }
    assert_eq!(thrice.copied(), once.copied());
}

#[test]
fn the_risk_is_that_of_the_path_that_carries() {
    let mut scene = Scene::trusted();
    scene.event(SchedulerEvent::SubflowRto(SubflowId(1)));
    assert_eq!(scene.message(), 1, "the other path's trouble is none of this message's");
    // A path that comes anew has no history.
    scene.event(SchedulerEvent::SubflowDown(SubflowId(0)));
    scene.event(SchedulerEvent::SubflowUp(SubflowId(0)));
    assert_eq!(scene.message(), 2);
}

#[test]
fn a_path_not_heard_for_long_gets_a_copy_and_an_idle_connection_both() {
    let mut scene = Scene::trusted();
    let long_ago = scene.now - Duration::from_secs(3);
    scene.now += GAP / 2;
    scene.answer();
    scene.views[1].last_heard_at = long_ago;
    assert_eq!(scene.send(), 2, "how fast is it? nobody knows");
    scene.answer();
    scene.now += Duration::from_secs(5);
    assert_eq!(scene.send(), 2, "nothing is known of either");
    assert_eq!(scene.message(), 1);
}

#[test]
fn with_a_tail_of_all_nothing_is_risky() {
    let risk = RiskConfig { tail: 1.0, ..RiskConfig::default() };
    let mut scene = Scene::new(AutoRedundantConfig { risk, ..AutoRedundantConfig::default() });
    scene.answer();
    assert_eq!((0..50).map(|_| scene.message()).max(), Some(1));
}
