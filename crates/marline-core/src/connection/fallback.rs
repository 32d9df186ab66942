//! The fallback to plain TCP (RFC 8684 section 3.7): the only place that decides on it.
//!
//! *Problem.* Plain TCP has no mappings. A side that falls back takes the bytes of the one subflow for the stream, in
//! order, from some point on. That is right only if both directions are contiguous there: every byte so far maps one
//! to one onto the subflow, nothing was repeated on it under another number, and nothing was discarded. And it is
//! right only if the peer does the same. A peer that still speaks Multipath TCP repeats what was not DATA_ACKed under
//! new numbers, and plain TCP takes that for more data.
//!
//! *How.* Whatever suggests a fallback is a [`Trigger`]. The facts about both directions are a [`Standing`].
//! [`judge`] is the table of `docs/spec/fallback.md`: it turns both into a [`Verdict`], and the connection carries
//! that out. If no fallback is possible, the subflow is reset or the connection is aborted; the application gets an
//! error and never an end of stream with bytes missing.
//!
//! *Whether the peer agrees* follows from the order of events. A peer whose mappings were DATA_ACKed knows that both
//! sides speak Multipath TCP, and does not take a missing option for plain TCP. So data without a mapping leads to
//! plain TCP only before the first DATA_ACK of mapped data went out, or while it may be that none has arrived. A side
//! that falls back by itself says so: by an infinite mapping on its next data or on its FIN, and by MP_FAIL if it has
//! nothing to send or if Multipath TCP may be proven to the peer. A sender that sees ACKs without a DATA_ACK although
//! its mappings were DATA_ACKed before repeats nothing on that subflow, but resets it.

use marline_policy::{Dsn, Ssn};
use marline_time::Instant;

use crate::FallbackReason;

/// What suggests a fallback.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The first subflow's handshake ends without MP_CAPABLE.
    Handshake(FallbackReason),
    /// Bytes are next on a subflow, or its FIN, and nothing maps them.
    UnmappedData,
    /// An ACK without options acknowledges data that was mapped.
    BareAck,
    /// Server: the first byte comes again, and without the option that it came with.
    FirstByteAgain,
    /// Client: nothing with options was answered since the handshake.
    OptionsUnanswered,
    /// The checksum of a mapping is wrong.
    BadChecksum,
    /// MP_FAIL, though nothing was wrong with what the peer sent.
    MpFail,
    /// MP_FAIL in answer to ours.
    MpFailAnswered,
    /// An infinite mapping, or a FIN where one was expected.
    InfiniteMapping,
}

impl Trigger {
    /// What applications and monitors hear.
    const fn reason(self) -> FallbackReason {
        match self {
            Trigger::Handshake(reason) => reason,
            Trigger::UnmappedData | Trigger::BareAck | Trigger::FirstByteAgain => {
                FallbackReason::FirstDataWithoutOption
            }
            Trigger::OptionsUnanswered => FallbackReason::OptionsUnanswered,
            Trigger::BadChecksum | Trigger::MpFailAnswered => FallbackReason::ChecksumFailed,
            Trigger::MpFail => FallbackReason::PeerFailed,
            Trigger::InfiniteMapping => FallbackReason::InfiniteMapping,
        }
    }
}

/// Subflows beside the one that a trigger came on.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Others {
    None,
    /// Handshakes of joins that are not through.
    Opening,
    /// They carried data, and carry no more.
    Closing,
    /// At least one may carry data.
    Usable,
}

/// How both directions of the connection stand when a trigger comes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The trigger came on the first subflow.
    pub(super) initial: bool,
    pub(super) others: Others,
    /// What we sent maps one to one onto the subflow since the first byte.
    pub(super) sent_whole: bool,
    /// What is not DATA_ACKed maps one to one onto the subflow, up to what was sent last.
    pub(super) sent_tail: bool,
    /// What came maps one to one onto the subflow since the first byte, and so do mappings of what is to come.
    pub(super) received_whole: bool,
    /// The stream goes on where plain TCP would have it go on: at the trigger's point, or at the failed mapping.
    pub(super) received_tail: bool,
    /// Data that we mapped was DATA_ACKed: our options arrive, and the peer knows that its own do.
    pub(super) proven: bool,
    /// Data that the peer mapped may have been DATA_ACKed: to the peer, Multipath TCP is proven.
    pub(super) proven_to_peer: bool,
    /// Nothing that we sent was ever DATA_ACKed, and the peer sent no more than it may without hearing anything.
    pub(super) unheard: bool,
}

impl Standing {
    const fn is_whole(&self) -> bool {
        self.initial && self.sent_whole && self.received_whole
    }

    /// The peer may have fallen back by itself. Linux does without an infinite mapping, and after it has mapped what
    /// its first window allowed.
    const fn may_be_plain_there(&self) -> bool {
        !self.proven && (!self.proven_to_peer || self.unheard)
    }
}

/// What follows from a trigger.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Stay,
    /// Plain TCP from the first byte on.
    FromFirstByte { reason: FallbackReason, says_so: bool },
    /// Plain TCP from the first byte on that is not DATA_ACKed.
    FromHere(FallbackReason),
    /// The peer is asked by MP_FAIL. What comes is kept until it answers.
    AskPeer,
    /// The subflow is reset as options do not pass; the connection goes on by others.
    ResetSubflow,
    /// The same with MP_FAIL.
    ResetWithMpFail,
    /// The connection is over: the peer is on plain TCP, and bytes are missing.
    Abort,
}

