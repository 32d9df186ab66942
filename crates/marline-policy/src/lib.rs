//! Policy interfaces of Marline: the traits that policies implement and the values they exchange with the core.
//!
//! A policy (scheduler, path manager, congestion controller, loss recovery) decides but does not act: it reads views
//! that the core builds and returns decisions that the core validates and applies. Each measurement has a single
//! owner, here or in the core: the [`Scoreboard`] of sent segments, the [`RttEstimator`], delivery-rate samples.
//! Algorithms only read these measurements.

#![forbid(unsafe_code)]

mod congestion;
mod datagram;
mod factory;
mod forecast;
mod health;
mod ids;
mod path_cost;
mod path_health;
mod path_manager;
mod path_queue;
mod range;
mod reason;
mod recovery;
mod rtt;
mod scheduler;
mod scoreboard;
mod signal;
mod view;

pub use congestion::{AckSample, CongestionController, CongestionSignal, Penalty, RateSample};
pub use datagram::{
    DatagramContext, DatagramPathView, DatagramPolicy, DatagramPolicyFactory, FlowClass, FlowView,
    Group, PathId, Repairs, Route,
};
pub use factory::{
    CongestionFactory, PathManagerFactory, PolicySet, RecoveryFactory, SchedulerFactory,
};
pub use forecast::{Expected, Forecast, Forecaster, Quantile};
pub use health::{Health, PathHealth, UnreachableCause};
pub use ids::{AddressId, SubflowId, SubflowSet, Token};
pub use path_cost::PathCost;
pub use path_health::{
    AddressPair, AddressPairFault, BadPathHealthSpec, LossBase, PairProbing, PathHealthConfig,
    RecoveryRule,
};
pub use path_manager::{
    LocalAddress, PathAction, PathContext, PathEvent, PathManager, RemoteAddress, Role, SubflowPath,
};
pub use path_queue::{PathQueue, QueueLimit, SenderRound};
pub use range::{DataRange, Dsn, Ssn};
pub use reason::{
    BadRecord, BudgetState, Grounds, Inputs, MappingQuery, Question, Reason, RepairsDue, Rule,
    Terms,
};
pub use recovery::{
    AckOutcome, AckSummary, DeliveredSegment, LimitedTransmit, LossRecovery, RecoveryContext,
    SentKind, SentNotice, TimeoutAction,
};
pub use rtt::{RttConfig, RttEstimator};
pub use scheduler::{
    Decision, Mapping, MappingIndex, Reinjection, ReinjectionCause, Scheduler, SchedulerAction,
    SchedulerContext, SchedulerEvent,
};
pub use scoreboard::{RateStamp, RunLayout, Scoreboard, SentSegment};
pub use signal::{BadThresholds, SignalMonitor, SignalThresholds};
pub use view::{Eligibility, Phase, SubflowView};
