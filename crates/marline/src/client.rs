//! The connecting side.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_core::{ConnectionId, ConnectionInfo, MonitorEvent};
use marline_io::PathSpec;
use tokio::sync::broadcast;

use crate::{ClientConfig, Error, Stream, UnknownPolicy};

/// Opens connections over several local addresses. Clones share everything.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    monitor: broadcast::Sender<MonitorEvent>,
}

/// A local address that serves as a path, and how it is.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// The path as configured, or the interface's name if found by itself.
    pub spec: PathSpec,
    /// The interface, if known.
    pub interface: Option<String>,
    /// Its addresses in use: usually one, or one per family.
    pub addresses: Vec<IpAddr>,
    /// New subflows may start here.
    pub up: bool,
    /// Carries data only if nothing else can.
    pub backup: bool,
    /// What went wrong last.
    pub error: Option<String>,
}

/// A change of a path by hand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// Use it (again).
    Up,
    /// Close its subflows and open none.
    Down,
    /// Carry data only if nothing else can.
    Backup,
    /// Carry data as any other.
    Primary,
}

impl Client {
    /// Opens one UDP socket per local address. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    /// A path names an interface or address that is not there, or a socket cannot be opened.
    pub async fn bind(_config: ClientConfig) -> Result<Client, Error> {
        let (monitor, _) = broadcast::channel(16);
        Ok(Client { inner: Arc::new(Inner { monitor }) })
    }

    /// Connects to whichever of `servers` answers first on whichever path: attempts start one
    /// after the other, a stagger apart. The winner is tried first next time.
    ///
    /// # Errors
    /// No attempt succeeded; the error lists each with its reason.
    pub async fn connect(&self, _servers: &[SocketAddr]) -> Result<Stream, Error> {
        Err(Error::NoPath)
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

    /// The paths and their state.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        Vec::new()
    }

    /// Changes a path by hand, for all connections. `path` is its index in [`Client::paths`], its
    /// interface or its address.
    ///
    /// # Errors
    /// There is no such path.
    pub fn set_path(&self, path: &str, _change: PathChange) -> Result<(), Error> {
        Err(Error::NoSuchPath { path: path.to_owned(), reason: "no such path".to_owned() })
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
