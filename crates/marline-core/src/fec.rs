//! Forward error correction: sums of sent bytes, from which lost ones are recovered.
//!
//! These modules do not depend on segments or subflows: `code` defines repairs, and `decoder` recovers missing data.
//! The coefficients and their arithmetic are in `marline_wire::repair_code`. The sender is `connection/fec_tx.rs`, the
//! receiver `connection/receiver.rs`, and the wire format is in `docs/spec/experimental.md`.
//!
//! Users are the default scheduler, `auto`, for bursts of 4 to 40 segments, and `coded`, for all data.

mod code;
mod decoder;

pub(crate) use code::Repair;
pub(crate) use decoder::{Decoder, KnownBytes};
