//! Events that the core reports to its driver.

use std::sync::Arc;

use marline_policy::{AddressId, AddressPairFault, Reason, SilenceCause, SubflowId};
use marline_time::Instant;
use marline_wire::mptcp::Extensions;

use crate::{CloseReason, FallbackReason, FourTuple, Traffic};

/// A connection of an endpoint. Never used twice.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Event for the application or the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer connected to this listening endpoint; the connection may be read and written.
    Incoming(ConnectionId),
    /// A SYN whose answer is withheld: the application is to admit or to refuse it, by these ends.
    Requested(FourTuple),
    /// A connection we opened is established.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// It runs as plain TCP, and why.
        fallback: Option<FallbackReason>,
    },
    /// There is something to read, or the end of the stream.
    Readable(ConnectionId),
    /// There is room to write again, after `WriteError::Blocked`.
    Writable(ConnectionId),
    /// The connection is over; no further event follows. Bytes received before a clean end may
    /// still be read until `release`.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        reason: CloseReason,
    },
    /// A subflow has ended and is in TIME-WAIT, or was reset: from now on only late segments are
    /// answered, and carriers need not keep its path open.
    FlowEnded {
        /// Its local id on carriers that use ids.
        local_flow: u64,
    },
    /// A subflow is gone for good (TIME-WAIT included): carriers may forget its id.
    FlowGone {
        /// Its local id on carriers that use ids.
        local_flow: u64,
        /// Its ends.
        path: FourTuple,
    },
    /// Event for `marline monitor`, only if enabled in the configuration.
    Monitor(MonitorEvent),
}

/// An event in the kernel's vocabulary (`ip mptcp monitor`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorEvent {
    /// The time.
    pub at: Instant,
    /// The connection.
    pub connection: ConnectionId,
    /// The kind of event.
    pub kind: MonitorKind,
}

/// Direction of a stream, as seen from here.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum StreamDirection {
    /// What we send.
    Sent,
    /// What we receive.
    Received,
}

/// The kinds of monitor events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MonitorKind {
    /// CREATED: a connection exists, its first subflow's handshake runs.
    Created(FourTuple),
    /// ESTABLISHED.
    Established(FourTuple),
    /// CLOSED.
    Closed(CloseReason),
    /// Continues as plain TCP.
    Fallback(FallbackReason),
    /// ANNOUNCED: the peer announced an address.
    Announced {
        /// Its id.
        id: AddressId,
        /// The address.
        address: core::net::SocketAddr,
    },
    /// REMOVED: the peer withdrew an address.
    Removed(AddressId),
    /// AGREED: extensions that both sides use from now on.
    Agreed(Extensions),
    /// SF_ESTABLISHED.
    SubflowEstablished {
        /// Its slot.
        id: SubflowId,
        /// Its ends.
        path: FourTuple,
        /// Backup.
        backup: bool,
    },
    /// SF_CLOSED.
    SubflowClosed {
        /// Its slot.
        id: SubflowId,
        /// Its ends.
        path: FourTuple,
        /// The reason.
        reason: CloseReason,
    },
    /// SF_PRIO.
    SubflowPriority {
        /// Its slot.
        id: SubflowId,
        /// Backup from now on.
        backup: bool,
    },
    /// A subflow is silent although data or an answer is due; the path manager has been notified.
    SubflowSilent {
        /// Its slot.
        id: SubflowId,
        /// What detected the silence.
        cause: SilenceCause,
    },
    /// The path health monitor's verdict on a subflow's address pair changed.
    AddressPair {
        /// Its slot.
        id: SubflowId,
        /// What is wrong with it; `None`: it is good again.
        fault: Option<AddressPairFault>,
    },
    /// A subflow is silent and what it holds goes out on others (`true`), or something was received on it again
    /// (`false`).
    SubflowSuspected {
        /// Its slot.
        id: SubflowId,
        /// Suspected.
        suspected: bool,
    },
    /// Delivery went on after a pause of 100 ms or more in which it was due: data was sent and not acknowledged, for
    /// so much longer than a round trip takes; or what was received could not be read, since something before it was
    /// missing. It is told when it is over.
    Hole {
        /// Which direction of the stream stood still.
        direction: StreamDirection,
        /// When it began.
        since: Instant,
        /// The subflow on which it went on.
        ended_by: SubflowId,
        /// A subflow that was silent then, and why.
        silent: Option<(SubflowId, SilenceCause)>,
    },
    /// The scheduler decided where data goes, or that it waits; only while the endpoint
    /// [tells decisions](crate::Endpoint::tell_decisions).
    Decided {
        /// What it decided, and why.
        reason: Arc<Reason>,
        /// Decisions just before that are not told, since too many were waiting to be read.
        missed: u64,
    },
    /// Data or a segment went its way; only while the endpoint [tells traffic](crate::Endpoint::tell_traffic).
    Traffic {
        /// What happened.
        what: Box<Traffic>,
        /// Events of traffic just before that are not told, since too many were waiting to be read.
        missed: u64,
    },
}
