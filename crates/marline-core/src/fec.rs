//! Forward error correction: sums of sent bytes, from which lost ones are recovered.
//!
//! Pure code, independent of segments and subflows: `code` defines repairs, `decoder` solves for missing data; the
//! coefficients and their arithmetic are `marline_wire::repair_code`. The sending side is `connection/fec_tx.rs`, the
//! receiving one `connection/receiver.rs`, the form on the wire `docs/spec/experimental.md`.
//!
//! Who needs it: the default scheduler, `auto`, for bursts of 4 to 40 segments, and `coded`, for all.

mod code;
mod decoder;

pub(crate) use code::Repair;
pub(crate) use decoder::{Decoder, Known};
