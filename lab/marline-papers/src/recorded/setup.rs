//! Setup of the links and runs: the table `[published]` of the file.

use serde::Deserialize;

/// Text of the paper file.
pub(crate) const TEXT: &str = include_str!("../../papers/traces.toml");

/// Configuration of the links and runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    pub(crate) seconds: u32,
    pub(crate) goodput_seconds: u32,
    pub(crate) warm_up_seconds: u32,
    pub(crate) echo: Pace,
    pub(crate) burst: Pace,
    pub(crate) ping_link: String,
    pub(crate) train_link: String,
    pub(crate) more: Vec<ExtraVariant>,
    pub(crate) recording: Vec<Recording>,
}

/// A policy combination, in addition to the schedulers of the registry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtraVariant {
    pub(crate) name: String,
    pub(crate) scheduler: String,
    pub(crate) congestion: Option<String>,
}

/// Messages of one size at one rate.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pace {
    pub(crate) bytes: u32,
    pub(crate) every_ms: u32,
}

/// Trace of a link's rate, and the link's other properties.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recording {
    pub(crate) trace: String,
    pub(crate) link: String,
}
