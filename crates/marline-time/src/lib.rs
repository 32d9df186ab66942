//! Base types of all Marline crates: time, rates and randomness as plain values.
//!
//! Nothing here reads a clock or the operating system's random source. An [`Instant`] is a number of nanoseconds,
//! measured by the driver or set by the simulator. An [`Rng`] is a stream seeded by its creator. So runs are
//! reproducible from their seed.

#![forbid(unsafe_code)]

mod delay_histogram;
mod instant;
mod process_clock;
mod rate;
mod rng;

pub use core::time::Duration;
pub use delay_histogram::DelayHistogram;
pub use instant::{Instant, nanos};
pub use process_clock::{PAUSE, ProcessClock};
pub use rate::Rate;
pub use rng::{PcgRng, Rng, SeedTree, fnv1a};
