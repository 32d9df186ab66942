//! Control socket of a running client or server: a Unix socket (mode 0600, same user or root only) with the JSON
//! lines of docs/operate/monitor.md. `marline monitor`, `marline path` and `marline scheduler` use it. Metrics and
//! the demo read the same snapshots.

pub mod client;
mod handles;
mod numbers;
pub(crate) mod path_names;
pub mod protocol;
mod server;
pub mod socket_path;
pub(crate) mod views;

pub use handles::{ClientHandle, Labels, ServerHandle};
pub use numbers::ConnectionNumbers;
pub use server::{ControlServer, serve, serve_inherited};
pub use server::{is_allowed, listen};
pub use socket_path::default_path;

pub use crate::reload::PendingReload;
pub use crate::succession::PendingUpgrade;

use marline::advanced::SharedEventObserver;
use marline::datagrams::LaneCounters;
use marline::monitor::{ConnectionId, MonitorEvent};
use marline::paths::PathEvent;
use marline_proxy::udp::UdpCounts;
use protocol::{AddressPair, Connection, OpenTarget, Path, PathChange, Trouble};
use tokio::sync::broadcast;

use crate::config::policies::Mode;
use crate::service_counts::ServiceCounts;

#[cfg(test)]
mod tests;

/// Interface of a client or server for its control socket.
pub trait Handle: Send + Sync + 'static {
    /// Returns the role of the program: `client`, `server` or `serve`.
    fn role(&self) -> &'static str;

    /// Returns the display numbers of connections, and the mode, or `None` if connections are shown by their ids.
    fn labels(&self) -> Option<&Labels> {
        None
    }

    /// Returns the mode of new connections, if it was set.
    fn mode(&self) -> Option<Mode> {
        self.labels().and_then(|labels| labels.mode.get())
    }

    /// Sets the displayed mode.
    fn set_mode(&self, mode: Mode) {
        if let Some(labels) = self.labels() {
            labels.mode.set(mode);
        }
    }

    /// Returns the number of a connection for display.
    fn number(&self, connection: ConnectionId) -> u64 {
        self.labels().map_or(connection.0, |labels| labels.numbers.number_of(connection))
    }

    /// Returns the numbers of connections for display.
    fn numbers(&self) -> ConnectionNumbers {
        self.labels().map(|labels| labels.numbers.clone()).unwrap_or_default()
    }

    /// Returns the targets of the open streams, or `None` if this program does not disclose them even to its owner.
    fn targets(&self) -> Option<Vec<OpenTarget>> {
        None
    }

    /// Returns a snapshot of all connections.
    fn connections(&self) -> Vec<Connection>;

    /// Returns a snapshot of the local paths.
    fn paths(&self) -> Vec<Path>;

    /// Returns the table of the path health monitor, or `None` if there is no monitor.
    fn address_pairs(&self) -> Option<Vec<AddressPair>>;

    /// Returns the counts of datagrams, or `None` if the program carries none.
    fn datagrams(&self) -> Option<(LaneCounters, UdpCounts)> {
        None
    }

    /// Returns the number of repair segments sent to the peer, and of bytes recovered from the peer's repair segments.
    fn repairs(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Returns the counts for metrics.
    fn service(&self) -> ServiceCounts {
        ServiceCounts::default()
    }

    /// Receives all events from now on.
    fn events(&self) -> broadcast::Receiver<MonitorEvent>;

    /// Receives all scheduler decisions from now on, with their reasons. They are reported only while a receiver
    /// exists. Returns `None` if they are not available.
    fn decisions(&self) -> Option<broadcast::Receiver<MonitorEvent>> {
        None
    }

    /// Receives a connection's traffic from now on. Ends when another receiver is requested. Returns `None` if traffic
    /// is not available.
    fn traffic(&self, _connection: u64) -> Option<broadcast::Receiver<MonitorEvent>> {
        None
    }

    /// Captures packets into this directory from now on, with or without keys. `None` stops the capture.
    ///
    /// # Errors
    /// The directory cannot be created. The current capture continues.
    fn capture(&self, _dir: Option<&std::path::Path>, _secrets: bool) -> std::io::Result<()> {
        Ok(())
    }

    /// Passes events of connections to this observer from now on. `None` removes the observer.
    fn observe_events(&self, _observer: Option<&SharedEventObserver>) {}

    /// Receives all changes of paths from now on. Returns `None` if the paths belong to the other side.
    fn path_events(&self) -> Option<broadcast::Receiver<PathEvent>> {
        None
    }

    /// Changes the scheduler of one connection or of all existing ones. Returns the number of changed connections.
    ///
    /// # Errors
    /// No scheduler has this name, or the connection does not exist.
    fn set_scheduler(&self, connection: Option<u64>, name: &str) -> Result<u64, String>;

    /// Returns the sender of upgrade requests, or `None` if this program cannot be replaced.
    fn upgrade(
        &self,
        _program: Option<String>,
        _patience_s: Option<u64>,
    ) -> Option<PendingUpgrade> {
        None
    }

    /// Returns the sender of reload requests, or `None` if this program does not support reloads.
    fn reload(&self) -> Option<PendingReload> {
        None
    }

    /// Returns the reason why the latest request for a connection to the server failed, or `None` if it succeeded or
    /// this is not a client.
    fn last_trouble(&self) -> Option<Trouble> {
        None
    }

    /// Changes a path.
    ///
    /// # Errors
    /// No path has this name, or this side cannot change it.
    fn set_path(&self, path: &str, change: PathChange) -> Result<(), String>;
}
