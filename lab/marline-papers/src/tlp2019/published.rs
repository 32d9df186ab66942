//! Numbers published in the paper.

use serde::Deserialize;

/// The table `[published]` of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    pub(super) docs_least_saving_ms: f64,
    pub(super) docs_largest_share: f64,
    pub(super) lone_probe_ms: f64,
    pub(super) probe_rtts: f64,
}
