//! Built-in schedulers that send each byte once.

use super::{RegisterError, Registry};
use crate::schedulers::{
    FollowClient, FollowClientConfig, Linux, MinRtt, MinRttConfig, OpportunisticRules, RoundRobin,
    RoundRobinConfig,
};
use crate::{NamedScheduler, Parameters};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    for (name, defaults) in
        [("min-rtt", MinRttConfig::default()), ("lowest-rtt", MinRttConfig::LOWEST_RTT)]
    {
        registry.register_scheduler_with(name, move |parameters| {
            let config = min_rtt(parameters, defaults);
            move || Box::new(MinRtt::new(config))
        })?;
    }
    registry.register_scheduler_with("round-robin", |parameters| {
        let turns = RoundRobinConfig::default();
        let config = RoundRobinConfig {
            segments: parameters.count("segments", u64::from(turns.segments), 1..=1_000) as u32,
            skips_full: parameters.on_off("skip-full", turns.skips_full),
        };
        move || Box::new(RoundRobin::new(config))
    })?;
    registry.register_scheduler(NamedScheduler::new("linux", || Box::<Linux>::default()))?;
    registry.register_scheduler_with("follow-client", |parameters| {
        let config = follow_client(parameters);
        move || Box::new(FollowClient::new(config))
    })
}

fn min_rtt(parameters: &mut Parameters<'_>, defaults: MinRttConfig) -> MinRttConfig {
    let on = defaults.opportunistic == OpportunisticRules::WIDE;
    let opportunistic = parameters.on_off("opportunistic", on);
    let reinject = if defaults.reinjects_on_probe { "probe" } else { "rto" };
    MinRttConfig {
        avoids_blocking: parameters.on_off("blocking", defaults.avoids_blocking),
        completes_early: parameters.on_off("completion", defaults.completes_early),
        opportunistic: if opportunistic {
            OpportunisticRules::WIDE
        } else {
            OpportunisticRules::OFF
        },
        reinjects_on_probe: parameters.word(
            "reinject",
            reinject,
            &[("probe", true), ("rto", false)],
        ),
    }
}

fn follow_client(parameters: &mut Parameters<'_>) -> FollowClientConfig {
    let defaults = FollowClientConfig::default();
    let reinject = if defaults.reinjects_on_probe { "probe" } else { "rto" };
    FollowClientConfig {
        uses_other_subflows: parameters.on_off("spill", defaults.uses_other_subflows),
        reinjects_on_probe: parameters.word(
            "reinject",
            reinject,
            &[("probe", true), ("rto", false)],
        ),
    }
}
