use marline_policy::Phase;
use marline_testkit::views::{Stream, backup, full, gone, ms, send, unreachable, view};

use super::*;

/// Connection with two paths, on which a message of two segments is sent every 100 ms.
struct TestConnection {
    augur: Augur,
    stream: Stream,
    now_ms: u64,
    primary: SubflowView,
    second: SubflowView,
}

impl TestConnection {
    fn new(config: AugurConfig) -> Self {
        let (augur, stream) = (Augur::new(config), Stream::new(0));
        TestConnection { augur, stream, now_ms: 1_000, primary: view(0, 20), second: view(1, 30) }
    }

    fn ask(&mut self) -> Decision {
        let views = [self.primary, self.second];
        let now = Instant::from_millis(self.now_ms);
        let cx = SchedulerContext { now, ..self.stream.context(&views) };
        self.augur.next_send(&cx)
    }

    /// Sends all data. Returns the bytes sent on the second path.
    fn send(&mut self) -> u64 {
        let mut copied = 0;
        while let Some((id, range)) = self.ask().data() {
            let cut = self.stream.apply(id, range);
            copied += if id.0 == 1 { cut.len() } else { 0 };
        }
        copied
    }

    /// Sends a message whose ACK arrives on the primary after this time. Returns the bytes copied immediately.
    fn message(&mut self, answered_after_ms: u64) -> u64 {
        self.stream.written += 2_000;
        let copied = self.send();
        let start_ms = self.now_ms;
        self.now_ms += answered_after_ms;
        if answered_after_ms > 25 {
            self.ask();
        }
        let range = DataRange::new(Dsn(self.stream.data_una), Dsn(self.stream.written));
        self.stream.ack(self.stream.written);
        let views = [self.primary, self.second];
        let now = Instant::from_millis(self.now_ms);
        let cx = SchedulerContext { now, ..self.stream.context(&views) };
        let event = SchedulerEvent::Acked { on: SubflowId(0), range };
        self.augur.on_event(event, &cx, &mut Vec::new());
        self.now_ms = start_ms + 100.max(answered_after_ms);
        self.ask();
        copied
    }
}

#[test]
fn a_good_path_carries_everything_alone() {
    let mut play = TestConnection::new(AugurConfig::default());
    let copied: u64 = (0..100).map(|_| play.message(20)).sum();
    assert_eq!(copied, 0);
    play.stream.written += 3_000;
    play.primary = full(play.primary);
    assert_eq!(play.ask(), Decision::Wait, "data without room waits");
}

#[test]
fn a_degrading_path_gets_help_for_messages() {
    for primary in [
        SubflowView { srtt: Some(ms(90)), min_rtt: Some(ms(20)), ..view(0, 20) },
        SubflowView { phase: Phase::Recovery, ..view(0, 20) },
    ] {
        let mut play =
            TestConnection::new(AugurConfig { reserve: 100_000, ..AugurConfig::default() });
        play.primary = primary;
        assert_eq!(play.message(20), 2_000, "{primary:?}");
    }
    // Data is not copied if more follows than the peer's window holds.
    let mut play = TestConnection::new(AugurConfig::default());
    play.primary = SubflowView { phase: Phase::Recovery, ..full(view(0, 20)) };
    (play.stream.written, play.stream.window) = (9_000, 8_000);
    play.stream.apply(SubflowId(0), play.stream.unsent());
    assert_eq!(play.ask(), Decision::Wait);
}

#[test]
fn the_rest_of_a_message_does_not_wait_for_a_bad_path() {
    let mut play = TestConnection::new(AugurConfig::default());
    play.stream.written = 2_000;
    play.stream.apply(SubflowId(0), play.stream.unsent());
    play.primary = full(play.primary);
    assert_eq!(play.ask(), Decision::Wait, "the path is good and will soon have room");
    play.primary = SubflowView { phase: Phase::Loss, ..play.primary };
    assert_eq!(play.send(), 2_000, "the outstanding data and the rest");
    assert_eq!(play.augur.saved, 30_000.0 - 2_000.0 + 100.0, "both were charged once");
    // The primary carried nothing of the end, so its silence is not evidence.
    assert!(play.augur.watched.iter().all(|watched| watched.on != SubflowId(0)));
    // Data beyond the budget waits.
    play.stream.written = 60_000;
    assert_eq!(play.send(), 0);
}

#[test]
fn late_messages_make_later_ones_expected_late() {
    let mut play = TestConnection::new(AugurConfig::default());
    assert_eq!(play.message(20), 0);
    // Every third message is 200 ms late, while RTT and losses show nothing.
    let copied: Vec<u64> =
        (0..12).map(|n| play.message(if n % 3 == 0 { 225 } else { 20 })).collect();
    assert_eq!(copied[0], 0);
    assert_eq!(copied[8..], [2_000; 4], "{copied:?}");
}

