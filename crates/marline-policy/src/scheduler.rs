//! Scheduler interface: chooses the subflow for each piece of data.

use core::fmt::Debug;

use marline_time::{Duration, Instant};

use crate::{DataRange, Dsn, Penalty, Reason, SubflowId, SubflowSet, SubflowView};

/// Data that was assigned to subflows and is not DATA_ACKed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The data.
    pub range: DataRange,
    /// Subflows that carried the data.
    pub carried_by: SubflowSet,
    /// One of these subflows acknowledged or SACKed the data: the peer has it, but some earlier data is missing.
    /// Maintained only for schedulers with [`watches_delivery`](Scheduler::watches_delivery). A peer may still discard
    /// data that was not DATA_ACKed, so this can save copies but cannot replace retransmission.
    pub delivered: bool,
}

/// Index of outstanding data by DSN, with the subflows that carried it.
pub trait MappingIndex {
    /// The oldest data that is not DATA_ACKed: the remainder of a segment or of a run.
    fn oldest(&self) -> Option<Mapping>;
    /// The mapping that contains `at`, cut to start there.
    fn mapping_at(&self, at: Dsn) -> Option<Mapping>;
    /// The first data at or after `from` that `subflow` did not carry, or a prefix of it. All of it was carried by the
    /// same other subflows, and either all or none of it was delivered.
    fn next_not_on(&self, subflow: SubflowId, from: Dsn) -> Option<Mapping>;
    /// The last data before `before` that `subflow` did not carry, or a suffix of it. All of it was carried by the same
    /// other subflows.
    fn last_not_on(&self, subflow: SubflowId, before: Dsn) -> Option<Mapping>;
    /// The newest data given to any subflow.
    fn newest(&self) -> Option<Mapping>;
}

/// Input to a scheduling decision.
#[derive(Copy, Clone)]
pub struct SchedulerContext<'a> {
    /// The current time.
    pub now: Instant,
    /// All subflows of the connection, in slot order.
    pub subflows: &'a [SubflowView],
    /// Data that the application wrote and no subflow has been given yet, up to the end of the peer's window.
    pub unsent: DataRange,
    /// End of all written data, regardless of the window.
    pub written: Dsn,
    /// First byte that is not DATA_ACKed.
    pub data_una: Dsn,
    /// First byte beyond the peer's window.
    pub window_end: Dsn,
    /// Maximum size of the send buffer, in bytes of written data that is not DATA_ACKed.
    pub send_limit: u64,
    /// Number of bytes sent again on another subflow so far, for any reason.
    pub repeated: u64,
    /// The peer understands [`Decision::Repair`].
    pub repairs: bool,
    /// Outstanding data and the subflows that carried it.
    pub mappings: &'a dyn MappingIndex,
}

impl SchedulerContext<'_> {
    /// The view of a subflow, if it exists.
    #[must_use]
    pub fn subflow(&self, id: SubflowId) -> Option<&SubflowView> {
        self.subflows.iter().find(|view| view.id == id)
    }
}

impl Debug for SchedulerContext<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SchedulerContext")
            .field("now", &self.now)
            .field("subflows", &self.subflows)
            .field("unsent", &self.unsent)
            .field("data_una", &self.data_una)
            .finish_non_exhaustive()
    }
}

/// A scheduler's answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send this data on this subflow. New data must start at `unsent.start`. Data sent before may be any part that is
    /// not DATA_ACKed and that the subflow did not carry. The core cuts the range to one segment, to the subflow's room
    /// and to the peer's window.
    Send {
        /// The subflow.
        subflow: SubflowId,
        /// The data.
        range: DataRange,
    },
    /// Send this data on this subflow in as many segments as necessary (a run). The rules of `Send` apply to the data.
    /// The core consults the scheduler again only after all of it is sent, unless the subflow stops accepting data or
    /// becomes silent, data waits for reinjection, or time passes. In these cases the core discards the rest of the
    /// run. Runs are meant for policies that would give the same answer for each segment. The segments of a run share a
    /// mapping and a scoreboard entry, which saves most of the processing time and option bytes.
    SendRun {
        /// The subflow.
        subflow: SubflowId,
        /// The data.
        range: DataRange,
    },
    /// Send a repair of this data on this subflow: a sum from which the peer recovers missing parts, one lost segment
    /// per repair. The data must have been sent before and not be DATA_ACKed, and the [peer must
    /// support](SchedulerContext::repairs) repairs; otherwise the decision counts as `Wait`. The core cuts the end of
    /// the range to what one repair can cover (64 KiB, 128 segments). A repair is as long as the longest segment of
    /// the range. If that does not fit into one segment of the subflow, the repair is sent in equal parts, and each
    /// lost segment needs that many repairs.
    Repair {
        /// The subflow.
        subflow: SubflowId,
        /// The data.
        range: DataRange,
    },
    /// Send the newest segment of this subflow again on the same subflow, before its answer is due: if one of the two
    /// is lost, the other arrives. It is not counted as a loss, and does not delay the tail loss probe. Ignored unless
    /// [`SubflowView::newest_sent_at`] is set.
    RepeatNewest {
        /// The subflow.
        subflow: SubflowId,
    },
    /// Send nothing now. Consult the scheduler again when something changes.
    Wait,
    /// Send nothing now. Consult the scheduler again at this time at the latest.
    WaitUntil(Instant),
}

impl Decision {
    /// The data to send and its subflow, for one segment or a run; `None` for a repair or a wait.
    #[must_use]
    pub const fn data(self) -> Option<(SubflowId, DataRange)> {
        match self {
            Decision::Send { subflow, range } | Decision::SendRun { subflow, range } => {
                Some((subflow, range))
            }
            _ => None,
        }
    }

