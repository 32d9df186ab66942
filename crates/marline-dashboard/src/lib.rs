//! Page on which a running program shows its paths to a person, and the small HTTP server behind it.
//!
//! *Problem.* Whoever uses several paths wants to see which of them work, what a failure cost, and what copies cost,
//! as it happens. That must not cost the program anything while nobody looks, nor give anything away to others: not to
//! pages of other sites that the same browser shows, and not to the network.
//!
//! *Shape.* The program is a [`Source`]: it answers what it is and how its counters stand. While somebody watches,
//! it is asked four times a second, less often where an answer takes long ([`Pace`]), and what it said goes to every
//! viewer as server-sent events. The page draws lines from differences of counters; no series is kept here but the
//! last [`RECENT`] messages, so that a page that is loaded again does not begin empty. What happens between two
//! looks the program says by [`Dashboard::tell`]. Where each byte of one connection goes is asked for by who wants to
//! see it ([`Source::places`]), and gathered for nobody else.
//!
//! *Bounds.* [`MAX_VIEWERS`] viewers, 64 other connections of which the oldest makes room for the next, 16 KiB of
//! headers within five seconds; a viewer that does not read is disconnected. *Trust.* Only names that cannot be
//! rebound (addresses, `localhost`) are answered to; beyond loopback a token is asked for ([`Access`]); the page may
//! load nothing from elsewhere.

#![forbid(unsafe_code)]

mod access;
mod http;
mod hub;
mod model;
mod pace;
mod page;

pub use access::{Access, Token, names_another_site};
pub use http::{Served, listen, serve, serve_on};
pub use hub::{Dashboard, MAX_VIEWERS, RECENT};
pub use model::{
    About, Carried, Connection, Happening, Manner, PathSummary, Places, Quota, Sample, Totals,
};
pub use pace::Pace;

/// What a dashboard shows.
pub trait Source: Send + Sync + 'static {
    /// What runs.
    fn about(&self) -> About;

    /// How its counters stand now. `detailed`: with connections, otherwise without.
    fn sample(&self, detailed: bool) -> Sample;

    /// What happens to the streams of a connection from now on, until the receiver goes; whoever asks takes it from
    /// who asked before. `None`: there is no such connection, or nothing that could tell.
    fn places(&self, _connection: u64) -> Option<tokio::sync::mpsc::Receiver<Places>> {
        None
    }
}
