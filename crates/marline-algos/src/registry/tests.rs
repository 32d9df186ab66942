use marline_policy::{Decision, Reinjection, Scheduler, SchedulerContext};
use marline_time::{Duration, Instant};

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
    let expect = |kind, names: &[&str]| {
        let known = registry.names(kind);
        assert!(names.iter().all(|name| known.contains(name)), "{names:?} in {known:?}");
    };
    expect(PolicyKind::Scheduler, &["min-rtt", "redundant", "round-robin"]);
    expect(PolicyKind::PathManager, &["backup", "full-mesh", "manual"]);
    expect(PolicyKind::Congestion, &["cubic", "cubic-classic", "reno", "reno-hystart"]);
    expect(PolicyKind::Congestion, &["bbr"]);
    expect(PolicyKind::Recovery, &["rack-tlp", "rack-tlp-rfc"]);
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
fn the_sets_are_the_built_in_ones_of_the_same_names() {
    let build = |f: &dyn CongestionFactory| format!("{:?}", f.build(1_000, 10_000, Instant::ZERO));
    let of = |set: &PolicySet| {
        let scheduler = format!("{:?}", set.scheduler.build());
        let path_manager = format!("{:?}", set.path_manager.build());
        let recovery = format!("{:?}", set.recovery.build());
        [scheduler, path_manager, build(&*set.congestion), recovery]
    };
    let names = [
        (default_policies(), ["auto", "full-mesh", "cubic-westwood", "rack-tlp"]),
        (reference_policies(), ["min-rtt", "full-mesh", "cubic", "rack-tlp"]),
    ];
    for (set, [scheduler, path_manager, congestion, recovery]) in names {
        assert_eq!((set.scheduler.name(), set.path_manager.name()), (scheduler, path_manager));
        assert_eq!((set.congestion.name(), set.recovery.name()), (congestion, recovery));
        let named = Registry::default().policy_set(scheduler, path_manager, congestion, recovery);
        assert_eq!(of(&set), of(&named.unwrap()));
    }
}

#[test]
fn a_registered_policy_is_chosen_by_name() {
    let mut registry = Registry::default();
    registry.register_scheduler(NamedScheduler::new("never", || Box::new(Never))).unwrap();
    let set = registry.policy_set("never", "full-mesh", "cubic", "rack-tlp").unwrap();
    assert_eq!(set.scheduler.name(), "never");
}

#[test]
fn unknown_names_list_the_known_ones() {
    let error = Registry::default().scheduler("minrtt").unwrap_err();
    let known = Registry::default().names(PolicyKind::Scheduler).join(", ");
    assert_eq!(error.to_string(), format!("unknown scheduler `minrtt`; known: {known}"));
    let error = Registry::default().policy_set("min-rtt", "mesh", "cubic", "rack-tlp").unwrap_err();
    assert!(matches!(
        error,
        PolicyError::Unknown(UnknownPolicy { kind: PolicyKind::PathManager, .. })
    ));
}

#[test]
fn a_name_is_given_once_and_must_be_plain() {
    let mut registry = Registry::default();
    let taken = registry.register_scheduler(NamedScheduler::new("min-rtt", || Box::new(Never)));
    assert_eq!(taken.unwrap_err().to_string(), "a scheduler named `min-rtt` is already registered");
    for name in ["", "Min", "a b", "7up", "-x", "naïve"] {
        let bad = registry.register_scheduler(NamedScheduler::new(name, || Box::new(Never)));
        assert!(matches!(bad, Err(RegisterError::BadName { .. })), "{name:?}");
    }
    // Each kind has its own names.
    registry
        .register_recovery(NamedRecovery::new("min-rtt", || Box::<RackTlp>::default()))
        .unwrap();
}

/// Records the values with which it was built.
#[derive(Debug)]
#[expect(dead_code, reason = "read by Debug")]
struct Around {
    inner: Box<dyn Scheduler>,
    after: Duration,
}

impl Scheduler for Around {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.inner.next_send(cx)
    }
    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        self.inner.next_reinjection(item, cx)
    }
}

/// Creates a registry with a wrapper `around` and a scheduler `tuned` that prints its parameter.
fn with_own() -> Registry {
    let mut registry = Registry::default();
    registry
        .register_scheduler_wrapper("around", |parameters| {
            let after = parameters.duration("after", Duration::from_millis(1));
            move |inner| Box::new(Around { inner, after })
        })
        .unwrap();
    registry
        .register_recovery_with("tuned", |parameters| {
            let rfc = parameters.on_off("rfc", false);
            move || Box::new(if rfc { RackTlp::rfc8985() } else { RackTlp::default() })
        })
        .unwrap();
    registry
}

