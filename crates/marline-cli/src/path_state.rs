//! State of a path as `marline status` shows it, with its reason.

pub use marline_dashboard::PathState;
use marline_dashboard::PathSummary;
use serde::Serialize;

use crate::control::protocol::{Connection, Path, Quota};
use crate::path_summary::{summarise, summarise_listening};
use crate::path_table::radio;

/// One path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathStatus {
    /// As configured, or its interface.
    pub name: String,
    /// What it is good for.
    pub state: PathState,
    /// Why it is not usable, or what it is besides.
    pub reason: Option<String>,
    /// Its address.
    pub local: Option<String>,
    /// Used only while no other works.
    pub backup: bool,
    /// Milliseconds since a server's last answer.
    pub heard_ms: Option<u64>,
    /// Smoothed round trip of the subflow that is fastest now, microseconds.
    pub srtt_us: Option<u64>,
    /// Share of the bytes that were sent again, by the open connections.
    pub retransmitted: Option<f64>,
    /// Bytes of the open connections: sent.
    pub bytes_sent: u64,
    /// Of those, repeated on the same path.
    pub bytes_repeated: u64,
    /// Of those, copies of what another path had carried.
    pub bytes_copied: u64,
    /// Received.
    pub bytes_received: u64,
    /// Of those, here before.
    pub bytes_duplicate: u64,
    /// Its quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// What its radio drew, in words.
    pub radio: Option<String>,
}

/// What a client's path is good for, and what these connections did there.
#[must_use]
pub fn of_path(path: &Path, connections: &[Connection]) -> PathStatus {
    shown(path, summarise(path, connections))
}

/// The same of an address at which a server listens: several rows where that is all of its addresses.
#[must_use]
pub fn of_listening(path: &Path, connections: &[Connection]) -> Vec<PathStatus> {
    let rows = summarise_listening(path, connections);
    rows.into_iter().map(|summary| shown(path, summary)).collect()
}

fn shown(path: &Path, summary: PathSummary) -> PathStatus {
    let share = |again: u64| again as f64 / summary.bytes_sent as f64;
    PathStatus {
        retransmitted: (summary.bytes_sent > 0).then(|| share(summary.bytes_repeated)),
        quota: path.quota.clone(),
        radio: path.radio.as_ref().map(radio),
        name: summary.name,
        state: summary.state,
        reason: summary.reason,
        local: summary.local,
        backup: summary.backup,
        heard_ms: summary.heard_ms,
        srtt_us: summary.srtt_us,
        bytes_sent: summary.bytes_sent,
        bytes_repeated: summary.bytes_repeated,
        bytes_copied: summary.bytes_copied,
        bytes_received: summary.bytes_received,
        bytes_duplicate: summary.bytes_duplicate,
    }
}
