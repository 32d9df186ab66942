//! Numbers published on the slides.

use marline_time::Duration;
use serde::Deserialize;

/// The table `[published]` of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    pub(super) large_buffer: Vec<Cell>,
    pub(super) small_buffer: Vec<Cell>,
    pub(super) mobile: Vec<Scenario>,
}

/// A row of the two tables.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cell {
    pub(super) rtt_ms: [f64; 2],
    pub(super) loss: [f64; 2],
    pub(super) min_rtt: f64,
    pub(super) papd: f64,
    pub(super) best: f64,
}

/// A mobile scenario. RTTs are minimum, mean, maximum.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) wifi_rtt_ms: [f64; 3],
    pub(super) wifi_loss: f64,
    pub(super) lte_rtt_ms: [f64; 3],
    pub(super) lte_loss: f64,
}

/// Duration of a number of milliseconds.
pub(super) fn ms(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6) as u64)
}
