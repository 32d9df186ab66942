//! Interfaces for protocol tools: the core's open configuration, raw sockets opened in advance, observers of packets
//! and events.
//!
//! These interfaces follow the internal crates and may change with any minor version.

pub use marline_core::{ConnectionConfig, FastOpen};
pub use marline_io::{
    Direction, EventObserver, KeptCapabilities, ObservedPath, ObservedSegments, PacketObserver,
    RawSockets, ResetSeed, SegmentLog, SharedEventObserver, SharedObserver, drop_capabilities,
    keep_capabilities,
};

/// Handover of a server to another process: see [`Server::handover_state`](crate::Server::handover_state).
pub use marline_io::succession;

pub use crate::multimob::interactive;
