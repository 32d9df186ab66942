use marline_testkit::views::{MSS, Stream, backup, full, ms, range, send, view};

use super::*;

/// A scheduler with its stream, at a time of its own.
struct Scene<S> {
    scheduler: S,
    stream: Stream,
    views: Vec<SubflowView>,
    now: Instant,
}

impl<S: Scheduler> Scene<S> {
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
        self.views[usize::from(id)].last_heard_at = self.now;
    }
}

fn is_send(decision: &Decision) -> bool {
    matches!(decision, Decision::Send { .. })
}

/// RTTs of 80 ms (variation 5) and 150 ms, at second 1; two variations of patience.
fn scene() -> Scene<Hedged> {
    let fast = SubflowView { rttvar: ms(5), ..view(0, 80) };
    let views = vec![fast, view(1, 150)];
    let mut scene = Scene {
        scheduler: patient(HedgedConfig::default().limit),
        stream: Stream::new(0),
        views,
        now: Instant::from_secs(1),
    };
    scene.hear(0);
    scene
}

fn patient(limit: u64) -> Hedged {
    Hedged::new(HedgedConfig { deviations: 2.0, limit })
}

/// After the beginning.
fn at(milliseconds: u64) -> Instant {
    Instant::from_secs(1) + ms(milliseconds)
}

#[test]
fn the_copy_waits_for_the_answer_and_goes_elsewhere_once() {
    let mut scene = scene();
    assert_eq!(scene.write(200), [send(0, 0, 200)]);
    assert_eq!(scene.ask(), Decision::WaitUntil(at(90)), "80 + 2 x 5");
    scene.now = at(89);
    assert_eq!(scene.ask(), Decision::WaitUntil(at(90)));
    scene.now = at(90);
    assert_eq!(scene.ask(), send(1, 0, 200));
    scene.now = at(500);
    assert!(!is_send(&scene.ask()), "once");
}

#[test]
fn what_is_acknowledged_is_not_copied() {
    let mut scene = scene();
    scene.write(200);
    scene.now = at(85);
    scene.stream.ack(200);
    scene.now = at(90);
    assert_eq!(scene.ask(), Decision::Wait);
}

#[test]
fn each_message_has_its_own_time() {
    let mut scene = scene();
    scene.write(200);
    scene.now = at(60);
    scene.write(300);
    scene.now = at(88);
    scene.hear(0);
    scene.now = at(90);
    assert_eq!(scene.ask(), send(1, 0, 200));
    assert_eq!(
        scene.ask(),
        Decision::WaitUntil(at(150)),
        "the path is heard: only what is overdue"
    );
    scene.now = at(150);
    assert_eq!(scene.ask(), send(1, 200, 500));
}

#[test]
fn of_a_silent_path_everything_is_copied() {
    let mut scene = scene();
    scene.now = at(1);
    scene.write(200);
    scene.now = at(61);
    scene.write(300);
    scene.now = at(91);
    assert_eq!(scene.ask(), send(1, 0, 200));
    assert_eq!(scene.ask(), send(1, 200, 500), "nothing was heard since the first was sent");
    scene.now = at(95);
    assert_eq!(scene.write(100), [send(0, 500, 600), send(1, 500, 600)], "and what is sent now");
    scene.hear(0);
    scene.stream.ack(600);
    assert_eq!(scene.write(100), [send(0, 600, 700)]);
}

#[test]
fn a_full_path_and_a_backup_are_waited_for_in_vain() {
    let mut scene = scene();
    scene.views[1] = full(scene.views[1]);
    scene.write(200);
    scene.now = at(90);
    assert_eq!(scene.ask(), Decision::Wait, "it has room later");
    scene.views[1] = view(1, 150);
    assert_eq!(scene.ask(), send(1, 0, 200));
    scene.views[1] = backup(view(1, 150));
    scene.write(100);
    scene.now = at(300);
    assert_eq!(scene.ask(), Decision::Wait);
}

#[test]
fn in_bulk_data_only_the_end_is_hedged() {
    let mut scene = scene();
    scene.scheduler = patient(2 * u64::from(MSS));
    scene.write(10_000);
    scene.now = at(90);
    let copies: Vec<_> = std::iter::from_fn(|| Some(scene.ask())).take_while(is_send).collect();
    assert_eq!(copies, [send(1, 8_000, 9_000), send(1, 9_000, 10_000)]);
}

#[test]
fn a_refused_decision_is_not_watched_twice() {
    let mut scene = scene();
    scene.stream.written = 200;
    let context = SchedulerContext { now: scene.now, ..scene.stream.context(&scene.views) };
    for _ in 0..3 {
        assert_eq!(scene.scheduler.next_send(&context), send(0, 0, 200));
    }
    scene.stream.apply(SubflowId(0), range(0, 200));
    scene.now = at(90);
    assert_eq!(scene.ask(), send(1, 0, 200));
    assert!(!is_send(&scene.ask()));
}
