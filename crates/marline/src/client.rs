//! Client: opens connections over several local addresses.

mod builder;
mod servers;
mod watching;

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_algos::PolicyError;
use marline_core::{
    CloseReason, ConnectionConfig, ConnectionId, ConnectionInfo, FourTuple, MemoryAccount,
    MonitorEvent, PathHealthMonitor, SocketOption,
};
use marline_io::carrier::FlowEnds;
use marline_io::{Interfaces, PathSpec, Shard, ShardConfig, ShardHandle, SharedEventObserver};
use marline_time::{DelayHistogram, Duration};
use tokio::io::AsyncWriteExt;
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use crate::datagrams::LaneCounters;
use crate::error::UnknownPath;
use crate::happy_eyeballs::{AttemptSchedule, HappyEyeballs, WinningAttempt, connect_error};
use crate::health::{HealthWatcher, PathEvent};
use crate::nat64::PrefixWatch;
use crate::path_table::{Candidate, Evidence, PathChange, PathRestriction, PathStatus, PathTable};
use crate::routes::Routes;
use crate::shards::{
    Decisions, MONITOR_CAPACITY, captures, set_path_manager, set_scheduler, subscribe_to_traffic,
};
use crate::transport_config::TransportConfig;
use crate::{BindError, Carrier, ConnectError, Stream, carrier};
pub use builder::{ClientBuilder, ClientSettings};
use watching::start_watch_tasks;

/// Number of path events that are kept for a slow receiver.
const PATH_EVENT_CAPACITY: usize = 64;
/// Minimum interval between path checks, because a busy client's contacts change with every packet.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of servers whose addresses are remembered for judging paths.
const MAX_SERVERS: usize = 64;
/// Limits on the stagger between attempts.
const STAGGER: core::ops::RangeInclusive<Duration> =
    Duration::from_millis(50)..=Duration::from_millis(250);

/// Client that opens connections over several local addresses. Clones share all state.
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
    asked: Mutex<LatestAttempt>,
    /// Configuration of new connections, shared by all of them while the local addresses do not change.
    connection: Mutex<Arc<ConnectionConfig>>,
    monitor: broadcast::Sender<MonitorEvent>,
    decisions: Decisions,
    watcher: Mutex<HealthWatcher>,
    path_events: broadcast::Sender<PathEvent>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Servers tried in the latest attempt to connect, and why they do not serve this client.
