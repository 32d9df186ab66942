//! The embedded default: Marline beside single paths over emulated links of the same kind, while
//! one of them dies and returns. Everything runs as a user would run it: `marline server` and
//! `marline client` as processes of this very program, applications through SOCKS5, the links as
//! in `marline link`. See docs/start/demo.md for what the figures mean.

pub mod application;
mod child;
pub mod content;
pub mod origin;
pub mod outcome;
mod progress;
pub mod scene;
mod stage;

#[cfg(test)]
mod tests;

pub(crate) use child::DIE_WITH_PARENT;
pub use scene::Scene;
pub use stage::perform;
