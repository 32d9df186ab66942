//! Numbers published in the paper.

use serde::Deserialize;

/// Average, worst and standard deviation of round-trip times, ms.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoundTrips {
    pub(super) average: f64,
    pub(super) worst: f64,
    pub(super) sigma: f64,
}

impl RoundTrips {
    /// Values in the order of the paper's table.
    pub(super) const fn columns(&self) -> [f64; 3] {
        [self.average, self.worst, self.sigma]
    }
}

/// The table `[published]` of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    pub(super) wifi: RoundTrips,
    pub(super) lte: RoundTrips,
    pub(super) remp: RoundTrips,
    pub(super) train_lte1: RoundTrips,
    pub(super) train_lte2: RoundTrips,
    pub(super) train_remp: RoundTrips,
    /// Reduction of WiFi's average, percent.
    pub(super) cut_against_wifi: f64,
    /// Reductions of the worst case, percent. The paper says "over" these values.
    pub(super) worst_cut_against_wifi_said: f64,
    pub(super) worst_cut_against_lte_said: f64,
    /// Values from another study that the paper says its measurements confirm.
    pub(super) wifi_loss_percent: f64,
    pub(super) lte_loss_percent: f64,
    pub(super) lte_later_ms: f64,
    /// Average on the train, as a percentage of the better path's.
    pub(super) train_share_left: f64,
}
