//! Loss recovery: loss detection and probe timeouts.

pub mod no_sack;
mod rack_tlp;
mod tlp;

pub use rack_tlp::RackTlp;
pub use tlp::{DEFAULT_PEER_ACK_DELAY, MIN_PTO, ProbeConfig, PtoFormula, RFC_PEER_ACK_DELAY, Tlp};
