//! Loss recoveries.

use super::{RegisterError, Registry};
use crate::recovery::{EarlyRetransmit, ProbeConfig, PtoFormula, RackTlp, Rfc6675, Rfc6675Config};
use crate::{NamedRecovery, Parameters};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_recovery_with("rack-tlp", |parameters| {
        let config = probes(parameters, "variation");
        move || Box::new(RackTlp::new(config))
    })?;
    registry
        .register_recovery(NamedRecovery::new("rack-tlp-rfc", || Box::new(RackTlp::rfc8985())))?;
    registry.register_recovery_with("rfc6675", |parameters| {
        let default = Rfc6675Config::default();
        let config = Rfc6675Config {
            probes: probes(parameters, "off"),
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

/// Tail loss probes: by which formula, the peer's ACK delay, how many in a row.
fn probes(parameters: &mut Parameters<'_>, default: &str) -> ProbeConfig {
    let mut words: Vec<_> =
        PtoFormula::ALL.iter().map(|(word, formula)| (*word, Some(*formula))).collect();
    words.push(("off", None));
    let formula = parameters.word("pto", default, &words);
    let usual = formula.map_or(ProbeConfig::OFF, ProbeConfig::new);
    ProbeConfig {
        formula,
        peer_ack_delay: parameters.duration("ack-delay", usual.peer_ack_delay),
        most_probes: parameters.count("probes", usual.most_probes.into(), 1..=2) as u8,
    }
}
