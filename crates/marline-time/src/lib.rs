//! Base types of all Marline crates: time, rates and randomness as plain values.
//!
//! Nothing here reads a clock or the operating system's random source. An [`Instant`] is a number
//! of nanoseconds that somebody else measured (the driver) or invented (the simulator); a [`Rng`]
//! is a stream somebody else seeded. That is what makes one seed one run.

#![forbid(unsafe_code)]

mod instant;
mod rate;
mod rng;

pub use core::time::Duration;
pub use instant::Instant;
pub use rate::Rate;
pub use rng::{PcgRng, Rng, SeedTree};