    /// This decision, limited to one segment, for callers that need a decision for each segment.
    #[must_use]
    pub const fn limited_to_segment(self) -> Decision {
        match self {
            Decision::SendRun { subflow, range } => Decision::Send { subflow, range },
            other => other,
        }
    }
}

/// Reason why data must be sent again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ReinjectionCause {
    /// A probe timeout on the carrying subflow stayed unanswered.
    UnansweredProbe,
    /// The retransmission timer of the carrying subflow fired.
    SubflowRto,
    /// The carrying subflow is gone.
    SubflowClosed,
    /// The connection-level retransmission timer fired.
    DataRto,
    /// Loss recovery declared the data lost on the carrying subflow, and a policy did not wait for its retransmission
    /// there.
    Loss,
    /// A policy requested it.
    Policy,
}

/// Data that must be sent again on another subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Reinjection {
    /// The data, without DATA_ACKed parts.
    pub range: DataRange,
    /// Subflows that carried it and still count as carrying it.
    pub carried_by: SubflowSet,
    /// Reason why it must be sent again.
    pub cause: ReinjectionCause,
    /// Time at which it was queued.
    pub since: Instant,
}

/// Events reported to a scheduler.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchedulerEvent {
    /// A subflow can now carry data.
    SubflowUp(SubflowId),
    /// A subflow is gone; its slot may be reused.
    SubflowDown(SubflowId),
    /// A subflow's probe timeout fired. The probe is sent next.
    ProbeTimeout(SubflowId),
    /// A probe that retransmits data was sent on a subflow, because there was no new data, or sending new data there
    /// was too risky.
    ProbeRepeated {
        /// The subflow.
        on: SubflowId,
        /// The data, one segment.
        range: DataRange,
    },
    /// The peer acknowledged data on a subflow that carried it, in order (at subflow level; the DATA_ACK may be behind
    /// or ahead). Only for schedulers with [`watches_acks`](Scheduler::watches_acks).
    Acked {
        /// The subflow.
        on: SubflowId,
        /// The data.
        range: DataRange,
    },
    /// Loss recovery declared data lost on a subflow, which will retransmit it. Reported again when more losses are
    /// found before the retransmission. If a policy responds by sending the data on another subflow, the cause is
    /// [`ReinjectionCause::Loss`]. Only for schedulers with [`watches_losses`](Scheduler::watches_losses).
    Lost {
        /// The subflow.
        on: SubflowId,
        /// The data that is not DATA_ACKed.
        range: DataRange,
    },
    /// A subflow's retransmission timer fired.
    SubflowRto(SubflowId),
    /// The next new segment does not fit the peer's window although `picked` had room.
    PeerWindowBlocked {
        /// The fastest subflow with room.
        picked: SubflowId,
    },
    /// All data has been sent, subflows have room, and the application waits for send-buffer space.
    SendBufferBlocked,
}

/// Actions that a scheduler may request in response to events.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SchedulerAction {
    /// Send this data on that subflow, ahead of new data.
    Reinject {
        /// The data.
        range: DataRange,
        /// The subflow.
        on: SubflowId,
    },
    /// Treat the subflow as silent until a segment is received on it: its outstanding data is reinjected on other
    /// subflows.
    Suspect(SubflowId),
    /// Slow down the subflow's congestion controller (penalization, NSDI 2012).
    Penalize {
        /// The subflow.
        subflow: SubflowId,
        /// Strength of the reduction.
        penalty: Penalty,
    },
}

/// Chooses the subflow for data. Implementations keep any per-subflow state themselves.
pub trait Scheduler: Debug + Send {
    /// Chooses the next data and its subflow. Called repeatedly until it returns `Wait` or `WaitUntil`. Also called
    /// when `unsent` is empty, so that redundant copies can use the remaining room.
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision;

    /// Chooses the subflow for data that must be sent again. `Send` may name any range within `item`.
    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision;

    /// Handles an event.
    fn on_event(
        &mut self,
        _event: SchedulerEvent,
        _cx: &SchedulerContext<'_>,
        _out: &mut Vec<SchedulerAction>,
    ) {
    }

    /// Like [`next_send`](Self::next_send), but also records the reason. Called instead of `next_send` while reasons
    /// are being recorded. The decision must be the same. The default implementation records no reason.
    fn explain_send(&mut self, cx: &SchedulerContext<'_>, _reasons: &mut Vec<Reason>) -> Decision {
        self.next_send(cx)
    }

    /// Like [`explain_send`](Self::explain_send), for [`next_reinjection`](Self::next_reinjection).
    fn explain_reinjection(
        &mut self,
        item: &Reinjection,
        cx: &SchedulerContext<'_>,
        _reasons: &mut Vec<Reason>,
    ) -> Decision {
        self.next_reinjection(item, cx)
    }

    /// Like [`explain_send`](Self::explain_send), for [`on_event`](Self::on_event) when it requests that data be sent
    /// again.
    fn explain_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
        _reasons: &mut Vec<Reason>,
    ) {
        self.on_event(event, cx, out);
    }

    /// Delay before the data of an unanswered probe is reinjected on another subflow, in addition to the probe timeout
    /// itself. `None` leaves both the reinjection and the suspicion of the subflow to the retransmission timer.
    fn probe_patience(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    /// Returns true if [`SchedulerEvent::Acked`] is needed now; called for each ACK.
    fn watches_acks(&self) -> bool {
        false
    }

    /// Returns true if [`SchedulerEvent::Lost`] is needed now; called when losses are found while there are several
    /// subflows.
    fn watches_losses(&self) -> bool {
        false
    }

    /// Returns true if [`Mapping::delivered`] must be maintained; called for each ACK while there are several subflows.
    fn watches_delivery(&self) -> bool {
        false
    }
}
