//! Property tests of every scheduler, including the built-in ones. For any snapshot, decisions are valid: they use a
//! subflow with room; data that is new, or is unacknowledged and was not carried by that subflow; and no backup while a
//! regular subflow is healthy.

use marline_algos::schedulers::classes::{Class, best_class};
use marline_algos::schedulers::{
    AutoRedundant, BurstEnd, Coded, Hedged, MinRtt, MinRttConfig, OpportunisticRules, Probing,
    Redundant, RedundantIdle, RoundRobin,
};
use marline_policy::{
    Decision, Eligibility, Health, Reinjection, ReinjectionCause, Scheduler, SubflowView,
};
use marline_testkit::views::{DEGRADED, MSS, Stream, UNREACHABLE, set, view};
use marline_time::{Duration, Instant};
use proptest::prelude::*;

use crate::schedulers::{
    Augur, Blest, Ecf, Fuso, FusoConfig, Lamps, OpportunisticRedundant, Orp, Paaf, Papd,
    PapdConfig, Peekaboo, Raven, SilentOriginalAction, TailProbes, Xlink,
};

fn any_view(id: u8) -> impl Strategy<Value = SubflowView> {
    let eligibility = prop_oneof![
        4 => (1..20_000u64).prop_map(|room| Eligibility::Ready { room }),
        2 => Just(Eligibility::CwndLimited),
        1 => (0..99u64).prop_map(|at| Eligibility::PacingLimited(Instant::from_millis(at))),
        1 => Just(Eligibility::NotActive),
    ];
    let srtt = proptest::option::weighted(0.9, (1..500u64).prop_map(Duration::from_millis));
    let health =
        prop_oneof![6 => Just(Health::Usable), 3 => Just(UNREACHABLE), 1 => Just(DEGRADED)];
    (eligibility, srtt, any::<bool>(), health, 0..99u64).prop_map(
        move |(eligibility, srtt, backup, health, heard)| SubflowView {
            eligibility,
            srtt,
            backup,
            health,
            last_rx_at: Instant::from_millis(heard),
            ..view(id, 1)
        },
    )
}

/// Events between two decisions.
#[derive(Clone, Debug)]
enum Step {
    Write(u64),
    Ack(u64),
    Paths(Vec<SubflowView>),
    Ask,
}

fn any_step() -> impl Strategy<Value = Step> {
    let paths = (any_view(0), any_view(1), any_view(2)).prop_map(|(a, b, c)| vec![a, b, c]);
    prop_oneof![
        2 => (1..9_000u64).prop_map(Step::Write),
        2 => (1..6_000u64).prop_map(Step::Ack),
        2 => paths.prop_map(Step::Paths),
        6 => Just(Step::Ask),
    ]
}

fn schedulers() -> Vec<Box<dyn Scheduler>> {
    vec![
        Box::<MinRtt>::default(),
        Box::new(MinRtt::new(MinRttConfig::LOWEST_RTT)),
        Box::<RoundRobin>::default(),
        Box::<Redundant>::default(),
        Box::<OpportunisticRedundant>::default(),
        Box::<RedundantIdle>::default(),
        Box::<BurstEnd>::default(),
        Box::<Coded>::default(),
        Box::<Probing>::default(),
        Box::new(Papd::new(PapdConfig::default())),
        Box::<Blest>::default(),
        Box::<Ecf>::default(),
        Box::new(Orp::new(Box::<Ecf>::default(), OpportunisticRules::KERNEL)),
        Box::<Hedged>::default(),
        Box::<AutoRedundant>::default(),
        Box::<Xlink>::default(),
        Box::<Paaf>::default(),
        Box::<Augur>::default(),
        Box::<Peekaboo>::default(),
        Box::new(Fuso::wrap(Box::<MinRtt>::default(), FusoConfig::default())),
        Box::<Lamps>::default(),
        Box::<Raven>::default(),
        Box::new(TailProbes::across_paths(
            Box::<MinRtt>::default(),
            SilentOriginalAction::Reinject,
        )),
    ]
}

