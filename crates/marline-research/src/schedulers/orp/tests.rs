use marline_algos::schedulers::{MinRtt, Penalize, Retransmit, RoundRobin};
use marline_policy::{SubflowId, SubflowView};
use marline_testkit::views::{Stream, full, view};
use marline_time::Instant;

use super::*;

const BLOCKED: SchedulerEvent = SchedulerEvent::PeerWindowBlocked { picked: SubflowId(0) };

/// Builds a stream of which the slow subflow holds two segments and the fast one the third.
fn held_up() -> Stream {
    let mut stream = Stream::new(3_000);
    stream.apply(SubflowId(1), stream.unsent());
    stream.apply(SubflowId(1), stream.unsent());
    stream.apply(SubflowId(0), stream.unsent());
    stream
}

fn asked(scheduler: &mut dyn Scheduler, event: SchedulerEvent) -> Vec<SchedulerAction> {
    let mut out = Vec::new();
    let subflows = [view(0, 20), view(1, 100)];
    let stream = held_up();
    let mut cx = stream.context(&subflows);
    cx.now = Instant::from_secs(1);
    scheduler.on_event(event, &cx, &mut out);
    out
}

#[test]
fn the_rules_of_orp_replace_those_of_min_rtt() {
    let wide = asked(&mut MinRtt::default(), BLOCKED);
    assert_eq!(wide.len(), 3, "a penalty and both segments: {wide:?}");
    let rules = OpportunisticRules {
        retransmit: Retransmit::Kernel,
        penalize: Penalize::Off,
        ..OpportunisticRules::KERNEL
    };
    let one = asked(&mut Orp::new(Box::<MinRtt>::default(), rules), BLOCKED);
    assert_eq!(one.len(), 1, "the oldest segment only: {one:?}");
    let none = asked(&mut Orp::new(Box::<MinRtt>::default(), OpportunisticRules::OFF), BLOCKED);
    assert_eq!(none, []);
}

#[test]
fn a_scheduler_without_rules_of_its_own_gets_them() {
    assert_eq!(asked(&mut RoundRobin::default(), BLOCKED), []);
    let mut wrapped = Orp::new(Box::<RoundRobin>::default(), OpportunisticRules::KERNEL);
    assert_eq!(asked(&mut wrapped, BLOCKED).len(), 2);
    assert_eq!(asked(&mut wrapped, SchedulerEvent::SubflowRto(SubflowId(1))), []);
}

#[test]
fn placement_and_probe_patience_come_from_the_inner_scheduler() {
    let mut wrapped = Orp::new(Box::<RoundRobin>::default(), OpportunisticRules::KERNEL);
    let stream = Stream::new(5_000);
    let subflows: [SubflowView; 2] = [full(view(0, 20)), view(1, 100)];
    let cx = stream.context(&subflows);
    let inner = RoundRobin::default().next_send(&cx);
    assert!(inner.data().is_some(), "the second one has room");
    assert_eq!(wrapped.next_send(&cx), inner);
    assert_eq!(wrapped.probe_patience(), RoundRobin::default().probe_patience());
    let bare = MinRtt::new(marline_algos::schedulers::MinRttConfig::LOWEST_RTT);
    let wrapped = Orp::new(Box::new(bare), OpportunisticRules::KERNEL);
    assert_eq!(wrapped.probe_patience(), None);
}
