//! Schedulers: which data goes on which subflow.

mod blocking;
mod burst_end;
pub mod classes;
mod copies;
mod min_rtt;
mod opportunistic;
mod opportunistic_redundant;
mod probing;
mod redundant;
mod redundant_idle;
mod round_robin;

pub use burst_end::{BurstEnd, BurstEndConfig};
pub use min_rtt::MinRtt;
pub use opportunistic_redundant::OpportunisticRedundant;
pub use probing::{Probing, ProbingConfig};
pub use redundant::Redundant;
pub use redundant_idle::RedundantIdle;
pub use round_robin::RoundRobin;

#[cfg(test)]
mod properties;