fn check(subflows: &[SubflowView], decision: Decision) {
    let Some((subflow, _)) = decision.data() else { return };
    let chosen =
        subflows.iter().find(|v| v.id == subflow).expect("the decision names an existing subflow");
    assert!(chosen.is_ready(), "{chosen:?} has no room");
    assert_eq!(
        Class::from_view(chosen),
        best_class(subflows),
        "a subflow of a better class was available"
    );
}

fn play(scheduler: &mut dyn Scheduler, steps: &[Step]) {
    let mut stream = Stream::new(0);
    let mut subflows: Vec<SubflowView> = Vec::new();
    for step in steps {
        match step {
            Step::Write(bytes) => stream.written += bytes,
            Step::Ack(bytes) => stream.ack(stream.data_una + bytes),
            Step::Paths(views) => subflows.clone_from(views),
            Step::Ask => {
                let decision = scheduler.next_send(&stream.context(&subflows));
                check(&subflows, decision);
                if let Some((subflow, range)) = decision.data() {
                    // Panics if the data is neither new nor allowed on this subflow.
                    stream.apply(subflow, range);
                }
            }
        }
    }
}

/// Parts from which specs are built.
const SPEC: &str =
    "[a-z]{0,3}|min-rtt|orp|papd|reno|cap|rfc6675|pto|=|,|\\+|after|ratio|[0-9.%]{0,4}|ms|é";

proptest! {
    #[test]
    fn decisions_are_valid(steps in proptest::collection::vec(any_step(), 1..200)) {
        for mut scheduler in schedulers() {
            play(&mut *scheduler, &steps);
        }
    }

    #[test]
    fn reinjections_avoid_the_subflow_that_carried_the_data(
        views in (any_view(0), any_view(1), any_view(2)),
        carried in proptest::collection::vec(0..3u8, 0..3),
        again in any::<bool>(),
    ) {
        let subflows = [views.0, views.1, views.2];
        let cause = if again { ReinjectionCause::DataRto } else { ReinjectionCause::SubflowRto };
        let range = marline_testkit::views::range(0, u64::from(MSS));
        let item =
            Reinjection { range, carried_by: set(&carried), cause, since: Instant::ZERO };
        let stream = Stream::new(0);
        for mut scheduler in schedulers() {
            let decision = scheduler.next_reinjection(&item, &stream.context(&subflows));
            let Some((subflow, range)) = decision.data() else { continue };
            prop_assert_eq!(range, item.range);
            let chosen = &subflows[usize::from(subflow.0)];
            prop_assert!(chosen.is_ready());
            prop_assert!(again || !item.carried_by.contains(subflow));
            let healthy_regular = subflows.iter().any(|v| Class::from_view(v) == Some(Class::Regular));
            prop_assert!(!healthy_regular || !chosen.backup, "a backup was chosen although a regular subflow is \
            usable");
        }
    }

    #[test]
    fn every_scheduler_sends_all_written_data(writes in proptest::collection::vec(1..9_000u64, 1..20)) {
        for mut scheduler in schedulers() {
            let mut stream = Stream::new(0);
            let subflows = [view(0, 20), view(1, 60)];
            for bytes in &writes {
                stream.written += bytes;
                while let Some((subflow, range)) =
                    scheduler.next_send(&stream.context(&subflows)).data()
                {
                    stream.apply(subflow, range);
                }
            }
            prop_assert!(stream.unsent().is_empty());
        }
    }

    /// Specs come from files and sockets, so any text must give a result or an error.
    #[test]
    fn any_text_has_an_answer(words in proptest::collection::vec(SPEC, 0..12)) {
        let (registry, text) = (crate::registry(), words.concat());
        let _ = registry.congestion(&text).map(|made| made.build(MSS, 10_000, Instant::ZERO));
        let _ = registry.recovery(&text).map(|made| made.build());
        if let Ok(made) = registry.scheduler(&text) {
            prop_assert_eq!(made.name(), text.as_str());
            made.build();
        }
    }
}
