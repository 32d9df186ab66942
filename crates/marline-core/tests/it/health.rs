//! Tests of a subflow's health, with changes by schedulers and as seen by monitors.

use crate::two_hosts::{MiddleboxAction, TwoHosts, by_turns, bytes, two_paths};
use marline_algos::schedulers::RoundRobin;
use marline_algos::{NamedScheduler, Registry};
use marline_core::{MonitorKind, SubflowInfo};
use marline_policy::{
    Decision, Health, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId, UnreachableCause,
};
use marline_testkit::{Side, config};

const ACCUSED: SubflowId = SubflowId(1);

/// Alternates until data is acknowledged on the first subflow after both carried data. Then it declares the second
/// one dead, once.
#[derive(Debug, Default)]
struct Accuser {
    inner: RoundRobin,
    done: bool,
}

impl Scheduler for Accuser {
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
        let carries = cx.subflows.iter().any(|v| v.id == ACCUSED && v.bytes_in_flight > 0);
        let acked = matches!(event, SchedulerEvent::Acked { on, .. } if on != ACCUSED);
        if acked && carries && !core::mem::replace(&mut self.done, true) {
            out.push(SchedulerAction::Suspect(ACCUSED));
        }
    }

    fn watches_acks(&self) -> bool {
        true
    }
}

#[test]
fn a_subflow_a_scheduler_declares_dead_is_silent_until_heard() {
    let mut registry = Registry::default();
    let accuser = NamedScheduler::new("accuser", || Box::<Accuser>::default());
    registry.register_scheduler(accuser).expect("the name is free");
    let mut client = two_paths(config());
    client.policies.scheduler = registry.scheduler("accuser").expect("registered");
    let mut hosts = TwoHosts::new(client, by_turns(config()), |_| MiddleboxAction::Pass, 3);
    hosts.run_ms(500);
    let data = bytes(300_000, 1);
    hosts.write(Side::A, &data);
    let health = |hosts: &mut TwoHosts| {
        let info = hosts.info(Side::A);
        let of = |subflow: &&SubflowInfo| subflow.id == ACCUSED;
        info.subflows.iter().find(of).expect("it is up").health
    };
    let mut waited_ms = 0;
    while health(&mut hosts).is_usable() {
        hosts.run_ms(1);
        waited_ms += 1;
        assert!(waited_ms < 1_000, "no subflow was suspected");
    }
    assert!(matches!(
        health(&mut hosts),
        Health::Unreachable { cause: UnreachableCause::Scheduler, .. }
    ));
    hosts.run_ms(3_000);
    assert_eq!(health(&mut hosts), Health::Usable);
    let told = hosts.end(Side::A).monitor.iter().filter_map(|kind| match kind {
        MonitorKind::SubflowReachability { id: ACCUSED, reachable } => Some(!*reachable),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [true, false]);
    assert!(hosts.ends[1].received == data);
}
