//! Marline's built-in algorithms, one file each, and the registry they are chosen from.
//!
//! Everything here is a policy in the sense of `marline-policy`: it reads what the core measured
//! and answers with a decision. Nothing here depends on packets, sockets or clocks, and the core
//! does not refer to these policies by name. External policies are on the same footing as the
//! built-in ones: register one in a [`Registry`] and choose it by name (docs/research/policies.md). The
//! policies of the papers are of this kind; they are in the crate `marline-research`.
//!
//! | kind | module | default |
//! |---|---|---|
//! | scheduler | [`schedulers`] | `min-rtt` |
//! | path manager | [`path_managers`] | `full-mesh` |
//! | congestion control | [`congestion`], with the slow start from [`slow_start`] | `cubic` |
//! | loss recovery | [`recovery`] | `rack-tlp` |
//! | datagram policy | [`datagrams`] | `auto` |
//!
//! docs/concepts/policy-list.md has all names with their parameters and defaults.

#![forbid(unsafe_code)]

mod budget;
pub mod congestion;
pub mod datagrams;
pub mod path_managers;
pub mod recovery;
mod registry;
pub mod schedulers;
pub mod slow_start;

pub use registry::{
    NamedCongestion, NamedDatagramPolicy, NamedPathManager, NamedRecovery, NamedScheduler,
    ParameterError, ParameterInfo, ParameterProblem, Parameters, PolicyError, PolicyKind,
    RegisterError, Registry, UnknownPolicy, default_policies, reference_policies,
};
