//! Test of scheduler decisions that the subflow cannot carry out: other subflows take over.

use crate::cases::scene;
use marline_algos::schedulers::MinRtt;
use marline_algos::{NamedScheduler, Registry};
use marline_core::ConnectionConfig;
use marline_policy::{
    DataRange, Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId,
};
use marline_sim::{Amount, Bulk};
use marline_time::Instant;

/// Requests reinjection of all outstanding data on the first subflow whenever the second is silent, regardless of the
/// first one's state.
#[derive(Debug, Default)]
struct Stubborn {
    inner: MinRtt,
}

impl Scheduler for Stubborn {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.inner.next_send(cx)
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        self.inner.next_reinjection(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let silent = SubflowId(1);
        if matches!(event, SchedulerEvent::ProbeTimeout(id) | SchedulerEvent::SubflowRto(id) if id == silent)
        {
            let range = DataRange::new(cx.data_una, cx.unsent.start);
            out.push(SchedulerAction::Reinject { range, on: SubflowId(0) });
        }
    }
}

#[test]
fn data_ordered_on_a_dead_path_moves_to_a_live_one() {
    const BYTES: u64 = 20_000_000;
    let mut registry = Registry::default();
    let stubborn = NamedScheduler::new("stubborn", || Box::<Stubborn>::default());
    registry.register_scheduler(stubborn).expect("the name is free");
    let policies = registry.policy_set("stubborn", "full-mesh", "cubic", "rack-tlp");
    let links = ["rate=20M,delay=10ms", "rate=20M,delay=20ms", "rate=20M,delay=40ms"];
    let mut paths = scene(&links, ConnectionConfig::new(policies.expect("known")), 1);
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    paths.connect(0, Box::new(Bulk::new(Amount::Bytes(BYTES), 1, 2))).expect("a connection");
    paths.schedule_path_change(Instant::from_millis(1_000), 0, false);
    paths.schedule_path_change(Instant::from_millis(1_300), 1, false);
    paths.world.run_until(Instant::from_secs(15));
    let report = paths.server_report(0).expect("accepted");
    assert_eq!((report.read, report.wrong_at), (BYTES, None));
}
