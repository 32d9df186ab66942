//! Control socket of a running client or server: a unix socket (mode 0600, same user or root only)
//! that speaks the JSON lines of docs/operate/monitor.md. `marline monitor`, `marline path` and `marline
//! scheduler` are its users; metrics and the demo read the same snapshots.

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
use marline::{ConnectionId, MonitorEvent, PathEvent};
use marline_proxy::udp::UdpCounts;
use protocol::{AddressPair, Connection, OpenTarget, Path, PathChange, Trouble};
use tokio::sync::broadcast;

use crate::config::policies::Mode;
use crate::service_counts::ServiceCounts;

#[cfg(test)]
mod tests;

/// What a client or server lets its control socket see and do.
pub trait Handle: Send + Sync + 'static {
    /// `client`, `server` or `serve`.
    fn role(&self) -> &'static str;

    /// Numbers of its connections, and its mode; `None`: it has none, and numbers are ids.
    fn labels(&self) -> Option<&Labels> {
        None
    }

    /// The mode of connections that begin now, if it was said.
    fn mode(&self) -> Option<Mode> {
        self.labels().and_then(|labels| labels.mode.get())
    }

    /// Says which mode that is.
    fn set_mode(&self, mode: Mode) {
        if let Some(labels) = self.labels() {
            labels.mode.set(mode);
        }
    }

    /// The number by which people know a connection.
    fn number(&self, connection: ConnectionId) -> u64 {
        self.labels().map_or(connection.0, |labels| labels.numbers.of(connection))
    }

    /// Those numbers.
    fn numbers(&self) -> ConnectionNumbers {
        self.labels().map(|labels| labels.numbers.clone()).unwrap_or_default()
    }

    /// Where the streams that are open lead; `None`: this program tells nobody, its owner included.
    fn targets(&self) -> Option<Vec<OpenTarget>> {
        None
    }

    /// Every connection, now.
    fn connections(&self) -> Vec<Connection>;

    /// The local paths, now.
    fn paths(&self) -> Vec<Path>;

    /// The path health monitor's table; `None` if there is no monitor.
    fn address_pairs(&self) -> Option<Vec<AddressPair>>;

    /// Counts of datagrams; `None`: it carries none.
    fn datagrams(&self) -> Option<(LaneCounters, UdpCounts)> {
        None
    }

    /// Sums sent for the peer to compute what is lost, and bytes computed from the peer's.
    fn repairs(&self) -> (u64, u64) {
        (0, 0)
    }

    /// What it counted, for metrics.
    fn service(&self) -> ServiceCounts {
        ServiceCounts::default()
    }

    /// Every event from now on.
    fn events(&self) -> broadcast::Receiver<MonitorEvent>;

    /// Every decision of a scheduler from now on, with its reason; `None`: there is nothing that could tell them.
    /// Told as long as somebody listens.
    fn decisions(&self) -> Option<broadcast::Receiver<MonitorEvent>> {
        None
    }

    /// What happens to the traffic of a connection from now on, as long as nobody else asks for one; `None`: there is
    /// nothing that could tell it.
    fn traffic(&self, _connection: u64) -> Option<broadcast::Receiver<MonitorEvent>> {
        None
    }

    /// Captures packets into this directory from now on, with keys or without; `None`: no more.
    ///
    /// # Errors
    /// The directory can not be created: what was in force stays.
    fn capture(&self, _dir: Option<&std::path::Path>, _secrets: bool) -> std::io::Result<()> {
        Ok(())
    }

    /// Shows this observer what connections tell from now on; `None`: nobody.
    fn observe_events(&self, _observer: Option<&SharedEventObserver>) {}

    /// Every change of what is known of the paths, from now on; `None`: paths are the other side's.
    fn path_events(&self) -> Option<broadcast::Receiver<PathEvent>> {
        None
    }

    /// Another scheduler, for one connection or for all that exist. Returns how many
    /// changed.
    ///
    /// # Errors
    /// No scheduler has this name, or no such connection.
    fn set_scheduler(&self, connection: Option<u64>, name: &str) -> Result<u64, String>;

    /// Asks for another process in place of this one; `None`: this is no program that can be replaced so.
    fn upgrade(
        &self,
        _program: Option<String>,
        _patience_s: Option<u64>,
    ) -> Option<PendingUpgrade> {
        None
    }

    /// Asks for the configuration to be read again; `None`: this program does not do that.
    fn reload(&self) -> Option<PendingReload> {
        None
    }

    /// Why the latest request for a connection to the server failed; `None`: it did not, or this is not a client.
    fn trouble(&self) -> Option<Trouble> {
        None
    }

    /// Changes a path.
    ///
    /// # Errors
    /// No path has this name, or this side cannot change it.
    fn set_path(&self, path: &str, change: PathChange) -> Result<(), String>;
}
