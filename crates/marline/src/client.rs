//! Client: opens connections over several local addresses.

mod builder;
mod servers;
mod watching;

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_core::{
    CloseReason, ConnectionConfig, ConnectionId, ConnectionInfo, FourTuple, MemoryAccount,
    MonitorEvent, PathHealthMonitor, SocketOption,
};
use marline_io::{Interfaces, PathSpec, Shard, ShardConfig, ShardHandle, SharedEventObserver};
use marline_time::{DelayHistogram, Duration};
use tokio::io::AsyncWriteExt;
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use crate::datagrams::LaneCounters;
use crate::happy_eyeballs::{AttemptSchedule, HappyEyeballs, Winner, connect_error};
use crate::health::{HealthWatcher, PathEvent};
use crate::nat64::PrefixWatch;
use crate::path_table::{Candidate, Evidence, PathChange, PathRestriction, PathStatus, PathTable};
use crate::routes::Routes;
use crate::shards::{
    Decisions, MONITOR_CAPACITY, captures, set_path_manager, set_scheduler, traffic_of,
};
use crate::{
    BindError, Carrier, ConnectError, PolicyError, Stream, TransportConfig, UnknownPath, carrier,
};
pub use builder::{ClientBuilder, ClientSettings};
use watching::watch_out;

/// Changes of paths a slow reader may lag behind.
const PATH_EVENT_CAPACITY: usize = 64;
/// News of contacts comes with every packet of a busy client: paths are looked at this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Addresses of servers that are remembered to judge paths by.
const MOST_SERVERS: usize = 64;
/// Bounds of the stagger between attempts.
const STAGGER: core::ops::RangeInclusive<Duration> =
    Duration::from_millis(50)..=Duration::from_millis(250);

