//! Configuration of emulated links: their endpoints and their scheduled changes.

use std::net::SocketAddr;

use marline_link::DuplexConfig;
use marline_time::{Duration, SeedTree};

use crate::command::LinkCommand;
use crate::tunnel::TunnelConfig;

/// A link between the clients that send to `listen` and the target `to`.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Its name in reports.
    pub name: String,
    /// Where clients send to; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Where their packets go.
    pub to: SocketAddr,
    /// The link; `up` is from the client.
    pub link: DuplexConfig,
    /// Randomness of the link.
    pub seeds: SeedTree,
    /// Scheduled commands, by time after the start.
    pub schedule: Vec<(Duration, LinkCommand)>,
    /// Client addresses at the same time; the one silent for longest makes room.
    pub max_flows: usize,
    /// A client address silent for so long is forgotten.
    pub idle: Duration,
}

impl RelayConfig {
    /// The defaults: 256 client addresses, forgotten after 5 minutes.
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

/// A link to emulate, by the kind of its ends.
#[derive(Clone, Debug)]
pub enum LinkEnds {
    /// UDP sockets.
    Relay(RelayConfig),
    /// Network namespaces.
    Tunnel(TunnelConfig),
}
