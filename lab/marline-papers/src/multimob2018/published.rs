//! Numbers published in the paper.

use serde::Deserialize;

/// The table `[published]` of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    /// The shortest receive timer, ms.
    pub(super) receive_timer_ms: f64,
    /// Round trips saved by data on the SYN.
    pub(super) fast_join_rtts: f64,
}
