//! Tests of scheduler decisions that hold for a run of segments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use marline_algos::{NamedScheduler, Registry};
use marline_core::ConnectionConfig;
use marline_policy::{Decision, Reinjection, Scheduler, SchedulerContext, SubflowView};
use marline_sim::{Amount, Bulk};
use marline_time::Instant;

use crate::cases::scene;

/// Assigns all data to the first subflow with room, segment by segment or as a run.
#[derive(Debug)]
struct First {
    runs: bool,
    /// Number of decisions about new data.
    asked: Arc<AtomicU64>,
}

fn ready<'a>(cx: &SchedulerContext<'a>) -> Option<&'a SubflowView> {
    cx.subflows.iter().find(|view| view.is_ready())
}

impl Scheduler for First {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match ready(cx).map(|view| (view.id, cx.unsent)) {
            None => Decision::Wait,
            Some((_, range)) if range.is_empty() => Decision::Wait,
            Some((subflow, range)) if self.runs => Decision::SendRun { subflow, range },
            Some((subflow, range)) => Decision::Send { subflow, range },
        }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        ready(cx).map_or(Decision::Wait, |view| Decision::Send {
            subflow: view.id,
            range: item.range.prefix(u64::from(view.mss)),
        })
    }
}

/// 2 MB over these links, the second of which is down for a while. Returns the completion time, the number of segments
/// that the client sent, and the number of scheduler calls for new data.
fn bulk(links: &[&str], runs: bool) -> (Instant, u64, u64) {
    const BYTES: u64 = 2_000_000;
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let mut registry = Registry::default();
    let first =
        NamedScheduler::new("first", move || Box::new(First { runs, asked: Arc::clone(&counter) }));
    registry.register_scheduler(first).expect("the name is free");
    let policies = registry.policy_set("first", "full-mesh", "cubic", "rack-tlp");
    let config = ConnectionConfig::new(policies.expect("known"));
    let mut paths = scene(links, ConnectionConfig { mapping_runs: runs, ..config }, 1);
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    paths.connect(0, Box::new(Bulk::new(Amount::Bytes(BYTES), 1, 2))).expect("a connection");
    if links.len() > 1 {
        paths.schedule_path_change(Instant::from_millis(500), 0, false);
        paths.schedule_path_change(Instant::from_millis(900), 0, true);
    }
    paths.world.run_until(Instant::from_secs(30));
    let report = paths.server_report(0).expect("accepted");
    assert_eq!((report.read, report.wrong_at), (BYTES, None));
    let (_, done) = report.arrived.expect("all of it");
    let sent = paths.world.node(paths.client).endpoint().counters().segments_out;
    (done, sent, asked.load(Ordering::Relaxed))
}

#[test]
fn a_run_takes_one_scheduler_call_and_one_mapping() {
    let link = ["rate=20M,delay=10ms"];
    let ((late, many, often), (soon, few, rarely)) = (bulk(&link, false), bulk(&link, true));
    assert!(rarely * 3 < often * 2, "called {rarely} times instead of {often}");
    assert!(few < many && soon < late, "{few} of {many} segments, {soon:?} and {late:?}");
}

#[test]
fn a_run_ends_where_its_subflow_does() {
    let links = ["rate=20M,delay=10ms", "rate=20M,delay=30ms,loss=0.5%"];
    let (.., asked) = bulk(&links, true);
    assert!(asked > 0);
}