#[test]
fn an_overdue_answer_is_a_reason_by_itself() {
    let mut play = TestConnection::new(AugurConfig::default());
    play.stream.written = 1_000;
    assert_eq!(play.send(), 0);
    // 20 ms plus a quarter.
    assert_eq!(play.ask(), Decision::WaitUntil(Instant::from_millis(1_025)));
    play.now_ms = 1_025;
    assert_eq!(play.ask(), send(1, 0, 1_000));
    let mut rich =
        TestConnection::new(AugurConfig { min_saving: Duration::ZERO, ..AugurConfig::default() });
    rich.second = unreachable(rich.second, 3);
    rich.stream.written = 1_000;
    rich.send();
    rich.now_ms = 1_025;
    assert_eq!(rich.ask(), Decision::Wait, "a suspected path is not used for copies");
}

#[test]
fn the_budget_bounds_the_bytes() {
    let config =
        AugurConfig { reserve: 10_000, min_saving: Duration::ZERO, ..AugurConfig::default() };
    let mut play = TestConnection::new(config);
    let copied: Vec<u64> = (0..1_000).map(|_| play.message(20)).collect();
    // The reserve contains 5 kB, plus 10 % of what follows.
    assert_eq!(copied[..4], [2_000, 2_000, 0, 0]);
    let sum: u64 = copied.iter().sum();
    assert!((190_000..=205_000).contains(&sum), "{sum}");
    let none = AugurConfig { budget: 0.0, reserve: 0, ..config };
    let mut play = TestConnection::new(none);
    assert_eq!((0..50).map(|_| play.message(20)).sum::<u64>(), 0);
}

#[test]
fn the_price_follows_the_saved_budget() {
    // A copy that is expected to save some milliseconds is made with a full reserve, but not with an empty one.
    let worth = |saved: f64| {
        let mut play = TestConnection::new(AugurConfig::default());
        play.primary = SubflowView { phase: Phase::Recovery, ..view(0, 20) };
        play.augur.saved = saved;
        play.message(20)
    };
    assert_eq!((worth(60_000.0), worth(30_000.0)), (2_000, 2_000));
    assert_eq!((worth(4_000.0), worth(1_999.0)), (0, 0));
}

#[test]
fn a_second_path_slower_than_a_repair_gets_no_copy() {
    let mut play = TestConnection::new(AugurConfig::default());
    play.primary = SubflowView { phase: Phase::Recovery, ..view(0, 20) };
    play.second = view(1, 70);
    assert_eq!(play.message(20), 0, "50 ms later, while late means 40 ms");
}

#[test]
fn backups_and_odd_paths() {
    let bad = SubflowView { phase: Phase::Loss, ..view(0, 20) };
    let copied = |second: SubflowView, with_backups| {
        let mut play = TestConnection::new(AugurConfig { with_backups, ..AugurConfig::default() });
        (play.primary, play.second) = (bad, second);
        play.message(20)
    };
    assert_eq!(copied(view(1, 30), false), 2_000);
    assert_eq!(copied(backup(view(1, 30)), false), 0);
    assert_eq!(copied(backup(view(1, 30)), true), 2_000);
    assert_eq!(copied(gone(view(1, 30)), true), 0);
    assert_eq!(copied(SubflowView { srtt: None, ..view(1, 30) }, true), 0);
    assert_eq!(copied(SubflowView { mss: 0, ..view(1, 0) }, true), 2_000);
    let mut play = TestConnection::new(AugurConfig::default());
    play.primary = unreachable(view(0, 20), 3);
    play.stream.written = 1_000;
    assert_eq!(play.ask().data().map(|(id, _)| id), Some(SubflowId(1)), "failed over");
    play.second = unreachable(view(1, 30), 2);
    assert_eq!(play.ask().data().map(|(id, _)| id), Some(SubflowId(0)), "received something last");
    assert_eq!(Augur::default().next_send(&Stream::new(9).context(&[])), Decision::Wait);
    let young = [SubflowView { srtt: None, min_rtt: None, ..view(0, 0) }];
    let run = Augur::default().next_send(&Stream::new(9).context(&young));
    assert_eq!(run.data().map(|(id, _)| id), Some(SubflowId(0)));
}

#[test]
fn the_memory_of_the_scheduler_is_bounded() {
    let mut play =
        TestConnection::new(AugurConfig { min_saving: Duration::ZERO, ..AugurConfig::default() });
    for _ in 0..200 {
        play.stream.written += 100;
        play.send();
        play.now_ms += 1;
    }
    assert_eq!(play.augur.watched.len(), MAX_WATCHED);
    assert!(play.augur.watches_acks());
    for id in [0, 1] {
        let views = [play.primary, play.second];
        let cx = play.stream.context(&views);
        let event = SchedulerEvent::SubflowDown(SubflowId(id));
        play.augur.on_event(event, &cx, &mut Vec::new());
    }
    assert!(!play.augur.watches_acks());
}
