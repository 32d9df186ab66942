//! Schedulers: the choice of the subflow that carries each piece of data.

mod auto;
mod auto_redundant;
mod burst_end;
pub mod classes;
mod coded;
pub mod copies;
mod deadline;
mod delivery;
mod follow_client;
mod hedged;
mod linux;
mod min_rtt;
mod opportunistic;
mod per_subflow;
mod probing;
mod redundant;
mod redundant_idle;
mod round_robin;

pub use crate::budget::BudgetConfig;
pub use auto::{Auto, AutoConfig};
pub use auto_redundant::{AutoRedundant, AutoRedundantConfig, RiskyPaths};
pub use burst_end::{BurstEnd, BurstEndConfig, Tail};
pub use coded::{Coded, CodedConfig, Repairs, WithoutRepairs};
pub use deadline::{Deadline, DeadlineConfig, MissedDeadlines};
pub use follow_client::{FollowClient, FollowClientConfig};
pub use hedged::{HedgeRule, Hedged, HedgedConfig, ImmediateCopyRule};
pub use linux::Linux;
pub use min_rtt::{MinRtt, MinRttConfig};
pub use opportunistic::{Opportunistic, OpportunisticRules, Penalize, Retransmit};
pub use probing::{IdlePaths, Probing, ProbingConfig};
pub use redundant::Redundant;
pub use redundant_idle::{IdleCopies, RedundantIdle};
pub use round_robin::{RoundRobin, RoundRobinConfig};
