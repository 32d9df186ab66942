//! LAMPS: a scheduler that knows what paths lose (Dong, Xu, Fu and Cao, LCN 2017 and Computer Networks 2019).
//!
//! *Problem.* On trains, by satellite or over balloons paths lose much, and in bursts. Lowest RTT prefers a path for
//! its delay although half of what it gets must be repeated. Copies of everything repair that at twice the bytes,
//! also while nothing is lost.
//!
//! *How.* Of each path the scheduler knows the chance p that a segment is lost: one in so many as it gave the path
//! between two losses, of the average interval and the one that lasts whichever is longer. While the path repairs,
//! p is at least `burst`: what is sent then shares the fate of what was just lost. From that follow two choices.
//! - The path: the lowest expected delay, SRTT + p / (1 - p) × (SRTT + 4 RTTVAR). The last factor is about the time
//!   until a lost segment has been missed and sent again, and p / (1 - p) the number of such times.
//! - The copies: the segment goes at once also on the next paths in this order that have room, until it is lost on
//!   all of them with a chance of no more than 1 - `sure`.
//!
//! *Source.* The abstracts: loss and delay decide on the subflow, the states of subflows on the segments; steady
//! performance at constant rates and in bulk; fewer extra bytes than with redundancy, above all when losses come in
//! bursts. From a published summary: that segments are copied until delivery is likely enough. Written anew.
//!
//! *What differs.* The formulas are ours; the papers' were not to be had. A burst counts as one loss, since the
//! intervals that subflows show begin with an episode of recovery: in between, p is that of the next burst, and
//! within it `burst`. Before a path's first loss its p is zero.
//!
//! *Extra bytes:* none where losses are rarer than 1 - `sure` but in the time after each; everything where they are
//! more frequent, bulk included. *p99 of a small message:* the second path's delay as soon as the first has lost.

use marline_algos::schedulers::classes::{self, Class};
use marline_algos::schedulers::copies::copying_class;
use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowSet, SubflowView,
};
use marline_time::Duration;

use super::at_once::AtOnce;
use super::losses::{BURST, Losses, expected_delay};

/// How sure delivery should be.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct LampsConfig {
    /// Copies are made until a segment arrives with this chance, 0 to 1.
    pub sure: f64,
    /// Chance that a segment is lost that is sent while its path repairs a loss, 0 to 0.9.
    pub burst: f64,
}

impl Default for LampsConfig {
    fn default() -> Self {
        LampsConfig { sure: 0.99, burst: BURST }
    }
}

/// A path, and what comes of a segment there.
#[derive(Copy, Clone, Debug)]
struct Prospect<'a> {
    view: &'a SubflowView,
    loss: f64,
    /// `None`: its RTT is unknown.
    delay: Option<Duration>,
}

/// By delay and loss, with copies until delivery is sure enough.
#[derive(Clone, Debug)]
pub struct Lamps {
    config: LampsConfig,
    losses: Losses,
    copies: AtOnce,
}

impl Lamps {
    /// As sure as that.
    #[must_use]
    pub fn new(config: LampsConfig) -> Self {
        Lamps { config, losses: Losses::default(), copies: AtOnce::default() }
    }

    fn prospect<'a>(&self, view: &'a SubflowView) -> Prospect<'a> {
        let loss = self.losses.chance(view, self.config.burst);
        Prospect { view, loss, delay: expected_delay(view, loss) }
    }

    /// The paths of this class that have room, the best one first.
    fn ready<'a>(&self, class: Class, cx: &SchedulerContext<'a>) -> Vec<Prospect<'a>> {
        let members = classes::members(cx.subflows, class).filter(|view| view.is_ready());
        let mut ready: Vec<Prospect<'a>> = members.map(|view| self.prospect(view)).collect();
        ready.sort_by_key(|prospect| (prospect.delay.is_none(), prospect.delay));
        ready
    }

    /// Those of the others, in order, that make delivery sure enough.
    fn others(&self, ready: &[Prospect<'_>]) -> SubflowSet {
        let mut others = SubflowSet::EMPTY;
        let mut loss = 1.0;
        for prospect in ready {
            others.insert(prospect.view.id);
            loss *= prospect.loss;
            if loss <= 1.0 - self.config.sure {
                break;
            }
        }
        others
    }
}

impl Default for Lamps {
    fn default() -> Self {
        Lamps::new(LampsConfig::default())
    }
}

impl Scheduler for Lamps {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.losses.look(cx.subflows);
        if let Some(copy) = self.copies.next(cx) {
            if let Some((id, _)) = copy.data() {
                self.losses.note_sent(id);
            }
            return copy;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        if !class.is_fine() {
            return classes::among_doubted(class, cx);
        }
        let ready = self.ready(class, cx);
        let Some(first) = ready.first() else {
            return classes::wait(classes::members(cx.subflows, class));
        };
        if copying_class(cx.subflows).is_some() {
            let mut others = self.others(&ready);
            others.remove(first.view.id);
            if !others.is_empty() {
                self.copies.note(cx.unsent.start, others);
            }
        }
        self.losses.note_sent(first.view.id);
        Decision::Send { subflow: first.view.id, range: cx.unsent }
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
            self.losses.forget(id);
        }
    }
}

#[cfg(test)]
mod tests;
