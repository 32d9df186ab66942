use marline_policy::{DeliveredSegment, RttConfig, RttEstimator, SentKind};
use marline_testkit::sender::{self, SEGMENT, numbers, seq};
use marline_testkit::views::ms;

use super::*;
use crate::recovery::{DEFAULT_PEER_ACK_DELAY, MIN_PTO};

mod no_sack;
mod rack;
mod tlp;

type Sender = sender::Sender<RackTlp>;

/// Creates a sender that follows the RFC's own probe rules, except for the peer's ACK delay, on a path with this
/// constant RTT.
fn rfc_sender(rtt_ms: u64) -> Sender {
    by_rule(PtoFormula::Rfc8985, rtt_ms)
}

fn by_rule(formula: PtoFormula, rtt_ms: u64) -> Sender {
    let probes =
        ProbeConfig { peer_ack_delay: DEFAULT_PEER_ACK_DELAY, ..ProbeConfig::new(formula) };
    Sender::with_recovery(Box::new(RackTlp::new(probes)), rtt_ms)
}
