//! Types exchanged between a connection and its subflows.

use core::ops::Range;

use marline_policy::{DataRange, SentSegment, Ssn};
use marline_time::Duration;

use super::health::EndOfSilence;
use crate::on_demand::{OnDemand, Unused};

/// What a segment meant at the level of the subflow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ingress {
    /// It passed the checks of RFC 9293, 5961 and 7323: its options may be believed.
    pub(crate) accepted: bool,
    /// SND.UNA moved.
    pub(crate) una_advanced: bool,
    /// Octets newly acknowledged, cumulatively.
    pub(crate) newly_acked: u64,
    /// The window of this very segment in bytes, scaled. With a DATA_ACK it is relative to that, and
    /// a repeated segment has a new pair of both: what is old to the subflow is news to the connection.
    pub(crate) window: u64,
    /// The part of the payload that is now in order, without what was there already.
    pub(crate) in_order: Option<(Ssn, Range<usize>)>,
    /// Position of the payload's first byte, if the segment was accepted.
    pub(crate) start: Option<Ssn>,
    /// Payload bytes that were there already.
    pub(crate) duplicate_bytes: u64,
    /// All of it was there already, and nothing else of it counts; but it is the peer's, and of now.
    pub(crate) repeated: bool,
    /// An ACK is owed as a challenge (RFC 5961) or as the answer to an unacceptable segment. The
    /// endpoint limits their rate: [`withdraw_challenge`](super::Subflow::withdraw_challenge).
    pub(crate) challenge: bool,
}

/// A segment that the subflow wants built and sent now.
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
    /// A segment sent before, or a part of one: its payload comes from the send buffer by its DSN.
    Retransmit(SentSegment),
    /// The FIN, for the first time.
    Fin,
    /// A segment without payload one octet before SND.UNA: the peer must answer with an ACK.
    Probe,
    /// A segment without payload and without options of the connection's.
    Plain(PlainSegment),
}

/// A segment that says nothing but that somebody is there. It pays no ACK that is owed, and acknowledges the
/// SYN alone: what acknowledges data without options says that they do not pass.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlainSegment {
    /// One octet before SND.UNA: the peer must answer with an ACK.
    Probe,
    /// The answer to one.
    Ack,
}

/// Payload bytes of full segments.
#[derive(Copy, Clone, Debug)]
pub(crate) struct SegmentSize {
    /// Of one with the usual options.
    pub(crate) usual: u64,
    /// Of one with no other option than timestamps: no segment has more.
    pub(crate) largest: u64,
}

impl Default for SegmentSize {
    /// Where nothing is known every mapping is one segment.
    fn default() -> Self {
        SegmentSize { usual: u64::from(u16::MAX), largest: u64::from(u16::MAX) }
    }
}

/// Payload that a full segment may have.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PayloadRoom {
    /// Beside its mapping.
    pub(crate) mapped: usize,
    /// Without.
    pub(crate) plain: usize,
}

/// What a header is wanted for.
#[derive(Copy, Clone, Debug)]
pub(crate) enum HeaderFor<'a> {
    /// For what `next_egress` asked for.
    Egress(&'a Egress),
    /// For new data that `push_data` took.
    Data(&'a SentSegment),
}

/// Something the connection must know.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubflowEvent {
    /// The handshake is complete.
    Established,
    /// RST in answer to our SYN.
    Refused,
    /// Reset by the peer.
    Reset,
    /// The handshake was not completed in time.
    ConnectTimeout,
    /// All retries of data or keepalive went unanswered. `reset` may follow, nothing else.
    Dead,
    /// The peer's FIN is in order: it sends no more.
    PeerFin,
    /// Both FINs are acknowledged, or TIME-WAIT was entered: the struct may go.
    Finished,
    /// The probe timer fired; a probe follows.
    ProbeTimeout,
    /// A probe went out that repeats this data.
    ProbeRepeated {
        /// The data; empty if it was a FIN alone.
        range: DataRange,
    },
    /// Loss recovery found segments lost, which are repeated next.
    Lost,
    /// The retransmission timer fired, for the `count`th time in a row.
    Rto {
        /// Consecutive timeouts.
        count: u32,
    },
    /// A silent subflow is silent no more.
    HeardAgain(EndOfSilence),
    /// A valid segment came on a subflow that was silent for so long and goes on being held to be: nothing that we
    /// sent was answered.
    HeardUnanswered(Duration),
    /// Segments of this many bytes pass.
    MtuFound(u16),
}

/// Counters that only people read.
#[derive(Debug, Default)]
pub(crate) struct SubflowStats {
    /// Payload bytes sent, repeats included.
    pub(crate) bytes_sent: u64,
    /// Payload bytes that came in, without duplicates.
    pub(crate) bytes_received: u64,
    /// What went wrong.
    pub(crate) trouble: OnDemand<TroubleStats>,
}

/// Counters of what does not happen on every path.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct TroubleStats {
    /// Payload bytes sent again.
    pub(crate) bytes_retransmitted: u64,
    /// Payload bytes that another subflow carried before (counted by the connection).
    pub(crate) bytes_reinjected: u64,
    /// Payload bytes that came in and were there already.
    pub(crate) bytes_duplicate: u64,
    /// Retransmission timeouts.
    pub(crate) rtos: u32,
    /// Tail loss probes.
    pub(crate) probes: u32,
    /// Reductions taken back.
    pub(crate) undone: u32,
    /// How far a segment was overtaken, in segments.
    pub(crate) reordering: u32,
    /// ACKs that showed a segment to have been overtaken.
    pub(crate) reorderings: u32,
}

impl Unused for TroubleStats {
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
    /// So many payload bytes were there already, if any were.
    pub(crate) fn count_duplicate(&mut self, bytes: u64) {
        if bytes > 0 {
            self.trouble.bytes_duplicate += bytes;
        }
    }
}
