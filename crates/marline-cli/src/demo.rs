//! The embedded default: Marline beside single paths over emulated links of the same kind, while
//! one of them dies and returns. Everything runs as a user would run it: `marline server` and
//! `marline client` as processes of this very program, applications through SOCKS5, the links as
//! in `marline link`. See docs/demo.md for what the figures mean.

pub mod application;
mod child;
pub mod content;
pub mod origin;
pub mod outcome;
pub mod plan;
mod progress;
mod run;

#[cfg(test)]
mod tests;

pub(crate) use child::DIE_WITH_PARENT;
pub use plan::DemoPlan;
pub use run::perform;
