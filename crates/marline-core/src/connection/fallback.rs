//! The fallback to plain TCP (RFC 8684 section 3.7). Only this module decides on it.
//!
//! *Problem.* Plain TCP has no mappings. From some point on, a side that falls back takes the bytes of its one
//! subflow as the stream. This requires that both directions are contiguous: every byte so far maps one to one onto
//! the subflow, nothing was repeated at another sequence number, and nothing was discarded. The peer must also fall
//! back. A peer that still speaks Multipath TCP repeats unacknowledged data at new sequence numbers, which plain TCP
//! takes as new data.
//!
//! *How.* An event that suggests a fallback is a [`Trigger`]. The facts about both directions are a [`StreamFacts`].
//! [`judge`] implements the table of `docs/spec/fallback.md`: it returns a [`Verdict`], which the connection
//! carries out. If no fallback is possible, the subflow is reset or the connection is aborted. The application
//! then gets an error and never an end of stream with bytes missing.
//!
//! *Agreement of the peer* follows from the order of events. A peer whose mappings were DATA_ACKed knows that both
//! sides speak Multipath TCP, and does not interpret a missing option as plain TCP. Data without a mapping therefore
//! leads to plain TCP only before this side has sent its first DATA_ACK of mapped data, or while the peer may not have
//! received one. A side that falls back on its own announces this with an infinite mapping on its next data or FIN, and
//! with MP_FAIL if it has nothing to send or if Multipath TCP may be proven to the peer. A sender that sees ACKs
//! without a DATA_ACK after its mappings were DATA_ACKed resets that subflow and repeats nothing on it.

use marline_policy::{Dsn, Ssn};
use marline_time::Instant;

use crate::FallbackReason;

/// Events that suggest a fallback.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The first subflow's handshake ends without MP_CAPABLE.
    Handshake(FallbackReason),
    /// The next bytes on a subflow, or its FIN, have no mapping.
    UnmappedData,
    /// An ACK without options acknowledges mapped data.
    BareAck,
    /// Server: the first byte is repeated, without the option that it had at first.
    FirstByteRepeated,
    /// Client: no segment with options was answered since the handshake.
    OptionsUnanswered,
    /// The checksum of a mapping is wrong.
    BadChecksum,
    /// An MP_FAIL that does not answer ours.
    MpFail,
    /// An MP_FAIL that answers ours.
    MpFailAnswered,
    /// An infinite mapping, or a FIN where one was expected.
    InfiniteMapping,
}

impl Trigger {
    /// Reason reported to applications and monitors.
    const fn reason(self) -> FallbackReason {
        match self {
            Trigger::Handshake(reason) => reason,
            Trigger::UnmappedData | Trigger::BareAck | Trigger::FirstByteRepeated => {
                FallbackReason::FirstDataWithoutOption
            }
            Trigger::OptionsUnanswered => FallbackReason::OptionsUnanswered,
            Trigger::BadChecksum | Trigger::MpFailAnswered => FallbackReason::ChecksumFailed,
            Trigger::MpFail => FallbackReason::PeerFailed,
            Trigger::InfiniteMapping => FallbackReason::InfiniteMapping,
        }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OtherSubflows {
    None,
    /// Joins with incomplete handshakes, which the peer has not established either.
    Opening,
    /// Joins that we opened and whose third ACK was sent: the peer may have established them and may continue on
    /// them.
    Answered,
    /// Subflows that carried data, but accept no more.
    Closing,
    /// At least one subflow may carry data.
    Usable,
}

/// State of both directions when a trigger occurs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamFacts {
    /// The trigger occurred on the first subflow, and no join that brought payload has ended.
    pub(super) initial: bool,
    pub(super) others: OtherSubflows,
    /// Our data maps one to one onto the subflow since the first byte.
    pub(super) sent_whole: bool,
    /// Our data that is not DATA_ACKed maps one to one onto the subflow, up to the last byte sent.
    pub(super) sent_tail: bool,
    /// Received data maps one to one onto the subflow since the first byte, and so do mappings of data that has not
    /// arrived.
    pub(super) received_whole: bool,
    /// The stream continues at the position that plain TCP implies: at the trigger's point, or at the failed mapping.
    pub(super) received_tail: bool,
    /// Data that we mapped was DATA_ACKed: our options arrive, and the peer knows that its own options do.
    pub(super) proven: bool,
    /// Data that the peer mapped may have been DATA_ACKed, which would prove Multipath TCP to the peer.
    pub(super) proven_to_peer: bool,
    /// None of our data was ever DATA_ACKed, and the peer sent no more than it may send without an answer.
    pub(super) has_no_data_ack: bool,
}

impl StreamFacts {
    const fn is_whole(&self) -> bool {
        self.initial && self.sent_whole && self.received_whole
    }

