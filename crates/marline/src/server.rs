//! Server: accepts connections on one or several addresses.

mod announced;
mod builder;
mod ports;
mod succession;

use core::net::SocketAddr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use marline_algos::PolicyError;
use marline_core::{
    ConnectionId, ConnectionInfo, MemoryAccount, MonitorEvent, PathHealthMonitor, PathQueues,
};
use marline_io::{
    AcceptQueue, Generations, Links, ResetSeed, SecretRng, Shard, ShardConfig, ShardHandle,
    SharedEventObserver,
};
use marline_time::{DelayHistogram, Duration};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use crate::carrier::MAX_KEEPALIVE_INTERVAL;
use crate::datagrams::LaneCounters;
use crate::error::UnknownPath;
use crate::path_table::PathChange;
use crate::shards::{
    Decisions, MONITOR_CAPACITY, captures, set_path_manager, set_scheduler, subscribe_to_traffic,
};
use crate::transport_config::TransportConfig;
use crate::{BindError, Stream, carrier, multimob};
use announced::AnnouncedAddress;
pub use builder::{ServerAddress, ServerBuilder, ServerSettings};
use succession::SharedProcessState;

/// Server that accepts connections. Clones share all state.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shards: Vec<Arc<ShardHandle>>,
    queue: Arc<AcceptQueue>,
    config: ServerBuilder,
    monitor: broadcast::Sender<MonitorEvent>,
    decisions: Decisions,
    /// Listening addresses with their ports.
    listen: Vec<SocketAddr>,
    /// Addresses that native carriers announce.
    addresses: Arc<Mutex<Vec<AnnouncedAddress>>>,
    /// Task that follows changes of the announced addresses' interfaces.
    watch: Option<AbortHandle>,
    /// Relation to other processes that share the addresses.
    place: SharedProcessState,
}

impl Inner {
    /// Closes the accept queue; the shards release its connections.
    fn close_queue(&self) {
        for incoming in self.queue.close() {
            if let Some(shard) = self.shard_of(incoming.id) {
                shard.release(incoming.id);
            }
        }
    }

    fn shard_of(&self, id: ConnectionId) -> Option<&Arc<ShardHandle>> {
        let (index, _) = Shard::split_id(id);
        self.shards.get(usize::from(index))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close_queue();
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl Server {
    /// Creates a configuration for a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    fn open(mut config: ServerBuilder) -> Result<Server, BindError> {
        let (monitor, _) = broadcast::channel(MONITOR_CAPACITY);
        let queue = AcceptQueue::new(config.own.backlog);
        let links = Arc::<Links>::default();
        let queues = PathQueues::default();
        let mut shards = Vec::new();
        announced::announce(&mut config)?;
        if config.own.reset_seed.is_none() {
            let drawn =
                ResetSeed::random().map_err(|error| BindError::io("generate a secret", error))?;
            config.own.reset_seed = Some(drawn);
        }
        for index in 0..config.own.shards {
            let shard = start_shard(&config, index as u8, &queue, &links, &monitor)?;
            shard.set_path_queues(queues.clone());
            shards.push(shard);
        }
        if config.carrier.is_native() {
            let (listen, place) = open_native(&config, &shards, &links)?;
            let addresses = Arc::new(Mutex::new(AnnouncedAddress::from_config(&config)));
            let watch = announced::follow_addresses(&config, &shards, &addresses);
            let decisions = Decisions::default();
            let inner = Inner {
                shards,
                queue,
                config,
                monitor,
                decisions,
                listen,
                addresses,
                watch,
                place,
            };
            return Ok(Server { inner: Arc::new(inner) });
        }
        let (listen, place) = open_framed(&config, &shards, &links)?;
        let addresses = Arc::default();
        let decisions = Decisions::default();
        let inner = Inner {
            shards,
            queue,
            config,
            monitor,
            decisions,
            listen,
            addresses,
            watch: None,
            place,
        };
        Ok(Server { inner: Arc::new(inner) })
    }

    /// Waits for the next connection and returns it with the peer's address on the first subflow. Returns `None` after
    /// [`close`](Self::close) on any clone. Safe to cancel.
    pub async fn accept(&self) -> Option<(Stream, SocketAddr)> {
        let incoming = self.inner.queue.pop().await?;
        let shard = self.inner.shard_of(incoming.id)?;
        let stream = marline_io::Stream::accepted(Arc::clone(shard), incoming);
        Some((Stream::new(stream, Arc::clone(&self.inner.config.registry)), incoming.peer))
    }

    /// Stops accepting: waiting connections are reset, new ones are refused, and every [`accept`](Self::accept) returns
    /// `None`. Accepted connections continue.
    pub fn close(&self) {
        for shard in &self.inner.shards {
            shard.with_endpoint(|endpoint, _| endpoint.stop_accepting());
        }
        self.inner.close_queue();
    }

    /// Sets the behavior of connections accepted from now on; existing connections are not changed.
    pub fn set_transport(&self, transport: &TransportConfig) {
        let mut transport = transport.clone();
        multimob::allow_following(transport.as_core_mut());
        for shard in &self.inner.shards {
            shard.with_endpoint(|endpoint, _| endpoint.update_accept_config(transport.as_core()));
        }
    }

    /// Charges the memory of new connections to this account of a [`MemoryBudget`](crate::memory::MemoryBudget).
    /// Without an account, only the buffer sizes limit it.
    pub fn set_memory_account(&self, account: &MemoryAccount) {
        for shard in &self.inner.shards {
            shard.with_endpoint(|endpoint, _| endpoint.set_memory_account(account.clone()));
        }
    }

    /// Returns the first listening address, with its port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        // There is at least one: `bind` requires it.
        self.inner.listen[0]
    }

