//! Traffic of a connection, for traces: segments sent with their purpose, segments received, and acknowledgments.
//!
//! It is reported as [`MonitorKind::Traffic`](crate::MonitorKind::Traffic) while the endpoint [reports
//! traffic](crate::Endpoint::report_traffic), and influences no decision. The code that sends a segment reports its
//! purpose, because a scheduler's copy and reinjected data cannot be distinguished later.
//!
//! Positions in the stream count from its first byte, 0. No value is derived from keys.

use marline_policy::{DataRange, Dsn, Phase, ReinjectionCause, SubflowId};
use marline_time::{Duration, Rate};
use marline_wire::{SeqNum, TcpFlags};

use crate::{ConnectionId, FourTuple};

/// Connections whose traffic an endpoint reports.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum TrafficFilter {
    /// No connection.
    #[default]
    None,
    /// One connection.
    One(ConnectionId),
    /// All connections.
    All,
}

/// A traffic event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Traffic {
    /// A subflow was created, and its handshake begins.
    Opened {
        /// Slot of the subflow.
        on: SubflowId,
        /// Addresses of the subflow.
        path: FourTuple,
    },
    /// A segment was built, or several under one mapping, to be sent next.
    Sent(SegmentSent),
    /// A segment was received on a subflow.
    Received(SegmentReceived),
    /// Bytes are in order on a subflow, and have positions in the stream.
    DataReceived {
        /// Slot of the subflow.
        on: SubflowId,
        /// Positions in the stream.
        data: DataRange,
        /// Number of these bytes that were already received.
        duplicate_bytes: u64,
    },
    /// The peer acknowledged all data before this position.
    DataAcked {
        /// Slot of the subflow on which the acknowledgment arrived.
        on: SubflowId,
        /// Position in the stream.
        to: Dsn,
    },
    /// A segment was marked lost.
    Lost {
        /// Slot of the subflow.
        on: SubflowId,
        /// Data of the segment; empty for a repair or a FIN.
        data: DataRange,
        /// Size in bytes.
        bytes: u64,
        /// True if a timer, not an acknowledgment, revealed the loss.
        by_timer: bool,
    },
    /// A timer expired.
    Timer {
        /// Slot of the subflow; `None` for a timer of the connection.
        on: Option<SubflowId>,
        /// Kind of timer.
        timer: Timer,
        /// Consecutive expiries, if they are counted.
        count: u32,
    },
    /// State of a subflow after a segment arrived on it or one of its timers expired.
    Metrics(Metrics),
}

/// Sent segments.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SegmentSent {
    /// Slot of the subflow.
    pub on: SubflowId,
    /// Purpose of the segments.
    pub purpose: Purpose,
    /// Sequence number of the first segment, as on the wire.
    pub seq: SeqNum,
    /// Positions of the payload in the stream; for a repair, the range of its sum.
    pub data: DataRange,
    /// Size of the payload in bytes.
    pub payload_bytes: u64,
    /// Number of segments.
    pub segments: u32,
}

/// Purpose of a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// Data sent for the first time.
    New,
    /// A scheduler's copy of data that another subflow carries.
    Copy,
    /// Data of another subflow that is in trouble, sent again.
    Reinjection(ReinjectionCause),
    /// Data that this subflow lost, detected by its retransmission timer or by an acknowledgment.
    Retransmission {
        /// True if the timer detected the loss.
        after_timeout: bool,
    },
    /// The last data of this subflow, repeated to learn whether it arrived (tail loss probe).
    Probe,
    /// A sum of data sent before (decisions/coding.md).
    Repair,
    /// A SYN or SYN/ACK, with data in some cases (Fast JOIN).
    Handshake,
    /// Only an acknowledgment, or options of the connection.
    Ack,
    /// An empty probe that the peer answers.
    AckRequest,
    /// End of the stream (DATA_FIN).
    DataFin,
    /// End of the subflow.
    Fin,
    /// A reset.
    Reset,
}

/// A received segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SegmentReceived {
    /// Slot of the subflow.
    pub on: SubflowId,
    /// Sequence number, as on the wire.
    pub seq: SeqNum,
    /// Acknowledgment number, as on the wire.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: TcpFlags,
    /// Size of the payload in bytes.
    pub payload_bytes: u64,
    /// Announced mapping, as positions in the stream; `None` if there is none, or an implausible one.
    pub mapping: Option<DataRange>,
}

/// Timers with information about a path or the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Timer {
    /// A subflow's probe timer (RFC 8985).
    Probe,
    /// A subflow's retransmission timer (RFC 6298).
    Retransmission,
    /// The connection's retransmission timer (RFC 8684 section 3.3.6).
    DataRetransmission,
    /// The persist timer, while the peer's window stays closed.
    Persist,
}

/// State of a subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Slot of the subflow.
    pub on: SubflowId,
    /// Congestion phase.
    pub phase: Phase,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Slow-start threshold in bytes; `u64::MAX` while unknown.
    pub ssthresh_bytes: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// RTT variation.
    pub rttvar: Duration,
    /// Smallest RTT.
    pub min_rtt: Option<Duration>,
    /// Retransmission timeout without backoff.
    pub rto: Duration,
    /// Estimated delivery rate.
    pub delivery_rate: Option<Rate>,
}

/// Segments of a subflow that are marked lost and not yet retransmitted: sequence number, data, and bytes.
#[derive(Debug, Default)]
pub(crate) struct LostSegments(Vec<(u64, DataRange, u64)>);

impl LostSegments {
    pub(crate) fn push(&mut self, start: u64, data: DataRange, bytes: u64) {
        self.0.push((start, data, bytes));
    }

    /// Segments that are not in `before`. A split segment does not count as lost again.
    pub(crate) fn added_since(
        &self,
        before: &LostSegments,
    ) -> impl Iterator<Item = (DataRange, u64)> {
        let known = |start: u64| {
            before.0.iter().any(|(first, _, bytes)| (*first..first + bytes).contains(&start))
        };
        self.0
            .iter()
            .filter(move |(start, ..)| !known(*start))
            .map(|(_, data, bytes)| (*data, *bytes))
    }
}
