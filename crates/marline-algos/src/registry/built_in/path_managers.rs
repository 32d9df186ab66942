//! Built-in path managers.

use super::{RegisterError, Registry};
use crate::path_managers::{Backup, BreakBeforeMake, BreakBeforeMakeConfig, FullMesh, Manual};
use crate::{NamedPathManager, Parameters};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_path_manager_with("full-mesh", |parameters| {
        let sleep = parameters.on_off("sleep", true);
        move || match sleep {
            true => Box::<FullMesh>::default(),
            false => Box::new(FullMesh::with_radios_awake()),
        }
    })?;
    registry.register_path_manager(NamedPathManager::new("backup", || Box::<Backup>::default()))?;
    registry.register_path_manager(NamedPathManager::new("manual", || Box::new(Manual)))?;
    let sets = [
        ("break-before-make", BreakBeforeMakeConfig::default()),
        ("multimob", BreakBeforeMakeConfig::multimob()),
    ];
    for (name, defaults) in sets {
        registry.register_path_manager_with(name, move |parameters| {
            let config = break_before_make(parameters, defaults);
            move || Box::new(BreakBeforeMake::new(config))
        })?;
    }
    Ok(())
}

fn break_before_make(
    parameters: &mut Parameters<'_>,
    defaults: BreakBeforeMakeConfig,
) -> BreakBeforeMakeConfig {
    let config = BreakBeforeMakeConfig {
        patience: parameters.duration("patience", defaults.patience),
        probe: parameters.duration("probe", defaults.probe),
        settle: parameters.duration("settle", defaults.settle),
        quiet: parameters.duration("quiet", defaults.quiet),
        closes: parameters.on_off("close", defaults.closes),
    };
    if config.probe.is_zero() {
        parameters.refuse("probe", "a value above zero");
    }
    config
}
