//! Instants and durations in whole nanoseconds, which all interfaces use.

pub use marline_time::{DelayHistogram, Duration, Instant};
