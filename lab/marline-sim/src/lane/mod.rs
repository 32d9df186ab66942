//! Datagram lanes in virtual time: two hosts with one lane each, links between them, and applications that send and
//! receive datagrams.
//!
//! The lane is the same as in a driver ([`marline_datagram::Lane`]), used through its five calls and `send`. It uses
//! that crate's test cipher.

mod app;
mod host;
mod quic;
mod scene;

/// Port of both ends of a lane that runs alongside streams.
pub const LANE_PORT: u16 = 3_478;

pub use app::{DatagramApp, Pulse, PulsePlan, PulseReport};
pub use host::LaneHost;
pub use quic::{QuicLikeFlow, QuicReport};
pub(crate) use scene::lanes;
pub use scene::{LanePaths, LanePathsConfig};
