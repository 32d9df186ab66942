//! Loss recovery: what is lost, and when to probe.

mod no_sack;
mod rack_tlp;
mod rfc6675;
mod tlp;

pub use rack_tlp::RackTlp;
pub use rfc6675::{EarlyRetransmit, Rfc6675, Rfc6675Config};
pub use tlp::{DEFAULT_PEER_ACK_DELAY, MIN_PTO, ProbeConfig, PtoFormula, RFC_PEER_ACK_DELAY};

#[cfg(test)]
mod testing;
