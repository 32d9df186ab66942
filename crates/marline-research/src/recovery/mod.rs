//! Loss recovery as it was before RACK.

mod rfc6675;

pub use rfc6675::{EarlyRetransmit, Rfc6675, Rfc6675Config};