#[derive(Clone, Debug, Default)]
struct LatestAttempt {
    /// Servers tried in the latest attempt.
    servers: Vec<SocketAddr>,
    /// Reason why the servers do not serve this client.
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
    /// Creates a configuration for a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    fn open(config: ClientBuilder) -> Result<Client, BindError> {
        let (monitor, _) = broadcast::channel(MONITOR_CAPACITY);
        let capture = captures(config.capture_dir.as_deref(), "client", config.capture_secrets)
            .map_err(|error| BindError::io("create the capture directory", error))?;
        let shard = Shard::start(ShardConfig {
            shard: marline_core::Shard::SINGLE,
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
        paths.update(&shard, &interfaces);
        if !config.own.paths.is_empty() {
            paths.check()?;
        }
        let watcher = Mutex::new(HealthWatcher::new(config.carrier.transport()));
        let (path_events, _) = broadcast::channel(PATH_EVENT_CAPACITY);
        let connection = Mutex::new(Arc::new(single_connection_config(&config.transport)));
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
        *lock(&inner.tasks) = start_watch_tasks(&inner);
        Ok(Client { inner })
    }

    /// Connects to a server: `"example.org:4500"`, an address, or several addresses of one server.
    ///
    /// The first address that answers on any path wins (RFC 8305): attempts start one after the other, a
    /// [stagger](ClientBuilder::stagger) apart. The winner is tried first next time. With a path health monitor, paths
    /// that it considers good come first: regular paths, then backup paths, then degraded address pairs. The second and
    /// third group each start after more than a stagger, so that no radio is woken and no bad network is used without
    /// need.
    ///
    /// Safe to cancel: attempts in progress are closed.
    ///
    /// # Errors
    /// The name does not resolve, or no attempt succeeded within
    /// [`connect_timeout`](ClientBuilder::connect_timeout); the error lists each attempt with its reason.
    pub async fn connect(&self, server: impl ToSocketAddrs) -> Result<Stream, ConnectError> {
        self.connect_with(server, &[]).await
    }

    /// Connects like [`connect`](Self::connect), and writes the first bytes to the returned stream. With Fast Open, the
    /// SYN carries as many of them as it has room for, and the answer arrives a round trip sooner. This requires that
    /// the transport configuration allows Fast Open ([`fast_open`](ConnectionConfig::fast_open)), that the server has
    /// issued a cookie, and that the network does not block it. **The server may then receive the bytes twice**, on two
    /// connections: an observer can replay the SYN, and the bytes are also sent to any other address or path that
    /// answers sooner.
    ///
    /// Safe to cancel, but the server may already have received the bytes.
    ///
    /// # Errors
    /// See [`connect`](Self::connect). Also, the connection may fail while the rest of the bytes is written.
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

    /// Returns the number of bytes that the SYN of a connection to one of these servers could carry now
    /// ([`connect_with`](Self::connect_with)). Returns `None` if Fast Open is off for that port, no server has issued
    /// a cookie for the address of a path, or the networks block it.
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
        lock(&self.inner.asked).servers = servers.iter().copied().take(MAX_SERVERS).collect();
        let winner = *lock(&self.inner.winner);
        let ways = || {
            let paths = lock(&self.inner.paths);
            (paths.candidates(servers, winner), paths.local_addresses())
        };
        let (mut candidates, mut local_addresses) = ways();
        if candidates.is_empty() && self.inner.prefixes.is_lookup_pending() {
            // The only network is IPv6-only, and its NAT64 prefix is not yet known.
            let _ = tokio::time::timeout(patience, self.inner.prefixes.wait_until_known()).await;
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
            monitor.is_degraded(c.end.address, c.remote.ip())
        };
        let schedule = match &self.inner.config.path_health {
            None => AttemptSchedule::new_staggered(candidates, stagger),
            Some(monitor) => {
                AttemptSchedule::order_by_health(candidates, stagger, |c| is_bad(monitor, c))
            }
        };
        let (shard, routes) = (&self.inner.shard, &self.inner.routes);
        let config = &config;
        let attempts = HappyEyeballs { shard, config, routes, transport, patience, first_bytes };
        let outcome = attempts.run(schedule).await;
        for failure in &outcome.failures {
            // Lasting problems are reported once by the watcher.
            tracing::debug!("{failure}");
        }
        let Some(WinningAttempt { stream, ends, written }) = outcome.winner else {
            return Err(match connect_error(outcome.failures) {
                ConnectError::NoPath { .. } => {
                    ConnectError::NoPath { reasons: lock(&self.inner.paths).unusable_reason() }
                }
                other => other,
            });
        };
        *lock(&self.inner.winner) = Some(ends);
        // A path may support only the other address family, now or later.
        if let Some(other) = lock(&self.inner.paths).other_family_server(servers, ends.1) {
            let id = stream.id();
            shard.with_endpoint(|endpoint, now| endpoint.add_remote_address(now, id, other));
        }
        let mut stream = Stream::new(stream, Arc::clone(&self.inner.config.registry));
        stream.write_all(&first_bytes[written..]).await.map_err(broken_stream_error)?;
        Ok(stream)
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
        self.inner.decisions.subscribe(core::slice::from_ref(&self.inner.shard))
    }

    /// Starts to capture packets into this directory, like [`ClientBuilder::capture_dir`], with or without keys as
    /// in [`ClientBuilder::capture_secrets`]. `None` stops. Existing files of these names are overwritten.
    ///
    /// # Errors
    /// The directory cannot be created; the previous setting remains.
    pub fn capture(&self, dir: Option<&Path>, secrets: bool) -> io::Result<()> {
        self.inner.shard.set_captures(captures(dir, "client", secrets)?);
        Ok(())
    }

