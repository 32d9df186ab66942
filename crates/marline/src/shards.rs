//! Commands to a running connection, shared by clients and servers.

use marline_algos::{PolicyError, Registry};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use marline_core::{ConnectionId, MonitorEvent};
use marline_io::{Captures, Shard, ShardHandle};
use tokio::sync::broadcast;

/// Number of monitor events that are kept for a slow receiver.
pub(crate) const MONITOR_CAPACITY: usize = 1_024;
/// Number of traffic events that are kept for a slow receiver; there are several per segment.
const TRAFFIC_CAPACITY: usize = 8_192;

/// Channel for decisions, once there has been a subscriber.
#[derive(Debug, Default)]
pub(crate) struct Decisions(OnceLock<broadcast::Sender<MonitorEvent>>);

impl Decisions {
    /// Subscribes to the decisions of these shards, which send them while there is a subscriber.
    pub(crate) fn subscribe(
        &self,
        shards: &[Arc<ShardHandle>],
    ) -> broadcast::Receiver<MonitorEvent> {
        let listeners = self.0.get_or_init(|| broadcast::channel(MONITOR_CAPACITY).0);
        // Subscribe first: a shard without a subscriber stops sending.
        let receiver = listeners.subscribe();
        shards.iter().for_each(|shard| shard.report_decisions(listeners.clone()));
        receiver
    }
}

/// Subscribes to the traffic of a connection of this shard.
pub(crate) fn subscribe_to_traffic(
    shard: &Shard,
    of: ConnectionId,
) -> broadcast::Receiver<MonitorEvent> {
    let (listeners, receiver) = broadcast::channel(TRAFFIC_CAPACITY);
    shard.report_traffic(of, listeners);
    receiver
}

/// Creates capture files in this directory, if one is given.
pub(crate) fn captures(
    dir: Option<&Path>,
    name: &str,
    secrets: bool,
) -> io::Result<Option<Captures>> {
    dir.map(|dir| Captures::in_dir(dir, name, secrets)).transpose()
}

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
