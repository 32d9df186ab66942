//! Health of a path: whether data sent on it is expected to arrive. Policies, `status`, metrics, traces and the
//! dashboard use the same terms.
//!
//! *Usable*: no fault is known. *Degraded*: the peer answers, but the path health monitor found a fault of the address
//! pair, based on observations of all connections of the process (MultiMob, De Coninck and Bonaventure), or the signal
//! of its radio fades ([`PathCost::fading`](crate::PathCost::fading)). *Unreachable*: a timer expired on it, or an
//! answer was due and did not arrive, and nothing has been answered on it since then. (Linux schedulers have called
//! this "potentially failed" since 2013.)
//!
//! The core derives the [health](Health) of each subflow from these facts. A subflow is no longer unreachable when data
//! or a probe that was sent is acknowledged; if nothing is outstanding, any segment suffices. It is no longer degraded
//! once the monitor considers the pair usable again. An unreachable subflow may also be on a degraded address pair.

use core::fmt::{self, Display, Formatter};

use marline_time::Instant;

use crate::AddressPairFault;

/// Health of a path, without the cause.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum PathHealth {
    /// The peer has answered on it, and nothing has contradicted that since then.
    Usable,
    /// The peer answers, but the path has a known fault or its signal is fading: data is sent on other paths if
    /// possible.
    Degraded,
    /// An answer or data is overdue, and nothing has been received since then. On a client, also a path that reaches no
    /// server that accepts the client.
    Unreachable,
    /// Nothing has been sent on it yet, or only just now. Unknown words from newer versions are parsed as this value.
    #[default]
    #[cfg_attr(feature = "serde", serde(other))]
    Untried,
}

impl PathHealth {
    /// All values.
    pub const ALL: [PathHealth; 4] =
        [PathHealth::Usable, PathHealth::Degraded, PathHealth::Unreachable, PathHealth::Untried];

    /// Single word: `usable`, `degraded`, `unreachable` or `untried`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            PathHealth::Usable => "usable",
            PathHealth::Degraded => "degraded",
            PathHealth::Unreachable => "unreachable",
            PathHealth::Untried => "untried",
        }
    }

    /// Returns true if data can be delivered: the path is usable or degraded.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, PathHealth::Usable | PathHealth::Degraded)
    }
}

impl Display for PathHealth {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Health of a subflow, with cause and time.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// No fault is known.
    #[default]
    Usable,
    /// The peer answers, but the address pair (both addresses and the interface) has a fault, or the signal fades.
    /// The subflow should carry new data only if no usable subflow can.
    Degraded {
        /// Time at which the path health monitor's verdict reached the subflow or, for a fading signal, at which the
        /// view was taken.
        since: Instant,
        /// The reason for the verdict.
        cause: AddressPairFault,
    },
    /// A timer expired on the subflow, or data or an answer was due and did not arrive, and no valid segment has been
    /// received on it since then.
    Unreachable {
        /// Time at which the first of these events was noticed.
        since: Instant,
        /// The first of these events, or the fault of the address pair while there is one.
        cause: UnreachableCause,
    },
}

impl Health {
    /// The health without time and cause.
    #[must_use]
    pub const fn path_health(self) -> PathHealth {
        match self {
            Health::Usable => PathHealth::Usable,
            Health::Degraded { .. } => PathHealth::Degraded,
            Health::Unreachable { .. } => PathHealth::Unreachable,
        }
    }

    /// The cause in words; `None` if the subflow is usable.
    #[must_use]
    pub const fn cause(self) -> Option<&'static str> {
        match self {
            Health::Usable => None,
            Health::Degraded { cause, .. } => Some(cause.text()),
            Health::Unreachable { cause, .. } => Some(cause.text()),
        }
    }

    /// Returns true if no fault is known. Otherwise other subflows should be preferred for data.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, Health::Usable)
    }

    /// Returns true if the peer answers although the address pair has a fault or its signal is fading.
    #[must_use]
    pub const fn is_degraded(self) -> bool {
        matches!(self, Health::Degraded { .. })
    }

    /// Returns true if an answer or data is overdue and nothing has been received since then.
    #[must_use]
    pub const fn is_unreachable(self) -> bool {
        matches!(self, Health::Unreachable { .. })
    }

    /// Returns true if the address pair currently has a fault, whether or not the peer answers. The path health monitor
    /// probes such subflows itself.
    #[must_use]
    pub const fn has_degraded_address_pair(self) -> bool {
        match self {
            Health::Degraded { cause, .. } => !matches!(cause, AddressPairFault::Fading),
            Health::Unreachable { cause, .. } => {
                matches!(cause, UnreachableCause::DegradedAddressPair)
            }
            Health::Usable => false,
        }
    }
}

impl Display for Health {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.cause() {
            Some(cause) => write!(f, "{} ({cause})", self.path_health()),
            None => self.path_health().fmt(f),
        }
    }
}

/// Reason why a subflow became unreachable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnreachableCause {
    /// Loss recovery's probe timer: an acknowledgment is later than loss recovery allows (with RACK-TLP, RFC 8985: two
    /// round trips). Does not apply if the scheduler relies on the retransmission timer instead
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
    DeliveryError,
    /// The peer opened another subflow by Fast JOIN, because its existing ones had failed.
    FastJoin,
    /// The scheduler requested it (`SchedulerAction::Suspect`).
    Scheduler,
    /// The path health monitor detected a fault on the address pair.
    DegradedAddressPair,
    /// The address pair is no longer degraded, but nothing has been received on this subflow since then.
    NoDataSinceRecovery,
}

impl UnreachableCause {
    /// The cause in words, such as `probe timeout`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            UnreachableCause::ProbeTimeout => "probe timeout",
            UnreachableCause::RetransmissionTimeout => "retransmission timeout",
            UnreachableCause::ReceiveTimer => "receive timer",
            UnreachableCause::UnansweredProbes => "unanswered probes",
            UnreachableCause::UnansweredKeepalives => "unanswered keepalives",
            UnreachableCause::DeliveryError => "delivery error",
            UnreachableCause::FastJoin => "fast join",
            UnreachableCause::Scheduler => "scheduler",
            UnreachableCause::DegradedAddressPair => "degraded address pair",
            UnreachableCause::NoDataSinceRecovery => "no data since recovery",
        }
    }
}

impl Display for UnreachableCause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
