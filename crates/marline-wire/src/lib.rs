//! Bytes to values and back, for everything Marline puts on or takes off a wire.
//!
//! No allocation, no I/O, no panic on any input: a parser returns a [`ParseError`] that says where
//! and why, an emitter an [`EmitError`]. One file per RFC noun; the Multipath TCP options of RFC 8684 live in [`mptcp`].

#![forbid(unsafe_code)]

mod bytes;
mod checksum;
mod error;
pub mod mptcp;
mod seq;
mod tcp;
mod tcp_options;

pub use checksum::{
    Checksum, dss_checksum, fill_tcp_checksum, store_tcp_checksum, tcp_checksum, tcp_pseudo_header,
    verify_dss_checksum, verify_tcp_checksum,
};
pub use error::{EmitError, ErrorKind, Layer, ParseError};
pub use seq::{SeqNum, unwrap32};
pub use tcp::{TCP_HEADER_LEN, TcpFlags, TcpHeader, TcpSegment};
pub use tcp_options::{MAX_OPTIONS, SackBlock, SackBlocks, TcpOptions, Timestamps};