    /// Returns the listening addresses, with their ports.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.inner.listen
    }

    /// Changes an announced address by hand, for all connections: `Down` withdraws it (REMOVE_ADDR) and closes the
    /// subflows to it, `Up` announces it again, and `Backup` and `Primary` set whether subflows to it carry data while
    /// others can (MP_PRIO). Native carriers only.
    ///
    /// # Errors
    /// The address and port were not [announced](ServerBuilder::announce).
    pub fn set_address(&self, address: SocketAddr, change: PathChange) -> Result<(), UnknownPath> {
        announced::change(&self.inner.shards, &self.inner.addresses, address, change)
    }

    /// Receives monitor events, if they are enabled in the configuration.
    #[must_use]
    pub fn monitor(&self) -> broadcast::Receiver<MonitorEvent> {
        self.inner.monitor.subscribe()
    }

    /// Receives the decisions of schedulers and their reasons
    /// ([`MonitorKind::Decided`](crate::monitor::MonitorKind::Decided)), even if monitor events are disabled. There may
    /// be thousands per second, and each costs time and memory while a receiver exists. A slow receiver misses some.
    #[must_use]
    pub fn decisions(&self) -> broadcast::Receiver<MonitorEvent> {
        self.inner.decisions.subscribe(&self.inner.shards)
    }

    /// Starts to capture packets into this directory, like [`ServerBuilder::capture_dir`], with or without keys as
    /// in [`ServerBuilder::capture_secrets`]. `None` stops. Existing files of these names are overwritten.
    ///
    /// # Errors
    /// The directory cannot be created; the previous setting remains.
    pub fn capture(&self, dir: Option<&Path>, secrets: bool) -> io::Result<()> {
        let Inner { shards, config, .. } = &*self.inner;
        let each = (0..).zip(shards).map(|(index, shard)| {
            Ok((shard, captures(dir, &capture_name(config, index), secrets)?))
        });
        for (shard, captures) in each.collect::<io::Result<Vec<_>>>()? {
            shard.set_captures(captures);
        }
        Ok(())
    }

    /// Replaces the event observer of [`ServerBuilder::event_observer`]; `None` removes it. Events other than
    /// traffic require [`ServerBuilder::monitor`], or an observer at the start of the server.
    pub fn observe_events(&self, observer: Option<&SharedEventObserver>) {
        self.inner.shards.iter().for_each(|shard| shard.set_event_observer(observer.cloned()));
    }

    /// Receives traffic events of a connection ([`MonitorKind::Traffic`](crate::monitor::MonitorKind::Traffic)),
    /// segment by segment, while the receiver exists. A slow receiver misses some. This works for one connection at a
    /// time: a new receiver ends the events of the previous one. Returns `None` if no shard has such a connection.
    #[must_use]
    pub fn traffic(&self, of: ConnectionId) -> Option<broadcast::Receiver<MonitorEvent>> {
        Some(subscribe_to_traffic(self.inner.shard_of(of)?, of))
    }

    /// Returns the path health monitor of the connections.
    #[must_use]
    pub fn path_health_monitor(&self) -> Option<&PathHealthMonitor> {
        self.inner.config.path_health.as_ref()
    }

    /// Returns snapshots of all connections.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.inner.shards.iter().flat_map(|shard| shard.connections()).collect()
    }

    /// Changes the scheduler of a running connection. A closed connection is ignored.
    ///
    /// # Errors
    /// There is no such scheduler, or a parameter is invalid.
    pub fn set_scheduler(&self, id: ConnectionId, spec: &str) -> Result<(), PolicyError> {
        let Some(shard) = self.inner.shard_of(id) else { return Ok(()) };
        set_scheduler(&self.inner.config.registry, shard, id, spec)
    }

    /// Changes the path manager of a running connection. A closed connection is ignored.
    ///
    /// # Errors
    /// There is no such path manager, or a parameter is invalid.
    pub fn set_path_manager(&self, id: ConnectionId, spec: &str) -> Result<(), PolicyError> {
        let Some(shard) = self.inner.shard_of(id) else { return Ok(()) };
        set_path_manager(&self.inner.config.registry, shard, id, spec)
    }

    /// Returns the counters of the core and of the carrier, per shard.
    #[must_use]
    pub fn counters(&self) -> Vec<(marline_core::Counters, marline_io::carrier::CarrierCounters)> {
        self.inner.shards.iter().map(|shard| shard.counters()).collect()
    }

    /// Returns the histogram, across all shards, of the time from a write until the peer has received all of it. One
    /// write per connection is measured at a time.
    #[must_use]
    pub fn delivery_delays(&self) -> DelayHistogram {
        let mut sum = DelayHistogram::default();
        self.inner.shards.iter().for_each(|shard| sum.add(&shard.delivery_delays()));
        sum
    }

    /// Returns the counters of datagram lanes, across all shards.
    #[must_use]
    pub fn lane_counters(&self) -> LaneCounters {
        let mut sum = LaneCounters::default();
        self.inner.shards.iter().for_each(|shard| sum += shard.lane_counters());
        sum
    }

    /// Waits at most `patience` until all connections have closed. Returns true if they have. Data that is written but
    /// not delivered is lost if the process exits earlier.
    pub async fn drained(&self, patience: Duration) -> bool {
        let mut all = true;
        for shard in &self.inner.shards {
            all &= shard.drained(patience).await;
        }
        all
    }
}

