//! Configuration of emulated links: their endpoints and their scheduled changes.

use std::net::SocketAddr;

use marline_link::DuplexConfig;
use marline_time::{Duration, SeedTree};

use crate::command::LinkCommand;
use crate::tunnel::TunnelConfig;

/// A link between the clients that send to `listen` and the target `to`.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Name in reports.
    pub name: String,
    /// Address for clients; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Target of the clients' packets.
    pub to: SocketAddr,
    /// The link; `up` is from the client.
    pub link: DuplexConfig,
    /// Seeds of the link's random numbers.
    pub seeds: SeedTree,
    /// Scheduled commands, by time after the start.
    pub schedule: Vec<(Duration, LinkCommand)>,
    /// Maximum number of client addresses at a time. A new one replaces the one that has been silent longest.
    pub max_flows: usize,
    /// Time after which a silent client address is removed.
    pub idle: Duration,
}

impl RelayConfig {
    /// Default settings: 256 client addresses, removed after 5 minutes of silence.
    #[must_use]
    pub fn new(name: &str, listen: SocketAddr, to: SocketAddr, link: DuplexConfig) -> Self {
        RelayConfig {
            name: name.to_owned(),
            listen,
            to,
            link,
            seeds: SeedTree::new(1),
            schedule: Vec::new(),
            max_flows: 256,
            idle: Duration::from_secs(300),
        }
    }
}

/// A link to emulate, by the kind of its endpoints.
#[derive(Clone, Debug)]
pub enum LinkEnds {
    /// Relay between UDP sockets.
    Relay(RelayConfig),
    /// Tunnel between network namespaces.
    Tunnel(TunnelConfig),
}
