//! The only place that builds the pictures policies judge by.

use marline_policy::{Eligibility, PathContext, SubflowId, SubflowPath};
use marline_time::Instant;

use super::{Connection, Leg};
use crate::Extensions;
use crate::tables::Context;

impl Connection {
    /// Takes new pictures of all subflows that carry data.
    pub(super) fn refresh_views(&mut self, now: Instant) {
        let mut views = core::mem::take(&mut self.views);
        views.clear();
        for (slot, leg) in self.legs.iter().enumerate() {
            if let Some(leg) = leg.as_deref().filter(|leg| leg.up) {
                views.push(view(now, SubflowId(slot as u8), leg));
            }
        }
        self.views = views;
    }

    /// Takes a new picture of one subflow, after it was given data.
    pub(super) fn refresh_view(&mut self, now: Instant, id: SubflowId) {
        let Some(leg) = self.legs.get(usize::from(id.0)).and_then(Option::as_deref) else { return };
        if let Some(old) = self.views.iter_mut().find(|v| v.id == id) {
            *old = view(now, id, leg);
        }
    }

    /// Shows a coupled congestion controller its siblings.
    pub(super) fn refresh_group(&mut self, now: Instant, id: SubflowId) {
        if self.leg(id).is_some_and(|leg| leg.tcp.wants_group()) {
            self.refresh_views(now);
            let views = core::mem::take(&mut self.views);
            if let Some(leg) = self.leg_mut(id) {
                leg.tcp.set_group(&views);
            }
            self.views = views;
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
            subflows: &self.views,
            max_subflows: cx.config.limits.subflows,
            data_waits: self.send.end() > self.send.una(),
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
