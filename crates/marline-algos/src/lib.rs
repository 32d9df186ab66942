//! Marline's built-in algorithms, one per file, and the registry from which they are chosen.
//!
//! Every algorithm here is a policy in the sense of `marline-policy`: it reads what the core measured and returns
//! decisions. Nothing here depends on packets, sockets or clocks, and the core does not refer to these policies by
//! name. External policies have the same status as built-in ones: register one in a [`Registry`] and choose it by name
//! (docs/research/policies.md). The policies from papers in the crate `marline-research` are registered in this way.
//!
//! | kind | module | default |
//! |---|---|---|
//! | scheduler | [`schedulers`] | `min-rtt` |
//! | path manager | [`path_managers`] | `full-mesh` |
//! | congestion control | [`congestion`], with the slow start from [`slow_start`] | `cubic` |
//! | loss recovery | [`recovery`] | `rack-tlp` |
//! | datagram policy | [`datagrams`] | `auto` |
//!
//! docs/concepts/policy-list.md lists all names with their parameters and defaults.

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
