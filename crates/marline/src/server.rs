//! Server: accepts connections on one or several addresses.

mod announced;
mod builder;
mod ports;
mod succession;

use core::net::SocketAddr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use marline_core::{ConnectionId, ConnectionInfo, MemoryAccount, MonitorEvent, PathHealthMonitor};
use marline_io::{
    AcceptQueue, Generations, Links, ResetSeed, SecretRng, Shard, ShardConfig, ShardHandle,
    SharedEventObserver,
};
use marline_time::{DelayHistogram, Duration};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use crate::datagrams::LaneCounters;
use crate::shards::{
    Decisions, MONITOR_CAPACITY, captures, set_path_manager, set_scheduler, traffic_of,
};
use crate::{
    BindError, LONGEST_KEEPALIVE, PathChange, PolicyError, Stream, TransportConfig, UnknownPath,
    carrier, multimob,
};
use announced::Announced;
pub use builder::{ServerAddress, ServerBuilder, ServerSettings};
use succession::Place;

/// Accepts connections. Clones share everything.
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
    /// Where it listens, ports resolved.
    listen: Vec<SocketAddr>,
    /// What native carriers announce.
    addresses: Arc<Mutex<Vec<Announced>>>,
    /// Follows the interfaces that have the announced addresses.
    watch: Option<AbortHandle>,
    /// Who else shares the addresses.
    place: Place,
}

impl Inner {
    /// Nobody accepts any more: the shards let go of those that wait.
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
    /// A server that is still to be configured.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    fn open(mut config: ServerBuilder) -> Result<Server, BindError> {
        let (monitor, _) = broadcast::channel(MONITOR_CAPACITY);
        let queue = AcceptQueue::new(config.own.backlog);
        let links = Arc::<Links>::default();
        let mut shards = Vec::new();
        announced::announce(&mut config)?;
        if config.own.reset_seed.is_none() {
            let drawn =
                ResetSeed::random().map_err(|error| BindError::io("draw a secret", error))?;
            config.own.reset_seed = Some(drawn);
        }
        for index in 0..config.own.shards {
            shards.push(start_shard(&config, index as u8, (&queue, &links), &monitor)?);
        }
        if config.carrier.is_native() {
            let (listen, place) = open_native(&config, &shards, &links)?;
            let addresses = Arc::new(Mutex::new(Announced::of(&config)));
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

    /// The next connection and its peer's address (that of the first subflow); `None` after
    /// [`close`](Self::close), by whichever clone. Safe to cancel.
    pub async fn accept(&self) -> Option<(Stream, SocketAddr)> {
        let incoming = self.inner.queue.pop().await?;
        let shard = self.inner.shard_of(incoming.id)?;
        let stream = marline_io::Stream::accepted(Arc::clone(shard), incoming);
        Some((Stream::new(stream, Arc::clone(&self.inner.config.registry)), incoming.peer))
    }

    /// Accepts no further connections: those that wait are reset, those that still come refused, and
    /// every [`accept`](Self::accept) returns `None`. What was accepted goes on.
    pub fn close(&self) {
        for shard in &self.inner.shards {
            shard.with_endpoint(|endpoint, _| endpoint.stop_accepting());
        }
        self.inner.close_queue();
    }

    /// How connections behave that are accepted from now on; existing ones stay as they are.
    pub fn set_transport(&self, transport: &TransportConfig) {
        let mut transport = transport.clone();
        multimob::allow_following(transport.as_core_mut());
        for shard in &self.inner.shards {
            shard.with_endpoint(|endpoint, _| endpoint.change_accepted(transport.as_core()));
        }
    }

    /// Charges this account of a [`MemoryBudget`](crate::MemoryBudget) for connections that are accepted from now
    /// on. Before, their memory has no limit but those of their buffers.
    pub fn set_memory_account(&self, account: &MemoryAccount) {
        for shard in &self.inner.shards {
            shard.with_endpoint(|endpoint, _| endpoint.set_memory_account(account.clone()));
        }
    }

    /// The first address it listens on, its port resolved.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        // One at least: `bind` asks for it.
        self.inner.listen[0]
    }

