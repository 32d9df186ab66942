//! Facts that the machine tells a lane: paths that come and go, what they cost, what does not
//! pass; and the time.

use marline_policy::{FlowClass, PathCost, PathId};
use marline_time::{Duration, Instant};

use super::{FlowId, Lane};
use crate::path::{Outcome, Path};

impl Lane {
    /// A path is there. Both ends call it by the same number: that of the session's subflow on it. Whether it was
    /// added: not if there is one of that number, the number is above 31, or there are too many.
    pub fn add_path(&mut self, id: PathId, now: Instant) -> bool {
        let limits = &self.config.limits;
        if id.0 > 31 || self.paths.len() >= limits.paths {
            return false;
        }
        let Err(at) = self.paths.binary_search_by_key(&id, Path::id) else { return false };
        let bounds = (limits.outstanding, self.config.frame_bytes);
        let path = Path::new(id, &*self.config.congestion, bounds, now);
        self.paths.insert(at, path);
        true
    }

    /// A path is gone. What waited for it goes elsewhere.
    pub fn remove_path(&mut self, id: PathId, now: Instant) {
        let Ok(at) = self.paths.binary_search_by_key(&id, Path::id) else { return };
        let mut path = self.paths.remove(at);
        while let Some(waiting) = path.queues().take_any() {
            self.route_again(waiting, now);
        }
    }

    /// Whether either side has marked a path as a backup, and what using it costs.
    pub fn set_path_cost(&mut self, id: PathId, backup: bool, cost: PathCost) {
        if let Some(path) = self.path_mut(id) {
            (path.traits().backup, path.traits().cost) = (backup, cost);
        }
    }

    /// The machine says that a path will soon be gone, or no longer says so.
    pub fn set_path_fading(&mut self, id: PathId, fading: bool) {
        if let Some(path) = self.path_mut(id) {
            path.traits().fading = fading;
        }
    }

    /// Others probe a path while it is silent, and report an answer ([`on_path_answer`](Self::on_path_answer)): it need
    /// not be asked as often.
    pub fn set_path_probed(&mut self, id: PathId, is_probed: bool) {
        if let Some(path) = self.path_mut(id) {
            path.traits().is_probed = is_probed;
        }
    }

    /// Something that others sent on a path was answered: if it is silent, it is asked at once.
    pub fn on_path_answer(&mut self, id: PathId) {
        if let Some(path) = self.path_mut(id).filter(|path| path.health().is_silent()) {
            path.ask();
        }
    }

    /// The paths on which nothing is answered.
    pub fn silent_paths(&self) -> impl Iterator<Item = PathId> {
        self.paths.iter().filter(|path| path.health().is_silent()).map(Path::id)
    }

    /// Nothing passes on a path: an ICMP error that quotes a frame of ours, or an interface that is gone.
    pub fn set_path_unreachable(&mut self, id: PathId, now: Instant) {
        if let Ok(at) = self.paths.binary_search_by_key(&id, Path::id) {
            let silent = self.paths[at].on_unreachable(now);
            self.apply(at, Outcome { silent, ..Outcome::default() }, now);
        }
    }

    /// A path takes no frames larger than so many bytes of UDP payload: an ICMP error that quotes a frame of ours,
    /// or the socket's.
    pub fn set_path_mtu(&mut self, id: PathId, frame_bytes: u16, now: Instant) {
        if let Ok(at) = self.paths.binary_search_by_key(&id, Path::id) {
            let mtu_changed = self.paths[at].mtu().on_too_big(frame_bytes, now);
            self.apply(at, Outcome { mtu_changed, ..Outcome::default() }, now);
        }
    }

    /// A stream of the session saw this round trip on the path.
    pub fn on_stream_rtt(&mut self, id: PathId, rtt: Duration, now: Instant) {
        if let Some(path) = self.path_mut(id) {
            path.on_stream_sample(rtt, now);
        }
    }

    /// The application knows what a flow is; it is not judged by its rate.
    pub fn set_flow_class(&mut self, flow: FlowId, class: FlowClass, now: Instant) {
        self.flows.tell(now, flow.0, class);
    }
}

/// Time.
impl Lane {
    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.closed || self.next_number >= self.packets_at_most() {
            return None;
        }
        // Whether datagrams are being sent when the time has come.
        let times = self.paths.iter().flat_map(|path| {
            let explores = self.policy.explores_every().and_then(|every| path.explore_at(every));
            let asks = path.next_timeout(true).filter(|at| *at < self.active_until);
            let explores = explores.filter(|at| *at < self.active_until);
            [asks, path.next_timeout(false), path.opens_at(), explores]
        });
        times.flatten().chain(self.coding.ends_at()).min()
    }

    /// Tells that the process did not run for a while, which the driver's clock has left out
    /// ([`ProcessClock`](marline_time::ProcessClock)): no round trip or rate is measured from what is on its way now.
    /// To be called before anything that has arrived meanwhile is handled.
    pub fn note_pause(&mut self) {
        self.paths.iter_mut().for_each(Path::note_pause);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let active = now < self.active_until;
        self.halves.expire(now);
        for at in 0..self.paths.len() {
            let outcome = self.paths[at].on_timeout(active, now);
            self.apply(at, outcome, now);
            if active && let Some(every) = self.policy.explores_every() {
                self.paths[at].explore(every, now);
            }
        }
    }
}
