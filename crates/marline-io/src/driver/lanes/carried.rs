//! Bytes that a lane carried on each of its paths, for the comparison of UDP with TCP
//! (`links/fallback/comparing.rs`).
//!
//! Frames that the peer does not acknowledge were lost on the way to it. For the peer's frames, only the missing
//! numbers are known and not their paths: they are attributed to the path that delivered nearly everything.

use marline_datagram::{Lane, PathId};
use marline_time::{Duration, Instant};

use super::Lanes;
use crate::links::{DataDirection, LaneBytes};

/// Interval between two checks.
const LOOK: Duration = Duration::from_millis(500);
/// Share, in percent, from which a path counts as having delivered nearly everything.
const NEARLY_ALL_PERCENT: u64 = 80;

/// Counters since the last check, and their values at that time.
#[derive(Debug)]
pub(super) struct Carried {
    looked_at: Instant,
    paths: Vec<OnPath>,
    /// Frames that the peer sent, and frames that arrived.
    arrived: (u64, u64),
}

#[derive(Copy, Clone, Debug)]
struct OnPath {
    id: PathId,
    sent_bytes: u64,
    arrived_bytes: u64,
    /// Ack-eliciting frames and lost frames at the last check.
    frames: (u64, u64),
}

impl Carried {
    fn new(now: Instant, lane: &Lane) -> Self {
        let on_path = |info: marline_datagram::PathInfo| OnPath {
            id: info.id,
            sent_bytes: 0,
            arrived_bytes: 0,
            frames: (info.frames, info.lost_frames),
        };
        let paths = lane.paths(now).map(on_path).collect();
        Carried { looked_at: now, paths, arrived: lane.arrived_frames() }
    }

    fn on(&mut self, path: PathId) -> Option<&mut OnPath> {
        self.paths.iter_mut().find(|on| on.id == path)
    }

    pub(super) fn on_sent(&mut self, path: PathId, bytes: usize) {
        if let Some(on) = self.on(path) {
            on.sent_bytes += bytes as u64;
        }
    }

    pub(super) fn on_arrived(&mut self, path: PathId, bytes: usize) {
        if let Some(on) = self.on(path) {
            on.arrived_bytes += bytes as u64;
        }
    }

    /// Returns what each path carried until now, in both directions.
    fn until(&self, now: Instant, lane: &Lane) -> Vec<(PathId, DataDirection, LaneBytes)> {
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
            // A missing frame counts as many bytes as the average frame that arrived.
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

impl Lanes {
    /// Takes what a lane carried since the last check, by our ids of its subflows. Returns nothing if that check was
    /// recent.
    pub(in super::super) fn take_carried(
        &mut self,
        id: u64,
        now: Instant,
    ) -> Vec<(u64, DataDirection, LaneBytes)> {
        let Some(entry) = self.entries.get_mut(&id) else { return Vec::new() };
        if entry.carried.as_ref().is_some_and(|carried| now < carried.looked_at + LOOK) {
            return Vec::new();
        }
        let next = Carried::new(now, &entry.lane);
        let Some(last) = entry.carried.replace(next) else { return Vec::new() };
        let flow = |id: PathId| Some(entry.paths.iter().find(|path| path.id == id)?.flow);
        let carried = last.until(now, &entry.lane).into_iter();
        carried.filter_map(|(id, heading, bytes)| Some((flow(id)?, heading, bytes))).collect()
    }
}
