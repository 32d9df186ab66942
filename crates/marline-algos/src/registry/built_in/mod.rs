//! Policies contained in [`Registry::default`](super::Registry::default), one file per kind.

mod baselines;
mod congestions;
mod datagrams;
mod path_managers;
mod recoveries;
mod schedulers;

use super::{RegisterError, Registry};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    schedulers::add(registry)?;
    path_managers::add(registry)?;
    congestions::add(registry)?;
    recoveries::add(registry)?;
    datagrams::add(registry)
}
