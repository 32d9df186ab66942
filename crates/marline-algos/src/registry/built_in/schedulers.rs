//! Schedulers and their wrappers.

use super::{RegisterError, Registry};
use crate::NamedScheduler;
use crate::schedulers::{MinRtt, Redundant, RoundRobin};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_scheduler(NamedScheduler::new("min-rtt", || Box::<MinRtt>::default()))?;
    registry
        .register_scheduler(NamedScheduler::new("round-robin", || Box::<RoundRobin>::default()))?;
    registry.register_scheduler(NamedScheduler::new("redundant", || Box::<Redundant>::default()))
}
