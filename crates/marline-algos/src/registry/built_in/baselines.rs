//! The schedulers that others are compared with, and OR&P around any.

use super::{RegisterError, Registry};
use crate::schedulers::{
    Blest, BlestConfig, Ecf, EcfConfig, FollowClient, FollowClientConfig, Linux, MinRtt,
    MinRttConfig, OpportunisticRules, Orp, Penalise, Retransmit, RoundRobin, RoundRobinConfig,
};
use crate::{NamedScheduler, Parameters};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    for (name, defaults) in
        [("min-rtt", MinRttConfig::default()), ("lowest-rtt", MinRttConfig::BARE)]
    {
        registry.register_scheduler_with(name, move |parameters| {
            let config = min_rtt(parameters, defaults);
            move || Box::new(MinRtt::new(config))
        })?;
    }
    registry.register_scheduler_with("round-robin", |parameters| {
        let config = RoundRobinConfig {
            segments: parameters.count("segments", 1, 1..=1_000) as u32,
            skips_full: parameters.on_off("skip-full", true),
        };
        move || Box::new(RoundRobin::new(config))
    })?;
    registry.register_scheduler_with("blest", |parameters| {
        let config = blest(parameters);
        move || Box::new(Blest::new(config))
    })?;
    registry.register_scheduler_with("ecf", |parameters| {
        let config = EcfConfig { beta: parameters.number("beta", 0.25, 0.0..=10.0) };
        move || Box::new(Ecf::new(config))
    })?;
    registry.register_scheduler(NamedScheduler::new("linux", || Box::<Linux>::default()))?;
    registry.register_scheduler_with("follow-client", |parameters| {
        let config = follow_client(parameters);
        move || Box::new(FollowClient::new(config))
    })?;
    registry.register_scheduler_wrapper("orp", |parameters| {
        let rules = orp(parameters);
        move |inner| Box::new(Orp::new(inner, rules))
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
        spills: parameters.on_off("spill", defaults.spills),
        reinjects_on_probe: parameters.word(
            "reinject",
            reinject,
            &[("probe", true), ("rto", false)],
        ),
    }
}

fn blest(parameters: &mut Parameters<'_>) -> BlestConfig {
    let defaults = BlestConfig::default();
    let config = BlestConfig {
        lambda: parameters.number("lambda", defaults.lambda, 0.0..=10.0),
        bounds: (
            parameters.number("least", defaults.bounds.0, 0.0..=10.0),
            parameters.number("most", defaults.bounds.1, 0.0..=10.0),
        ),
        up: parameters.number("up", defaults.up, 0.0..=1.0),
        down: parameters.number("down", defaults.down, 0.0..=1.0),
        adapts: parameters.on_off("adapt", defaults.adapts),
    };
    if config.bounds.0 > config.bounds.1 {
        parameters.refuse("least", "not more than `most`");
        return defaults;
    }
    config
}

fn orp(parameters: &mut Parameters<'_>) -> OpportunisticRules {
    let retransmit = [
        ("off", Retransmit::Off),
        ("on", Retransmit::Kernel),
        ("paper", Retransmit::Paper),
        ("kernel", Retransmit::Kernel),
        ("wide", Retransmit::Wide),
    ];
    let penalise = [
        ("off", Penalise::Off),
        ("on", Penalise::Kernel),
        ("paper", Penalise::Paper),
        ("kernel", Penalise::Kernel),
    ];
    let for_send_buffer =
        [("off", (false, false)), ("retransmit", (true, false)), ("both", (true, true))];
    let retransmit = parameters.word("retransmit", "kernel", &retransmit);
    let penalise = parameters.word("penalise", "kernel", &penalise);
    let (for_send_buffer, penalise_for_send_buffer) =
        parameters.word("send-buffer", "both", &for_send_buffer);
    OpportunisticRules { retransmit, penalise, for_send_buffer, penalise_for_send_buffer }
}
