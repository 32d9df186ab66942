//! Parts for tools around the protocol: the core's open configuration, raw sockets opened in advance,
//! observers of packets and events.
//!
//! They follow the inner crates and may change with any minor version.

pub use marline_core::{ConnectionConfig, Counters, FastOpen};
pub use marline_io::carrier::CarrierCounters;
pub use marline_io::{
    Direction, EventObserver, KeptCapabilities, ObservedPath, ObservedSegments, PacketObserver,
    RawSockets, ResetSeed, SegmentLog, SharedEventObserver, SharedObserver, drop_capabilities,
    keep_capabilities,
};

/// Handing a server over to another process: see [`Server::estate`](crate::Server::estate).
pub use marline_io::succession;

pub use crate::multimob::interactive;
