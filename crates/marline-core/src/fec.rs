//! Forward error correction: sums of sent bytes, from which lost ones are recovered.
//!
//! Pure code, independent of segments and subflows: `gf256` is the arithmetic, `code` defines
//! repairs, `decoder` solves for missing data. The sending side is `connection/fec_tx.rs`, the
//! receiving one `connection/receiver.rs`, the form on the wire `docs/spec/experimental.md`.

mod code;
mod decoder;
mod gf256;

pub(crate) use code::{ROWS, Repair};
pub(crate) use decoder::{Decoder, Known};
