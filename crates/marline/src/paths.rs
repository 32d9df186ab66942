//! Paths of a client: their specification, changes, and health.

pub use marline_core::{AddressPairFault, AddressPairInfo, PathHealthMonitor};
pub use marline_io::{DeliveryErrorKind, LocalSpec, PathSpec, PathSpecError, Prefix64, RadioKind};
pub use marline_policy::PathHealth;

pub use crate::health::{PathEvent, Reach, ServerReach};
pub use crate::path_table::{PathChange, PathRestriction, PathStatus};
