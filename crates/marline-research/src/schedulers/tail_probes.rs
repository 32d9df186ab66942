//! Tail loss probes across subflows: TLP-MP and TLP-STD (Yedugundla et al., IFIP Networking 2017; with cloud traffic,
//! 2019).
//!
//! *Problem.* A tail loss probe (`marline_algos::recovery::Tlp`) is sent on the path of the lost segment. If that path
//! has failed, the probe is also lost, and the stack used in the studies copies data to another subflow only when the
//! retransmission timer fires, a full timeout after the probe. A lone segment waits for two timeouts, because the probe
//! itself is sent nearly as late.
//!
//! *How.* A wrapper around any scheduler. When a subflow's probe retransmits its last segment, this segment is
//! reinjected on every other subflow that is established and healthy and did not carry it, ahead of new data. If a
//! subflow's window is full, the copy waits for room until the data is acknowledged or the original receives a segment
//! again. Backups are used only if there is no regular subflow. The copy occupies that subflow's sequence space and
//! window like any other data, and is not repeated for later probes during this silence. What follows depends on
//! `after`:
//! - [`SilentOriginalAction::Reinject`]: if the copy is acknowledged while nothing has been received on the original
//!   subflow since the probe, the original is considered dead. New data avoids it, and its data is sent on the others
//!   in order. It is used again once a segment arrives on it.
//! - [`SilentOriginalAction::Rto`]: the rest waits for the original's retransmission timer.
//!
//! [`TailProbes::standard`] is TLP-STD: no copies, and no suspicion before the timer fires.
//!
//! *Left open by the authors, and chosen.* The papers do not say how packets lost before the probed one are
//! retransmitted "faster than the original"; `after` implements both readings. They do not mention full windows: after
//! an idle restart a large burst fills both windows, and without the wait there would be no copy. The handling of more
//! than two subflows, backups, and a second probe is described above. If new data waits, the probe still retransmits
//! the last segment
//! while there is a healthy subflow, because new data is sent on that subflow immediately and needs no probe.
//!
//! *Differences from our default.* Without this wrapper, one unanswered probe timeout is enough to send all data of the
//! subflow elsewhere (`probe_patience`). This is sooner, at the cost of repeating data that was only late.
//!
//! *p99 of a small message* on a path that fails: the probe timeout plus the other path's delay.

use marline_policy::{
    DataRange, Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

/// Reaction if a copy was acknowledged but the original subflow is silent.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum SilentOriginalAction {
    /// The original is considered dead, and its data is sent on other subflows.
    #[default]
    Reinject,
    /// The rest waits for the original's retransmission timer.
    Rto,
}

/// Probe of a subflow, and its copies.
#[derive(Copy, Clone, Debug)]
struct Episode {
    probed: DataRange,
    at: Instant,
    /// Subflows on which the copy has not yet been sent.
    pending: SubflowSet,
    /// Subflows chosen for the copy.
    copies: SubflowSet,
}

/// Scheduler wrapper that reacts to tail loss probes.
#[derive(Debug)]
pub struct TailProbes {
    base: Box<dyn Scheduler>,
    /// Reaction to a silent original; `None` for TLP-STD.
    after: Option<SilentOriginalAction>,
    /// Episodes by probed subflow.
    episodes: [Option<Episode>; SubflowSet::CAPACITY as usize],
    /// Number of open episodes.
    open: usize,
}

impl TailProbes {
    /// TLP-MP: probes are copied to all subflows.
    #[must_use]
    pub fn across_paths(base: Box<dyn Scheduler>, after: SilentOriginalAction) -> Self {
        Self::new(base, Some(after))
    }

    /// TLP-STD: probes only on the segment's own subflow, and reinjection when the retransmission timer fires.
    #[must_use]
    pub fn standard(base: Box<dyn Scheduler>) -> Self {
        Self::new(base, None)
    }

    const fn new(base: Box<dyn Scheduler>, after: Option<SilentOriginalAction>) -> Self {
        const NONE: Option<Episode> = None;
        TailProbes { base, after, episodes: [NONE; SubflowSet::CAPACITY as usize], open: 0 }
    }

    fn end(&mut self, id: SubflowId) {
        let slot = &mut self.episodes[usize::from(id.0 % SubflowSet::CAPACITY)];
        self.open -= usize::from(slot.take().is_some());
    }

