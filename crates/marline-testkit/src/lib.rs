//! Scripts of segments, random operations and oracles for Marline's own tests.
#![forbid(unsafe_code)]

pub mod need;