    /// Replaces the event observer of [`ClientBuilder::event_observer`]; `None` removes it. Events other than
    /// traffic require [`ClientBuilder::monitor`], or an observer at the start of the client.
    pub fn observe_events(&self, observer: Option<&SharedEventObserver>) {
        self.inner.shard.set_event_observer(observer.cloned());
    }

    /// Receives traffic events of a connection ([`MonitorKind::Traffic`](crate::monitor::MonitorKind::Traffic)),
    /// segment by segment, while the receiver exists. A slow receiver misses some. This works for one connection at a
    /// time: a new receiver ends the events of the previous one.
    #[must_use]
    pub fn traffic(&self, of: ConnectionId) -> broadcast::Receiver<MonitorEvent> {
        subscribe_to_traffic(&self.inner.shard, of)
    }

    /// Receives changes of path health: a path no longer reaches a server, or reaches it again.
    #[must_use]
    pub fn path_events(&self) -> broadcast::Receiver<PathEvent> {
        self.inner.path_events.subscribe()
    }

    /// Returns snapshots of all connections.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.inner.shard.connections()
    }

    /// Returns the path health monitor of the connections.
    #[must_use]
    pub fn path_health_monitor(&self) -> Option<&PathHealthMonitor> {
        self.inner.config.path_health.as_ref()
    }

    /// Returns the state of each path.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        let shard = &self.inner.shard;
        let (now, contacts) = shard.contacts();
        let (by_tcp, impaired) = (shard.routes_on_links(), shard.impaired_paths());
        let asked = lock(&self.inner.asked).clone();
        let tcp = |local, remote| {
            (by_tcp.contains(&FlowEnds { local, remote }), shard.link_failure(local, remote))
        };
        lock(&self.inner.paths).status(&Evidence {
            now,
            contacts: &contacts,
            transport: self.inner.config.carrier.transport(),
            servers: &asked.servers,
            rejection: asked.rejection.as_deref(),
            impaired: &impaired,
            rates: &shard.routes_faster_over_tcp(),
            tcp: &tcp,
        })
    }

    /// Sets the reason why the answering server does not serve this client, such as an unexpected key or a rejected
    /// credential; `None` if it does. Only the application protocol knows this. While there is a reason, every path
    /// counts as [unreachable](crate::paths::PathHealth::Unreachable), because answers of that server are useless.
    pub fn set_rejection(&self, reason: Option<String>) {
        lock(&self.inner.asked).rejection = reason;
    }

    /// Changes a path by hand, for all connections. `path` is its index in [`Client::paths`], its interface, its
    /// address, or its configured text.
    ///
    /// # Errors
    /// There is no such path.
    pub fn set_path(&self, path: &str, change: PathChange) -> Result<(), UnknownPath> {
        lock(&self.inner.paths).change(&self.inner.shard, path, change)
    }

    /// Reports whether the system's network manager considers a path metered, which makes it
    /// [limited](crate::paths::PathSpec::limited) unless the user has configured otherwise. For `path`, see
    /// [`set_path`](Self::set_path).
    ///
    /// # Errors
    /// There is no such path.
    pub fn report_limited(&self, path: &str, limited: bool) -> Result<(), UnknownPath> {
        lock(&self.inner.paths).report_limited(&self.inner.shard, path, limited)
    }

    /// Restricts a path, for all connections, in addition to changes [by hand](Self::set_path); the latest restriction
    /// applies. For `path`, see [`set_path`](Self::set_path).
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

    /// Replaces the paths; if none is given, all interfaces with a default route are used. Connections continue, and
    /// those on a removed path move to others. Remaining paths keep changes made by hand. A path whose interface or
    /// address does not exist is used as soon as it appears.
    ///
    /// # Errors
    /// A path names a TUN interface that is not configured; in this case nothing has changed.
    pub fn set_paths(&self, paths: &[PathSpec]) -> Result<(), BindError> {
        let table = self.table_of(paths)?;
        self.inner.routes.clear();
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

    /// Charges the memory of new connections to this account of a [`MemoryBudget`](crate::memory::MemoryBudget).
    /// Without an account, only the buffer sizes limit it.
    pub fn set_memory_account(&self, account: &MemoryAccount) {
        self.inner.shard.with_endpoint(|endpoint, _| endpoint.set_memory_account(account.clone()));
    }

    /// Sets the behavior of new connections; existing connections are not changed.
    pub fn set_transport(&self, transport: &TransportConfig) {
        let mut opened = transport.clone();
        opened.as_core_mut().receive_probes.get_or_insert_default();
        *lock(&self.inner.connection) = Arc::new(single_connection_config(&opened));
    }

    /// Requires an answer on each connection to one of these servers within this time; a connection without an answer
    /// then ends as timed out. Use this if the server may have failed, for example because another server answers over
    /// the same paths. Otherwise, a connection waits for a path as long as [`TransportConfig::linger`] specifies.
    /// Returns the number of these connections.
    pub fn expect_answer(&self, servers: &[SocketAddr], within: Duration) -> usize {
        self.inner.shard.with_endpoint(|endpoint, now| {
            let connections = endpoint.connections_to(servers);
            for id in &connections {
                endpoint.set(now, *id, SocketOption::AnswerWithin(within));
            }
            connections.len()
        })
    }

    /// Changes the scheduler of a running connection. A closed connection is ignored.
    ///
    /// # Errors
    /// There is no such scheduler, or a parameter is invalid.
    pub fn set_scheduler(&self, id: ConnectionId, spec: &str) -> Result<(), PolicyError> {
        set_scheduler(&self.inner.config.registry, &self.inner.shard, id, spec)
    }

    /// Changes the path manager of a running connection. A closed connection is ignored.
    ///
    /// # Errors
    /// There is no such path manager, or a parameter is invalid.
    pub fn set_path_manager(&self, id: ConnectionId, spec: &str) -> Result<(), PolicyError> {
        set_path_manager(&self.inner.config.registry, &self.inner.shard, id, spec)
    }

    /// Returns the counters of the core and of the carrier.
    #[must_use]
    pub fn counters(&self) -> (marline_core::Counters, marline_io::carrier::CarrierCounters) {
        self.inner.shard.counters()
    }

    /// Returns the histogram of the time from a write until the peer has received all of it. One write per connection
    /// is measured at a time.
    #[must_use]
    pub fn delivery_delays(&self) -> DelayHistogram {
        self.inner.shard.delivery_delays()
    }

    /// Returns the counters of datagram lanes.
    #[must_use]
    pub fn lane_counters(&self) -> LaneCounters {
        self.inner.shard.lane_counters()
    }

    /// Waits at most `patience` until all connections have closed. Returns true if they have. Data that is written but
    /// not delivered is lost if the process exits earlier.
    pub async fn drained(&self, patience: Duration) -> bool {
        self.inner.shard.drained(patience).await
    }
}

/// Converts the error of a write to the reason why the connection ended.
fn broken_stream_error(error: io::Error) -> ConnectError {
    let reason = error.into_inner().and_then(|inner| inner.downcast::<CloseReason>().ok());
    reason.map_or(ConnectError::Stopped, |reason| ConnectError::Closed(*reason))
}

/// Creates the table of these paths, without looking up their addresses.
fn path_table(carrier: &Carrier, mark: u32, paths: &[PathSpec]) -> PathTable {
    match carrier {
        Carrier::Tun(tuns) => PathTable::from_tuns(tuns, paths),
        _ => PathTable::new(paths).with_mark(mark),
    }
}

/// Returns the configuration of a single connection. The attempts of `connect` are separate connections, and cover
/// servers as well as paths.
fn single_connection_config(transport: &TransportConfig) -> ConnectionConfig {
    let mut connection = transport.as_core().clone();
    connection.connection_attempt_delay = None;
    connection
}