/// Opens the sockets of shards with a framed carrier, and the TCP listeners.
fn open_framed(
    config: &ServerBuilder,
    shards: &[Arc<ShardHandle>],
    links: &Arc<Links>,
) -> Result<(Vec<SocketAddr>, SharedProcessState), BindError> {
    let generations = Generations::new(config.own.generation, shards, links);
    if config.own.shards > 1 {
        Shard::connect_shards(shards);
    }
    if let Some(handover) = config.take_inherited() {
        shards.iter().for_each(|shard| shard.defer_receiving());
        let listen = succession::adopt_sockets(config, shards, handover.sockets)?;
        let listeners = Mutex::new(succession::waiting(handover.listeners));
        let older_processes = Mutex::new(handover.older_processes);
        return Ok((listen, SharedProcessState { generations, listeners, older_processes }));
    }
    let (listen, listeners) = ports::open(config, shards)?;
    let listeners = Mutex::new(succession::accepting(listeners));
    Ok((listen, SharedProcessState { generations, listeners, older_processes: Mutex::default() }))
}

/// Opens the sockets and ports of shards with a native carrier.
fn open_native(
    config: &ServerBuilder,
    shards: &[Arc<ShardHandle>],
    links: &Arc<Links>,
) -> Result<(Vec<SocketAddr>, SharedProcessState), BindError> {
    let generations = Generations::new(config.own.generation, shards, links);
    let (mut older_processes, mut inherited) = (Vec::new(), None);
    if shards.len() > 1 {
        Shard::connect_shards(shards);
        share_fast_open_keys(shards)?;
    }
    if let Some(handover) = config.take_inherited() {
        shards.iter().for_each(|shard| shard.defer_receiving());
        (older_processes, inherited) = (handover.older_processes, Some(handover.native));
    }
    let each: Vec<&Shard> = shards.iter().map(|shard| &***shard).collect();
    let listen = announced::listen(config, &each, inherited)?;
    let (listeners, older_processes) = (Mutex::default(), Mutex::new(older_processes));
    Ok((listen, SharedProcessState { generations, listeners, older_processes }))
}

