//! Policies from the literature: those measured in papers, and baselines for Marline's own policies.
//!
//! The policies are registered through the public API for external policies (docs/research/policies.md) and use shared
//! rules from `marline-algos` ([`classes`](marline_algos::schedulers::classes),
//! [`copies`](marline_algos::schedulers::copies), [`window`](marline_algos::congestion::window)). The command-line
//! program and the lab include them. Programs that use only the library must register them:
//!
//! ```
//! let mut registry = marline_algos::Registry::default();
//! marline_research::register(&mut registry)?;
//! let scheduler = registry.scheduler("lowest-rtt+orp,penalize=paper").expect("known now");
//! assert_eq!(scheduler.name(), "lowest-rtt+orp,penalize=paper");
//! # Ok::<(), marline_algos::RegisterError>(())
//! ```
//!
//! | kind | names |
//! |---|---|
//! | scheduler | `augur`, `blest`, `ecf`, `lamps`, `opportunistic-redundant`, `paaf`, `papd` |
//! | | `peekaboo`, `raven`, `xlink` |
//! | around a scheduler | `fuso`, `orp`, `papd`, `tlp-std`, `tlp-mp`, `xlink` |
//! | path manager | `emptcp` |
//! | congestion control | `lia`, `olia`, `balia` |
//! | around a congestion control | `cap`, `keep-window` |
//! | loss recovery | `rfc6675` |
//!
//! Parameters and defaults are in docs/concepts/policy-list.md.

#![forbid(unsafe_code)]

pub mod congestion;
pub mod path_managers;
pub mod recovery;
mod register;
pub mod schedulers;

#[cfg(test)]
mod properties;

use marline_algos::{RegisterError, Registry};

/// Adds all policies of this crate to a registry.
///
/// # Errors
/// Another policy has one of these names.
pub fn register(registry: &mut Registry) -> Result<(), RegisterError> {
    register::add(registry)
}

/// Returns a registry with the built-in policies and those of this crate.
#[must_use]
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    let added = register(&mut registry);
    debug_assert!(added.is_ok(), "name already used by a built-in policy: {added:?}");
    registry
}
