//! Configuration of both sides.

use core::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use marline_algos::Registry;
use marline_core::{ConnectionConfig, Limits};
use marline_time::Duration;

use marline_io::PathSpec;

/// Longest time between two datagrams on a path with connections that a NAT may see: many forget a
/// UDP mapping after 30 s of silence.
pub const LONGEST_KEEPALIVE: Duration = Duration::from_secs(20);

/// A client: the local addresses it uses and how its connections behave.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The paths. Empty: every interface with a default route, followed as they come and go.
    pub paths: Vec<PathSpec>,
    /// How connections behave. `local_addresses` is filled in from `paths`.
    pub connection: ConnectionConfig,
    /// Write one pcapng file per path into this directory.
    pub capture_dir: Option<PathBuf>,
    /// Leave MPTCP keys, tokens and HMACs in captures. They let a reader disturb the connection.
    pub capture_secrets: bool,
    /// The policies that can be chosen by name while connections run.
    pub registry: Arc<Registry>,
    /// Emit monitor events.
    pub monitor: bool,
    /// Bounds.
    pub limits: Limits,
    /// Silence on a path after which a UDP keepalive is sent; at most [`LONGEST_KEEPALIVE`].
    pub keepalive: Duration,
    /// Wait this long for an answer before the next path is tried as well (50 to 250 ms).
    pub stagger: Duration,
}

impl ClientConfig {
    /// The defaults: all interfaces, with these connections.
    #[must_use]
    pub fn new(connection: ConnectionConfig) -> Self {
        ClientConfig {
            paths: Vec::new(),
            connection,
            capture_dir: None,
            capture_secrets: false,
            registry: Arc::new(Registry::default()),
            monitor: false,
            limits: Limits::default(),
            keepalive: Duration::from_secs(15),
            stagger: Duration::from_millis(100),
        }
    }
}

/// A server: where it listens and how its connections behave.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// UDP addresses to listen on; port 0 lets the system choose one.
    pub listen: Vec<SocketAddr>,
    /// Endpoints that share the ports: a power of two, at most 128.
    pub shards: usize,
    /// How connections behave.
    pub connection: ConnectionConfig,
    /// Write one pcapng file per listening address into this directory.
    pub capture_dir: Option<PathBuf>,
    /// Leave MPTCP keys, tokens and HMACs in captures. They let a reader disturb the connection.
    pub capture_secrets: bool,
    /// The policies that can be chosen by name while connections run.
    pub registry: Arc<Registry>,
    /// Emit monitor events.
    pub monitor: bool,
    /// Bounds, per shard.
    pub limits: Limits,
    /// Connections that wait for `accept`, per shard; more are refused.
    pub backlog: usize,
}

impl ServerConfig {
    /// The defaults: one shard on these addresses.
    #[must_use]
    pub fn new(listen: Vec<SocketAddr>, connection: ConnectionConfig) -> Self {
        ServerConfig {
            listen,
            shards: 1,
            connection,
            capture_dir: None,
            capture_secrets: false,
            registry: Arc::new(Registry::default()),
            monitor: false,
            limits: Limits::default(),
            backlog: 1_024,
        }
    }
}
