//! Events that the core reports to its driver.

use std::sync::Arc;

use marline_policy::{AddressId, AddressPairFault, Reason, SubflowId, UnreachableCause};
use marline_time::Instant;
use marline_wire::mptcp::Extensions;

use crate::{CloseReason, FallbackReason, FourTuple, Traffic};

/// Id of a connection of an endpoint. Never reused.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Event for the application or the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer connected to this listening endpoint; the connection can be read and written.
    Incoming(ConnectionId),
    /// A SYN whose answer is withheld until the application admits or refuses it, using this four-tuple.
    Requested(FourTuple),
    /// A connection opened by this endpoint is established.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// Reason for the fallback to plain TCP, if there was one.
        fallback: Option<FallbackReason>,
    },
    /// There is data to read, or the end of the stream.
    Readable(ConnectionId),
    /// There is room to write again, after `WriteError::Blocked`.
    Writable(ConnectionId),
    /// The connection ended; no further event follows. Bytes received before a clean end can still be read until
    /// `release`.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        reason: CloseReason,
    },
    /// A subflow has ended and is in TIME-WAIT, or was reset: only late segments are answered, and carriers need
    /// not keep its path open.
    FlowEnded {
        /// Local id on carriers that use ids.
        local_flow: u64,
    },
    /// A subflow ended completely, including TIME-WAIT: carriers may drop its id.
    FlowGone {
        /// Local id on carriers that use ids.
        local_flow: u64,
        /// Addresses of the subflow.
        path: FourTuple,
    },
    /// Event for `marline monitor`, only if enabled in the configuration.
    Monitor(MonitorEvent),
}

/// An event in the kernel's vocabulary (`ip mptcp monitor`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorEvent {
    /// Time of the event.
    pub at: Instant,
    /// Connection id.
    pub connection: ConnectionId,
    /// Kind of event.
    pub kind: MonitorKind,
}

/// Direction of a stream, as seen from this side.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum StreamDirection {
    /// Data that we send.
    Sent,
    /// Data that we receive.
    Received,
}

impl StreamDirection {
    /// Name of the direction in records and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            StreamDirection::Sent => "sent",
            StreamDirection::Received => "received",
        }
    }
}

/// Kinds of monitor events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MonitorKind {
    /// CREATED: a connection exists, and its first handshake is in progress.
    Created(FourTuple),
    /// ESTABLISHED: the first subflow is established.
    Established(FourTuple),
    /// CLOSED: the connection ended.
    Closed(CloseReason),
    /// The connection continues as plain TCP.
    Fallback(FallbackReason),
    /// ANNOUNCED: the peer announced an address.
    Announced {
        /// Address id.
        id: AddressId,
        /// Announced address.
        address: core::net::SocketAddr,
    },
    /// REMOVED: the peer withdrew an address.
    Removed(AddressId),
    /// AGREED: negotiated extensions, in use from now on.
    Agreed(Extensions),
    /// SF_ESTABLISHED: a further subflow is established.
    SubflowEstablished {
        /// Slot of the subflow.
        id: SubflowId,
        /// Addresses of the subflow.
        path: FourTuple,
        /// True if the subflow is a backup.
        backup: bool,
    },
    /// SF_CLOSED: a subflow ended.
    SubflowClosed {
        /// Slot of the subflow.
        id: SubflowId,
        /// Addresses of the subflow.
        path: FourTuple,
        /// The reason.
        reason: CloseReason,
    },
    /// SF_PRIO: a subflow's backup flag changed.
    SubflowPriority {
        /// Slot of the subflow.
        id: SubflowId,
        /// New backup flag.
        backup: bool,
    },
    /// Nothing arrives on a subflow although data or an answer is due. The path manager has been notified.
    SubflowSilent {
        /// Slot of the subflow.
        id: SubflowId,
        /// Cause of the silence.
        cause: UnreachableCause,
    },
    /// The path health monitor changed its verdict on a subflow's address pair.
    AddressPair {
        /// Slot of the subflow.
        id: SubflowId,
        /// Fault of the pair; `None` if it is usable again.
        fault: Option<AddressPairFault>,
    },
    /// A subflow became unreachable and its data is sent on others, or a segment was received on it again.
    SubflowReachability {
        /// Slot of the subflow.
        id: SubflowId,
        /// False while the subflow is unreachable.
        reachable: bool,
    },
    /// Delivery continued after a gap of at least 100 ms while data was due. In the sending direction, data was
    /// unacknowledged for at least 100 ms longer than a round trip. In the receiving direction, received data could not
    /// be read because earlier data was missing. Reported at the end of the gap.
    Hole {
        /// Direction of the stream.
        direction: StreamDirection,
        /// Start of the gap.
        since: Instant,
        /// Subflow on which delivery continued.
        ended_by: SubflowId,
        /// A subflow that was unreachable when the gap ended, and the cause.
        unreachable: Option<(SubflowId, UnreachableCause)>,
    },
    /// A decision of the scheduler to send data or to wait; only while the endpoint [reports
    /// decisions](crate::Endpoint::report_decisions).
    Decided {
        /// The decision and its reason.
        reason: Arc<Reason>,
        /// Number of preceding decisions that were not reported because too many were unread.
        missed: u64,
    },
    /// Data or a segment was processed; only while the endpoint [reports traffic](crate::Endpoint::report_traffic).
    Traffic {
        /// Traffic event.
        what: Box<Traffic>,
        /// Number of preceding traffic events that were not reported because too many were unread.
        missed: u64,
    },
}
