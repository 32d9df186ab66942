//! The four curves with acceptance criteria, beside their published values.

use serde::Deserialize;

use super::curves::{Curve, Sample};

/// Peaks of one plot, ms; left out: not at hand, or outside of it.
#[derive(Copy, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct At {
    /// Jitter of the 3G link.
    pub(super) jitter_ms: u32,
    /// TCP over WiFi.
    pub(super) wifi_ms: Option<f64>,
    /// Multipath TCP with M1 and M2.
    pub(super) both_ms: Option<f64>,
    /// Multipath TCP without.
    pub(super) none_ms: Option<f64>,
    /// TCP over 3G.
    pub(super) cellular_ms: Option<f64>,
}

pub(super) const WIFI: Curve = Curve::alone("TCP WiFi", "wifi");
pub(super) const CELLULAR: Curve = Curve::alone("TCP 3G", "3g");
pub(super) const NONE: Curve = Curve::with("MPTCP, no M", "lowest-rtt");
pub(super) const BOTH: Curve = Curve::with("MPTCP, M1+M2", "lowest-rtt+orp,retransmit=wide");

/// The four curves at one jitter.
pub(super) struct Four {
    pub(super) at: At,
    pub(super) wifi: Sample,
    pub(super) both: Sample,
    pub(super) none: Sample,
    pub(super) cellular: Sample,
}