/// Generates the keys of Fast Open cookies. All shards share them, because a client with a cookie may reach any shard.
fn share_fast_open_keys(shards: &[Arc<ShardHandle>]) -> Result<(), BindError> {
    let drawn = SecretRng::from_os().map(|mut rng| rng.key());
    let drawn = drawn.map_err(|error| BindError::io("generate a secret", error))?;
    let mut key = [0; 16];
    key.copy_from_slice(&drawn[..16]);
    for shard in shards {
        shard.with_endpoint(|endpoint, _| endpoint.set_fast_open_keys(key, None));
    }
    Ok(())
}

/// Returns the prefix of a shard's capture file names.
fn capture_name(config: &ServerBuilder, index: u8) -> String {
    let mut name = match config.own.shards {
        1 => "server".to_owned(),
        _ => format!("server-shard{index}"),
    };
    if config.own.generation > 0 {
        // The previous process is still writing its own files.
        name = format!("{name}-generation{}", config.own.generation);
    }
    name
}

fn start_shard(
    config: &ServerBuilder,
    index: u8,
    queue: &Arc<AcceptQueue>,
    links: &Arc<Links>,
    monitor: &broadcast::Sender<MonitorEvent>,
) -> Result<Arc<ShardHandle>, BindError> {
    let name = capture_name(config, index);
    let capture = captures(config.capture_dir.as_deref(), &name, config.capture_secrets)
        .map_err(|error| BindError::io("create the capture directory", error))?;
    let shard = Shard::start(ShardConfig {
        shard: marline_core::Shard {
            index,
            count: config.own.shards as u8,
            generation: (!config.carrier.is_native()).then_some(config.own.generation),
        },
        reset_seed: config.own.reset_seed,
        accept: Some(config.transport.as_core().clone()),
        limits: config.limits,
        queue: Some(Arc::clone(queue)),
        monitor: config.monitor.then(|| monitor.clone()),
        carrier: carrier::kind(&config.carrier, MAX_KEEPALIVE_INTERVAL),
        capture,
        tap: config.tap.clone(),
        links: Arc::clone(links),
        observers: Vec::new(),
        events: config.events.clone(),
        busy_poll: config.busy_poll,
    })
    .map_err(|error| BindError::io("start the network driver", error))?;
    if let Some(monitor) = config.path_health.clone() {
        shard.set_path_health_monitor(monitor);
    }
    Ok(shard)
}
