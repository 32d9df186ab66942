//! Commands to a running connection, the same for clients and servers.

use marline_algos::{PolicyError, Registry};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use marline_core::{ConnectionId, MonitorEvent, PathHealthMonitor};
use marline_io::{Captures, HealthExchange, Shard, ShardHandle};
use tokio::sync::broadcast;

use crate::{BindError, Carrier};

/// Monitor events a slow reader may lag behind.
pub(crate) const MONITOR_CAPACITY: usize = 1_024;
/// Events of traffic that one may: some for each segment.
const TRAFFIC_CAPACITY: usize = 8_192;

/// Where decisions go, once anybody asked for them.
#[derive(Debug, Default)]
pub(crate) struct Decisions(OnceLock<broadcast::Sender<MonitorEvent>>);

impl Decisions {
    /// Listens to the decisions of these shards, which tell them as long as anybody listens.
    pub(crate) fn of(&self, shards: &[Arc<ShardHandle>]) -> broadcast::Receiver<MonitorEvent> {
        let listeners = self.0.get_or_init(|| broadcast::channel(MONITOR_CAPACITY).0);
        // First: a shard that finds nobody listening stops.
        let receiver = listeners.subscribe();
        shards.iter().for_each(|shard| shard.tell_decisions(listeners.clone()));
        receiver
    }
}

/// Listens to the traffic of a connection of this shard.
pub(crate) fn traffic_of(shard: &Shard, of: ConnectionId) -> broadcast::Receiver<MonitorEvent> {
    let (listeners, receiver) = broadcast::channel(TRAFFIC_CAPACITY);
    shard.tell_traffic(of, listeners);
    receiver
}

/// Capture files in this directory, if there is one.
pub(crate) fn captures(
    dir: Option<&Path>,
    name: &str,
    secrets: bool,
) -> io::Result<Option<Captures>> {
    dir.map(|dir| Captures::in_dir(dir, name, secrets)).transpose()
}

/// Has the monitor of these shards tell other processes what it finds, through this directory, if there is one.
pub(crate) fn share_path_health(
    directory: Option<&Path>,
    monitor: Option<&PathHealthMonitor>,
    carrier: &Carrier,
    shards: &[Arc<ShardHandle>],
) -> Result<Option<HealthExchange>, BindError> {
    let Some(directory) = directory else { return Ok(None) };
    let Some(monitor) = monitor else {
        return Err(BindError::Config(format!(
            "{} is to share what a path health monitor finds, and there is none",
            directory.display()
        )));
    };
    HealthExchange::join(directory, carrier.health_group(), monitor, shards).map(Some).map_err(
        |error| BindError::io(&format!("share path health in {}", directory.display()), error),
    )
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
