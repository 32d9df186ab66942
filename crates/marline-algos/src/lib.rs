//! The algorithms Marline comes with, one file each, and the registry they are chosen from.
//!
//! Everything here is a policy in the sense of `marline-policy`: it reads what the core measured
//! and answers with a decision. Nothing here knows a packet, a socket or a clock, and the core
//! knows none of these names. A policy from outside stands on the same footing as the ones here:
//! register it in a [`Registry`] and choose it by name (docs/research/policies.md). Those of the papers are such
//! policies: they live in the crate `marline-research`.
//!
//! | kind | module | default |
//! |---|---|---|
//! | scheduler | [`schedulers`] | `min-rtt` |
//! | path manager | [`path_managers`] | `full-mesh` |
//! | congestion control | [`congestion`], with the slow start from [`slow_start`] | `cubic` |
//! | loss recovery | [`recovery`] | `rack-tlp` |
//!
//! docs/concepts/policy-list.md has all names with their parameters and defaults.

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
