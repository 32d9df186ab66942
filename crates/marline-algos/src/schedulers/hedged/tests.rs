use marline_policy::{Forecast, Scheduler};
use marline_testkit::views::{MSS, Stream, backup, full, ms, range, send, view};

use super::*;

/// Scheduler with its stream, at a given time.
struct Setup<S> {
    scheduler: S,
    stream: Stream,
    views: Vec<SubflowView>,
    now: Instant,
}

impl<S: Scheduler> Setup<S> {
    fn ask(&mut self) -> Decision {
        let context = SchedulerContext { now: self.now, ..self.stream.context(&self.views) };
        let decision = self.scheduler.next_send(&context);
        if let Decision::Send { subflow, range } = decision {
            self.stream.apply(subflow, range);
        }
        decision
    }

    fn write(&mut self, bytes: u64) -> Vec<Decision> {
        self.stream.written += bytes;
        std::iter::from_fn(|| Some(self.ask())).take_while(is_send).collect()
    }

    fn hear(&mut self, id: u8) {
        self.views[usize::from(id)].last_rx_at = self.now;
    }
}

fn is_send(decision: &Decision) -> bool {
    matches!(decision, Decision::Send { .. })
}

/// Creates paths with answers after 80 ms (one in ten after 85 ms; the wait is twice that difference) and 150 ms, at
/// second 1.
fn setup() -> Setup<Hedged> {
    let forecast = Forecast::with_quantiles([ms(80), ms(85), ms(120)], 0.0, None);
    let fast = SubflowView { forecast, ..view(0, 80) };
    let views = vec![fast, view(1, 150)];
    let mut setup = Setup {
        scheduler: patient(HedgedConfig::default().limit),
        stream: Stream::new(0),
        views,
        now: Instant::from_secs(1),
    };
    setup.hear(0);
    setup
}

fn patient(limit: u64) -> Hedged {
    Hedged::new(HedgedConfig { deviations: 2.0, limit })
}

/// Converts milliseconds after the beginning to a time.
fn at(milliseconds: u64) -> Instant {
    Instant::from_secs(1) + ms(milliseconds)
}

#[test]
fn the_copy_waits_for_the_answer_and_goes_elsewhere_once() {
    let mut setup = setup();
    assert_eq!(setup.write(200), [send(0, 0, 200)]);
    assert_eq!(setup.ask(), Decision::WaitUntil(at(90)), "80 + 2 x 5");
    setup.now = at(89);
    assert_eq!(setup.ask(), Decision::WaitUntil(at(90)));
    setup.now = at(90);
    assert_eq!(setup.ask(), send(1, 0, 200));
    setup.now = at(500);
    assert!(!is_send(&setup.ask()), "once");
}

#[test]
fn wait_follows_forecast_deviations_and_ends_at_the_p99() {
    let mut setup = setup();
    setup.scheduler = Hedged::new(HedgedConfig { deviations: 0.0, limit: 30_000 });
    setup.write(200);
    assert_eq!(setup.ask(), Decision::WaitUntil(at(80)));
    setup.views[0].forecast = setup.views[0].forecast.delayed_by(ms(40));
    setup.stream.ack(200);
    setup.write(300);
    assert_eq!(setup.ask(), Decision::WaitUntil(at(120)));
    setup.stream.ack(500);
    setup.views[0].forecast = Forecast::with_quantiles([ms(80), ms(85), ms(90)], 0.0, None);
    setup.scheduler = Hedged::new(HedgedConfig { deviations: 100.0, limit: 30_000 });
    setup.write(200);
    assert_eq!(setup.ask(), Decision::WaitUntil(at(90)));
}

#[test]
fn nothing_is_overdue_on_a_path_without_a_forecast() {
    let mut setup = setup();
    setup.views[0].forecast = Forecast::default();
    setup.write(200);
    assert_eq!(setup.ask(), Decision::Wait);
    setup.now = at(5_000);
    assert_eq!(setup.ask(), Decision::Wait);
}

#[test]
fn acknowledged_messages_are_not_copied() {
    let mut setup = setup();
    setup.write(200);
    setup.now = at(85);
    setup.stream.ack(200);
    setup.now = at(90);
    assert_eq!(setup.ask(), Decision::Wait);
}

#[test]
fn each_message_has_its_own_time() {
    let mut setup = setup();
    setup.write(200);
    setup.now = at(60);
    setup.write(300);
    setup.now = at(88);
    setup.hear(0);
    setup.now = at(90);
    assert_eq!(setup.ask(), send(1, 0, 200));
    assert_eq!(
        setup.ask(),
        Decision::WaitUntil(at(150)),
        "the path receives: only overdue data is copied"
    );
    setup.now = at(150);
    assert_eq!(setup.ask(), send(1, 200, 500));
}

#[test]
fn all_data_on_a_silent_path_is_copied() {
    let mut setup = setup();
    setup.now = at(1);
    setup.write(200);
    setup.now = at(61);
    setup.write(300);
    setup.now = at(91);
    assert_eq!(setup.ask(), send(1, 0, 200));
    assert_eq!(setup.ask(), send(1, 200, 500), "nothing was received after the first was sent");
    setup.now = at(95);
    assert_eq!(
        setup.write(100),
        [send(0, 500, 600), send(1, 500, 600)],
        "data sent now is also copied"
    );
    setup.hear(0);
    setup.stream.ack(600);
    assert_eq!(setup.write(100), [send(0, 600, 700)]);
}

#[test]
fn a_full_path_and_a_backup_are_waited_for_in_vain() {
    let mut setup = setup();
    setup.views[1] = full(setup.views[1]);
    setup.write(200);
    setup.now = at(90);
    assert_eq!(setup.ask(), Decision::Wait, "there is room later");
    setup.views[1] = view(1, 150);
    assert_eq!(setup.ask(), send(1, 0, 200));
    setup.views[1] = backup(view(1, 150));
    setup.write(100);
    setup.now = at(300);
    assert_eq!(setup.ask(), Decision::Wait);
}

#[test]
fn in_bulk_data_only_the_end_is_hedged() {
    let mut setup = setup();
    setup.scheduler = patient(2 * u64::from(MSS));
    setup.write(10_000);
    setup.now = at(90);
    let copies: Vec<_> = std::iter::from_fn(|| Some(setup.ask())).take_while(is_send).collect();
    assert_eq!(copies, [send(1, 8_000, 9_000), send(1, 9_000, 10_000)]);
}

#[test]
fn a_refused_decision_is_not_watched_twice() {
    let mut setup = setup();
    setup.stream.written = 200;
    let context = SchedulerContext { now: setup.now, ..setup.stream.context(&setup.views) };
    for _ in 0..3 {
        assert_eq!(setup.scheduler.next_send(&context), send(0, 0, 200));
    }
    setup.stream.apply(SubflowId(0), range(0, 200));
    setup.now = at(90);
    assert_eq!(setup.ask(), send(1, 0, 200));
    assert!(!is_send(&setup.ask()));
}
