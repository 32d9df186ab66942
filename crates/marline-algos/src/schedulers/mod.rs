//! Schedulers: which data goes on which subflow.

mod arrival;
mod auto_redundant;
mod blest;
mod blocking;
mod burst_end;
pub mod classes;
mod coded;
mod completion;
mod copies;
mod ecf;
mod follow_client;
mod hedged;
mod linux;
mod min_rtt;
mod opportunistic;
mod opportunistic_redundant;
mod orp;
mod papd;
mod probing;
mod redundant;
mod redundant_idle;
mod risk;
mod round_robin;
mod tail_probes;

pub use auto_redundant::{AutoRedundant, AutoRedundantConfig};
pub use blest::{Blest, BlestConfig};
pub use burst_end::{BurstEnd, BurstEndConfig};
pub use coded::{Coded, CodedConfig, Without};
pub use ecf::{Ecf, EcfConfig};
pub use follow_client::{FollowClient, FollowClientConfig};
pub use hedged::{Hedged, HedgedConfig};
pub use linux::Linux;
pub use min_rtt::{MinRtt, MinRttConfig};
pub use opportunistic::{OpportunisticRules, Penalise, Retransmit};
pub use opportunistic_redundant::OpportunisticRedundant;
pub use orp::Orp;
pub use papd::{Papd, PapdConfig};
pub use probing::{Probing, ProbingConfig};
pub use redundant::Redundant;
pub use redundant_idle::RedundantIdle;
pub use risk::RiskConfig;
pub use round_robin::{RoundRobin, RoundRobinConfig};
pub use tail_probes::{After, TailProbes};

#[cfg(test)]
mod properties;
