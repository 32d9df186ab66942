//! Types exchanged between a connection and its subflows.

use core::ops::Range;

use marline_policy::{DataRange, SentSegment, Ssn};
use marline_time::Duration;

use super::health::EndOfSilence;
use crate::on_demand::{OnDemand, UnusedState};

/// Result of a received segment at the subflow level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ingress {
    /// The segment passed the checks of RFC 9293, 5961 and 7323: its options may be used.
    pub(crate) accepted: bool,
    /// SND.UNA advanced.
    pub(crate) una_advanced: bool,
    /// Number of octets newly acknowledged, cumulatively.
    pub(crate) newly_acked: u64,
    /// Window of this segment in bytes, scaled. With a DATA_ACK, the window is relative to it. A retransmitted
    /// segment has new values of both, so a duplicate for the subflow may be new for the connection.
    pub(crate) window: u64,
    /// Part of the payload that is now in order, excluding bytes already received.
    pub(crate) in_order: Option<(Ssn, Range<usize>)>,
    /// Position of the payload's first byte, if the segment was accepted.
    pub(crate) start: Option<Ssn>,
    /// Number of payload bytes already received.
    pub(crate) duplicate_bytes: u64,
    /// The whole payload was already received and is ignored, but the segment is recent and from the peer.
    pub(crate) repeated: bool,
    /// An ACK is pending as a challenge (RFC 5961) or as the answer to an unacceptable segment. The endpoint limits
    /// the rate of such ACKs with [`withdraw_challenge`](super::Subflow::withdraw_challenge).
    pub(crate) challenge: bool,
}

/// A segment to be built and sent now.
#[derive(Clone, Debug)]
pub(crate) enum Egress {
    /// The SYN.
    Syn,
    /// The SYN/ACK.
    SynAck,
    /// A reset.
    Rst,
    /// An ACK without payload.
    Ack,
    /// An already sent segment, or a part of one. Its payload is read from the send buffer by DSN.
    Retransmit(SentSegment),
    /// The FIN, for the first time.
    Fin,
    /// A segment without payload, one octet before SND.UNA, which the peer must answer with an ACK.
    Probe,
    /// A segment without payload and without the connection's options.
    Plain(PlainSegment),
}

/// A segment that only probes or answers a probe. It does not replace a pending ACK, and acknowledges only the SYN:
/// acknowledging data without options would signal that a middlebox strips them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlainSegment {
    /// A segment one octet before SND.UNA, which the peer must answer with an ACK.
    Probe,
    /// Answer to a probe.
    Ack,
}

/// Payload of full segments, in bytes.
#[derive(Copy, Clone, Debug)]
pub(crate) struct SegmentSize {
    /// Payload of a segment with the usual options.
    pub(crate) usual: u64,
    /// Payload of a segment with no option except timestamps: the maximum.
    pub(crate) largest: u64,
}

impl Default for SegmentSize {
    /// Without further knowledge, every mapping is treated as one segment.
    fn default() -> Self {
        SegmentSize { usual: u64::from(u16::MAX), largest: u64::from(u16::MAX) }
    }
}

/// Room for the payload of a full segment.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PayloadRoom {
    /// Room in a segment with a mapping, in bytes.
    pub(crate) mapped: usize,
    /// Room in a segment without a mapping, in bytes.
    pub(crate) plain: usize,
}

/// Segment for which a header is built.
#[derive(Copy, Clone, Debug)]
pub(crate) enum HeaderFor<'a> {
    /// Segment from `next_egress`.
    Egress(&'a Egress),
    /// New data from `push_data`.
    Data(&'a SentSegment),
}

/// An event for the connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubflowEvent {
    /// The handshake is complete.
    Established,
    /// The peer answered our SYN with a RST.
    Refused,
    /// The peer reset the subflow.
    Reset,
    /// The handshake was not completed in time.
    ConnectTimeout,
    /// All retries of data or keepalives were unanswered. Only `reset` may follow.
    Dead,
    /// The peer's FIN is in order: no more data follows.
    PeerFin,
    /// Both FINs are acknowledged, or TIME-WAIT was entered: the subflow may be dropped.
    Finished,
    /// The probe timer fired; a probe follows.
    ProbeTimeout,
    /// A probe that repeats this data was sent.
    ProbeRepeated {
        /// The data; empty if it was only a FIN.
        range: DataRange,
    },
    /// Loss recovery found lost segments, which are retransmitted next.
    Lost,
    /// The retransmission timer fired for the `count`th consecutive time.
    Rto {
        /// Consecutive timeouts.
        count: u32,
    },
    /// A segment arrived that ended the subflow's silence.
    SilenceEnded(EndOfSilence),
    /// A valid segment arrived after this time, but the subflow still counts as silent, because none of our data was
    /// acknowledged.
    SilentDespiteSegment(Duration),
    /// A path MTU probe showed that segments of this many bytes pass.
    MtuFound(u16),
}

/// Counters for monitoring only.
#[derive(Debug, Default)]
pub(crate) struct SubflowStats {
    /// Payload bytes sent, including retransmissions.
    pub(crate) bytes_sent: u64,
    /// Payload bytes received, excluding duplicates.
    pub(crate) bytes_received: u64,
    /// Counters of problems.
    pub(crate) trouble: OnDemand<TroubleStats>,
}

/// Counters that are zero on most paths.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct TroubleStats {
    /// Payload bytes retransmitted.
    pub(crate) bytes_retransmitted: u64,
    /// Payload bytes that another subflow had already carried (counted by the connection).
    pub(crate) bytes_reinjected: u64,
    /// Duplicate payload bytes received.
    pub(crate) bytes_duplicate: u64,
    /// Retransmission timeouts.
    pub(crate) rtos: u32,
    /// Tail loss probes.
    pub(crate) probes: u32,
    /// Window reductions undone as spurious.
    pub(crate) undone: u32,
    /// Reordering distance in segments.
    pub(crate) reordering: u32,
    /// ACKs that showed reordering.
    pub(crate) reorderings: u32,
}

impl UnusedState for TroubleStats {
    const UNUSED: &'static Self = &TroubleStats {
        bytes_retransmitted: 0,
        bytes_reinjected: 0,
        bytes_duplicate: 0,
        rtos: 0,
        probes: 0,
        undone: 0,
        reordering: 0,
        reorderings: 0,
    };
}

impl SubflowStats {
    /// Counts duplicate payload bytes, if there are any.
    pub(crate) fn count_duplicate(&mut self, bytes: u64) {
        if bytes > 0 {
            self.trouble.bytes_duplicate += bytes;
        }
    }
}
