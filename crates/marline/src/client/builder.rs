//! Configuration of a client.

use marline_io::{PathSpec, SharedObserver};
use marline_policy::Role;
use marline_time::Duration;

use super::Client;
use crate::BindError;
use crate::builder::{Builder, OwnSettings};
use crate::carrier::MAX_KEEPALIVE_INTERVAL;

/// Configuration of a [`Client`], created by [`Client::builder`].
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
pub type ClientBuilder = Builder<ClientSettings>;

/// Settings that only a [`Client`] has.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    pub(super) paths: Vec<PathSpec>,
    pub(super) observers: Vec<SharedObserver>,
    pub(super) keepalive: Duration,
    pub(super) stagger: Duration,
    pub(super) patience: Duration,
    pub(super) mark: u32,
}

impl OwnSettings for ClientSettings {
    const ROLE: Role = Role::Client;
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            paths: Vec::new(),
            observers: Vec::new(),
            keepalive: Duration::from_secs(15),
            stagger: Duration::from_millis(100),
            patience: Duration::from_secs(10),
            mark: 0,
        }
    }
}

impl ClientBuilder {
    /// Adds a path: an interface or a local address, with flags such as `wwan0,backup`. Without a path, all interfaces
    /// with a default route are used as they appear and disappear.
    pub fn path(&mut self, path: PathSpec) -> &mut Self {
        self.own.paths.push(path);
        self
    }

    /// Marks the packets of the UDP carrier and of its TCP connections for the machine's routing rules (`fwmark` on
    /// Linux), so that rules can tell them from other packets. Needs CAP_NET_ADMIN whenever a path may appear. Default:
    /// 0 (no mark).
    pub fn mark(&mut self, mark: u32) -> &mut Self {
        self.own.mark = mark;
        self
    }

    /// Adds several paths.
    pub fn paths(&mut self, paths: impl IntoIterator<Item = PathSpec>) -> &mut Self {
        self.own.paths.extend(paths);
        self
    }

    /// Sets the maximum duration of [`Client::connect`]. Default: 10 s.
    pub fn connect_timeout(&mut self, timeout: Duration) -> &mut Self {
        self.own.patience = timeout;
        self
    }

    /// Sets the time without an answer after which the next path is tried in parallel (RFC 8305), 50 to 250 ms.
    /// Default: 100 ms.
    pub fn stagger(&mut self, stagger: Duration) -> &mut Self {
        self.own.stagger = stagger;
        self
    }

    /// UDP carrier: sets the idle time of a path with connections after which a datagram keeps the NAT mapping open,
    /// at most [`MAX_KEEPALIVE_INTERVAL`]. Default: 15 s.
    pub fn udp_keepalive(&mut self, keepalive: Duration) -> &mut Self {
        self.own.keepalive = keepalive;
        self
    }

    /// Adds an observer of segments and paths, such as a meter.
    pub fn observer(&mut self, observer: SharedObserver) -> &mut Self {
        self.own.observers.push(observer);
        self
    }

    /// Opens the client's sockets: one UDP socket per local address, or raw sockets. The builder can be used again.
    /// Needs a tokio runtime with I/O and time.
    ///
    /// A path whose interface or address does not exist is not an error: the client logs a warning and uses the path
    /// as soon as it appears.
    ///
    /// # Errors
    /// A socket cannot be opened, or the configuration is contradictory.
    pub async fn bind(&self) -> Result<Client, BindError> {
        let keepalive = self.own.keepalive;
        if keepalive > MAX_KEEPALIVE_INTERVAL || keepalive.is_zero() {
            let longest = MAX_KEEPALIVE_INTERVAL.as_secs();
            let what = format!("keepalive must be above 0, at most {longest} s");
            return Err(BindError::Config(what));
        }
        let mut config = self.clone();
        config.transport.as_core_mut().receive_probes.get_or_insert_default();
        Client::open(config)
    }
}
