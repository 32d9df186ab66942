//! qlog for Multipath TCP: the events of a connection in a form that QUIC tools can read.
//!
//! *Problem.* A capture contains segments, but not why they were sent. A copy requested by a scheduler, data
//! reinjected from a silent path and a retransmission look alike. A program's own log format is not supported by any
//! other tool.
//!
//! *How.* The main schema of qlog (draft-ietf-quic-qlog-main-schema) defines the structure of a log. Here it is a JSON
//! text sequence (RFC 7464): a header, followed by one record per event. The file may be cut off anywhere. The
//! namespace `mptcp` defines the events of Multipath TCP. It is ours: [`SCHEMA`] lists its events and fields, and
//! docs/spec/qlog.md documents them. A [`Trace`] turns the core's events into records. It reads no clock and writes no
//! file, so a live program and a simulation use the same code, and a simulation always writes identical bytes.
//! [`read()`] parses records, and [`Course`] extracts where and when each byte of the stream was sent.
//!
//! A trace contains neither keys nor payload, but it contains addresses.

#![forbid(unsafe_code)]

mod course;
mod header;
mod line;
mod read;
mod schema;
mod trace;
mod words;

pub use course::{CarriedBytes, Course, Hole, TransmissionKind};
pub use header::{Header, Vantage};
pub use read::{ReadError, Record, Recording, read};
pub use schema::{EventKind, Field, SCHEMA};
pub use trace::Trace;
