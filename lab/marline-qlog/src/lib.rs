//! qlog of Multipath TCP: what a connection did, event by event, in the form that tools for QUIC know.
//!
//! *Problem.* A capture has segments, and not why they were sent: a copy that a scheduler wanted, data that was rescued
//! from a silent path and data that was lost look alike. A log in a program's own words is read by nobody else's tools.
//!
//! *How.* The main schema of qlog (draft-ietf-quic-qlog-main-schema) says how a log is built: here as a JSON text
//! sequence (RFC 7464), a header and then one record for each event, which may be cut off anywhere. What QUIC's events
//! are to QUIC, the namespace `mptcp` is to Multipath TCP; it is ours, [`SCHEMA`] has its events and fields, and
//! docs/spec/qlog.md shows the same. A [`Trace`] turns the core's events into records. It looks at no clock and writes
//! no file, so a live program and a simulation have the same code, and a simulation the same bytes each time.
//! [`read()`] reads records back, [`Course`] takes from them where and when each byte of the stream went.
//!
//! There is nothing of keys and of what is sent in it. Addresses are.

#![forbid(unsafe_code)]

mod course;
mod header;
mod line;
mod read;
mod schema;
mod trace;
mod words;

pub use course::{Carried, Course, Hole, Manner};
pub use header::{Header, Vantage};
pub use read::{ReadError, Record, Recording, read};
pub use schema::{EventKind, Field, SCHEMA};
pub use trace::Trace;
