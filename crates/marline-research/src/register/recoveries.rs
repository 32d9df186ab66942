//! Registration of loss recoveries.

use marline_algos::{RegisterError, Registry};

use crate::recovery::{EarlyRetransmit, Rfc6675, Rfc6675Config};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_recovery_with("rfc6675", |parameters| {
        let default = Rfc6675Config::default();
        let config = Rfc6675Config {
            probes: parameters.probes("off"),
            limited_transmit: parameters.on_off("limited-transmit", default.limited_transmit),
            early_retransmit: parameters.word(
                "early-retransmit",
                "off",
                &[
                    ("off", EarlyRetransmit::Off),
                    ("on", EarlyRetransmit::Linux),
                    ("rfc5827", EarlyRetransmit::Rfc5827),
                ],
            ),
            fack: parameters.on_off("fack", default.fack),
            rescue: parameters.on_off("rescue", default.rescue),
        };
        move || Box::new(Rfc6675::new(config))
    })
}
