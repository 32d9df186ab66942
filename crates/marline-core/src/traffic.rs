//! Account of a connection's traffic, for traces: what went out where and why, what came, what was acknowledged.
//!
//! It is told as [`MonitorKind::Traffic`](crate::MonitorKind::Traffic) while the endpoint
//! [tells it](crate::Endpoint::tell_traffic), and decides nothing. Why a segment was sent is told by whoever sends it:
//! afterwards, a copy that a scheduler wanted and data that had to be rescued look the same.
//!
//! Positions in the stream count from its first byte, 0. Nothing here is made of keys.

use marline_policy::{DataRange, Dsn, Phase, ReinjectionCause, SubflowId};
use marline_time::{Duration, Rate};
use marline_wire::{SeqNum, TcpFlags};

use crate::{ConnectionId, FourTuple};

/// Whose traffic an endpoint tells.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum TrafficOf {
    /// Nobody's.
    #[default]
    Nobody,
    /// That of one connection.
    One(ConnectionId),
    /// That of all.
    All,
}

/// Something that happened to a connection's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Traffic {
    /// A subflow exists, and its handshake begins.
    Opened {
        /// Its slot.
        on: SubflowId,
        /// Its ends.
        path: FourTuple,
    },
    /// A segment was built, or several under one mapping: they go out next.
    Sent(SegmentSent),
    /// A segment came in on a subflow.
    Received(SegmentReceived),
    /// Bytes are in order on a subflow now, and have their places in the stream.
    DataReceived {
        /// Slot of the subflow.
        on: SubflowId,
        /// Their places.
        data: DataRange,
        /// How many of them were here before.
        duplicate_bytes: u64,
    },
    /// The peer has everything before this position.
    DataAcked {
        /// Slot of the subflow that said so.
        on: SubflowId,
        /// The position.
        to: Dsn,
    },
    /// A segment is believed lost.
    Lost {
        /// Slot of its subflow.
        on: SubflowId,
        /// What it carried; empty if that was a repair or a FIN.
        data: DataRange,
        /// Its bytes.
        bytes: u64,
        /// A timer said so, and not an acknowledgment.
        by_timer: bool,
    },
    /// A timer expired.
    Timer {
        /// Slot of its subflow; `None`: it is the connection's.
        on: Option<SubflowId>,
        /// Which.
        timer: Timer,
        /// How many times in a row, where it is counted.
        count: u32,
    },
    /// How a subflow stands, after it was heard or a timer of it expired.
    Metrics(Metrics),
}

/// Segments that are sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SegmentSent {
    /// Slot of the subflow.
    pub on: SubflowId,
    /// Why.
    pub purpose: Purpose,
    /// Sequence number of the first, as on the wire.
    pub seq: SeqNum,
    /// Places of the payload in the stream; of a repair: what it is a sum of.
    pub data: DataRange,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// How many segments it is in.
    pub segments: u32,
}

/// Why a segment is sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Data for the first time.
    New,
    /// Data that another subflow carries, since the scheduler wants it there twice.
    Copy,
    /// Data that another subflow carried, since that is in trouble.
    Reinjection(ReinjectionCause),
    /// Data that this subflow lost; after its retransmission timer expired, or by an acknowledgment.
    Retransmission {
        /// After its timer.
        after_timeout: bool,
    },
    /// The last data of this subflow once more, to learn whether it arrived (tail loss probe).
    Probe,
    /// A sum of data that was sent (decisions/coding.md).
    Repair,
    /// A SYN or SYN/ACK, perhaps with data (Fast JOIN).
    Handshake,
    /// Nothing but an acknowledgment, or options of the connection.
    Ack,
    /// Nothing, to be answered.
    Ask,
    /// The end of the stream (DATA_FIN).
    DataFin,
    /// The end of the subflow.
    Fin,
    /// A reset.
    Reset,
}

/// A segment that came in.
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
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// The mapping that it announces, as places in the stream; `None`: none, or one from nowhere near.
    pub mapping: Option<DataRange>,
}

/// Timers that say something of a path or of the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Timer {
    /// A subflow's probe timer (RFC 8985).
    Probe,
    /// A subflow's retransmission timer (RFC 6298).
    Retransmission,
    /// The connection's retransmission timer (RFC 8684 section 3.3.6).
    DataRetransmission,
    /// The peer's window is shut for long.
    Persist,
}

/// How a subflow stands.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Its slot.
    pub on: SubflowId,
    /// Congestion phase.
    pub phase: Phase,
    /// Congestion window, bytes.
    pub cwnd_bytes: u64,
    /// Slow-start threshold, bytes; `u64::MAX` while unknown.
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
    /// Delivery rate.
    pub delivery_rate: Option<Rate>,
}

/// Segments of a subflow that are believed lost and wait to be repeated: sequence number and content.
#[derive(Debug, Default)]
pub(crate) struct LostSegments(Vec<(u64, DataRange, u64)>);

impl LostSegments {
    pub(crate) fn push(&mut self, start: u64, data: DataRange, bytes: u64) {
        self.0.push((start, data, bytes));
    }

    /// Those that `before` does not have: a segment that was cut is not lost again.
    pub(crate) fn since(&self, before: &LostSegments) -> impl Iterator<Item = (DataRange, u64)> {
        let known = |start: u64| {
            before.0.iter().any(|(first, _, bytes)| (*first..first + bytes).contains(&start))
        };
        self.0
            .iter()
            .filter(move |(start, ..)| !known(*start))
            .map(|(_, data, bytes)| (*data, *bytes))
    }
}