#[test]
fn wrappers_go_around_from_left_to_right() {
    let mut own = with_own();
    let text = "never+around,after=2ms+around";
    own.register_scheduler(NamedScheduler::new("never", || Box::new(Never))).unwrap();
    let factory = own.scheduler(text).unwrap();
    assert_eq!(factory.name(), text, "a factory answers to the whole text");
    assert_eq!(
        format!("{:?}", factory.build()),
        "Around { inner: Around { inner: Never, after: 2ms }, after: 1ms }"
    );
}

#[test]
fn parameters_choose_variants() {
    let registry = with_own();
    let built = |spec: &str| format!("{:?}", registry.recovery(spec).unwrap().build());
    assert_eq!(built("tuned"), built("rack-tlp"));
    assert_eq!(built("tuned,rfc=on"), built("rack-tlp-rfc"));
    assert_eq!(registry.recovery("tuned,rfc=on").unwrap().name(), "tuned,rfc=on");
    let listed = registry.parameters(PolicyKind::Recovery, "tuned").unwrap();
    assert_eq!((listed[0].key.as_str(), listed[0].default.as_str()), ("rfc", "off"));
    let listed = registry.parameters(PolicyKind::SchedulerWrapper, "around").unwrap();
    assert_eq!((listed[0].key.as_str(), listed[0].default.as_str()), ("after", "1ms"));
    assert_eq!(registry.parameters(PolicyKind::Scheduler, "no-such"), None);
}

#[test]
fn an_invalid_policy_spec_has_a_precise_error() {
    let mut registry = with_own();
    registry.register_scheduler(NamedScheduler::new("plain", || Box::new(Never))).unwrap();
    let scheduler = |spec: &str| registry.scheduler(spec).unwrap_err().to_string();
    assert!(scheduler("").starts_with("unknown scheduler ``; known: "));
    assert!(scheduler("around").starts_with("unknown scheduler `around`; known: "));
    assert!(
        scheduler("min-rtt+min-rtt").starts_with("unknown scheduler wrapper `min-rtt`; known: ")
    );
    assert!(scheduler("min-rtt+").starts_with("unknown scheduler wrapper ``; known: "));
    assert_eq!(
        scheduler("plain,x=1"),
        "scheduler `plain` has no parameter `x`; it takes no parameters"
    );
    assert_eq!(
        scheduler("min-rtt+around,x=1"),
        "scheduler wrapper `around` has no parameter `x`; known: after"
    );
    let blanks = scheduler("min-rtt, x=1");
    assert_eq!(blanks, "scheduler `min-rtt, x=1`: spaces are not allowed");
    for unreadable in ["min-rtt,x", "min-rtt,=1", "min-rtt,x=", "min-rtt,"] {
        let problem = scheduler(unreadable);
        assert!(problem.ends_with("after the name come parameters: `name,key=value,key=value`"));
    }
    assert!(scheduler("x=1").ends_with("begin with a name: `name,key=value`"));
    let recovery = registry.recovery("rack-tlp+around").unwrap_err().to_string();
    assert_eq!(
        recovery,
        "loss recovery `rack-tlp+around`: policies of this kind cannot be wrapped with `+`"
    );
}

#[test]
fn congestion_controls_are_wrapped_too() {
    let mut registry = Registry::default();
    registry
        .register_congestion_wrapper("same", |parameters| {
            let mss_only = parameters.on_off("mss-only", false);
            move |inner, mss| {
                assert_eq!((mss, mss_only), (1_000, true));
                inner
            }
        })
        .unwrap();
    let factory = registry.congestion("reno+same,mss-only=on").unwrap();
    assert_eq!(factory.build(1_000, 10_000, Instant::ZERO).window(), 10_000);
    assert_eq!(factory.name(), "reno+same,mss-only=on");
}

proptest::proptest! {
    /// Specs come from files and sockets, so any text must give a result or an error.
    #[test]
    fn any_text_has_an_answer(
        words in proptest::collection::vec("[a-z]{0,3}|min-rtt|coded|rate|=|,|\\+|[0-9.%]{0,4}|ms|é", 0..12),
    ) {
        let (registry, text) = (Registry::default(), words.concat());
        let _ = registry.path_manager(&text);
        let _ = registry.congestion(&text).map(|made| made.build(1_000, 10_000, Instant::ZERO));
        let _ = registry.recovery(&text).map(|made| made.build());
        if let Ok(made) = registry.scheduler(&text) {
            proptest::prop_assert_eq!(made.name(), text.as_str());
            made.build();
        }
    }
}
