use marline_policy::{DeliveredSegment, RttConfig, RttEstimator, SentKind};

use super::*;
use crate::recovery::testing::{self, SEGMENT, numbers, seq};
use crate::recovery::{DEFAULT_PEER_ACK_DELAY, MIN_PTO};
use crate::testing::ms;

mod no_sack;
mod rack;
mod tlp;

type Sender = testing::Sender<RackTlp>;

impl Sender {
    /// A sender by the RFC's own probe rules, but for the peer's ACK delay, whose path has had this RTT
    /// for long.
    fn new(rtt_ms: u64) -> Self {
        Self::with_rule(PtoFormula::Rfc8985, rtt_ms)
    }

    fn with_rule(formula: PtoFormula, rtt_ms: u64) -> Self {
        let probes =
            ProbeConfig { peer_ack_delay: DEFAULT_PEER_ACK_DELAY, ..ProbeConfig::new(formula) };
        Self::with_recovery(Box::new(RackTlp::new(probes)), rtt_ms)
    }
}
