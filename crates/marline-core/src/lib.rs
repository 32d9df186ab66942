//! Deterministic core of Marline: Multipath TCP (RFC 8684) without I/O, clock or globals.
//!
//! Five calls drive an [`Endpoint`]: [`handle_packet`](Endpoint::handle_packet),
//! [`handle_timeout`](Endpoint::handle_timeout), [`poll_transmit`](Endpoint::poll_transmit),
//! [`poll_timeout`](Endpoint::poll_timeout) and [`poll_event`](Endpoint::poll_event), plus the application's commands.
//! After each `handle_*` call or command, drain transmits, then query the timeout, then drain events. The time passed
//! in must never decrease.
//!
//! Two state machines are nested: a `Connection` works with data sequence numbers, and each of its `Subflow`s is
//! plain TCP. A connection that fell back to TCP has a single subflow and no DSS.

#![forbid(unsafe_code)]

mod compact_instant;
mod compact_path;
mod config;
mod connection;
mod crypto;
mod endpoint;
mod error;
mod event;
mod fec;
mod liveness;
mod memory;
mod on_demand;
mod path_health;
mod pending_peers;
mod socket_option;
mod stats;
mod subflow;
mod tables;
mod traffic;
mod transmit;

pub use config::{
    BufferTuning, Capabilities, ChecksumScope, ConnectionConfig, EndpointConfig, FastOpen, Limits,
    Linger, Shard,
};
pub use endpoint::Endpoint;
pub use endpoint::ownership::SegmentRequest;
pub use error::{CloseReason, ConnectError, FallbackReason, ReadError, WriteError};
pub use event::{ConnectionId, Event, MonitorEvent, MonitorKind, StreamDirection};
pub use liveness::{BadSilenceSpec, LoneKeepalive, Probing, ReceiveProbes, ReceiveTimer};
pub use marline_policy::AddressPairFault;
pub use marline_wire::mptcp::Extensions;
pub use memory::{MemoryAccount, MemoryBudget, MemoryCharge, MemoryKind, MemoryUsage, WaitForRoom};
pub use path_health::{AddressPairInfo, PathHealthMonitor};
pub use pending_peers::{PendingId, PendingLimits, PendingPeers, Source};
pub use socket_option::{Hold, Keepalive, SocketOption};
pub use stats::{
    ConnectionInfo, Counters, ForecastScore, SubflowInfo, SubflowLocation, SubflowState, TcpDetail,
};
pub use tables::path_queues::PathQueues;
pub use traffic::{Metrics, Purpose, SegmentReceived, SegmentSent, Timer, Traffic, TrafficFilter};
pub use transmit::{
    Ecn, FourTuple, NetworkError, PacketMeta, PathAddresses, Transmit, TransmitBuf,
};
