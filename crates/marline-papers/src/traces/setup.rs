//! Setup of links and runs: the table `[published]` of the file.

use serde::Deserialize;

/// The file.
pub(super) const TEXT: &str = include_str!("../../../../papers/traces.toml");

/// How links and runs are made.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    pub(super) seconds: u32,
    pub(super) goodput_seconds: u32,
    pub(super) warm_up_seconds: u32,
    pub(super) echo: Pace,
    pub(super) burst: Pace,
    pub(super) ping_link: String,
    pub(super) train_link: String,
    pub(super) more: Vec<More>,
    pub(super) recording: Vec<Recording>,
}

/// A way to use the paths besides the schedulers of the registry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct More {
    pub(super) name: String,
    pub(super) scheduler: String,
    pub(super) congestion: Option<String>,
}

/// Messages of one size at one pace.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pace {
    pub(super) bytes: u32,
    pub(super) every_ms: u32,
}

/// A trace of a link's rate, and what else its link has.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recording {
    pub(super) trace: String,
    pub(super) link: String,
}
