//! Health of a subflow as policies see it: whether data sent on it is expected to arrive.
//!
//! *Fine*: nothing speaks against it. *Doubtful*: the peer answers on it, but the path health monitor judges its
//! address pair bad, from what all connections of the process observe there (MultiMob, De Coninck and Bonaventure),
//! or its radio's signal fades, as who reads it says ([`PathCost::fading`](crate::PathCost::fading)).
//! *Silent*: something timed out on it, or was due and did not come, and nothing has been answered on it since
//! (potentially failed, as the schedulers of Linux have called it since 2013).
//!
//! The core derives it from facts, one subflow at a time. Silence ends when something that was sent is acknowledged; if
//! nothing is outstanding, any segment ends it. Doubt ends with the monitor's verdict. Who is silent may be on a bad
//! address pair as well: silence is the graver of the two.

use core::fmt::{self, Display, Formatter};

use marline_time::Instant;

use crate::AddressPairFault;

/// Whether data sent on a subflow is expected to arrive.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nothing speaks against it.
    #[default]
    Fine,
    /// The peer answers on it, but its address pair (both addresses and the interface) is bad, or its signal fades.
    /// It should carry new data only if nothing else can.
    Doubtful {
        /// When the path health monitor's verdict reached the subflow; if its signal fades, the time of the view.
        since: Instant,
        /// What the verdict rests on.
        cause: AddressPairFault,
    },
    /// Something timed out on it or was due and did not come, and nothing valid has been received on it since.
    Silent {
        /// When the first of the facts was noticed.
        since: Instant,
        /// The first of the facts, or the verdict on its address pair while there is one.
        cause: SilenceCause,
    },
}

impl Health {
    /// Whether nothing speaks against it. Otherwise data should preferably go elsewhere.
    #[must_use]
    pub const fn is_fine(self) -> bool {
        matches!(self, Health::Fine)
    }

    /// Whether it is answering although its address pair is bad.
    #[must_use]
    pub const fn is_doubtful(self) -> bool {
        matches!(self, Health::Doubtful { .. })
    }

    /// Whether something is overdue on it and nothing has been received since.
    #[must_use]
    pub const fn is_silent(self) -> bool {
        matches!(self, Health::Silent { .. })
    }

    /// Whether its address pair is bad now, be it answering or silent. The path health monitor probes such
    /// subflows by itself.
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

/// Fact from which it was concluded that a subflow is silent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SilenceCause {
    /// Loss recovery's probe timer: an acknowledgement is late by the time that loss recovery allows, two round
    /// trips with RACK-TLP (RFC 8985). It does not count if the scheduler leaves such probes to the retransmission
    /// timer (`Scheduler::probe_patience`).
    ProbeTimeout,
    /// The retransmission timer (RFC 6298).
    RetransmissionTimeout,
    /// The receive timer: the peer has more to send, and nothing arrived in order before it
    /// expired.
    ReceiveTimer,
    /// The receive timer's probes stayed unanswered.
    UnansweredProbes,
    /// Keepalives stayed unanswered.
    UnansweredKeepalives,
    /// The network reported that the peer cannot be reached on this path (ICMP), or sending failed.
    Unreachable,
    /// The peer opened another subflow in a hurry (Fast JOIN): the others fail it.
    FastJoin,
    /// The scheduler asked for it (`SchedulerAction::Suspect`).
    Scheduler,
    /// The path health monitor judges the address pair bad.
    BadAddressPair,
    /// The path health monitor judged the address pair bad and has lifted the verdict since, but nothing has been
    /// received on this subflow.
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
