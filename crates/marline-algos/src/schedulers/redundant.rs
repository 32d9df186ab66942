//! Redundant scheduler: sends every byte on every path, as far as each path can keep up.
//!
//! *Problem.* A small message must arrive soon even if one of the paths stalls, and it is unknown which path will. Sent
//! on all paths, it takes the minimum of their delays, and the failure of one path does not delay it.
//!
//! *How.* No subflow distinguishes new data from old. Each goes through the whole stream with its own cursor, as fast
//! as its window allows: first the data that is not DATA_ACKed, then the unsent data. So the fastest subflow sends the
//! new data first. A slower one follows and repeats it. When the data at its cursor has been DATA_ACKed, the cursor
//! jumps to the oldest data that has not. So the slow path never repeats data that has arrived, throughput is that of
//! the best path (on one path it is plain TCP), and the tail of a message is always on all paths, because the cursor
//! does not depend on whether anything follows.
//!
//! Backups never carry copies, because they may be metered. If no regular subflow is usable, a backup carries new data
//! (and the data of the lost paths is reinjected).
//!
//! *Source.* The cursor scheduler of the out-of-tree Linux implementation (Erbshäußer and Frömmgen, after Frömmgen et
//! al., "ReMP TCP", ICC 2016); reimplemented from a description of its behavior.
//!
//! *Differences.* Suspected subflows get no copies while a healthy one exists, because a returning path must deliver
//! its old data before anything newer. If all are silent, all carry copies, because then redundancy is most useful.

use marline_policy::{
    DataRange, Decision, Dsn, Reinjection, Scheduler, SchedulerAction, SchedulerContext,
    SchedulerEvent, SubflowId, SubflowSet, SubflowView,
};

use super::classes;
use super::per_subflow::PerSubflow;
use super::round_robin::next_in_turn;

/// Scheduler that sends all data on all regular subflows.
#[derive(Clone, Debug, Default)]
pub struct Redundant {
    /// Start of each subflow's last data. The subflow has carried all data before it, starting with the data that was
    /// oldest when the subflow started.
    cursors: PerSubflow<Option<Dsn>>,
    /// Subflow that was most recently given data.
    last: Option<SubflowId>,
}

impl Redundant {
    fn cursor(&mut self, id: SubflowId) -> &mut Option<Dsn> {
        self.cursors.value_mut(id)
    }

    /// Returns the data that a subflow would send next.
    fn next_data(&mut self, view: &SubflowView, cx: &SchedulerContext<'_>) -> Option<DataRange> {
        // A cursor behind DATA_ACK jumps to the oldest data that is not acknowledged.
        let from = self.cursor(view.id).map_or(cx.data_una, |cursor| cursor.max(cx.data_una));
        let copy = (!view.backup)
            .then(|| cx.mappings.next_not_on(view.id, from))
            .flatten()
            .map(|mapping| DataRange::new(mapping.range.start.max(from), mapping.range.end))
            .filter(|range| !range.is_empty());
        copy.or_else(|| (!cx.unsent.is_empty()).then_some(cx.unsent))
    }
}

impl Scheduler for Redundant {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let mut asked = SubflowSet::EMPTY;
        let mut has_work = !cx.unsent.is_empty();
        while let Some(view) = next_in_turn(
            classes::members(cx.subflows, class).filter(|v| v.is_ready() && !asked.contains(v.id)),
            self.last,
        ) {
            asked.insert(view.id);
            if let Some(range) = self.next_data(view, cx) {
                *self.cursor(view.id) = Some(range.start);
                self.last = Some(view.id);
                // The other subflows do not affect the data of this one.
                return Decision::SendRun { subflow: view.id, range };
            }
        }
        let full = || classes::members(cx.subflows, class).filter(|v| !v.is_ready());
        has_work |= full().any(|view| self.next_data(view, cx).is_some());
        if has_work { classes::wait(full()) } else { Decision::Wait }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        _cx: &SchedulerContext<'_>,
        _out: &mut Vec<SchedulerAction>,
    ) {
        if let SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) = event {
            *self.cursor(id) = None;
        }
    }
}

#[cfg(test)]
mod tests;
