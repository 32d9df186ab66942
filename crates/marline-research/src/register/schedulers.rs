//! Registration of schedulers and their wrappers.

use marline_algos::schedulers::{OpportunisticRules, Penalise, Retransmit};
use marline_algos::{NamedScheduler, Parameters, RegisterError, Registry};

use crate::schedulers::{
    Blest, BlestConfig, Ecf, EcfConfig, OpportunisticRedundant, Orp, Papd, PapdConfig,
};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_scheduler_with("blest", |parameters| {
        let config = blest(parameters);
        move || Box::new(Blest::new(config))
    })?;
    registry.register_scheduler_with("ecf", |parameters| {
        let config = EcfConfig { beta: parameters.number("beta", 0.25, 0.0..=10.0) };
        move || Box::new(Ecf::new(config))
    })?;
    registry.register_scheduler(NamedScheduler::new("opportunistic-redundant", || {
        Box::<OpportunisticRedundant>::default()
    }))?;
    registry.register_scheduler_wrapper("orp", |parameters| {
        let rules = orp(parameters);
        move |inner| Box::new(Orp::new(inner, rules))
    })?;
    add_papd(registry)
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

/// Over `min-rtt`, and as a wrapper over any scheduler as its multipath mode.
fn add_papd(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_scheduler_with("papd", |parameters| {
        let config = papd(parameters);
        move || Box::new(Papd::new(config))
    })?;
    registry.register_scheduler_wrapper("papd", |parameters| {
        let config = papd(parameters);
        move |inner| Box::new(Papd::around(inner, config))
    })
}

fn papd(parameters: &mut Parameters<'_>) -> PapdConfig {
    let default = PapdConfig::default();
    let config = PapdConfig {
        window_rtts: parameters.number("window", default.window_rtts, 1.0..=1_000.0),
        least_window: parameters.duration("least-window", default.least_window),
        most_window: parameters.duration("most-window", default.most_window),
        share: parameters.number("share", default.share, 0.001..=0.5),
        discard_rtts: parameters.number("discard", default.discard_rtts, 0.0..=1_000.0),
        hysteresis: parameters.number("hysteresis", default.hysteresis, 0.0..=10.0),
        start_rtts: parameters.count("start", default.start_rtts.into(), 1..=100_000) as u32,
        best_path_only: parameters.on_off("best-path", default.best_path_only),
        by_rule: parameters.on_off("rule", default.by_rule),
    };
    if config.least_window > config.most_window {
        parameters.refuse("least-window", "no more than `most-window`");
    }
    if config.least_window.is_zero() {
        parameters.refuse("least-window", "more than zero");
    }
    config
}
