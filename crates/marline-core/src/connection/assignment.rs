//! Assignment of data to subflows: the scheduler's input and decisions, reinjection on other subflows, and the
//! data-level timers.
//!
//! [`Scheduling`] keeps the scheduler and its decisions, [`Sender`] the data, [`PathSet`] the subflows. This code
//! passes information between them.

use marline_policy::{
    DataRange, Dsn, Mapping, ReinjectionCause, SchedulerAction, SchedulerEvent, SubflowId,
};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{Extensions, MpFail};

use super::closing::Closing;
use super::delivery_watch::DeliveryWatch;
use super::handshake::reason;
use super::memory_trim::MemoryTrim;
use super::path_set::PathSet;
use super::scheduling::{Choice, Scheduling};
use super::sender::{Constraints, DataTimeout, Sender};
use super::session::Session;
use super::subflow_context::SubflowContext;
use crate::{CloseReason, ConnectionConfig};

/// Allowed delay between a peer's TCP ACK and its DATA_ACK: a kernel defers it while the application holds the socket.
const DATA_ACK_DELAY: Duration = Duration::from_millis(50);

/// Number of data-level timeouts after which a subflow that acknowledged the data at TCP level is no longer trusted.
const MAX_DATA_RTOS: u32 = 2;
/// Time for which a writer waits for a subflow that retains too much data but still makes progress. This is a constant
/// instead of the subflow's timeout because a peer can inflate that timeout.
const MAX_RETENTION_WAIT: Duration = Duration::from_secs(1);

/// A data-level timeout.
#[derive(Copy, Clone, Debug)]
pub(super) struct DataRto {
    /// Time of the previous expiry.
    fired_at: Instant,
    /// A subflow still retransmits the data.
    covered: bool,
    /// A subflow to reset because it acknowledges data without delivering it, with the reason codes.
    pub(super) reset: Option<(SubflowId, u8, CloseReason)>,
}

/// Parts of a connection that decide which subflow carries which data.
pub(super) struct Assignment<'a> {
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) sender: &'a mut Sender,
    pub(super) scheduling: &'a mut Scheduling,
    pub(super) closing: &'a mut Closing,
    pub(super) ack_watch: &'a mut DeliveryWatch,
    pub(super) trim: &'a mut MemoryTrim,
}