/// The table of `docs/spec/fallback.md`.
pub(super) fn judge(trigger: Trigger, at: &Standing) -> Verdict {
    let reason = trigger.reason();
    let alone = at.others == Others::None;
    let none_carries = at.others != Others::Usable;
    let from_first_byte = |says_so| Verdict::FromFirstByte { reason, says_so };
    match trigger {
        Trigger::Handshake(_) => from_first_byte(false),
        Trigger::UnmappedData if alone && at.is_whole() && at.may_be_plain_there() => {
            from_first_byte(true)
        }
        Trigger::BareAck if at.proven => Verdict::Stay,
        // Joins that have not come up are nobody's way yet, and it is sure that options do not pass here.
        Trigger::BareAck
            if at.is_whole() && matches!(at.others, Others::None | Others::Opening) =>
        {
            from_first_byte(true)
        }
        Trigger::UnmappedData | Trigger::BareAck => Verdict::ResetSubflow,
        Trigger::FirstByteAgain if alone && at.is_whole() && at.unheard => from_first_byte(false),
        // An infinite mapping is an option, too, and would not pass either.
        Trigger::OptionsUnanswered if alone && at.is_whole() => from_first_byte(false),
        Trigger::FirstByteAgain | Trigger::OptionsUnanswered => Verdict::Stay,
        Trigger::BadChecksum if none_carries && at.received_tail => Verdict::AskPeer,
        Trigger::MpFail | Trigger::MpFailAnswered if !none_carries => Verdict::ResetSubflow,
        Trigger::MpFail | Trigger::MpFailAnswered if at.sent_tail => Verdict::FromHere(reason),
        Trigger::BadChecksum | Trigger::MpFail | Trigger::MpFailAnswered => {
            Verdict::ResetWithMpFail
        }
        // RFC 8684 section 3.7 allows it on the only subflow: it says nothing beside others.
        Trigger::InfiniteMapping if !none_carries => Verdict::Stay,
        Trigger::InfiniteMapping if at.sent_tail && at.received_tail => Verdict::FromHere(reason),
        Trigger::InfiniteMapping => Verdict::Abort,
    }
}

/// Where positions of a subflow and of the stream meet: from there on they map one to one.
pub(super) type Point = (Ssn, Dsn);

/// Answers to repeats beside an infinite mapping that has none, which show that options do not pass.
const ENOUGH_ANSWERS: u8 = 2;

/// The infinite mapping that announces a fallback.
#[derive(Debug)]
struct Infinite {
    /// The first position whose data goes without a mapping of its own.
    first: Ssn,
    /// The point that it names.
    point: Point,
    /// When data up to it was last repeated.
    repeated_at: Option<Instant>,
    /// How many repeats the peer answered, though not by acknowledging the data.
    answers: u8,
}

impl Infinite {
    /// It is an option, and so are the mappings before it: they do not pass.
    const fn is_futile(&self) -> bool {
        self.answers >= ENOUGH_ANSWERS
    }
}

/// What a connection that fell back owes its peer: the infinite mapping.
#[derive(Debug, Default)]
pub(super) struct Fallback {
    infinite: Option<Box<Infinite>>,
    /// The peer sent a DATA_ACK since: it still speaks Multipath TCP.
    contradicted: bool,
}

impl Fallback {
    /// The peer may have understood mappings: data from `first` on has the infinite mapping, which names `point`.
    pub(super) fn announce(&mut self, first: Ssn, point: Point) {
        self.infinite = Some(Box::new(Infinite { first, point, repeated_at: None, answers: 0 }));
    }

    /// Data from `una` on timed out on plain TCP; `heard_at`: when anything of the peer came last. Data up to the
    /// infinite mapping carries options. If the peer answers the repeats and acknowledges none, and speaks plain TCP
    /// itself, something drops them for their options: they go without from then on.
    pub(super) fn on_timeout(&mut self, now: Instant, una: Ssn, heard_at: Instant) {
        let contradicted = self.contradicted;
        let Some(infinite) = self.infinite.as_deref_mut().filter(|i| una <= i.first) else {
            return;
        };
        let answered = infinite.repeated_at.is_some_and(|at| heard_at >= at);
        if answered && !contradicted {
            infinite.answers = infinite.answers.saturating_add(1);
        }
        infinite.repeated_at = Some(now);
    }

    /// Options of data up to the infinite mapping do not pass.
    pub(super) fn leaves_options_out(&self) -> bool {
        self.infinite.as_deref().is_some_and(Infinite::is_futile)
    }

    /// The peer has to hear of the fallback.
    pub(super) const fn is_announced(&self) -> bool {
        self.infinite.is_some()
    }

    /// A segment of the peer came with a DATA_ACK, or without one. Whether the peer has to be told once more.
    pub(super) fn note_peer_mode(&mut self, multipath: bool) -> bool {
        let news = multipath && !self.contradicted;
        self.contradicted = multipath;
        news
    }

    /// The peer, last heard, still spoke Multipath TCP.
    pub(super) const fn is_contradicted(&self) -> bool {
        self.contradicted
    }

    /// Data at this position went out before the fallback, and keeps its mapping.
    pub(super) fn precedes(&self, at: Ssn) -> bool {
        self.infinite.as_ref().is_some_and(|infinite| at < infinite.first)
    }

    /// The point of the infinite mapping, for the data that has to carry it.
    pub(super) fn point_at(&self, start: Ssn) -> Option<Point> {
        let infinite = self.infinite.as_deref().filter(|infinite| !infinite.is_futile())?;
        (infinite.first == start).then_some(infinite.point)
    }
}

#[cfg(test)]
mod tests;
