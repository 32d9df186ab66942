//! Web page that shows the paths of a running program, with its small HTTP server.
//!
//! *Problem.* Users of several paths want to see immediately which ones work and what failures and copies cost. Without
//! viewers, the page must cost the program nothing, and it must not disclose information to other sites' pages in the
//! same browser or to the network.
//!
//! *Design.* The program is a [`Source`], which returns its description and its current counters. While there are
//! viewers, it is sampled four times per second, or less often if a sample takes long ([`Pace`]), and the result is
//! sent to all viewers as server-sent events. The page draws lines from differences of counters. Only the last
//! [`MAX_REPLAYED`] messages are stored here, so that a reloaded page does not start empty. The program reports events
//! between two samples with [`Dashboard::report`]. The positions of a single connection's bytes are only collected for
//! a viewer that requests them ([`Source::watch_places`]).
//!
//! *Limits.* [`MAX_VIEWERS`] viewers, 64 other connections, of which a new one evicts the oldest, and 16 KiB of headers
//! within five seconds. A viewer that does not read is disconnected. *Trust.* Only hosts that cannot be rebound
//! (addresses, `localhost`) are served, beyond loopback a token is required ([`Access`]), and the page may not load
//! anything from other sites.

#![forbid(unsafe_code)]

mod access;
mod http;
mod hub;
mod model;
mod pace;
mod page;

pub use access::{Access, Token, has_foreign_host};
pub use http::{RunningServer, listen, serve, serve_on};
pub use hub::{Dashboard, MAX_REPLAYED, MAX_VIEWERS};
pub use model::{
    CarriedBytes, Connection, Description, PathSummary, Places, Quota, Sample, TimedEvent, Totals,
    TransmissionKind,
};
pub use pace::Pace;

/// Program shown by a dashboard.
pub trait Source: Send + Sync + 'static {
    /// Returns the description of the program.
    fn describe(&self) -> Description;

    /// Returns the current counters, with the connections if `detailed`.
    fn sample(&self, detailed: bool) -> Sample;

    /// Reports the positions of a connection's bytes from now on, until the receiver is dropped or another caller
    /// requests positions. Returns `None` if there is no such connection, or it cannot report them.
    fn watch_places(&self, _connection: u64) -> Option<tokio::sync::mpsc::Receiver<Places>> {
        None
    }
}
