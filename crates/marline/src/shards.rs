//! Commands to a running connection, the same for clients and servers.

use marline_algos::{PolicyError, Registry};
use marline_core::ConnectionId;
use marline_io::Shard;

/// Monitor events a slow reader may lag behind.
pub(crate) const MONITOR_CAPACITY: usize = 1_024;

pub(crate) fn set_scheduler(
    registry: &Registry,
    shard: &Shard,
    id: ConnectionId,
    spec: &str,
) -> Result<(), PolicyError> {
    let factory = registry.scheduler(spec)?;
    let (_, id) = Shard::split_id(id);
    shard.with_endpoint(|endpoint, now| endpoint.set_scheduler(now, id, factory));
    Ok(())
}

pub(crate) fn set_path_manager(
    registry: &Registry,
    shard: &Shard,
    id: ConnectionId,
    spec: &str,
) -> Result<(), PolicyError> {
    let factory = registry.path_manager(spec)?;
    let (_, id) = Shard::split_id(id);
    shard.with_endpoint(|endpoint, now| endpoint.set_path_manager(now, id, factory));
    Ok(())
}
