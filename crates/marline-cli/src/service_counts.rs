//! Counts of what a process serves, as metrics and the control socket show them.

use marline::advanced::{CarrierCounters, Counters};
use marline::{DelayHistogram, MemoryUsage};
use marline_proxy::server::{ClientCounts, RefusalReason};

/// What a process counted, now.
#[derive(Clone, Debug, Default)]
pub struct ServiceCounts {
    /// Of the core, over all shards.
    pub core: Counters,
    /// Of the carrier, by shard.
    pub carrier: Vec<CarrierCounters>,
    /// From writing to the DATA_ACK.
    pub delivery: DelayHistogram,
    /// How often the file with what was used could not be written.
    pub ledger_failures: u64,
    /// Who was refused, by reason; a server's.
    pub refusals: Vec<(RefusalReason, u64)>,
    /// Use of the process' memory budget.
    pub memory: Option<MemoryUsage>,
    /// What came by each credential; a server's.
    pub clients: Vec<ClientCounts>,
}