    /// The addresses it listens on, ports resolved.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.inner.listen
    }

    /// Changes an address that is announced by hand, for all connections: `Down` withdraws it
    /// (REMOVE_ADDR) and closes the subflows to it, `Up` announces it again, `Backup` and `Primary`
    /// say whether subflows to it carry data while others can (MP_PRIO). Native carriers only.
    ///
    /// # Errors
    /// `address` was not [announced](ServerBuilder::announce), port included.
    pub fn set_address(&self, address: SocketAddr, change: PathChange) -> Result<(), UnknownPath> {
        announced::change(&self.inner.shards, &self.inner.addresses, address, change)
    }

    /// Monitor events, if the configuration asked for them.
    #[must_use]
    pub fn monitor(&self) -> broadcast::Receiver<MonitorEvent> {
        self.inner.monitor.subscribe()
    }

    /// What schedulers decide from now on, and why ([`MonitorKind::Decided`](crate::MonitorKind::Decided)), whatever
    /// the configuration says of monitor events. There may be thousands a second, and each takes time and memory, as
    /// long as a receiver exists; a slow one misses some.
    #[must_use]
    pub fn decisions(&self) -> broadcast::Receiver<MonitorEvent> {
        self.inner.decisions.of(&self.inner.shards)
    }

    /// Captures packets into this directory from now on, as [`ServerBuilder::capture_dir`] does from the start, and as
    /// [`ServerBuilder::capture_secrets`] with keys or without; `None`: no more. Files of these names that are there
    /// are overwritten.
    ///
    /// # Errors
    /// The directory can not be created: what was in force stays.
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

    /// Shows this observer what connections tell from now on, in place of that of
    /// [`ServerBuilder::event_observer`]; `None`: nobody. Events other than traffic are there only with
    /// [`ServerBuilder::monitor`], or if the server was started with an observer.
    pub fn observe_events(&self, observer: Option<&SharedEventObserver>) {
        self.inner.shards.iter().for_each(|shard| shard.set_event_observer(observer.cloned()));
    }

    /// What happens to the traffic of a connection from now on ([`MonitorKind::Traffic`](crate::MonitorKind::Traffic)),
    /// segment by segment, as long as the receiver exists; a slow one misses some. One connection at a time: the
    /// receiver of another one gets nothing more. `None`: no shard has such a connection.
    #[must_use]
    pub fn traffic(&self, of: ConnectionId) -> Option<broadcast::Receiver<MonitorEvent>> {
        Some(traffic_of(self.inner.shard_of(of)?, of))
    }

    /// The path health monitor that its connections take part in.
    #[must_use]
    pub fn path_health_monitor(&self) -> Option<&PathHealthMonitor> {
        self.inner.config.path_health.as_ref()
    }

    /// Snapshots of all connections.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.inner.shards.iter().flat_map(|shard| shard.connections()).collect()
    }

    /// Changes the scheduler of a running connection; one that is over is left alone.
    ///
    /// # Errors
    /// The text names no scheduler, or a parameter is wrong.
    pub fn set_scheduler(&self, id: ConnectionId, spec: &str) -> Result<(), PolicyError> {
        let Some(shard) = self.inner.shard_of(id) else { return Ok(()) };
        set_scheduler(&self.inner.config.registry, shard, id, spec)
    }

    /// Changes the path manager of a running connection; one that is over is left alone.
    ///
    /// # Errors
    /// The text names no path manager, or a parameter is wrong.
    pub fn set_path_manager(&self, id: ConnectionId, spec: &str) -> Result<(), PolicyError> {
        let Some(shard) = self.inner.shard_of(id) else { return Ok(()) };
        set_path_manager(&self.inner.config.registry, shard, id, spec)
    }

    /// Counts of the core and of the carrier, per shard.
    #[must_use]
    pub fn counters(&self) -> Vec<(marline_core::Counters, marline_io::carrier::CarrierCounters)> {
        self.inner.shards.iter().map(|shard| shard.counters()).collect()
    }

    /// How long writes took until the peer had all of them, over all shards: of one write of a connection at a time.
    #[must_use]
    pub fn delivery_delays(&self) -> DelayHistogram {
        let mut sum = DelayHistogram::default();
        self.inner.shards.iter().for_each(|shard| sum.add(&shard.delivery_delays()));
        sum
    }

    /// Counts of lanes for datagrams, over all shards.
    #[must_use]
    pub fn lane_counters(&self) -> LaneCounters {
        let mut sum = LaneCounters::default();
        self.inner.shards.iter().for_each(|shard| sum += shard.lane_counters());
        sum
    }

    /// Waits until all connections have closed, or as long as `patience`: a process that ends
    /// before takes with it what was written and not yet delivered. `true`: all have.
    pub async fn drained(&self, patience: Duration) -> bool {
        let mut all = true;
        for shard in &self.inner.shards {
            all &= shard.drained(patience).await;
        }
        all
    }
}

