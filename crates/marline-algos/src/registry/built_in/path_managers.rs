//! Path managers.

use super::{RegisterError, Registry};
use crate::NamedPathManager;
use crate::path_managers::{Backup, FullMesh, Manual};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry
        .register_path_manager(NamedPathManager::new("full-mesh", || Box::<FullMesh>::default()))?;
    registry.register_path_manager(NamedPathManager::new("backup", || Box::<Backup>::default()))?;
    registry.register_path_manager(NamedPathManager::new("manual", || Box::new(Manual)))
}
