//! Registration of this crate's policies by name.

mod congestions;
mod path_managers;
mod recoveries;
mod schedulers;
mod tail_probes;

use marline_algos::{RegisterError, Registry};

pub(crate) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    schedulers::add(registry)?;
    tail_probes::add(registry)?;
    path_managers::add(registry)?;
    congestions::add(registry)?;
    recoveries::add(registry)
}