impl Assignment<'_> {
    /// Refreshes the views of all subflows that carry data.
    pub(super) fn refresh_views(&mut self, now: Instant) {
        self.scheduling.refresh(self.paths.views(now));
    }

    /// Refreshes the view of one subflow after data was assigned to it.
    pub(super) fn refresh_view(&mut self, now: Instant, id: SubflowId) {
        if let Some(subflow) = self.paths.get(id) {
            self.scheduling.refresh_one(subflow.view(now, id));
        }
    }

    /// Passes the other subflows to a coupled congestion controller.
    pub(super) fn refresh_group(&mut self, now: Instant, id: SubflowId) {
        if self.paths.get(id).is_some_and(|subflow| subflow.tcp().wants_group()) {
            self.refresh_views(now);
            if let Some(subflow) = self.paths.get_mut(id) {
                subflow.tcp_mut().set_group(self.scheduling.views());
            }
        }
    }

    /// Next data to send, if any may be sent now. Views must be fresh.
    pub(super) fn choose(&mut self, now: Instant) -> Option<Choice> {
        if self.closing.is_closed() {
            self.scheduling.discard_all();
            return None;
        }
        let constraints = self.constraints(now);
        let choice = self.scheduling.choose(constraints, self.sender);
        // Before the peer is known to speak Multipath TCP, a repetition might prevent a fallback.
        if let Some(id) = self.scheduling.take_repeat_newest()
            && self.session.is_confirmed()
            && let Some(subflow) = self.paths.get_mut(id)
        {
            subflow.tcp_mut().request_early_repeat();
        }
        choice
    }

    pub(super) fn constraints(&self, now: Instant) -> Constraints {
        Constraints { now, repairs: self.may_repair(), repeats: !self.session.is_plain() }
    }

    /// True if repairs may be sent and are useful.
    pub(super) fn may_repair(&self) -> bool {
        let session = &self.session;
        let usable = session.agreed_on(Extensions::REPAIR) && session.is_confirmed();
        self.sender.may_repair() && usable && !session.sends_long_dsn()
    }

    /// Passes an event to the scheduler and executes its actions.
    pub(super) fn scheduler_event(&mut self, now: Instant, event: SchedulerEvent) {
        self.refresh_views(now);
        let constraints = self.constraints(now);
        let cause = match event {
            SchedulerEvent::Lost { .. } => ReinjectionCause::Loss,
            _ => ReinjectionCause::Policy,
        };
        for action in self.scheduling.on_event(event, constraints, self.sender) {
            match action {
                SchedulerAction::Penalize { subflow, penalty } => {
                    if let Some(subflow) = self.paths.get_mut(subflow) {
                        subflow.tcp_mut().penalize(now, penalty);
                    }
                }
                SchedulerAction::Reinject { range, on } => {
                    if self.paths.is_active(on) {
                        self.sender.reinject_on(now, range, cause, on);
                    }
                }
                SchedulerAction::Suspect(id) => {
                    let subflow = self.paths.get_mut(id).filter(|subflow| subflow.is_active());
                    if let Some(subflow) = subflow {
                        subflow.health_mut().on_suspected_dead(now);
                    }
                }
            }
        }
    }

    /// Reports to the scheduler why data waits although a subflow has room. Called when nothing was sent.
    pub(super) fn report_blocked(&mut self, now: Instant) {
        if let Some(event) = self.scheduling.blocked_event(self.sender) {
            self.scheduler_event(now, event);
        }
    }

    /// Records that nothing can be sent now, for the rate sampler and the scheduler.
    pub(super) fn record_nothing_to_send(&mut self, now: Instant) {
        // A subflow that has room and gets no data is limited by the application, the peer's window, or the
        // scheduler. Its delivery rate is below its capacity.
        let dry = self.sender.unsent().is_empty() && self.sender.reinjections().is_empty();
        for id in self.paths.subflows_where(SubflowContext::is_up).iter() {
            let views = self.scheduling.views();
            if dry || views.iter().any(|view| view.id == id && view.is_ready()) {
                let Some(subflow) = self.paths.get_mut(id) else { continue };
                subflow.tcp_mut().set_app_limited(dry);
            }
        }
        if self.sender.has_data() {
            self.report_blocked(now);
        }
        self.rearm_persist(now);
    }

    /// Reports losses found by loss recovery to the scheduler. TCP repeats them on the subflow, but the scheduler
    /// may choose a faster path.
    pub(super) fn on_lost(&mut self, now: Instant, id: SubflowId) {
        if self.paths.turns() < 2 || self.session.is_plain() || !self.scheduling.watches_losses() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        for range in subflow.lost_ranges(self.sender.una()) {
            self.scheduler_event(now, SchedulerEvent::Lost { on: id, range });
        }
    }

    /// Releases bytes that a subflow no longer needs to retransmit.
    pub(super) fn drain_released(&mut self, now: Instant, id: SubflowId) {
        let watched = self.paths.turns() > 1 && self.scheduling.watches_delivery();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        self.sender.release_repairs(id, subflow.tcp().snd_una());
        if subflow.tcp().has_sacked() {
            for range in subflow.tcp_mut().take_sacked() {
                if watched {
                    self.sender.record_delivered(range);
                }
            }
        }
        if subflow.tcp_mut().released().is_empty() {
            return;
        }
        for range in subflow.tcp_mut().released().iter() {
            self.sender.unpin(*range);
            if watched {
                self.sender.record_delivered(*range);
            }
        }
        if self.scheduling.watches_acks() {
            let mut index = 0;
            while let Some(range) = self.released_range(id, index) {
                self.scheduler_event(now, SchedulerEvent::Acked { on: id, range });
                index += 1;
            }
        }
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().released().clear();
        }
    }

    fn released_range(&mut self, id: SubflowId, index: usize) -> Option<DataRange> {
        self.paths.get_mut(id)?.tcp_mut().released().get(index).copied()
    }

    /// Stops sending data on this subflow. Undelivered data is sent on others.
    pub(super) fn stop_carrying(&mut self, now: Instant, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if !subflow.stop_carrying() {
            return;
        }
        self.reinject_from(now, id, ReinjectionCause::SubflowClosed);
        self.sender.stop_carrying(id);
        self.scheduling.discard_for(id);
        self.scheduler_event(now, SchedulerEvent::SubflowDown(id));
    }

    /// Called when a healthy subflow exists. Reinjects the data of unreachable and degraded subflows, including data
    /// assigned while they were the only ones, without waiting for their timers.
    pub(super) fn rescue(&mut self, now: Instant, of: impl Fn(&SubflowContext) -> bool) {
        for id in self.paths.subflows_where(|s| s.health().needs_rescue() && of(s)).iter() {
            self.reinject_from(now, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// Queues this subflow's data that no healthy subflow carries.
    pub(super) fn reinject_from(&mut self, now: Instant, id: SubflowId, cause: ReinjectionCause) {
        // A subflow that is closing can no longer fall back.
        let waits = cause != ReinjectionCause::SubflowClosed && self.may_still_fall_back();
        if self.session.is_plain() || self.closing.is_closed() || waits {
            return;
        }
        let healthy = self.paths.healthy();
        let Some(subflow) = self.paths.get(id) else { return };
        for range in subflow.unacked_ranges(self.sender.una()) {
            self.sender.reinject_sole_copies(now, range, id, cause, healthy);
        }
    }

    /// True if the peer has not yet shown that it speaks Multipath TCP or has received data, and there is no other
    /// subflow. A copy on this subflow would prevent a fallback.
    pub(super) fn may_still_fall_back(&self) -> bool {
        let proven = self.paths.initial_id().is_some_and(|id| self.sender.is_proven(id));
        let since_last_rx = !self.session.is_confirmed() || self.sender.una() == Dsn(0) && !proven;
        // Only the first subflow can fall back, and only while it exists.
        since_last_rx && self.paths.is_initial_alone()
    }

    /// Restarts the data-level timer for outstanding data.
    pub(super) fn rearm_data_rto(&mut self, now: Instant) {
        if self.session.is_plain() {
            self.sender.disarm_rto();
        } else {
            let rto = self.paths.largest_rto(self.config);
            self.sender.rearm_rto(now, rto);
        }
    }

    pub(super) fn rearm_after_sending(&mut self, now: Instant) {
        self.trim.record_activity(now);
        self.sender.stop_persist();
        if !self.sender.is_rto_armed() {
            self.rearm_data_rto(now);
        }
    }

    /// Starts watching for acknowledgments of data that may be in flight.
    pub(super) fn watch_progress(&mut self, now: Instant) {
        self.sender.watch_progress(now, self.closing.fin_outstanding());
        self.ack_watch.note(now, self.sender.una() < self.sender.sent());
    }

    /// Handles a TCP acknowledgment of bytes for which the DATA_ACK did not advance. If the first missing byte was
    /// among them, its mapping was lost (a middlebox merged segments and kept the options of one), and only the
    /// sender can repeat it.
    pub(super) fn expedite_lost_mapping(&mut self, now: Instant, id: SubflowId) {
        let Some(oldest) = self.sender.oldest_outstanding() else { return };
        let Some(tcp) = self.paths.get(id).map(SubflowContext::tcp) else { return };
        // If bytes were changed on the only subflow, MP_FAIL reports it, and they continue as plain TCP.
        let may_fail = self.session.uses_checksum() && self.paths.active_count() < 2;
        if self.session.is_plain() || may_fail || !oldest.carried_by.contains(id) {
            return;
        }
        let carriers = || oldest.carried_by.iter().filter_map(|id| self.paths.get(id));
        if carriers().any(|subflow| subflow.holds_byte(oldest.range.start)) {
            return;
        }
        let patience = (tcp.srtt().unwrap_or_default() * 2).max(DATA_ACK_DELAY).min(tcp.rto());
        self.sender.advance_rto_timer(now + patience);
    }

    /// Arms the persist timer: the peer's window is closed, and no data in flight would bring an update.
    fn rearm_persist(&mut self, now: Instant) {
        let (usable, rto) = (self.paths.active_count() > 0, self.paths.largest_rto(self.config));
        self.sender.rearm_persist(now, usable, rto);
    }

    /// Sends a window probe, or checks for the answer to the last one.
    ///
    /// The probe uses the path on which it arrives soonest. If nothing is received within an RTO, that path may be
    /// dead without any other sign (no data is in flight), and the window update may have been lost there. Then all
    /// paths are probed. While answers arrive, only one path is probed, because the radios of others may be asleep.
    pub(super) fn on_persist(&mut self, now: Instant) {
        self.sender.stop_persist();
        let rto = self.paths.largest_rto(self.config);
        let best = self.paths.best_subflow();
        let heard_since = |at: Instant| {
            let best = best.and_then(|id| self.paths.get(id));
            best.is_some_and(|subflow| subflow.tcp().last_rx_at() > at)
        };
        let pause = self.sender.persist_pause(rto);
        let answered = self.sender.probed_at().map(|at| (at + pause, heard_since(at)));
        if let Some((next, true)) = answered
            && now < next
        {
            self.sender.postpone_persist(Some(next));
            return;
        }
        let all = answered.is_some_and(|(_, heard)| !heard);
        let silent = self.sender.on_probe(now, self.paths.last_rx_at());
        self.closing.on_unanswered_probes(now, silent);
        for id in self.paths.active_set().iter().filter(|id| all || best == Some(*id)) {
            if let Some(subflow) = self.paths.get_mut(id) {
                subflow.tcp_mut().request_probe();
            }
        }
        // With one path, the intervals grow as in plain TCP (RFC 9293 section 3.8.6.1).
        let alone = self.paths.active_count() < 2;
        let pause = if all || alone { self.sender.persist_pause(rto) } else { rto };
        self.sender.postpone_persist(Some(now + pause));
        self.rearm_persist(now);
    }

    /// Handles a missing DATA_ACK although subflows are alive: repeats the oldest data on any subflow. The usual
    /// mechanisms (subflow RTO, unanswered probe) have already had time to act. This one handles a path that
    /// acknowledges data without delivering it.
    ///
    /// Returns the subflow that has to be reset before [`Self::repeat_missing`].
    pub(super) fn on_data_rto(&mut self, now: Instant) -> Option<DataRto> {
        self.sender.count_rto();
        self.rearm_data_rto(now);
        let timeout = self.sender.data_timeout(now)?;
        let DataTimeout { oldest: Mapping { range, carried_by, .. }, fired_at, count } = timeout;
        let holds = |s: &SubflowContext| s.holds_byte(range.start);
        // Data that its subflow still retransmits is not repeated, unless the subflow is silent.
        let repeats = |s: &SubflowContext| s.is_active() && holds(s) && !s.health().is_rescued();
        let there = || carried_by.iter().filter_map(|id| Some((id, self.paths.get(id)?)));
        let covered = there().any(|(_, subflow)| repeats(subflow));
        // Data that is acknowledged there but never arrives leaves a gap that no later data can pass, not even a
        // retransmission, although the peer's segments arrive.
        let misleads = |s: &SubflowContext| {
            let patience = MAX_DATA_RTOS + u32::from(holds(s));
            let heard = s.tcp().last_rx_at() > fired_at || !holds(s);
            let proven = !holds(s) && s.tcp().has_false_acks();
            s.is_active() && (proven || heard && count > patience && !s.tcp().refuses_payload())
        };
        // A peer that fell back to plain TCP would take data repeated at new sequence numbers for new data.
        let bare =
            |id, s: &SubflowContext| s.is_active() && !holds(s) && self.sender.lacks_data_ack(id);
        let bare = there().find(|(id, subflow)| bare(*id, subflow)).map(|(id, _)| id);
        let misleading = there().find(|(_, subflow)| misleads(subflow)).map(|(id, _)| id);
        let reset = match (bare, misleading) {
            (Some(id), _) => Some((id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved)),
            (None, Some(id)) => Some((id, reason::BAD_PERFORMANCE, CloseReason::TimedOut)),
            (None, None) => None,
        };
        Some(DataRto { fired_at, covered, reset })
    }

    /// Repeats the oldest data after a data-level timeout, unless a subflow still retransmits it.
    pub(super) fn repeat_missing(&mut self, now: Instant, timeout: &DataRto) {
        self.sender.requeue_orphaned_data(now);
        if timeout.covered || self.may_still_fall_back() {
            return;
        }
        let (rto, paths) = (self.paths.largest_rto(self.config), &self.paths);
        let sizes = paths.iter().map(|subflow| subflow.tcp().segment_size());
        let size = sizes.max_by_key(|size| size.usual).unwrap_or_default();
        let held = |part: &Mapping| {
            let carriers = part.carried_by.iter().filter_map(|id| paths.get(id));
            carriers.filter(|s| !s.health().is_rescued()).any(|s| s.holds_byte(part.range.start))
        };
        self.sender.repeat_gap(now, timeout.fired_at, rto, size, held);
    }

    /// Handles a RST with MP_FAIL: the peer may have acknowledged the subflow's data after that position, but could not
    /// use it. The data is sent on another subflow without waiting for the data-level timer.
    pub(super) fn on_failed_reset(&mut self, now: Instant, id: SubflowId, fail: MpFail) {
        let first = Dsn(self.session.keys().local_offset(fail.dsn));
        let (una, end) = (self.sender.una(), self.sender.sent());
        if first < una || first >= end || self.may_still_fall_back() {
            return;
        }
        self.sender.reinject_carried_alone(now, first, id);
    }

    /// Subflow to close because it retains too much DATA_ACKed data, if another one is healthy.
    pub(super) fn find_retainer(&self, now: Instant) -> Option<SubflowId> {
        let (healthy, una) = (self.paths.healthy(), self.sender.una());
        let stuck = self
            .paths
            .subflows_where(|s| s.is_closed_for_data() || s.tcp().has_retransmission_timeout());
        let retainer = self.paths.largest_retainer(stuck, una).or_else(|| {
            let is_over = self.sender.is_held_back_for(MAX_RETENTION_WAIT, now);
            is_over
                .then(|| self.paths.largest_retainer(self.paths.subflows_where(|_| true), una))?
        });
        retainer.filter(|id| healthy.iter().any(|other| other != *id))
    }
}
