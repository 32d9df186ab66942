//! The only place that builds the pictures policies judge by.

use marline_policy::{
    Eligibility, PathContext, SchedulerAction, SchedulerEvent, SubflowId, SubflowPath,
};
use marline_time::Instant;

use super::scheduling::{Choice, Terms};
use super::{Connection, Leg};
use crate::Extensions;
use crate::tables::Context;

impl Connection {
    /// Takes new views of all subflows that carry data.
    pub(super) fn refresh_views(&mut self, now: Instant) {
        let legs = self.legs.iter().enumerate();
        let up = legs.filter_map(|(slot, leg)| Some((slot, leg.as_deref().filter(|leg| leg.up)?)));
        self.scheduling.refresh(up.map(|(slot, leg)| view(now, SubflowId(slot as u8), leg)));
    }

    /// Takes a new view of one subflow, after it was given data.
    pub(super) fn refresh_view(&mut self, now: Instant, id: SubflowId) {
        let leg = self.legs.get(usize::from(id.0)).and_then(Option::as_deref);
        if let Some(leg) = leg {
            self.scheduling.refresh_one(view(now, id, leg));
        }
    }

    /// Shows a coupled congestion controller its siblings.
    pub(super) fn refresh_group(&mut self, now: Instant, id: SubflowId) {
        if self.leg(id).is_some_and(|leg| leg.tcp.wants_group()) {
            self.refresh_views(now);
            let leg = self.legs.get_mut(usize::from(id.0)).and_then(Option::as_deref_mut);
            if let Some(leg) = leg {
                leg.tcp.set_group(self.scheduling.views());
            }
        }
    }

    /// The next data to send, if any may go now. Views must be fresh.
    pub(super) fn choose(&mut self, now: Instant) -> Option<Choice> {
        if self.closing.closed.is_some() {
            self.scheduling.void_all();
            return None;
        }
        let terms = self.terms(now);
        self.scheduling.choose(terms, &self.sender)
    }

    pub(super) fn terms(&self, now: Instant) -> Terms {
        Terms { now, repairs: self.may_repair(), repeats: !self.session.is_plain() }
    }

    /// Tells the scheduler, and does what it asks for.
    pub(super) fn scheduler_event(&mut self, now: Instant, event: SchedulerEvent) {
        self.refresh_views(now);
        let terms = self.terms(now);
        for action in self.scheduling.on_event(event, terms, &self.sender) {
            match action {
                SchedulerAction::Penalise { subflow, penalty } => {
                    if let Some(leg) = self.leg_mut(subflow) {
                        leg.tcp.penalise(now, penalty);
                    }
                }
                SchedulerAction::Reinject { range, on } => {
                    if self.leg(on).is_some_and(Leg::is_usable) {
                        self.sender.reinject_on(now, range, on);
                    }
                }
                SchedulerAction::Suspect(_) => {}
            }
        }
    }

    /// Tells the scheduler why data waits although a subflow has room. Called when nothing went out.
    pub(super) fn tell_blocked(&mut self, now: Instant) {
        if let Some(event) = self.scheduling.blocked(&self.sender) {
            self.scheduler_event(now, event);
        }
    }

    /// What the path manager judges by, handed to `ask`.
    pub(super) fn with_path_context<R>(
        &mut self,
        cx: &Context<'_>,
        ask: impl FnOnce(&mut dyn marline_policy::PathManager, &PathContext<'_>) -> R,
    ) -> R {
        let now = cx.now;
        self.refresh_views(now);
        let paths: Vec<SubflowPath> = self
            .legs
            .iter()
            .enumerate()
            .filter_map(|(slot, leg)| Some((slot, leg.as_deref()?)))
            .filter(|(_, leg)| !leg.shut)
            .map(|(slot, leg)| SubflowPath {
                id: SubflowId(slot as u8),
                local: leg.key.path.local,
                remote: leg.key.path.remote,
                local_id: leg.local_id,
                remote_id: leg.remote_id,
                established: leg.up,
            })
            .collect();
        let context = PathContext {
            now,
            role: self.session.role(),
            local: self.addresses.local(),
            remote: self.addresses.remote(),
            deny_join_id0: self.session.peer_denies_id0(),
            paths: &paths,
            subflows: self.scheduling.views(),
            max_subflows: cx.config.limits.subflows,
            data_waits: self.sender.has_data(),
            followed: self.session.agreed_on(Extensions::FOLLOW_CLIENT),
        };
        ask(self.path_manager.as_mut(), &context)
    }
}

fn view(now: Instant, id: SubflowId, leg: &Leg) -> marline_policy::SubflowView {
    let mut view = leg.tcp.view(now, id, leg.local_id, leg.remote_id, leg.is_backup());
    if !leg.is_usable() {
        view.eligibility = Eligibility::NotUsable;
    }
    view.potentially_failed |= leg.suspected;
    view.last_new_at = leg.last_new_at;
    view.bad_netpath = leg.netpath_fault.is_some();
    view
}
