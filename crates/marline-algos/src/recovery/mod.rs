//! Loss recovery: what is lost, and when to probe.

mod rack_tlp;

pub use rack_tlp::{DEFAULT_PEER_ACK_DELAY, MIN_PTO, RFC_PEER_ACK_DELAY, RackTlp};
