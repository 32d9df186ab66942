//! Built-in schedulers and scheduler wrappers.

use super::{RegisterError, Registry, baselines};
use crate::schedulers::{
    Auto, AutoConfig, AutoRedundantConfig, BudgetConfig, BurstEndConfig, CodedConfig,
    DeadlineConfig, HedgeRule, HedgedConfig, IdleCopies, IdlePaths, MissedDeadlines, ProbingConfig,
    Redundant, Repairs, RiskyPaths, Tail, WithoutRepairs,
};
use marline_policy::Terms;
use marline_time::Rate;

use crate::{NamedScheduler, Parameters};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    baselines::add(registry)?;
    registry.register_scheduler_with("auto", |parameters| {
        let config = auto(parameters);
        move || Box::new(Auto::new(config))
    })?;
    registry
        .register_scheduler(NamedScheduler::new("redundant", || Box::<Redundant>::default()))?;
    register_redundancy_degrees(registry)
}

/// Registers each rule as a scheduler based on `min-rtt`. Rules that only add copies are also registered as wrappers.
fn register_redundancy_degrees(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_copies::<IdleCopies>("redundant-idle", |_| ())?;
    registry.register_copies::<Tail>("burst-end", burst_end)?;
    registry.register_copies::<Repairs>("coded", coded)?;
    registry.register_copies::<IdlePaths>("probing", read_probing)?;
    registry.register_copies::<HedgeRule<()>>("hedged", read_hedged)?;
    registry.register_copies::<HedgeRule<RiskyPaths>>("auto-redundant", auto_redundant)?;
    registry.register_copies::<HedgeRule<MissedDeadlines>>("deadline", deadline)
}

fn auto(parameters: &mut Parameters<'_>) -> AutoConfig {
    let default = BudgetConfig::default();
    let share = parameters.number_or_unlimited("budget", default.share, 0.0..=10.0);
    let free = parameters.bytes("free", default.rate.bytes_per_s());
    let rate = Rate::from_bytes_per_s(free);
    let AutoConfig { path_budget, terms, idle_share, .. } = AutoConfig::default();
    let idle_share = parameters.number("idle", idle_share, 0.0..=1.0);
    let path_budget = BudgetConfig {
        share: parameters.number_or_unlimited("metered-budget", path_budget.share, 0.0..=10.0),
        rate: Rate::from_bytes_per_s(
            parameters.bytes("metered-free", path_budget.rate.bytes_per_s()),
        ),
    };
    let terms = Terms {
        patience: parameters.duration("patience", terms.patience),
        metered_rate: Rate::from_bytes_per_s(
            parameters.bytes("metered-rate", terms.metered_rate.bytes_per_s()),
        ),
        wake: parameters.duration("wake", terms.wake),
    };
    AutoConfig { budget: BudgetConfig { share, rate }, idle_share, path_budget, terms }
}

fn read_hedged(parameters: &mut Parameters<'_>) -> HedgedConfig {
    let default = HedgedConfig::default();
    HedgedConfig {
        deviations: parameters.number("deviations", default.deviations, 0.0..=100.0),
        limit: parameters.bytes("limit", default.limit),
    }
}

fn auto_redundant(parameters: &mut Parameters<'_>) -> AutoRedundantConfig {
    let default = AutoRedundantConfig::default();
    let config = AutoRedundantConfig {
        hedged: read_hedged(parameters),
        tail: parameters.number("tail", default.tail, 0.0..=1.0),
        stale: parameters.duration("stale", default.stale),
    };
    for key in ["memory", "most"] {
        parameters.declare_removed(key, "the forecast now measures the rate of failures over time");
    }
    config
}

fn deadline(parameters: &mut Parameters<'_>) -> DeadlineConfig {
    let default = DeadlineConfig::default();
    DeadlineConfig {
        hedged: read_hedged(parameters),
        within: parameters.duration("within", default.within),
        risk: parameters.number("risk", default.risk, 0.0..=1.0),
    }
}

fn coded(parameters: &mut Parameters<'_>) -> CodedConfig {
    let default = CodedConfig::default();
    let words = [("copies", WithoutRepairs::Copies), ("nothing", WithoutRepairs::Nothing)];
    CodedConfig {
        rate: parameters.number("rate", default.rate, 0.0..=1.0),
        window: parameters.count("window", default.window.into(), 1..=45) as u32,
        every: parameters.on_off("every", default.every),
        without: parameters.word("without", "copies", &words),
    }
}

fn burst_end(parameters: &mut Parameters<'_>) -> BurstEndConfig {
    let default = BurstEndConfig::default();
    let segments = parameters.count("segments", default.segments.into(), 1..=1_000);
    BurstEndConfig { segments: segments as u32 }
}

fn read_probing(parameters: &mut Parameters<'_>) -> ProbingConfig {
    let default = ProbingConfig::default();
    let idle_rtts = parameters.count("idle", default.idle_rtts.into(), 1..=1_000);
    ProbingConfig { idle_rtts: idle_rtts as u32 }
}