    /// True if the peer may have fallen back on its own. Linux does so without an infinite mapping, even after it
    /// mapped data of its first window.
    const fn may_peer_be_plain(&self) -> bool {
        !self.proven && (!self.proven_to_peer || self.has_no_data_ack)
    }
}

/// Decisions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No change.
    Unchanged,
    /// Plain TCP, starting with the first byte.
    FromFirstByte { reason: FallbackReason, announces: bool },
    /// Plain TCP, starting with the first byte that is not DATA_ACKed.
    FromUnackedData(FallbackReason),
    /// MP_FAIL is sent to the peer. Received data is kept until the answer.
    SendMpFail,
    /// The subflow is reset because options do not pass; the connection continues on others.
    ResetSubflow,
    /// The subflow is reset with MP_FAIL.
    ResetWithMpFail,
    /// The connection ends: the peer uses plain TCP, and bytes are missing.
    Abort,
}

/// Implements the table of `docs/spec/fallback.md`.
pub(super) fn judge(trigger: Trigger, at: &StreamFacts) -> Verdict {
    let reason = trigger.reason();
    let alone = at.others == OtherSubflows::None;
    let none_carries = at.others != OtherSubflows::Usable;
    let from_first_byte = |announces| Verdict::FromFirstByte { reason, announces };
    match trigger {
        Trigger::Handshake(_) => from_first_byte(false),
        Trigger::UnmappedData if alone && at.is_whole() && at.may_peer_be_plain() => {
            from_first_byte(true)
        }
        Trigger::BareAck if at.proven => Verdict::Unchanged,
        // Joins that neither side has established carry no data, and options certainly do not pass here.
        Trigger::BareAck
            if at.is_whole()
                && matches!(at.others, OtherSubflows::None | OtherSubflows::Opening) =>
        {
            from_first_byte(true)
        }
        Trigger::UnmappedData | Trigger::BareAck => Verdict::ResetSubflow,
        Trigger::FirstByteRepeated if alone && at.is_whole() && at.has_no_data_ack => {
            from_first_byte(false)
        }
        // An infinite mapping is also an option, and would not pass either.
        Trigger::OptionsUnanswered if alone && at.is_whole() => from_first_byte(false),
        Trigger::FirstByteRepeated | Trigger::OptionsUnanswered => Verdict::Unchanged,
        Trigger::BadChecksum if none_carries && at.received_tail => Verdict::SendMpFail,
        Trigger::MpFail | Trigger::MpFailAnswered if !none_carries => Verdict::ResetSubflow,
        Trigger::MpFail | Trigger::MpFailAnswered if at.sent_tail => {
            Verdict::FromUnackedData(reason)
        }
        Trigger::BadChecksum | Trigger::MpFail | Trigger::MpFailAnswered => {
            Verdict::ResetWithMpFail
        }
        // RFC 8684 section 3.7 allows it only on the sole subflow: it has no meaning if there are others.
        Trigger::InfiniteMapping if !none_carries => Verdict::Unchanged,
        Trigger::InfiniteMapping if at.sent_tail && at.received_tail => {
            Verdict::FromUnackedData(reason)
        }
        Trigger::InfiniteMapping => Verdict::Abort,
    }
}

/// Corresponding positions of a subflow and the stream. Later positions map one to one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) ssn: Ssn,
    pub(super) dsn: Dsn,
}

