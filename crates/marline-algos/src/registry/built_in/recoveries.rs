//! Built-in loss recoveries.

use super::{RegisterError, Registry};
use crate::NamedRecovery;
use crate::recovery::RackTlp;

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_recovery_with("rack-tlp", |parameters| {
        let config = parameters.probes("variation");
        move || Box::new(RackTlp::new(config))
    })?;
    registry.register_recovery(NamedRecovery::new("rack-tlp-rfc", || Box::new(RackTlp::rfc8985())))
}
