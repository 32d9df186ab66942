use marline_testkit::views::{Stream, backup, range, send, view};

use marline_policy::SubflowSet;

use super::*;

const MSS: u64 = marline_testkit::views::MSS as u64;

/// Builds WiFi, which holds the data it carried, and LTE as its backup.
fn paths(stream: &Stream, heard_ms: u64) -> Vec<SubflowView> {
    let on_wifi = |m: &&marline_policy::Mapping| m.carried_by.contains(SubflowId(0));
    let held: u64 = stream.mappings.iter().filter(on_wifi).map(|m| m.range.len()).sum();
    let wifi = SubflowView {
        bytes_in_flight: held,
        last_rx_at: Instant::from_millis(heard_ms),
        ..view(0, 15)
    };
    vec![wifi, backup(view(1, 50))]
}

struct Phone {
    scheduler: Linux,
    stream: Stream,
    heard_ms: u64,
}

impl Phone {
    fn new() -> Phone {
        Phone { scheduler: Linux::default(), stream: Stream::new(0), heard_ms: 0 }
    }

    fn ask(&mut self, at_ms: u64) -> Decision {
        let paths = paths(&self.stream, self.heard_ms);
        let now = Instant::from_millis(at_ms);
        self.scheduler.next_send(&SchedulerContext { now, ..self.stream.context(&paths) })
    }

    /// Applies the decisions until the scheduler waits. Returns subflows and byte ranges.
    fn drain(&mut self, at_ms: u64) -> Vec<(u8, u64, u64)> {
        let mut sent = Vec::new();
        while let Decision::Send { subflow, range } = self.ask(at_ms) {
            let cut = self.stream.apply(subflow, range);
            sent.push((subflow.0, cut.start.0, cut.end.0));
        }
        sent
    }
}

#[test]
fn a_silent_path_is_left_in_two_steps() {
    let mut phone = Phone::new();
    phone.stream.written = MSS;
    assert_eq!(phone.ask(0), send(0, 0, MSS));
    assert_eq!(phone.drain(0), [(0, 0, MSS)]);
    assert_eq!(phone.ask(0), Decision::WaitUntil(Instant::from_millis(200)));
    // With one mark, a backup does not help yet.
    assert_eq!(phone.drain(200), []);
    // With two marks, missing data moves to the backup, and new data stays.
    phone.stream.written = 2 * MSS;
    assert_eq!(phone.drain(300), [(0, MSS, 2 * MSS)]);
    assert_eq!(phone.drain(400), [(1, 0, MSS), (1, MSS, 2 * MSS)]);
    // More data is sent on WiFi, in vain, until the fifth mark.
    for (number, at_ms) in [(3, 600), (4, 800)] {
        phone.stream.written = number * MSS;
        let (start, end) = ((number - 1) * MSS, number * MSS);
        assert_eq!(phone.drain(at_ms - 50), [(0, start, end)]);
        assert_eq!(phone.drain(at_ms), [(1, start, end)]);
    }
    assert_eq!(phone.drain(1_000), []);
    phone.stream.written = 5 * MSS;
    assert_eq!(phone.drain(1_010), [(1, 4 * MSS, 5 * MSS)]);
    // Anything received clears the marks.
    phone.heard_ms = 1_100;
    phone.stream.ack(5 * MSS);
    phone.stream.written = 6 * MSS;
    assert_eq!(phone.ask(1_100), send(0, 5 * MSS, 6 * MSS));
}

#[test]
fn a_path_that_is_heard_stays_unmarked_and_an_idle_one_has_no_timer() {
    let mut phone = Phone::new();
    phone.stream.written = MSS;
    phone.drain(0);
    for at_ms in [200, 400, 600, 800, 1_000, 1_200, 1_400] {
        phone.heard_ms = at_ms;
        assert_eq!(phone.drain(at_ms), [], "at {at_ms} ms");
    }
    phone.stream.ack(MSS);
    assert_eq!(phone.ask(1_500), Decision::Wait);
}

#[test]
fn each_data_ack_restarts_the_timer() {
    let mut phone = Phone::new();
    phone.stream.written = 2 * MSS;
    phone.drain(0);
    phone.stream.ack(MSS);
    assert_eq!(phone.ask(150), Decision::WaitUntil(Instant::from_millis(350)));
}

#[test]
fn only_a_subflow_that_is_gone_is_a_reason_for_reinjection() {
    let mut phone = Phone::new();
    phone.stream.written = MSS;
    phone.drain(0);
    let paths = paths(&phone.stream, 0);
    for (cause, expected) in [
        (ReinjectionCause::UnansweredProbe, Decision::Wait),
        (ReinjectionCause::SubflowRto, Decision::Wait),
        (ReinjectionCause::SubflowClosed, send(1, 0, MSS)),
    ] {
        let carried_by = SubflowSet::single(SubflowId(0));
        let item = Reinjection { range: range(0, MSS), carried_by, cause, since: Instant::ZERO };
        let context = phone.stream.context(&paths[1..]);
        assert_eq!(phone.scheduler.next_reinjection(&item, &context), expected, "{cause:?}");
    }
}

#[test]
fn data_waiting_for_a_shut_window_counts_as_handed_over() {
    let mut phone = Phone::new();
    phone.stream.written = MSS;
    phone.drain(0);
    phone.stream.written = 2 * MSS;
    let ask = |phone: &mut Phone, at_ms: u64| {
        let mut paths = paths(&phone.stream, 0);
        paths[0] = marline_testkit::views::full(paths[0]);
        paths[0].bytes_in_flight = MSS;
        let now = Instant::from_millis(at_ms);
        phone.scheduler.next_send(&SchedulerContext { now, ..phone.stream.context(&paths) })
    };
    assert_eq!(ask(&mut phone, 200), Decision::WaitUntil(Instant::from_millis(400)));
    assert_eq!(ask(&mut phone, 400), send(1, 0, MSS));
    phone.stream.apply(SubflowId(1), range(0, MSS));
    assert_eq!(ask(&mut phone, 400), send(1, MSS, 2 * MSS));
    phone.stream.apply(SubflowId(1), range(MSS, 2 * MSS));
    // Everything has arrived; data written next waits for the closed window and for the timer.
    phone.stream.ack(2 * MSS);
    phone.stream.written = 3 * MSS;
    assert_eq!(ask(&mut phone, 500), Decision::WaitUntil(Instant::from_millis(700)));
    assert_eq!(ask(&mut phone, 700), send(1, 2 * MSS, 3 * MSS));
}
