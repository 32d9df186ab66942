//! Bytes to values and back, for everything Marline puts on or takes off a wire.
//!
//! No allocation, no I/O, no panic on any input: a parser returns a [`ParseError`] that says where
//! and why. One file per RFC noun; the Multipath TCP options of RFC 8684 live in [`mptcp`].

#![forbid(unsafe_code)]

mod error;
pub mod mptcp;
mod seq;
mod tcp;
mod tcp_options;

pub use error::{ErrorKind, Layer, ParseError};
pub use seq::{SeqNum, unwrap32};
pub use tcp::{TcpFlags, TcpHeader, TcpSegment};
pub use tcp_options::{SackBlock, SackBlocks, TcpOptions, Timestamps};