    /// Ends episodes whose subflow has received a segment or is gone. Delivery of the data does not end an episode,
    /// because the silence of the original must still be judged.
    fn end_answered_episodes(&mut self, cx: &SchedulerContext<'_>) {
        for slot in 0..SubflowSet::CAPACITY {
            let id = SubflowId(slot);
            let Some(episode) = self.episodes[usize::from(slot)] else { continue };
            let silent = |view: &SubflowView| view.is_active() && view.last_rx_at <= episode.at;
            if !cx.subflow(id).is_some_and(silent) {
                self.end(id);
            }
        }
    }

    fn on_probe(&mut self, on: SubflowId, range: DataRange, cx: &SchedulerContext<'_>) {
        self.end_answered_episodes(cx);
        let slot = usize::from(on.0 % SubflowSet::CAPACITY);
        let carried = cx.mappings.mapping_at(range.start).map(|mapping| mapping.carried_by);
        // An open episode already has its copies, and DATA_ACKed data needs none.
        let (None, Some(carried)) = (self.episodes[slot], carried) else { return };
        let targets = |backup: bool| {
            let mut set = SubflowSet::EMPTY;
            let fit = |view: &&SubflowView| {
                view.backup == backup
                    && view.id != on
                    && can_carry(view)
                    && !carried.contains(view.id)
            };
            cx.subflows.iter().filter(fit).for_each(|view| set.insert(view.id));
            set
        };
        let regular = |view: &&SubflowView| view.id != on && !view.backup && can_carry(view);
        let copies = targets(!cx.subflows.iter().any(|view| regular(&view)));
        if !copies.is_empty() {
            self.episodes[slot] =
                Some(Episode { probed: range, at: cx.now, pending: copies, copies });
            self.open += 1;
        }
    }

    /// Returns the next copy to send, if its subflow has room now.
    fn next_copy(&mut self, cx: &SchedulerContext<'_>) -> Option<Decision> {
        for episode in self.episodes.iter_mut().flatten() {
            for id in episode.pending.iter() {
                let from = episode.probed.start.max(cx.data_una);
                let left = cx.mappings.next_not_on(id, from);
                let left = left.map(|mapping| mapping.range.intersection(&episode.probed));
                let view = cx.subflow(id).filter(|view| can_carry(view));
                match (left.filter(|range| !range.is_empty()), view) {
                    (Some(range), Some(view)) if view.is_ready() => {
                        return Some(Decision::Send { subflow: id, range });
                    }
                    // The pacer will soon allow it, or the window will have room.
                    (Some(_), Some(_)) => {}
                    _ => episode.pending.remove(id),
                }
            }
        }
        None
    }

    /// Handles delivery of data on a subflow: checks whether it was a copy whose original is still silent.
    fn on_acked(
        &mut self,
        on: SubflowId,
        range: DataRange,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.end_answered_episodes(cx);
        for slot in 0..SubflowSet::CAPACITY {
            let answered = self.episodes[usize::from(slot)].is_some_and(|episode| {
                episode.copies.contains(on) && !episode.probed.intersection(&range).is_empty()
            });
            if answered {
                self.end(SubflowId(slot));
                if self.after == Some(SilentOriginalAction::Reinject) {
                    out.push(SchedulerAction::Suspect(SubflowId(slot)));
                }
            }
        }
    }
}

/// Returns true if the subflow can carry a copy, now or once its window or pacer allows it.
fn can_carry(view: &SubflowView) -> bool {
    view.is_active() && view.health.is_usable()
}

impl Scheduler for TailProbes {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if self.open > 0
            && let Some(copy) = self.next_copy(cx)
        {
            return copy;
        }
        self.base.next_send(cx)
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        self.base.next_reinjection(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.base.on_event(event, cx, out);
        match event {
            SchedulerEvent::ProbeRepeated { on, range } if self.after.is_some() => {
                self.on_probe(on, range, cx);
            }
            SchedulerEvent::Acked { on, range } if self.open > 0 => {
                self.on_acked(on, range, cx, out);
            }
            // After either event, the outcome of the copy is no longer needed.
            SchedulerEvent::SubflowDown(id) | SchedulerEvent::SubflowRto(id) => self.end(id),
            _ => {}
        }
    }

    fn probe_patience(&self) -> Option<Duration> {
        None
    }

    fn watches_acks(&self) -> bool {
        self.open > 0 || self.base.watches_acks()
    }

    fn watches_delivery(&self) -> bool {
        self.base.watches_delivery()
    }

    fn watches_losses(&self) -> bool {
        self.base.watches_losses()
    }
}

#[cfg(test)]
mod tests;
