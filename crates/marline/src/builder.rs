//! Configuration shared by clients and servers.

use std::path::PathBuf;
use std::sync::Arc;

use marline_algos::{PolicyError, Registry};
use marline_core::{Limits, PathHealthMonitor};
use marline_io::{SegmentLog, SharedEventObserver};
use marline_policy::Role;
use marline_time::Duration;

use crate::multimob::InteractiveParameters;
use crate::transport_config::TransportConfig;
use crate::{Carrier, multimob};
#[cfg(doc)]
use crate::{Client, Server};

/// Configuration of a [`Client`] or a [`Server`]: settings common to both, and settings of one side (`S`). It is used
/// as [`ClientBuilder`](crate::ClientBuilder) and [`ServerBuilder`](crate::ServerBuilder).
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `bind`"]
pub struct Builder<S> {
    pub(crate) carrier: Carrier,
    pub(crate) transport: TransportConfig,
    pub(crate) capture_dir: Option<PathBuf>,
    pub(crate) capture_secrets: bool,
    pub(crate) tap: Option<SegmentLog>,
    pub(crate) events: Option<SharedEventObserver>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) path_health: Option<PathHealthMonitor>,
    pub(crate) monitor: bool,
    pub(crate) limits: Limits,
    pub(crate) busy_poll: Duration,
    /// Settings that only this side has.
    pub(crate) own: S,
}

/// Settings of one side.
pub trait OwnSettings: Default {
    /// Role of the side that has these settings.
    const ROLE: Role;
}

impl<S: OwnSettings> Default for Builder<S> {
    fn default() -> Self {
        Builder {
            carrier: Carrier::Udp,
            transport: TransportConfig::default(),
            capture_dir: None,
            capture_secrets: false,
            tap: None,
            events: None,
            registry: Arc::new(Registry::default()),
            path_health: None,
            monitor: false,
            limits: Limits::default(),
            busy_poll: Duration::ZERO,
            own: S::default(),
        }
    }
}

impl<S: OwnSettings> Builder<S> {
    /// Sets the carrier of segments. Default: UDP datagrams.
    pub fn carrier(&mut self, carrier: Carrier) -> &mut Self {
        self.carrier = carrier;
        self
    }

    /// Sets the behavior of connections. Replaces all earlier connection settings, including those made by name.
    pub fn transport(&mut self, transport: impl Into<TransportConfig>) -> &mut Self {
        self.transport = transport.into();
        self
    }

    /// Returns the connection settings, to read or change.
    pub const fn transport_mut(&mut self) -> &mut TransportConfig {
        &mut self.transport
    }

    /// Returns the current connection settings.
    #[must_use]
    pub const fn get_transport(&self) -> &TransportConfig {
        &self.transport
    }

    /// Sets the policies that can be chosen by name, before and while connections run. Default: the built-in ones.
    pub fn registry(&mut self, registry: impl Into<Arc<Registry>>) -> &mut Self {
        self.registry = registry.into();
        self
    }

    /// Sets the scheduler of new connections, by name and parameters (`redundant-idle`).
    ///
    /// # Errors
    /// The registry has no such scheduler, or a parameter is invalid; the error lists the available ones.
    pub fn scheduler(&mut self, spec: &str) -> Result<&mut Self, PolicyError> {
        let scheduler = self.registry.scheduler(spec)?;
        self.transport.scheduler(scheduler);
        Ok(self)
    }

    /// Sets the path manager of new connections, by name and parameters (`full-mesh`).
    ///
    /// # Errors
    /// The registry has no such path manager, or a parameter is invalid; the error lists the available ones.
    pub fn path_manager(&mut self, spec: &str) -> Result<&mut Self, PolicyError> {
        let path_manager = self.registry.path_manager(spec)?;
        self.transport.path_manager(path_manager);
        Ok(self)
    }

    /// Enables interactive mode. On a client, this means break before make: paths flagged `backup` sleep until no other
    /// path works. The server must be a Marline server, which follows the client's choice of path. A server follows
    /// every client's choice of path with these parameters. Without this setting it follows only clients that request
    /// it.
    pub fn interactive(&mut self, parameters: InteractiveParameters) -> &mut Self {
        multimob::interactive(self.transport.as_core_mut(), S::ROLE, parameters);
        self.path_health = Some(parameters.path_health_monitor());
        self
    }

    /// Sets the monitor through which all connections of the process share what they learn about their paths. Clones
    /// share one monitor, which all clients and servers of a process may use. Default: none; connections share nothing.
    pub fn path_health_monitor(&mut self, monitor: Option<PathHealthMonitor>) -> &mut Self {
        self.path_health = monitor;
        self
    }

    /// Returns the current path health monitor.
    #[must_use]
    pub const fn get_path_health_monitor(&self) -> Option<&PathHealthMonitor> {
        self.path_health.as_ref()
    }

    /// Sets how long the driver polls its sockets after each exchange before it sleeps, at most
    /// [`MAX_BUSY_POLL`](crate::config::MAX_BUSY_POLL). An answer that arrives within this time is read some
    /// microseconds sooner, but a processor is busy until then. Default: zero (off).
    pub fn busy_poll(&mut self, length: Duration) -> &mut Self {
        self.busy_poll = length;
        self
    }

    /// Sets limits on the state that peers can create; on a server they apply per shard.
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.limits = limits;
        self
    }

    /// Returns the limits, to read or change.
    pub const fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// Enables monitor events ([`Client::monitor`], [`Server::monitor`]). Default: off.
    pub fn monitor(&mut self, monitor: bool) -> &mut Self {
        self.monitor = monitor;
        self
    }

    /// Writes one pcapng file per path (client) or per listening address (server) into this directory, without MPTCP
    /// keys, tokens and HMACs.
    pub fn capture_dir(&mut self, dir: impl Into<PathBuf>) -> &mut Self {
        self.capture_dir = Some(dir.into());
        self
    }

    /// Keeps MPTCP keys, tokens and HMACs in captures. Anyone who can read the files can then disturb the connections.
    pub fn capture_secrets(&mut self, keep: bool) -> &mut Self {
        self.capture_secrets = keep;
        self
    }

    /// Sets an observer of all events and all traffic, such as a trace. It costs time for each segment.
    pub fn event_observer(&mut self, observer: SharedEventObserver) -> &mut Self {
        self.events = Some(observer);
        self
    }

    /// Sets a log of segments for diagnosis.
    pub fn segment_log(&mut self, log: SegmentLog) -> &mut Self {
        self.tap = Some(log);
        self
    }
}
