//! Policy kinds, and the errors of policy specs.

use core::fmt;

/// Kinds of policies, and of wrappers around them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Decides which data is sent on which subflow.
    Scheduler,
    /// Wrapper around a scheduler.
    SchedulerWrapper,
    /// Decides which subflows exist.
    PathManager,
    /// Congestion control.
    Congestion,
    /// Wrapper around a congestion control.
    CongestionWrapper,
    /// Loss recovery.
    Recovery,
    /// Decides which path carries each datagram.
    Datagrams,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyKind::Scheduler => "scheduler",
            PolicyKind::SchedulerWrapper => "scheduler wrapper",
            PolicyKind::PathManager => "path manager",
            PolicyKind::Congestion => "congestion control",
            PolicyKind::CongestionWrapper => "congestion control wrapper",
            PolicyKind::Recovery => "loss recovery",
            PolicyKind::Datagrams => "datagram policy",
        })
    }
}

/// Error for a name that no policy of the requested kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    /// Kind of policy that was requested.
    pub kind: PolicyKind,
    /// The unknown name.
    pub name: String,
    /// The known names, sorted.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownPolicy { kind, name, known } = self;
        write!(f, "unknown {kind} `{name}`; known: {}", known.join(", "))
    }
}

impl core::error::Error for UnknownPolicy {}

/// Reason why a policy could not be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// Another policy of this kind has the name.
    NameTaken {
        /// Kind of the registered policy.
        kind: PolicyKind,
        /// Name of the other policy.
        name: String,
    },
    /// The name is invalid: a name consists of lowercase letters, digits and `-`, and begins with a letter.
    BadName {
        /// Kind of the registered policy.
        kind: PolicyKind,
        /// Rejected name.
        name: String,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::NameTaken { kind, name } => {
                write!(f, "a {kind} named `{name}` is already registered")
            }
            RegisterError::BadName { kind, name } => write!(
                f,
                "`{name}` is not a valid name for a {kind}: use lowercase letters, digits and `-`, and begin with a \
                 letter"
            ),
        }
    }
}

impl core::error::Error for RegisterError {}