impl Point {
    /// Start of plain TCP from the first byte.
    pub(super) const FIRST: Point = Point { ssn: Ssn(1), dsn: Dsn(0) };
}

/// An infinite mapping to announce.
#[derive(Copy, Clone, Debug)]
pub(super) struct InfiniteMapping {
    /// First position whose data has no mapping of its own.
    pub(super) first: Ssn,
    /// Point in the mapping.
    pub(super) point: Point,
}

/// Number of repeats that the peer answers without acknowledging the infinite mapping's data, after which options are
/// assumed not to pass.
const MIN_ANSWERS: u8 = 2;

/// The infinite mapping that announces a fallback.
#[derive(Debug)]
struct PendingInfiniteMapping {
    /// First position whose data has no mapping of its own.
    first: Ssn,
    /// Point in the mapping.
    point: Point,
    /// Last repetition of data up to the mapping.
    repeated_at: Option<Instant>,
    /// Repeats that the peer answered without acknowledging the data.
    answers: u8,
}

impl PendingInfiniteMapping {
    /// True if options do not pass: neither the infinite mapping nor the mappings before it arrive.
    const fn is_futile(&self) -> bool {
        self.answers >= MIN_ANSWERS
    }
}

/// Announcement of a fallback to the peer: the infinite mapping.
#[derive(Debug, Default)]
pub(super) struct Fallback {
    infinite: Option<Box<PendingInfiniteMapping>>,
    /// The peer has sent a DATA_ACK since the fallback: it still speaks Multipath TCP.
    contradicted: bool,
}

impl Fallback {
    /// Announces the fallback to a peer that may have understood mappings.
    pub(super) fn announce(&mut self, InfiniteMapping { first, point }: InfiniteMapping) {
        self.infinite =
            Some(Box::new(PendingInfiniteMapping { first, point, repeated_at: None, answers: 0 }));
    }

    /// Handles a timeout of plain TCP data that starts at `una`. The peer's last segment arrived at `heard_at`. Data up
    /// to the infinite mapping carries options. If a peer in plain TCP answers the repeats without acknowledging the
    /// data, a middlebox drops them because of their options. They are then sent without options. Returns true if the
    /// peer should also be probed, because the repeat may never reach it.
    pub(super) fn on_timeout(&mut self, now: Instant, una: Ssn, heard_at: Instant) -> bool {
        let contradicted = self.contradicted;
        let Some(infinite) = self.infinite.as_deref_mut().filter(|i| una <= i.first) else {
            return false;
        };
        let answered = infinite.repeated_at.is_some_and(|at| heard_at >= at);
        if answered && !contradicted {
            infinite.answers = infinite.answers.saturating_add(1);
        }
        infinite.repeated_at = Some(now);
        !contradicted && !infinite.is_futile()
    }

    /// True if options of data up to the infinite mapping do not pass.
    pub(super) fn drops_options(&self) -> bool {
        self.infinite.as_deref().is_some_and(PendingInfiniteMapping::is_futile)
    }

    /// True if the fallback must be announced to the peer.
    pub(super) const fn is_announced(&self) -> bool {
        self.infinite.is_some()
    }

    /// Handles a segment from the peer with or without a DATA_ACK. Returns true if the announcement must be repeated.
    pub(super) fn record_peer_mode(&mut self, multipath: bool) -> bool {
        let news = multipath && !self.contradicted;
        self.contradicted = multipath;
        news
    }

    /// True if the peer's last segment still used Multipath TCP.
    pub(super) const fn is_contradicted(&self) -> bool {
        self.contradicted
    }

    /// True if data at this position was sent before the fallback and keeps its mapping.
    pub(super) fn is_before_fallback(&self, at: Ssn) -> bool {
        self.infinite.as_ref().is_some_and(|infinite| at < infinite.first)
    }

    /// Point of the infinite mapping, for the data that has to carry it.
    pub(super) fn point_at(&self, start: Ssn) -> Option<Point> {
        let infinite = self.infinite.as_deref().filter(|infinite| !infinite.is_futile())?;
        (infinite.first == start).then_some(infinite.point)
    }
}

#[cfg(test)]
mod tests;
