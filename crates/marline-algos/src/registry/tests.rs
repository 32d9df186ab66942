use marline_policy::{Decision, Reinjection, Scheduler, SchedulerContext};
use marline_time::Instant;

use super::*;

#[derive(Debug)]
struct Never;

impl Scheduler for Never {
    fn next_send(&mut self, _cx: &SchedulerContext<'_>) -> Decision {
        Decision::Wait
    }
    fn next_reinjection(&mut self, _item: &Reinjection, _cx: &SchedulerContext<'_>) -> Decision {
        Decision::Wait
    }
}

#[test]
fn the_built_in_policies_are_there() {
    let registry = Registry::default();
    assert_eq!(registry.names(PolicyKind::Scheduler), ["min-rtt", "redundant", "round-robin"]);
    assert_eq!(registry.names(PolicyKind::PathManager), ["backup", "full-mesh", "manual"]);
    assert_eq!(
        registry.names(PolicyKind::Congestion),
        ["cubic", "cubic-classic", "reno", "reno-hystart"]
    );
    assert_eq!(registry.names(PolicyKind::Recovery), ["rack-tlp", "rack-tlp-rfc"]);
}

#[test]
fn a_factory_answers_to_the_name_it_is_chosen_by() {
    let registry = Registry::default();
    for name in registry.names(PolicyKind::Scheduler) {
        assert_eq!(registry.scheduler(name).unwrap().name(), name);
    }
    let set = registry.policy_set("redundant", "backup", "reno", "rack-tlp-rfc").unwrap();
    assert_eq!((set.scheduler.name(), set.path_manager.name()), ("redundant", "backup"));
    assert_eq!((set.congestion.name(), set.recovery.name()), ("reno", "rack-tlp-rfc"));
    assert!(format!("{:?}", set.scheduler.build()).starts_with("Redundant"));
    let cc = set.congestion.build(1_000, 10_000, Instant::ZERO);
    assert_eq!((cc.window(), cc.ssthresh()), (10_000, u64::MAX));
}

#[test]
fn the_defaults_are_the_built_in_ones_of_the_same_names() {
    let (defaults, registry) = (default_policies(), Registry::default());
    let scheduler = registry.scheduler(defaults.scheduler.name()).unwrap();
    assert_eq!(format!("{:?}", scheduler.build()), format!("{:?}", defaults.scheduler.build()));
    let path_manager = registry.path_manager(defaults.path_manager.name()).unwrap();
    assert_eq!(
        format!("{:?}", path_manager.build()),
        format!("{:?}", defaults.path_manager.build())
    );
    let recovery = registry.recovery(defaults.recovery.name()).unwrap();
    assert_eq!(format!("{:?}", recovery.build()), format!("{:?}", defaults.recovery.build()));
    let build = |f: &dyn CongestionFactory| format!("{:?}", f.build(1_000, 10_000, Instant::ZERO));
    let congestion = registry.congestion(defaults.congestion.name()).unwrap();
    assert_eq!(build(&*congestion), build(&*defaults.congestion));
}

#[test]
fn ones_own_policy_is_chosen_like_the_others() {
    let mut registry = Registry::default();
    registry.register_scheduler(NamedScheduler::new("never", || Box::new(Never))).unwrap();
    let set = registry.policy_set("never", "full-mesh", "cubic", "rack-tlp").unwrap();
    assert_eq!(set.scheduler.name(), "never");
}

#[test]
fn unknown_names_list_the_known_ones() {
    let error = Registry::default().scheduler("minrtt").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown scheduler `minrtt`; known: min-rtt, redundant, round-robin"
    );
    let error = Registry::default().policy_set("min-rtt", "mesh", "cubic", "rack-tlp").unwrap_err();
    assert_eq!(error.kind, PolicyKind::PathManager);
}

#[test]
fn a_name_is_given_once_and_must_be_plain() {
    let mut registry = Registry::default();
    let taken = registry.register_scheduler(NamedScheduler::new("min-rtt", || Box::new(Never)));
    assert_eq!(taken.unwrap_err().to_string(), "a scheduler named `min-rtt` is registered already");
    for name in ["", "Min", "a b", "7up", "-x", "naïve"] {
        let bad = registry.register_scheduler(NamedScheduler::new(name, || Box::new(Never)));
        assert!(matches!(bad, Err(RegisterError::BadName { .. })), "{name:?}");
    }
    // The kinds do not share their names.
    registry
        .register_recovery(NamedRecovery::new("min-rtt", || Box::<RackTlp>::default()))
        .unwrap();
}
