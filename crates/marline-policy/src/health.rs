//! Health of a subflow as policies see it: whether data sent on it is expected to arrive.
//!
//! *Fine*: no fault is known. *Doubtful*: the peer answers, but the path health monitor considers the address
//! pair bad, based on observations of all connections of the process (MultiMob, De Coninck and Bonaventure), or
//! the signal of its radio fades ([`PathCost::fading`](crate::PathCost::fading)). *Silent*: something timed out
//! on it, or was due and did not arrive, and nothing has been answered on it since (Linux schedulers have
//! called this potentially failed since 2013).
//!
//! The core derives the health of each subflow from these facts. Silence ends when something that was sent is
//! acknowledged; if nothing is outstanding, any segment ends it. Doubt ends with the monitor's verdict. A
//! silent subflow may also be on a bad address pair; silence then takes precedence.

use core::fmt::{self, Display, Formatter};

use marline_time::Instant;

use crate::AddressPairFault;

/// Whether data sent on a subflow is expected to arrive.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// No fault is known.
    #[default]
    Fine,
    /// The peer answers, but the address pair (both addresses and the interface) is bad, or the signal fades.
    /// The subflow should carry new data only if no other can.
    Doubtful {
        /// When the path health monitor's verdict reached the subflow. For a fading signal, the time of the
        /// view.
        since: Instant,
        /// The reason for the verdict.
        cause: AddressPairFault,
    },
    /// Something timed out on the subflow, or was due and did not arrive, and nothing valid has been received
    /// on it since.
    Silent {
        /// When the first of these facts was noticed.
        since: Instant,
        /// The first of these facts, or the verdict on the address pair while there is one.
        cause: SilenceCause,
    },
}

impl Health {
    /// Whether no fault is known. Otherwise other subflows should be preferred for data.
    #[must_use]
    pub const fn is_fine(self) -> bool {
        matches!(self, Health::Fine)
    }

    /// Whether the peer answers although the address pair is bad or fading.
    #[must_use]
    pub const fn is_doubtful(self) -> bool {
        matches!(self, Health::Doubtful { .. })
    }

    /// Whether something is overdue and nothing has been received since.
    #[must_use]
    pub const fn is_silent(self) -> bool {
        matches!(self, Health::Silent { .. })
    }

    /// Whether the address pair is bad now, whether the peer answers or not. The path health monitor probes
    /// such subflows itself.
    #[must_use]
    pub const fn has_bad_address_pair(self) -> bool {
        match self {
            Health::Doubtful { cause, .. } => !matches!(cause, AddressPairFault::Fading),
            Health::Silent { cause, .. } => matches!(cause, SilenceCause::BadAddressPair),
            Health::Fine => false,
        }
    }
}

impl Display for Health {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Health::Fine => f.write_str("fine"),
            Health::Doubtful { cause, .. } => write!(f, "doubtful ({cause})"),
            Health::Silent { cause, .. } => write!(f, "silent ({cause})"),
        }
    }
}

/// The fact that made a subflow silent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SilenceCause {
    /// Loss recovery's probe timer: an acknowledgement is later than loss recovery allows, two round trips with
    /// RACK-TLP (RFC 8985). It does not count if the scheduler leaves such probes to the retransmission timer
    /// (`Scheduler::probe_patience`).
    ProbeTimeout,
    /// The retransmission timer (RFC 6298).
    RetransmissionTimeout,
    /// The receive timer: the peer has more to send, and nothing arrived in order before the timer expired.
    ReceiveTimer,
    /// The probes of the receive timer were not answered.
    UnansweredProbes,
    /// Keepalives were not answered.
    UnansweredKeepalives,
    /// The network reported that the peer is unreachable on this path (ICMP), or sending failed.
    Unreachable,
    /// The peer urgently opened another subflow (Fast JOIN), because the others failed for it.
    FastJoin,
    /// The scheduler requested it (`SchedulerAction::Suspect`).
    Scheduler,
    /// The path health monitor considers the address pair bad.
    BadAddressPair,
    /// The path health monitor has lifted its verdict on the address pair, but nothing has been received on
    /// this subflow since.
    LiftedVerdict,
}

impl Display for SilenceCause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SilenceCause::ProbeTimeout => "probe timeout",
            SilenceCause::RetransmissionTimeout => "retransmission timeout",
            SilenceCause::ReceiveTimer => "receive timer",
            SilenceCause::UnansweredProbes => "unanswered probes",
            SilenceCause::UnansweredKeepalives => "unanswered keepalives",
            SilenceCause::Unreachable => "unreachable",
            SilenceCause::FastJoin => "fast join",
            SilenceCause::Scheduler => "scheduler",
            SilenceCause::BadAddressPair => "bad address pair",
            SilenceCause::LiftedVerdict => "lifted verdict",
        })
    }
}
