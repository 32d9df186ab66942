//! Counts of a process's service, for metrics and the control socket.

use marline::memory::MemoryUsage;
use marline::monitor::{CarrierCounters, Counters};
use marline::time::DelayHistogram;
use marline_proxy::server::{ClientCounts, RefusalReason};

/// Snapshot of a process's counts.
#[derive(Clone, Debug, Default)]
pub struct ServiceCounts {
    /// Counts of the core, over all shards.
    pub core: Counters,
    /// Counts of the carrier, by shard.
    pub carrier: Vec<CarrierCounters>,
    /// Delay from writing to the DATA_ACK.
    pub delivery: DelayHistogram,
    /// Number of failed writes of the usage file.
    pub ledger_failures: u64,
    /// Refusals of a server, by reason.
    pub refusals: Vec<(RefusalReason, u64)>,
    /// Use of the process's memory budget.
    pub memory: Option<MemoryUsage>,
    /// Counts of a server per credential.
    pub clients: Vec<ClientCounts>,
}
