//! Policy kinds, and the errors of policy specs.

use core::fmt;

/// The kinds of policy, and of wrappers around them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Which data on which subflow.
    Scheduler,
    /// Wrapper around a scheduler.
    SchedulerWrapper,
    /// Which subflows exist.
    PathManager,
    /// Congestion control.
    Congestion,
    /// Wrapper around a congestion control.
    CongestionWrapper,
    /// Loss recovery.
    Recovery,
    /// Which path a datagram goes on.
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

/// Nothing of this kind has that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    /// Kind of policy that was requested.
    pub kind: PolicyKind,
    /// The name that is not known.
    pub name: String,
    /// The names that are, sorted.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownPolicy { kind, name, known } = self;
        write!(f, "unknown {kind} `{name}`; known: {}", known.join(", "))
    }
}

impl core::error::Error for UnknownPolicy {}

/// A policy cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// Another one of its kind has the name.
    NameTaken {
        /// What was registered.
        kind: PolicyKind,
        /// The name.
        name: String,
    },
    /// Names are made of lower-case letters, digits and `-`, and begin with a letter.
    BadName {
        /// What was registered.
        kind: PolicyKind,
        /// The name.
        name: String,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::NameTaken { kind, name } => {
                write!(f, "a {kind} named `{name}` is registered already")
            }
            RegisterError::BadName { kind, name } => write!(
                f,
                "`{name}` cannot name a {kind}: use lower-case letters, digits and `-`, and begin \
                 with a letter"
            ),
        }
    }
}

impl core::error::Error for RegisterError {}
