//! Schedulers: which data goes on which subflow.

mod blocking;
pub mod classes;
mod min_rtt;
mod opportunistic;
mod redundant;
mod round_robin;

pub use min_rtt::MinRtt;
pub use redundant::Redundant;
pub use round_robin::RoundRobin;

#[cfg(test)]
mod properties;
