use marline_policy::{Decision, Forecast, Scheduler as _, SubflowId};
use marline_testkit::views::{Stream, ms, send, view};

use super::*;

/// Builds a path with these answer times at the 50th, 90th and 99th percentile.
fn path(id: u8, answers_ms: [u64; 3]) -> SubflowView {
    let forecast = Forecast::with_quantiles(answers_ms.map(ms), 0.0, None);
    SubflowView { forecast, ..view(id, answers_ms[0]) }
}

fn deadline(within_ms: u64) -> Deadline {
    Deadline::new(DeadlineConfig { within: ms(within_ms), ..DeadlineConfig::default() })
}

/// Returns the decisions now and later, after a message of 100 bytes was sent on the fast path.
fn after_message(within_ms: u64, views: &[SubflowView], later_ms: u64) -> [Decision; 2] {
    let (mut scheduler, mut stream) = (deadline(within_ms), Stream::new(100));
    let first = scheduler.next_send(&stream.context(views));
    assert_eq!(first, send(0, 0, 100));
    stream.apply(SubflowId(0), stream.unsent());
    let now = scheduler.next_send(&stream.context(views));
    if now.data().is_some() {
        return [now, now];
    }
    let at = stream.context(views).now + ms(later_ms);
    [now, scheduler.next_send(&SchedulerContext { now: at, ..stream.context(views) })]
}

#[test]
fn a_deadline_that_the_path_meets_costs_nothing_until_an_answer_is_overdue() {
    let views = [path(0, [20, 24, 30]), path(1, [40, 50, 60])];
    // One in a hundred messages is answered after 30 ms, and so has arrived after 20 ms.
    let [now, later] = after_message(100, &views, 26);
    let start = Stream::new(0).context(&views).now;
    assert_eq!(now, Decision::WaitUntil(start + ms(26)), "as `hedged` waits");
    assert_eq!(later, send(1, 0, 100));
}

#[test]
fn a_deadline_in_danger_has_its_copy_immediately() {
    let views = [path(0, [20, 40, 80]), path(1, [40, 50, 60])];
    // One in ten messages is answered after 40 ms, and so has arrived after 30 ms.
    assert_eq!(after_message(30, &views, 0)[0], send(1, 0, 100));
    // One in a hundred messages has arrived after 70 ms.
    assert_eq!(after_message(75, &views, 0)[0].data(), None);
    let careless = DeadlineConfig { within: ms(30), risk: 0.2, ..DeadlineConfig::default() };
    let (mut scheduler, mut stream) = (Deadline::new(careless), Stream::new(100));
    scheduler.next_send(&stream.context(&views));
    stream.apply(SubflowId(0), stream.unsent());
    assert_eq!(scheduler.next_send(&stream.context(&views)).data(), None);
}

#[test]
fn data_on_a_path_without_a_forecast_is_copied_immediately() {
    let unknown = SubflowView { forecast: Forecast::default(), ..view(0, 20) };
    assert_eq!(after_message(100, &[unknown, view(1, 40)], 0)[0], send(1, 0, 100));
}
