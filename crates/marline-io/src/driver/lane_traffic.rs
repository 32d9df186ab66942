//! Reports from lanes: datagrams and paths for the application, counters, and the bytes carried on each path, which
//! serve to compare UDP with TCP (`links/fallback/comparing.rs`).
//!
//! Frames that the peer does not acknowledge were lost on the way to it. Of the peer's lost frames, only the numbers
//! are known, not the paths: they are attributed to the path that delivered nearly everything.

use marline_datagram::{FlowId, Lane, LaneStats, PathId};
use marline_time::{Duration, Instant};

use crate::links::{DataDirection, LaneBytes};

/// Maximum number of datagrams handed to an application in one call.
const MAX_DATAGRAM_BATCH: usize = 64;
/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Share of frames, in percent, at or above which a path has delivered nearly everything.
const NEARLY_ALL_PERCENT: u64 = 80;

/// Counters since the last check, and their values at that check.
#[derive(Debug)]
pub(super) struct LaneTraffic {
    checked_at: Instant,
    paths: Vec<PathTraffic>,
    /// Frames that the peer sent, and frames that arrived.
    arrived: (u64, u64),
}

#[derive(Copy, Clone, Debug)]
struct PathTraffic {
    id: PathId,
    sent_bytes: u64,
    arrived_bytes: u64,
    /// Ack-eliciting frames and lost frames at the last check.
    frames: (u64, u64),
}

impl LaneTraffic {
    pub(super) fn new(now: Instant, lane: &Lane) -> Self {
        let on_path = |info: marline_datagram::PathInfo| PathTraffic {
            id: info.id,
            sent_bytes: 0,
            arrived_bytes: 0,
            frames: (info.frames, info.lost_frames),
        };
        let paths = lane.paths(now).map(on_path).collect();
        LaneTraffic { checked_at: now, paths, arrived: lane.arrived_frames() }
    }

    /// Returns true if less than [`CHECK_INTERVAL`] has passed since the last check.
    pub(super) fn is_recent(&self, now: Instant) -> bool {
        now < self.checked_at + CHECK_INTERVAL
    }

    fn path_mut(&mut self, path: PathId) -> Option<&mut PathTraffic> {
        self.paths.iter_mut().find(|on| on.id == path)
    }

    pub(super) fn on_sent(&mut self, path: PathId, bytes: usize) {
        if let Some(on) = self.path_mut(path) {
            on.sent_bytes += bytes as u64;
        }
    }

    pub(super) fn on_arrived(&mut self, path: PathId, bytes: usize) {
        if let Some(on) = self.path_mut(path) {
            on.arrived_bytes += bytes as u64;
        }
    }

    /// Returns what each path has carried so far, in both directions.
    pub(super) fn carried_until(
        &self,
        now: Instant,
        lane: &Lane,
    ) -> Vec<(PathId, DataDirection, LaneBytes)> {
        let mut found = Vec::new();
        for info in lane.paths(now) {
            let Some(on) = self.paths.iter().find(|on| on.id == info.id) else { continue };
            let frames = info.frames.saturating_sub(on.frames.0);
            let lost = share(on.sent_bytes, info.lost_frames.saturating_sub(on.frames.1), frames);
            let up = LaneBytes { delivered: on.sent_bytes - lost, lost };
            found.push((info.id, DataDirection::Up, up));
        }
        let (next, arrived) = lane.arrived_frames();
        let sent = next.saturating_sub(self.arrived.0);
        let came = arrived.saturating_sub(self.arrived.1).min(sent);
        let all: u64 = self.paths.iter().map(|on| on.arrived_bytes).sum();
        for on in &self.paths {
            let is_nearly_all = on.arrived_bytes * 100 >= all * NEARLY_ALL_PERCENT;
            // A missing frame counts with the average size of the frames that arrived.
            let lost =
                if is_nearly_all { (sent - came) * on.arrived_bytes / came.max(1) } else { 0 };
            let down = LaneBytes { delivered: on.arrived_bytes, lost };
            found.push((on.id, DataDirection::Down, down));
        }
        found
    }
}

/// Scales `bytes` by the fraction `part / whole`.
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    (bytes * part.min(whole)).checked_div(whole).unwrap_or_default()
}

/// Counters of a shard's lanes since its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneCounters {
    /// Current number of lanes.
    pub lanes: u64,
    /// Frames received for unknown lanes.
    pub unknown: u64,
    /// Frames received for a lane from an address that no subflow of its connection has validated.
    pub frames_unvalidated: u64,
    /// Frames that were not sent because their path had no address.
    pub unroutable: u64,
    /// Sums over all lanes, including those that have ended.
    pub stats: LaneStats,
}

impl core::ops::AddAssign for LaneCounters {
    fn add_assign(&mut self, other: LaneCounters) {
        self.lanes += other.lanes;
        self.unknown += other.unknown;
        self.frames_unvalidated += other.frames_unvalidated;
        self.unroutable += other.unroutable;
        self.stats += other.stats;
    }
}

/// Side that numbers the paths of a lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PathNumbers {
    /// This side: each established subflow is a path, which [`Arrivals::paths`] reports.
    Local,
    /// The peer, which assigns a number to each ([`Datagrams::add_path`](super::Datagrams::add_path)). The oldest
    /// subflow is number 0 until the peer reassigns it.
    Peers,
}

/// Path that this side has numbered and must announce to the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NamedPath {
    /// Number of the path.
    pub path: PathId,
    /// The peer's id of the subflow.
    pub peer_flow: u64,
}

/// Data received on a lane, in memory that can be reused.
#[derive(Debug, Default)]
pub struct Arrivals {
    bytes: Vec<u8>,
    datagrams: Vec<(FlowId, usize)>,
    paths: Vec<NamedPath>,
    needs_replacement: bool,
    silent: bool,
}

impl Arrivals {
    /// Returns the datagrams in order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = (FlowId, &[u8])> {
        let mut start = 0;
        self.datagrams.iter().map(move |(flow, end)| {
            let payload = &self.bytes[core::mem::replace(&mut start, *end)..*end];
            (*flow, payload)
        })
    }

    /// Paths that this side has numbered and must announce to the peer.
    #[must_use]
    pub fn paths(&self) -> &[NamedPath] {
        &self.paths
    }

    /// Returns true if only an eighth of the key's usage limit is left, or if too many forged frames have failed with
    /// it. A new lane is needed then.
    #[must_use]
    pub const fn needs_replacement(&self) -> bool {
        self.needs_replacement
    }

    /// Returns true if a path became silent. The peer may be gone, or a NAT may have assigned a new address.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.silent
    }

    /// Returns true if there is nothing to report.
    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
            && self.paths.is_empty()
            && !self.needs_replacement
            && !self.silent
    }

    /// Adds paths that this side has numbered.
    pub(super) fn add_paths(&mut self, paths: &mut Vec<NamedPath>) {
        self.paths.append(paths);
    }

    pub(super) fn push(&mut self, flow: FlowId, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.datagrams.push((flow, self.bytes.len()));
    }

    /// Returns true if no more datagrams fit into one call.
    pub(super) fn is_full(&self) -> bool {
        self.datagrams.len() >= MAX_DATAGRAM_BATCH
    }

    pub(super) const fn set_spent(&mut self) {
        self.needs_replacement = true;
    }

    pub(super) const fn set_silent(&mut self) {
        self.silent = true;
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.datagrams.clear();
        self.paths.clear();
        (self.needs_replacement, self.silent) = (false, false);
    }
}

/// Path of a lane, and its subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct LanePath {
    pub(crate) id: PathId,
    /// Our id of the subflow.
    pub(crate) flow: u64,
}