/// Gives shards of a framed carrier their sockets, and what accepts TCP connections beside datagrams.
fn open_framed(
    config: &ServerBuilder,
    shards: &[Arc<ShardHandle>],
    links: &Arc<Links>,
) -> Result<(Vec<SocketAddr>, Place), BindError> {
    let generations = Generations::new(config.own.generation, shards, links);
    if config.own.shards > 1 {
        Shard::introduce(shards);
    }
    if let Some(estate) = config.take_inherited() {
        shards.iter().for_each(|shard| shard.wait_with_receiving());
        let listen = succession::adopt_sockets(config, shards, estate.sockets)?;
        let listeners = Mutex::new(succession::waiting(estate.listeners));
        let elders = Mutex::new(estate.elders);
        return Ok((listen, Place { generations, listeners, elders }));
    }
    let (listen, listeners) = ports::open(config, shards)?;
    let listeners = Mutex::new(succession::accepting(listeners));
    Ok((listen, Place { generations, listeners, elders: Mutex::default() }))
}

/// Gives the shards of a native carrier their sockets and ports.
fn open_native(
    config: &ServerBuilder,
    shards: &[Arc<ShardHandle>],
    links: &Arc<Links>,
) -> Result<(Vec<SocketAddr>, Place), BindError> {
    let generations = Generations::new(config.own.generation, shards, links);
    let (mut elders, mut inherited) = (Vec::new(), None);
    if shards.len() > 1 {
        Shard::introduce(shards);
        share_fast_open_keys(shards)?;
    }
    if let Some(estate) = config.take_inherited() {
        shards.iter().for_each(|shard| shard.wait_with_receiving());
        (elders, inherited) = (estate.elders, Some(estate.native));
    }
    let each: Vec<&Shard> = shards.iter().map(|shard| &***shard).collect();
    let listen = announced::listen(config, &each, inherited)?;
    let (listeners, elders) = (Mutex::default(), Mutex::new(elders));
    Ok((listen, Place { generations, listeners, elders }))
}

/// Draws the keys of the cookies of Fast Open: a client that has one comes to any shard.
fn share_fast_open_keys(shards: &[Arc<ShardHandle>]) -> Result<(), BindError> {
    let drawn = SecretRng::from_os().map(|mut rng| rng.key());
    let drawn = drawn.map_err(|error| BindError::io("draw a secret", error))?;
    let mut key = [0; 16];
    key.copy_from_slice(&drawn[..16]);
    for shard in shards {
        shard.with_endpoint(|endpoint, _| endpoint.set_fast_open_keys(key, None));
    }
    Ok(())
}

/// What names of capture files of a shard begin with.
fn capture_name(config: &ServerBuilder, index: u8) -> String {
    let mut name = match config.own.shards {
        1 => "server".to_owned(),
        _ => format!("server-shard{index}"),
    };
    if config.own.generation > 0 {
        // The process before writes its own files still.
        name = format!("{name}-generation{}", config.own.generation);
    }
    name
}

fn start_shard(
    config: &ServerBuilder,
    index: u8,
    (queue, links): (&Arc<AcceptQueue>, &Arc<Links>),
    monitor: &broadcast::Sender<MonitorEvent>,
) -> Result<Arc<ShardHandle>, BindError> {
    let name = capture_name(config, index);
    let capture = captures(config.capture_dir.as_deref(), &name, config.capture_secrets)
        .map_err(|error| BindError::io("capture directory", error))?;
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
        carrier: carrier::kind(&config.carrier, LONGEST_KEEPALIVE),
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
