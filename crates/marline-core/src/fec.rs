//! Forward error correction: sums of sent bytes, from which lost ones are recovered.
//!
//! Pure, and without any knowledge of segments and subflows: `gf256` is the arithmetic, `code` says what a
//! repair is, `decoder` solves for what is missing. The sending side is `connection/fec_tx.rs`, the
//! receiving one `connection/receiver.rs`, the form on the wire `docs/spec/experimental.md`.

mod code;
mod decoder;
mod gf256;

pub(crate) use code::{ROWS, Repair};
pub(crate) use decoder::{Decoder, Known};
