//! Registration of schedulers and their wrappers.

use marline_algos::schedulers::{OpportunisticRules, Penalize, Retransmit};
use marline_algos::{NamedScheduler, Parameters, RegisterError, Registry};

use crate::schedulers::{
    Augur, AugurConfig, Blest, BlestConfig, Ecf, EcfConfig, EndCopies, Fuso, FusoConfig, Lamps,
    LampsConfig, MeasurementMethod, OpportunisticRedundant, Orp, Paaf, PaafConfig, Papd,
    PapdConfig, Peekaboo, PeekabooConfig, Raven, RavenConfig, XlinkConfig,
};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_scheduler_with("augur", |parameters| {
        let config = augur(parameters);
        move || Box::new(Augur::new(config))
    })?;
    registry.register_scheduler_with("blest", |parameters| {
        let config = blest(parameters);
        move || Box::new(Blest::new(config))
    })?;
    registry.register_scheduler_with("ecf", |parameters| {
        let config = EcfConfig { beta: parameters.number("beta", 0.25, 0.0..=10.0) };
        move || Box::new(Ecf::new(config))
    })?;
    registry.register_scheduler_wrapper("fuso", |parameters| {
        let default = FusoConfig::default();
        let config = FusoConfig {
            found: parameters.on_off("found", default.found),
            spare: parameters.on_off("spare", default.spare),
        };
        move |inner| Box::new(Fuso::wrap(inner, config))
    })?;
    registry.register_scheduler_with("lamps", |parameters| {
        let config = lamps(parameters);
        move || Box::new(Lamps::new(config))
    })?;
    registry.register_scheduler(NamedScheduler::new("opportunistic-redundant", || {
        Box::<OpportunisticRedundant>::default()
    }))?;
    registry.register_scheduler_wrapper("orp", |parameters| {
        let rules = orp(parameters);
        move |inner| Box::new(Orp::new(inner, rules))
    })?;
    registry.register_scheduler_with("paaf", |parameters| {
        let config = paaf(parameters);
        move || Box::new(Paaf::new(config))
    })?;
    registry.register_scheduler_with("peekaboo", |parameters| {
        let config = peekaboo(parameters);
        move || Box::new(Peekaboo::new(config))
    })?;
    registry.register_scheduler_with("raven", |parameters| {
        let config = raven(parameters);
        move || Box::new(Raven::new(config))
    })?;
    add_papd(registry)?;
    registry.register_copies::<EndCopies>("xlink", xlink)
}

fn augur(parameters: &mut Parameters<'_>) -> AugurConfig {
    let default = AugurConfig::default();
    AugurConfig {
        budget: parameters.number("budget", default.budget, 0.0..=1.0),
        reserve: parameters.bytes("reserve", default.reserve),
        min_saving: parameters.duration("worth", default.min_saving),
        with_backups: parameters.on_off("backup", default.with_backups),
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
        parameters.refuse("least", "at most `most`");
        return defaults;
    }
    config
}

fn lamps(parameters: &mut Parameters<'_>) -> LampsConfig {
    let default = LampsConfig::default();
    LampsConfig {
        sure: parameters.number("sure", default.sure, 0.0..=1.0),
        burst: parameters.number("burst", default.burst, 0.0..=0.9),
    }
}

fn orp(parameters: &mut Parameters<'_>) -> OpportunisticRules {
    let retransmit = [
        ("off", Retransmit::Off),
        ("on", Retransmit::Kernel),
        ("paper", Retransmit::Paper),
        ("kernel", Retransmit::Kernel),
        ("wide", Retransmit::Wide),
    ];
    let penalize = [
        ("off", Penalize::Off),
        ("on", Penalize::Kernel),
        ("paper", Penalize::Paper),
        ("kernel", Penalize::Kernel),
    ];
    let for_send_buffer =
        [("off", (false, false)), ("retransmit", (true, false)), ("both", (true, true))];
    let retransmit = parameters.word("retransmit", "kernel", &retransmit);
    let penalize = parameters.word("penalize", "kernel", &penalize);
    let (for_send_buffer, penalize_for_send_buffer) =
        parameters.word("send-buffer", "both", &for_send_buffer);
    OpportunisticRules { retransmit, penalize, for_send_buffer, penalize_for_send_buffer }
}

