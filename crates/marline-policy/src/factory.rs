//! Policy factories: one trait per kind, selected by name, instantiated per connection or subflow.

use core::fmt::Debug;
use std::sync::Arc;

use marline_time::Instant;

use crate::{CongestionController, LossRecovery, PathManager, Scheduler};

/// Makes one scheduler per connection.
pub trait SchedulerFactory: Debug + Send + Sync {
    /// Name that selects this scheduler in the configuration.
    fn name(&self) -> &str;
    /// Creates a scheduler.
    fn build(&self) -> Box<dyn Scheduler>;
}

/// Makes one path manager per connection.
pub trait PathManagerFactory: Debug + Send + Sync {
    /// Name that selects this path manager in the configuration.
    fn name(&self) -> &str;
    /// Creates a path manager.
    fn build(&self) -> Box<dyn PathManager>;
}

/// Makes one congestion controller per subflow.
pub trait CongestionFactory: Debug + Send + Sync {
    /// Name that selects this congestion control in the configuration.
    fn name(&self) -> &str;
    /// Creates a controller that starts with a window of `initial_window` bytes.
    fn build(&self, mss: u32, initial_window: u64, now: Instant) -> Box<dyn CongestionController>;
}

/// Makes one loss recovery per subflow.
pub trait RecoveryFactory: Debug + Send + Sync {
    /// Name that selects this loss recovery in the configuration.
    fn name(&self) -> &str;
    /// Creates a loss recovery.
    fn build(&self) -> Box<dyn LossRecovery>;
}

/// The four policies of a connection.
#[derive(Clone, Debug)]
pub struct PolicySet {
    /// Scheduler.
    pub scheduler: Arc<dyn SchedulerFactory>,
    /// Path manager.
    pub path_manager: Arc<dyn PathManagerFactory>,
    /// Congestion control.
    pub congestion: Arc<dyn CongestionFactory>,
    /// Loss recovery.
    pub recovery: Arc<dyn RecoveryFactory>,
}
