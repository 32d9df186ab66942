//! Configuration of a client.

use std::path::PathBuf;
use std::sync::Arc;

use marline_algos::Registry;
use marline_core::{Limits, PathHealthMonitor};
use marline_io::{PathSpec, SegmentLog, SharedEventObserver, SharedObserver};
use marline_policy::Role;
use marline_time::Duration;

use super::Client;
use crate::{
    BindError, Carrier, Interactive, LONGEST_KEEPALIVE, PolicyError, TransportConfig, multimob,
};

/// What a [`Client`] runs with. Made by [`Client::builder`].
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = marline::Client::builder()
///     .path("wlan0".parse()?)
///     .path("wwan0,backup".parse()?)
///     .bind()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `bind`"]
pub struct ClientBuilder {
    pub(super) carrier: Carrier,
    pub(super) paths: Vec<PathSpec>,
    pub(super) transport: TransportConfig,
    pub(super) capture_dir: Option<PathBuf>,
    pub(super) capture_secrets: bool,
    pub(super) tap: Option<SegmentLog>,
    pub(super) events: Option<SharedEventObserver>,
    pub(super) observers: Vec<SharedObserver>,
    pub(super) registry: Arc<Registry>,
    pub(super) path_health: Option<PathHealthMonitor>,
    pub(super) monitor: bool,
    pub(super) limits: Limits,
    pub(super) keepalive: Duration,
    pub(super) stagger: Duration,
    pub(super) patience: Duration,
    pub(super) mark: u32,
    pub(super) busy_poll: Duration,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        ClientBuilder {
            carrier: Carrier::Udp,
            paths: Vec::new(),
            transport: TransportConfig::default(),
            capture_dir: None,
            capture_secrets: false,
            tap: None,
            events: None,
            observers: Vec::new(),
            registry: Arc::new(Registry::default()),
            path_health: None,
            monitor: false,
            limits: Limits::default(),
            keepalive: Duration::from_secs(15),
            stagger: Duration::from_millis(100),
            patience: Duration::from_secs(10),
            mark: 0,
            busy_poll: Duration::ZERO,
        }
    }
}

impl ClientBuilder {
    /// How segments travel. Default: in UDP datagrams.
    pub fn carrier(&mut self, carrier: Carrier) -> &mut Self {
        self.carrier = carrier;
        self
    }

    /// Adds a path: an interface or a local address, with flags such as `wwan0,backup`. Without any,
    /// every interface with a default route is a path, followed as they come and go.
    pub fn path(&mut self, path: PathSpec) -> &mut Self {
        self.paths.push(path);
        self
    }

    /// Marks the packets of the UDP carrier, and of the TCP connections beside it, for the machine's routing
    /// rules (Linux' `fwmark`), so that they can be told from those of others. Needs CAP_NET_ADMIN for as long
    /// as paths come and go. Default: 0, no mark.
    pub fn mark(&mut self, mark: u32) -> &mut Self {
        self.mark = mark;
        self
    }

    /// Adds several paths.
    pub fn paths(&mut self, paths: impl IntoIterator<Item = PathSpec>) -> &mut Self {
        self.paths.extend(paths);
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

    /// The policies that can be chosen by name, before and while connections run. Default: the
    /// built-in ones.
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

    /// Break before make: paths flagged `backup` sleep until no other works. The server must be a
    /// Marline server, which follows the client's choice of path.
    pub fn interactive(&mut self, parameters: Interactive) -> &mut Self {
        multimob::interactive(self.transport.as_core_mut(), Role::Client, parameters);
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

    /// Longest time that [`Client::connect`] takes. Default: 10 s.
    pub fn connect_timeout(&mut self, timeout: Duration) -> &mut Self {
        self.patience = timeout;
        self
    }

    /// Time without an answer after which the next path is tried as well (RFC 8305), within 50 to
    /// 250 ms. Default: 100 ms.
    pub fn stagger(&mut self, stagger: Duration) -> &mut Self {
        self.stagger = stagger;
        self
    }

    /// UDP carrier: silence on a path with connections after which a datagram keeps the NAT's mapping,
    /// at most [`LONGEST_KEEPALIVE`]. Default: 15 s.
    pub fn udp_keepalive(&mut self, keepalive: Duration) -> &mut Self {
        self.keepalive = keepalive;
        self
    }

    /// After each exchange the driver polls its sockets for this long before it sleeps, at most
    /// [`LONGEST_BUSY_POLL`](crate::LONGEST_BUSY_POLL): an answer that comes within that time is read some
    /// microseconds sooner, and a processor is busy meanwhile. Default: zero, not at all.
    pub fn busy_poll(&mut self, length: Duration) -> &mut Self {
        self.busy_poll = length;
        self
    }

    /// Bounds on what peers may make it hold.
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.limits = limits;
        self
    }

    /// The bounds, to be read or changed.
    pub const fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// Emit [monitor events](Client::monitor). Default: no.
    pub fn monitor(&mut self, monitor: bool) -> &mut Self {
        self.monitor = monitor;
        self
    }

    /// Writes one pcapng file per path into this directory, without MPTCP keys, tokens and HMACs.
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

    /// Adds an observer of segments and paths, such as a meter.
    pub fn observer(&mut self, observer: SharedObserver) -> &mut Self {
        self.observers.push(observer);
        self
    }

    /// Opens the client's sockets: one UDP socket per local address, or raw ones. The builder can be
    /// used again. Needs a tokio runtime with I/O and time.
    ///
    /// A path whose interface or address is not there is no error: the client logs a warning, waits for it and uses it
    /// as soon as it appears.
    ///
    /// # Errors
    /// A socket cannot be opened, or the configuration contradicts itself.
    pub async fn bind(&self) -> Result<Client, BindError> {
        let keepalive = self.keepalive;
        if keepalive > LONGEST_KEEPALIVE || keepalive.is_zero() {
            let longest = LONGEST_KEEPALIVE.as_secs();
            let what = format!("keepalive must be above 0, at most {longest} s");
            return Err(BindError::Config(what));
        }
        let mut config = self.clone();
        config.transport.as_core_mut().receive_probes.get_or_insert_default();
        Client::open(config)
    }
}