fn paaf(parameters: &mut Parameters<'_>) -> PaafConfig {
    let default = PaafConfig::default();
    PaafConfig {
        rise: parameters.number("rise", default.rise, 1.0..=1_000.0),
        drop: parameters.number("drop", default.drop, 0.0..=1.0),
        silence: parameters.number("silence", default.silence, 0.0..=100.0),
        hold: parameters.duration("hold", default.hold),
        with_backups: parameters.on_off("backup", default.with_backups),
    }
}

fn peekaboo(parameters: &mut Parameters<'_>) -> PeekabooConfig {
    let default = PeekabooConfig::default();
    PeekabooConfig {
        alpha: parameters.number("alpha", default.alpha, 0.0..=100.0),
        discount: parameters.number("discount", default.discount, 0.0..=1.0),
        memory: parameters.count("memory", default.memory.into(), 1..=1_000_000) as u32,
        adjusts: parameters.on_off("adjust", default.adjusts),
        seed: parameters.count("seed", default.seed, 0..=u64::MAX),
    }
}

fn raven(parameters: &mut Parameters<'_>) -> RavenConfig {
    let default = RavenConfig::default();
    let config = RavenConfig {
        deviations: parameters.number("deviations", default.deviations, 0.0..=100.0),
        fresh: parameters.duration("fresh", default.fresh),
        stale: parameters.duration("stale", default.stale),
        limit: parameters.bytes("limit", default.limit),
    };
    if config.fresh.is_zero() {
        parameters.refuse("fresh", "a value above zero");
    }
    config
}

/// Registers PAPD based on `min-rtt`, and as a wrapper that uses any scheduler as the multipath mode.
fn add_papd(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_scheduler_with("papd", |parameters| {
        let config = papd(parameters);
        move || Box::new(Papd::new(config))
    })?;
    registry.register_scheduler_wrapper("papd", |parameters| {
        let config = papd(parameters);
        move |inner| Box::new(Papd::wrap(inner, config))
    })
}

fn papd(parameters: &mut Parameters<'_>) -> PapdConfig {
    let default = PapdConfig::default();
    let config = PapdConfig {
        window_rtts: parameters.number("window", default.window_rtts, 1.0..=1_000.0),
        min_window: parameters.duration("least-window", default.min_window),
        max_window: parameters.duration("most-window", default.max_window),
        share: parameters.number("share", default.share, 0.001..=0.5),
        discard_rtts: parameters.number("discard", default.discard_rtts, 0.0..=1_000.0),
        hysteresis: parameters.number("hysteresis", default.hysteresis, 0.0..=10.0),
        start_rtts: parameters.count("start", default.start_rtts.into(), 1..=100_000) as u32,
        best_path_only: parameters.on_off("best-path", default.best_path_only),
        measure: parameters.word(
            "measure",
            "at-once",
            &[("at-once", MeasurementMethod::AtOnce), ("in-turn", MeasurementMethod::InTurn)],
        ),
        by_rule: parameters.on_off("rule", default.by_rule),
    };
    if config.min_window > config.max_window {
        parameters.refuse("least-window", "at most `most-window`");
    }
    if config.min_window.is_zero() {
        parameters.refuse("least-window", "a value above zero");
    }
    config
}

fn xlink(parameters: &mut Parameters<'_>) -> XlinkConfig {
    let default = XlinkConfig::default();
    let config = XlinkConfig {
        near: parameters.duration("near", default.near),
        far: parameters.duration("far", default.far),
    };
    if config.near > config.far {
        parameters.refuse("near", "at most `far`");
    }
    config
}
