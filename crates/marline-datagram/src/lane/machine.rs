//! Input from the machine to a lane: paths that appear and disappear, their costs, frame sizes that do not pass, and
//! the time.

use marline_policy::{FlowClass, PathCost, PathId};
use marline_time::Instant;

use super::{FlowId, Lane};
use crate::path::{Outcome, Path};

impl Lane {
    /// Adds a path. Both ends use the same number: the number of the session's subflow on the path. Returns false if a
    /// path with that number exists, the number is above 31, or there are too many paths.
    pub fn add_path(&mut self, id: PathId, now: Instant) -> bool {
        let limits = &self.config.limits;
        if id.0 > 31 || self.paths.len() >= limits.paths {
            return false;
        }
        let Err(at) = self.paths.binary_search_by_key(&id, Path::id) else { return false };
        let path = Path::new(id, &self.config, now);
        self.paths.insert(at, path);
        true
    }

    /// Removes a path. Datagrams that waited for it are moved to other paths.
    pub fn remove_path(&mut self, id: PathId, now: Instant) {
        let Ok(at) = self.paths.binary_search_by_key(&id, Path::id) else { return };
        let mut path = self.paths.remove(at);
        while let Some(waiting) = path.queues().take_any() {
            self.choose_path_again(waiting, now);
        }
    }

    /// Sets the cost of using a path, and whether either side has marked it as a backup.
    pub fn set_path_cost(&mut self, id: PathId, backup: bool, cost: PathCost) {
        if let Some(path) = self.path_mut(id) {
            (path.facts().backup, path.facts().cost) = (backup, cost);
        }
    }

    /// Sets whether the machine expects a path to disappear soon.
    pub fn set_path_fading(&mut self, id: PathId, fading: bool) {
        if let Some(path) = self.path_mut(id) {
            path.facts().fading = fading;
        }
    }

    /// Sets whether other components probe a path while it is unreachable and report its answers
    /// ([`on_path_answer`](Self::on_path_answer)). The lane then probes it less often.
    pub fn set_path_probed(&mut self, id: PathId, is_probed: bool) {
        if let Some(path) = self.path_mut(id) {
            path.facts().is_probed = is_probed;
        }
    }

    /// Reports that other traffic on a path was answered. If the path is unreachable, the lane probes it immediately.
    pub fn on_path_answer(&mut self, id: PathId) {
        if let Some(path) = self.path_mut(id).filter(|path| path.health().is_unreachable()) {
            path.request_probe();
        }
    }

    /// Paths on which frames are no longer acknowledged.
    pub fn unreachable_paths(&self) -> impl Iterator<Item = PathId> {
        self.paths.iter().filter(|path| path.health().is_unreachable()).map(Path::id)
    }

    /// Reports that nothing passes on a path, according to an ICMP error that quotes one of our frames, or because an
    /// interface is gone.
    pub fn set_path_unreachable(&mut self, id: PathId, now: Instant) {
        if let Ok(at) = self.paths.binary_search_by_key(&id, Path::id) {
            let unreachable = self.paths[at].on_unreachable(now);
            self.apply_outcome(at, Outcome { unreachable, ..Outcome::default() }, now);
        }
    }

    /// Reports that a path does not pass frames with more than this UDP payload, in bytes, according to the socket or
    /// an ICMP error that quotes one of our frames.
    pub fn set_path_mtu(&mut self, id: PathId, frame_bytes: u16, now: Instant) {
        if let Ok(at) = self.paths.binary_search_by_key(&id, Path::id) {
            let mtu_changed = self.paths[at].mtu().on_too_big(frame_bytes, now);
            self.apply_outcome(at, Outcome { mtu_changed, ..Outcome::default() }, now);
        }
    }

    /// Sets the class of a flow, instead of deriving it from the flow's rate.
    pub fn set_flow_class(&mut self, flow: FlowId, class: FlowClass, now: Instant) {
        self.flows.set_class(now, flow.0, class);
    }
}

/// Timers.
impl Lane {
    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.closed || self.next_number >= self.max_packets() {
            return None;
        }
        // This includes timers that apply only while datagrams are being sent.
        let times = self.paths.iter().flat_map(|path| {
            let explores =
                self.policy.exploration_interval().and_then(|every| path.explore_at(every));
            let asks = path.next_timeout(true).filter(|at| *at < self.active_until);
            let explores = explores.filter(|at| *at < self.active_until);
            [asks, path.next_timeout(false), path.next_send_at(), explores]
        });
        times.flatten().chain(self.coding.ends_at()).min()
    }

    /// Reports that the process was suspended for some time, which the driver's clock excludes
    /// ([`ProcessClock`](marline_time::ProcessClock)): no round trip or rate is measured from frames now in transit.
    /// Must be called before handling frames that arrived in the meantime.
    pub fn record_pause(&mut self) {
        self.paths.iter_mut().for_each(Path::record_pause);
    }

    /// Handles due timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        let active = now < self.active_until;
        self.halves.expire(now);
        for at in 0..self.paths.len() {
            let outcome = self.paths[at].on_timeout(active, now);
            self.apply_outcome(at, outcome, now);
            if active && let Some(every) = self.policy.exploration_interval() {
                self.paths[at].explore(every, now);
            }
        }
    }
}
