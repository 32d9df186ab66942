//! Simulator that runs Marline in virtual time.
//!
//! A [`World`] contains hosts and links. A [`Host`] runs the same [`Endpoint`](marline_core::Endpoint) as a real
//! driver, through its five calls, with applications on top that verify every byte they receive. A link is a
//! [`marline_link::Link`] for each direction. Events are ordered by time and, at equal times, by insertion. Nothing
//! reads a clock or the machine's random source: runs with equal seeds are identical, which [`World::digest`]
//! verifies.
//!
//! ```text
//! app -> Host(Endpoint) -> route -> Link -> Host(Endpoint) -> app
//!                            |                |
//!                         observers: capture, checks, digest
//! ```

#![forbid(unsafe_code)]

mod app;
mod capture;
mod content;
pub mod digest;
mod elision;
mod event_queue;
mod host;
mod lane;
mod measure;
mod node;
mod packet;
mod placement;
mod scenario;
mod world;

pub use app::{
    Amount, App, Bulk, Call, Echo, EchoServer, ExchangeSizes, Hole, Message, Messages, Pace, Plan,
    Random, RandomPlan, Report, RequestResponse, ResponseServer, SentAt, Socket, SocketStatus,
    Units,
};
pub use capture::Capture;
pub use content::{Content, Verifier};
pub use digest::Digest;
pub use host::{Host, HostConfig, Listen, ListenByPort, Watcher};
pub use lane::{
    DatagramApp, LANE_PORT, LaneHost, LanePaths, LanePathsConfig, Pulse, PulsePlan, PulseReport,
    QuicLikeFlow, QuicReport,
};
pub use marline_core::ConnectionId;
pub use measure::{Samples, link_goodput, mean, median, quantile};
pub use node::{Node, Outbox};
pub use packet::{ObservationPoint, Observer, Packet};
pub use placement::Placement;
pub use scenario::{Paths, PathsConfig, SERVER_PORT, UDP_CAPABILITIES};
pub use world::{LinkId, NodeId, World, WorldStats};
