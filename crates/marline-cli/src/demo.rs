//! Demonstration of failover: Marline compared with single paths over emulated links of the same kind, one of which
//! fails and returns. Everything runs as it would for a user: `marline server` and `marline client` as processes of
//! this program, applications through SOCKS5, the links as in `marline-lab link`. docs/start/demo.md explains the
//! results.

pub mod application;
mod child;
pub mod columns;
pub mod content;
pub mod origin;
pub mod outcome;
pub mod plan;
mod progress;
mod run;
pub mod verdict;

#[cfg(test)]
mod tests;

pub(crate) use child::DIE_WITH_PARENT;
pub use plan::DemoPlan;
pub use run::run_demo;
