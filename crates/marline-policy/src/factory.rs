//! Policy factories: one trait per kind, chosen by name, built per connection or subflow.

use core::fmt::Debug;
use std::sync::Arc;

use marline_time::Instant;

use crate::{CongestionController, LossRecovery, PathManager, Scheduler};

/// Makes one scheduler per connection.
pub trait SchedulerFactory: Debug + Send + Sync {
    /// The name it is chosen by.
    fn name(&self) -> &str;
    /// A new one.
    fn build(&self) -> Box<dyn Scheduler>;
}

/// Makes one path manager per connection.
pub trait PathManagerFactory: Debug + Send + Sync {
    /// The name it is chosen by.
    fn name(&self) -> &str;
    /// A new one.
    fn build(&self) -> Box<dyn PathManager>;
}

/// Makes one congestion controller per subflow.
pub trait CongestionFactory: Debug + Send + Sync {
    /// The name it is chosen by.
    fn name(&self) -> &str;
    /// A new one, with `initial_window` bytes to start with.
    fn build(&self, mss: u32, initial_window: u64, now: Instant) -> Box<dyn CongestionController>;
}

/// Makes one loss recovery per subflow.
pub trait RecoveryFactory: Debug + Send + Sync {
    /// The name it is chosen by.
    fn name(&self) -> &str;
    /// A new one.
    fn build(&self) -> Box<dyn LossRecovery>;
}

/// The four choices a connection runs with.
#[derive(Clone, Debug)]
pub struct PolicySet {
    /// Which data where.
    pub scheduler: Arc<dyn SchedulerFactory>,
    /// Which subflows.
    pub path_manager: Arc<dyn PathManagerFactory>,
    /// How much in flight.
    pub congestion: Arc<dyn CongestionFactory>,
    /// What is lost.
    pub recovery: Arc<dyn RecoveryFactory>,
}
