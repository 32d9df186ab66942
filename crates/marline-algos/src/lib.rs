//! The algorithms Marline comes with, one file each, and the registry they are chosen from.
//!
//! Everything here is a policy in the sense of `marline-policy`: it reads what the core measured
//! and answers with a decision. Nothing here knows a packet, a socket or a clock, and the core
//! knows none of these names. A policy from outside stands on the same footing as the ones here:
//! register it in a [`Registry`] and choose it by name (docs/policies.md).
//!
//! | kind | names |
//! |---|---|
//! | scheduler | `min-rtt` (default), `round-robin`, `redundant` |
//! | path manager | `full-mesh` (default), `backup`, `manual` |
//! | congestion control | `cubic` (default), `reno`; `cubic-classic`, `reno-hystart` swap the slow start |
//! | loss recovery | `rack-tlp` (default), `rack-tlp-rfc` (the RFC's 200 ms peer ACK delay) |

#![forbid(unsafe_code)]

pub mod congestion;
pub mod path_managers;
pub mod recovery;
mod registry;
pub mod schedulers;
pub mod slow_start;

pub use registry::{
    NamedCongestion, NamedPathManager, NamedRecovery, NamedScheduler, ParameterError,
    ParameterInfo, ParameterProblem, Parameters, PolicyError, PolicyKind, RegisterError, Registry,
    UnknownPolicy, default_policies,
};

#[cfg(test)]
mod testing;