/// Opens connections over several local addresses. Clones share everything.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shard: Arc<ShardHandle>,
    config: ClientBuilder,
    paths: Mutex<PathTable>,
    prefixes: Arc<PrefixWatch>,
    routes: Routes,
    winner: Mutex<Option<(IpAddr, SocketAddr)>>,
    asked: Mutex<Asked>,
    /// What connections are opened with: one for all, as long as the local addresses stay the same.
    connection: Mutex<Arc<ConnectionConfig>>,
    monitor: broadcast::Sender<MonitorEvent>,
    decisions: Decisions,
    watcher: Mutex<HealthWatcher>,
    path_events: broadcast::Sender<PathEvent>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Who is asked for connections, and what the protocol above says of them.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// The servers of the latest attempt to connect.
    servers: Vec<SocketAddr>,
    /// Why they do not serve this client.
    rejection: Option<String>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// A client that is still to be configured.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    fn open(config: ClientBuilder) -> Result<Client, BindError> {
        let (monitor, _) = broadcast::channel(MONITOR_CAPACITY);
        let capture = captures(config.capture_dir.as_deref(), "client", config.capture_secrets)
            .map_err(|error| BindError::io("capture directory", error))?;
        let shard = Shard::start(ShardConfig {
            shard: marline_core::Shard::ALONE,
            reset_seed: None,
            accept: None,
            limits: config.limits,
            queue: None,
            monitor: config.monitor.then(|| monitor.clone()),
            carrier: carrier::kind(&config.carrier, config.own.keepalive),
            capture,
            tap: config.tap.clone(),
            links: Arc::default(),
            observers: config.own.observers.clone(),
            events: config.events.clone(),
            busy_poll: config.busy_poll,
        })
        .map_err(|error| BindError::io("start the network driver", error))?;
        if let Some(monitor) = config.path_health.clone() {
            shard.set_path_health_monitor(monitor);
        }
        carrier::open(&config.carrier, &[&shard])?;
        if config.carrier.is_native() {
            shard
                .reserve_local_ports()
                .map_err(|error| BindError::io("reserve local TCP ports", error))?;
        }
        let interfaces =
            Interfaces::now().map_err(|error| BindError::io("list interfaces", error))?;
        let mut paths = path_table(&config.carrier, config.own.mark, &config.own.paths);
        paths.follow(&shard, &interfaces);
        if !config.own.paths.is_empty() {
            paths.check()?;
        }
        let watcher = Mutex::new(HealthWatcher::new(config.carrier.transport()));
        let (path_events, _) = broadcast::channel(PATH_EVENT_CAPACITY);
        let connection = Mutex::new(Arc::new(as_opened(&config.transport)));
        let inner = Arc::new(Inner {
            shard,
            config,
            paths: Mutex::new(paths),
            prefixes: Arc::default(),
            routes: Routes::default(),
            winner: Mutex::new(None),
            asked: Mutex::default(),
            connection,
            monitor,
            decisions: Decisions::default(),
            watcher,
            path_events,
            tasks: Mutex::default(),
        });
        *lock(&inner.tasks) = watch_out(&inner);
        Ok(Client { inner })
    }

    /// Connects to a server: `"example.org:4500"`, an address, or several addresses of one server.
    ///
    /// Whichever address answers first on whichever path wins (RFC 8305): attempts start one after the
    /// other, a [stagger](ClientBuilder::stagger) apart. The winner is tried first next time. With an
    /// path health monitor, what it holds to be good comes first: regular paths, then backup ones, then bad address
    /// pairs, each of these later than a stagger, so that no radio is woken and no bad network used
    /// without need.
    ///
    /// Safe to cancel: attempts that are under way are closed.
    ///
    /// # Errors
    /// The name does not resolve, or no attempt succeeded within
    /// [`connect_timeout`](ClientBuilder::connect_timeout); the error lists each with its reason.
    pub async fn connect(&self, server: impl ToSocketAddrs) -> Result<Stream, ConnectError> {
        self.connect_with(server, &[]).await
    }

    /// As [`connect`](Self::connect), with the first bytes that the server is to have: they are written to the stream
    /// that comes back. Where the transport configuration allows Fast Open
    /// ([`fast_open`](ConnectionConfig::fast_open)), the server has given a cookie and the network lets it pass, they
    /// go with the SYN, as far as it has room, and the answer is there a round trip sooner. **The server may then get
    /// them twice**, on two connections: whoever saw the SYN can send it again, and where another address or path
    /// answers sooner they go there as well.
    ///
    /// Safe to cancel, but the server may have them.
    ///
    /// # Errors
    /// As `connect`; or the connection broke while more bytes were written than it takes at once.
    pub async fn connect_with(
        &self,
        server: impl ToSocketAddrs,
        first: &[u8],
    ) -> Result<Stream, ConnectError> {
        let begun = tokio::time::Instant::now();
        let patience = self.inner.config.own.patience;
        let silent = || ConnectError::Resolve(std::io::ErrorKind::TimedOut.into());
        let lookup = tokio::time::timeout(patience, lookup_host(server)).await;
        let servers: Vec<SocketAddr> =
            lookup.map_err(|_| silent())?.map_err(ConnectError::Resolve)?.collect();
        self.connect_to(&servers, patience.saturating_sub(begun.elapsed()), first).await
    }

    /// Bytes that would go with the SYN of a connection to one of these servers now
    /// ([`connect_with`](Self::connect_with)). `None`: none, since Fast Open is off for that port, no server has given
    /// a cookie to the address of a path, or the networks do not let it pass.
    #[must_use]
    pub fn fast_open_room(&self, servers: &[SocketAddr]) -> Option<usize> {
        let config = Arc::clone(&lock(&self.inner.connection));
        config.fast_open.as_ref()?;
        let winner = *lock(&self.inner.winner);
        let candidates = lock(&self.inner.paths).candidates(servers, winner);
        self.inner.shard.with_endpoint(|endpoint, now| {
            candidates.iter().find_map(|candidate| {
                let local = SocketAddr::new(candidate.end.address, 0);
                let path = FourTuple { local, remote: candidate.remote };
                endpoint.fast_open_room(now, &config, &path)
            })
        })
    }

    async fn connect_to(
        &self,
        servers: &[SocketAddr],
        patience: Duration,
        first_bytes: &[u8],
    ) -> Result<Stream, ConnectError> {
        let begun = tokio::time::Instant::now();
        lock(&self.inner.asked).servers = servers.iter().copied().take(MOST_SERVERS).collect();
        let winner = *lock(&self.inner.winner);
        let ways = || {
            let paths = lock(&self.inner.paths);
            (paths.candidates(servers, winner), paths.local_addresses())
        };
        let (mut candidates, mut local_addresses) = ways();
        if candidates.is_empty() && self.inner.prefixes.is_asking() {
            // The only network there is has IPv6 alone, and has not said yet how it reaches the rest.
            let _ = tokio::time::timeout(patience, self.inner.prefixes.settled()).await;
            (candidates, local_addresses) = ways();
        }
        let patience = patience.saturating_sub(begun.elapsed());
        let config = {
            let mut config = lock(&self.inner.connection);
            if config.local_addresses != local_addresses {
                Arc::make_mut(&mut config).local_addresses = local_addresses;
            }
            Arc::clone(&config)
        };
        let stagger = self.inner.config.own.stagger.clamp(*STAGGER.start(), *STAGGER.end());
        let transport = self.inner.config.carrier.transport();
        let is_bad = |monitor: &PathHealthMonitor, c: &Candidate| {
            monitor.is_bad(c.end.address, c.remote.ip())
        };
        let schedule = match &self.inner.config.path_health {
            None => AttemptSchedule::staggered(candidates, stagger),
            Some(monitor) => {
                AttemptSchedule::by_health(candidates, stagger, |c| is_bad(monitor, c))
            }
        };
        let (shard, routes) = (&self.inner.shard, &self.inner.routes);
        let config = &config;
        let attempts = HappyEyeballs { shard, config, routes, transport, patience, first_bytes };
        let outcome = attempts.run(schedule).await;
        for failure in &outcome.failures {
            // What lasts is the watcher's to tell, once.
            tracing::debug!("{failure}");
        }
        let Some(Winner { stream, ends, written }) = outcome.winner else {
            return Err(match connect_error(outcome.failures) {
                ConnectError::NoPath { .. } => {
                    ConnectError::NoPath { reasons: lock(&self.inner.paths).why_unusable() }
                }
                other => other,
            });
        };
        *lock(&self.inner.winner) = Some(ends);
        // A path may have the other family alone, now or later.
        if let Some(other) = lock(&self.inner.paths).of_other_family(servers, ends.1) {
            let id = stream.id();
            shard.with_endpoint(|endpoint, now| endpoint.add_remote_address(now, id, other));
        }
        let mut stream = Stream::new(stream, Arc::clone(&self.inner.config.registry));
        stream.write_all(&first_bytes[written..]).await.map_err(broken)?;
        Ok(stream)
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
        self.inner.decisions.of(core::slice::from_ref(&self.inner.shard))
    }

    /// Captures packets into this directory from now on, as [`ClientBuilder::capture_dir`] does from the start, and as
    /// [`ClientBuilder::capture_secrets`] with keys or without; `None`: no more. Files of these names that are there
    /// are overwritten.
    ///
    /// # Errors
    /// The directory can not be created: what was in force stays.
    pub fn capture(&self, dir: Option<&Path>, secrets: bool) -> io::Result<()> {
        self.inner.shard.set_captures(captures(dir, "client", secrets)?);
        Ok(())
    }

    /// Shows this observer what connections tell from now on, in place of that of
    /// [`ClientBuilder::event_observer`]; `None`: nobody. Events other than traffic are there only with
    /// [`ClientBuilder::monitor`], or if the client was started with an observer.
    pub fn observe_events(&self, observer: Option<&SharedEventObserver>) {
        self.inner.shard.set_event_observer(observer.cloned());
    }

    /// What happens to the traffic of a connection from now on ([`MonitorKind::Traffic`](crate::MonitorKind::Traffic)),
    /// segment by segment, as long as the receiver exists; a slow one misses some. One connection at a time: the
    /// receiver of another one gets nothing more.
    #[must_use]
    pub fn traffic(&self, of: ConnectionId) -> broadcast::Receiver<MonitorEvent> {
        traffic_of(&self.inner.shard, of)
    }

    /// Changes of what is known of its paths: one ceases to lead to a server, or does again.
    #[must_use]
    pub fn path_events(&self) -> broadcast::Receiver<PathEvent> {
        self.inner.path_events.subscribe()
    }

    /// Snapshots of all connections.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.inner.shard.connections()
    }

    /// The path health monitor that its connections take part in.
    #[must_use]
    pub fn path_health_monitor(&self) -> Option<&PathHealthMonitor> {
        self.inner.config.path_health.as_ref()
    }

    /// The paths and their state.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        let shard = &self.inner.shard;
        let (now, contacts) = shard.contacts();
        let (by_tcp, doubted) = (shard.routes_by_link(), shard.doubted_paths());
        let asked = lock(&self.inner.asked).clone();
        let tcp =
            |local, server| (by_tcp.contains(&(local, server)), shard.link_failure(local, server));
        lock(&self.inner.paths).status(&Evidence {
            now,
            contacts: &contacts,
            transport: self.inner.config.carrier.transport(),
            servers: &asked.servers,
            rejection: asked.rejection.as_deref(),
            doubted: &doubted,
            rates: &shard.slower_by_datagrams(),
            tcp: &tcp,
        })
    }

    /// Says why the server that answers does not serve this client, such as a key that is not the expected one or a
    /// credential that it refuses; `None`: it serves it. For the protocol above, which alone knows. As long as there
    /// is a reason, every path is [unreachable](crate::PathHealth::Unreachable) for it: what answers there is of no
    /// use.
    pub fn set_rejection(&self, reason: Option<String>) {
        lock(&self.inner.asked).rejection = reason;
    }

    /// Changes a path by hand, for all connections. `path` is its index in [`Client::paths`], its
    /// interface, its address, or as it was given.
    ///
    /// # Errors
    /// There is no such path.
    pub fn set_path(&self, path: &str, change: PathChange) -> Result<(), UnknownPath> {
        lock(&self.inner.paths).change(&self.inner.shard, path, change)
    }

    /// Restricts a path, for all connections, on top of what was changed [by hand](Self::set_path); the last
    /// restriction holds. `path` as there.
    ///
    /// # Errors
    /// There is no such path.
    pub fn restrict_path(
        &self,
        path: &str,
        restriction: PathRestriction,
    ) -> Result<(), UnknownPath> {
        lock(&self.inner.paths).restrict(&self.inner.shard, path, restriction)
    }

    /// Has these paths instead of its own; without any, every interface with a default route. Connections go on:
    /// those of a path that is not among them move to others. What was changed by hand holds for paths that stay. A
    /// path whose interface or address is not there is waited for.
    ///
    /// # Errors
    /// A path names a TUN interface that is not configured; nothing is changed then.
    pub fn set_paths(&self, paths: &[PathSpec]) -> Result<(), BindError> {
        let table = self.table_of(paths)?;
        self.inner.routes.forget();
        lock(&self.inner.paths).replace(&self.inner.shard, table);
        self.inner.follow_prefixes();
        Ok(())
    }

    fn table_of(&self, paths: &[PathSpec]) -> Result<PathTable, BindError> {
        let interfaces =
            Interfaces::now().map_err(|error| BindError::io("list interfaces", error))?;
        let config = &self.inner.config;
        let mut table = path_table(&config.carrier, config.own.mark, paths);
        table.resolve(&interfaces);
        if !paths.is_empty() {
            table.check()?;
        }
        Ok(table)
    }

    /// Charges this account of a [`MemoryBudget`](crate::MemoryBudget) for connections that are opened from now
    /// on. Before, their memory has no limit but those of their buffers.
    pub fn set_memory_account(&self, account: &MemoryAccount) {
        self.inner.shard.with_endpoint(|endpoint, _| endpoint.set_memory_account(account.clone()));
    }

    /// How connections behave that are opened from now on; existing ones stay as they are.
    pub fn set_transport(&self, transport: &TransportConfig) {
        let mut opened = transport.clone();
        opened.as_core_mut().receive_probes.get_or_insert_default();
        *lock(&self.inner.connection) = Arc::new(as_opened(&opened));
    }

    /// Has the server of each connection that leads to one of these addresses give a sign of life within this time;
    /// a connection that hears nothing until then ends as one that timed out. For who has reason to doubt that this
    /// server is there, such as that another one answers over the same paths: without such a reason a connection waits
    /// for a path for as long as [`TransportConfig::linger`] says. Gives how many are asked.
    pub fn expect_answer(&self, servers: &[SocketAddr], within: Duration) -> usize {
        self.inner.shard.with_endpoint(|endpoint, now| {
            let connections = endpoint.connections_to(servers);
            for id in &connections {
                endpoint.set(now, *id, SocketOption::AnswerWithin(within));
            }
            connections.len()
        })
    }

    /// Changes the scheduler of a running connection; one that is over is left alone.
    ///
    /// # Errors
    /// The text names no scheduler, or a parameter is wrong.
    pub fn set_scheduler(&self, id: ConnectionId, spec: &str) -> Result<(), PolicyError> {
        set_scheduler(&self.inner.config.registry, &self.inner.shard, id, spec)
    }

    /// Changes the path manager of a running connection; one that is over is left alone.
    ///
    /// # Errors
    /// The text names no path manager, or a parameter is wrong.
    pub fn set_path_manager(&self, id: ConnectionId, spec: &str) -> Result<(), PolicyError> {
        set_path_manager(&self.inner.config.registry, &self.inner.shard, id, spec)
    }

    /// Counts of the core and of the carrier.
    #[must_use]
    pub fn counters(&self) -> (marline_core::Counters, marline_io::carrier::CarrierCounters) {
        self.inner.shard.counters()
    }

    /// How long writes took until the peer had all of them: of one write of a connection at a time.
    #[must_use]
    pub fn delivery_delays(&self) -> DelayHistogram {
        self.inner.shard.delivery_delays()
    }

    /// Counts of lanes for datagrams.
    #[must_use]
    pub fn lane_counters(&self) -> LaneCounters {
        self.inner.shard.lane_counters()
    }

    /// Waits until all connections have closed, or as long as `patience`: a process that ends
    /// before takes with it what was written and not yet delivered. `true`: all have.
    pub async fn drained(&self, patience: Duration) -> bool {
        self.inner.shard.drained(patience).await
    }
}

/// Why a connection does not take what is written to it.
fn broken(error: io::Error) -> ConnectError {
    let reason = error.into_inner().and_then(|inner| inner.downcast::<CloseReason>().ok());
    reason.map_or(ConnectError::Stopped, |reason| ConnectError::Closed(*reason))
}

/// The table of these paths, not looked up yet.
fn path_table(carrier: &Carrier, mark: u32, paths: &[PathSpec]) -> PathTable {
    match carrier {
        Carrier::Tun(tuns) => PathTable::behind(tuns, paths),
        _ => PathTable::new(paths).with_mark(mark),
    }
}

/// What a connection is opened with: the attempts of `connect` are connections of their own, which cover servers as
/// well as paths.
fn as_opened(transport: &TransportConfig) -> ConnectionConfig {
    let mut connection = transport.as_core().clone();
    connection.connection_attempt_delay = None;
    connection
}
