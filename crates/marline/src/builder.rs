//! Configuration that clients and servers share.

use std::path::PathBuf;
use std::sync::Arc;

use marline_algos::Registry;
use marline_core::{Limits, PathHealthMonitor};
use marline_io::{SegmentLog, SharedEventObserver};
use marline_policy::Role;
use marline_time::Duration;

use crate::{Carrier, Interactive, PolicyError, TransportConfig, multimob};
#[cfg(doc)]
use crate::{Client, Server};

/// What a [`Client`] or a [`Server`] runs with: what both have, and what only one of them has (`S`). It is used as
/// [`ClientBuilder`](crate::ClientBuilder) and [`ServerBuilder`](crate::ServerBuilder).
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
    /// What the other side has not.
    pub(crate) own: S,
}

/// Settings of one side alone.
pub trait OwnSettings: Default {
    /// The side that has them.
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
    /// How segments travel. Default: in UDP datagrams.
    pub fn carrier(&mut self, carrier: Carrier) -> &mut Self {
        self.carrier = carrier;
        self
    }

    /// How connections behave: replaces every setting of connections made before, those by name too.
    pub fn transport(&mut self, transport: impl Into<TransportConfig>) -> &mut Self {
        self.transport = transport.into();
        self
    }

    /// The settings of connections, to be read or changed.
    pub const fn transport_mut(&mut self) -> &mut TransportConfig {
        &mut self.transport
    }

    /// The settings of connections so far.
    #[must_use]
    pub const fn get_transport(&self) -> &TransportConfig {
        &self.transport
    }

    /// The policies that can be chosen by name, before and while connections run. Default: the built-in ones.
    pub fn registry(&mut self, registry: impl Into<Arc<Registry>>) -> &mut Self {
        self.registry = registry.into();
        self
    }

    /// The scheduler of new connections, by name and parameters (`redundant-idle`).
    ///
    /// # Errors
    /// The registry has no such scheduler, or a parameter is wrong; the error lists what there is.
    pub fn scheduler(&mut self, spec: &str) -> Result<&mut Self, PolicyError> {
        let scheduler = self.registry.scheduler(spec)?;
        self.transport.scheduler(scheduler);
        Ok(self)
    }

    /// The path manager of new connections, by name and parameters (`full-mesh`).
    ///
    /// # Errors
    /// The registry has no such path manager, or a parameter is wrong; the error lists what there is.
    pub fn path_manager(&mut self, spec: &str) -> Result<&mut Self, PolicyError> {
        let path_manager = self.registry.path_manager(spec)?;
        self.transport.path_manager(path_manager);
        Ok(self)
    }

    /// A client: break before make, that is, paths flagged `backup` sleep until no other works; the server must be a
    /// Marline server, which follows the client's choice of path. A server: follows every client's choice of path,
    /// with the given parameters; without it, that of those clients that ask for it.
    pub fn interactive(&mut self, parameters: Interactive) -> &mut Self {
        multimob::interactive(self.transport.as_core_mut(), S::ROLE, parameters);
        self.path_health = Some(parameters.path_health_monitor());
        self
    }

    /// What all connections of the process learn of each other's paths; clones are one monitor, and
    /// every client and server of a process may share it. Default: each connection for itself.
    pub fn path_health_monitor(&mut self, monitor: Option<PathHealthMonitor>) -> &mut Self {
        self.path_health = monitor;
        self
    }

    /// The path health monitor so far.
    #[must_use]
    pub const fn get_path_health_monitor(&self) -> Option<&PathHealthMonitor> {
        self.path_health.as_ref()
    }

    /// After each exchange the driver polls its sockets for this long before it sleeps, at most
    /// [`LONGEST_BUSY_POLL`](crate::LONGEST_BUSY_POLL): an answer that comes within that time is read some
    /// microseconds sooner, and a processor is busy meanwhile. Default: zero, not at all.
    pub fn busy_poll(&mut self, length: Duration) -> &mut Self {
        self.busy_poll = length;
        self
    }

    /// Bounds on what peers may make it hold, of a server per shard.
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.limits = limits;
        self
    }

    /// The bounds, to be read or changed.
    pub const fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// Emit monitor events ([`Client::monitor`], [`Server::monitor`]). Default: no.
    pub fn monitor(&mut self, monitor: bool) -> &mut Self {
        self.monitor = monitor;
        self
    }

    /// Writes one pcapng file per path, or of a server per listening address, into this directory, without MPTCP
    /// keys, tokens and HMACs.
    pub fn capture_dir(&mut self, dir: impl Into<PathBuf>) -> &mut Self {
        self.capture_dir = Some(dir.into());
        self
    }

    /// Leaves MPTCP keys, tokens and HMACs in captures, with which a reader can disturb connections.
    pub fn capture_secrets(&mut self, keep: bool) -> &mut Self {
        self.capture_secrets = keep;
        self
    }

    /// An observer of all events and all traffic of its connections, such as a trace. It costs time with each segment.
    pub fn event_observer(&mut self, observer: SharedEventObserver) -> &mut Self {
        self.events = Some(observer);
        self
    }

    /// Log of segments, for diagnosis.
    pub fn segment_log(&mut self, log: SegmentLog) -> &mut Self {
        self.tap = Some(log);
        self
    }
}
