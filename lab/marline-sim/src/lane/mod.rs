//! Lanes of datagrams in virtual time: two hosts with a lane each, links between them, and applications that send and
//! receive datagrams.
//!
//! The lane is the very one that a driver runs ([`marline_datagram::Lane`]), through its five calls and `send`. Its
//! cipher is the stand-in of that crate.

mod app;
mod host;
mod quic;
mod scene;

pub use app::{DatagramApp, Pulse, PulsePlan, PulseReport};
pub use host::LaneHost;
pub use quic::{QuicLike, QuicReport};
pub use scene::{LanePaths, LanePathsConfig};
