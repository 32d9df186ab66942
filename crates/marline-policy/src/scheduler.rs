//! Scheduler interface: the choice of the subflow that carries each piece of data.

use core::fmt::Debug;

use marline_time::{Duration, Instant};

use crate::{DataRange, Dsn, Penalty, Reason, SubflowId, SubflowSet, SubflowView};

/// Data that was handed to subflows and is not DATA_ACKed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The bytes.
    pub range: DataRange,
    /// Subflows that carried them.
    pub carried_by: SubflowSet,
    /// One of these subflows acknowledged or SACKed them: they are there, and wait for what is before them. Noted
    /// only for schedulers that [want to know](Scheduler::watches_delivery). A peer may discard what it has SACKed, or
    /// acknowledged on a subflow, and not DATA_ACKed: this is for who saves copies, and not for who must repeat data.
    pub delivered: bool,
}

/// Index of outstanding data by DSN, with the subflows that carried it.
pub trait MappingIndex {
    /// The oldest data that is not DATA_ACKed: what is left of a segment, or of a run of them.
    fn oldest(&self) -> Option<Mapping>;
    /// The mapping that holds `at`, cut so that it starts there.
    fn at(&self, at: Dsn) -> Option<Mapping>;
    /// The first data at or after `from` that `subflow` did not carry; as much of it as the same others did, and all
    /// or nothing of it was delivered; or a part of that.
    fn next_not_on(&self, subflow: SubflowId, from: Dsn) -> Option<Mapping>;
    /// The last data before `before` that `subflow` did not carry, back to where the same others carried it or
    /// a part of that.
    fn last_not_on(&self, subflow: SubflowId, before: Dsn) -> Option<Mapping>;
    /// The newest data handed to any subflow.
    fn newest(&self) -> Option<Mapping>;
}

/// Input of a scheduling decision.
#[derive(Copy, Clone)]
pub struct SchedulerContext<'a> {
    /// The current time.
    pub now: Instant,
    /// All subflows of the connection, in slot order.
    pub subflows: &'a [SubflowView],
    /// Data written by the application and not yet given to any subflow, as far as the peer's
    /// window allows.
    pub unsent: DataRange,
    /// End of everything written, regardless of the window.
    pub written: Dsn,
    /// First byte that is not DATA_ACKed.
    pub data_una: Dsn,
    /// First byte beyond the peer's window.
    pub window_end: Dsn,
    /// Largest size of the send buffer: bytes that may be written and not yet DATA_ACKed.
    pub send_limit: u64,
    /// Bytes that were sent again on another subflow so far, whoever asked for it.
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
    /// Send this data on this subflow. New data must start at `unsent.start`; data sent before may
    /// be any part that is not DATA_ACKed and that the subflow did not carry. The core cuts the
    /// range to a segment, to the subflow's room and to the peer's window.
    Send {
        /// The subflow.
        subflow: SubflowId,
        /// The data.
        range: DataRange,
    },
    /// Send this data on this subflow, in as many segments as it takes (a run); what holds for `Send` holds
    /// for the data. The core does
    /// not ask again before all of it is sent, as long as the subflow accepts data at once, is not
    /// silent, no data waits for reinjection and no time passes; otherwise the rest of the run is
    /// discarded and the scheduler is consulted as usual. For policies that would give the same
    /// answer for each segment: the segments of a run share a mapping and an entry of the scoreboard,
    /// which costs a fraction of the time and a fraction of the bytes of options.
    SendRun {
        /// The subflow.
        subflow: SubflowId,
        /// The data.
        range: DataRange,
    },
    /// Send a repair over this data on this subflow: a sum from which the peer recovers missing
    /// parts of it, one lost segment per repair. Only data sent before and not DATA_ACKed, and only
    /// if the [peer understands](SchedulerContext::repairs) it; a `Wait` otherwise. The core cuts
    /// the range at its end to what one repair can cover (64 KiB, 128 segments). One segment of
    /// payload is sent, as long as the longest segment of the range; where that does not fit the
    /// subflow, it is sent in equal parts, and each lost segment needs that many repairs.
    Repair {
        /// The subflow.
        subflow: SubflowId,
        /// The data.
        range: DataRange,
    },
    /// Nothing now; ask again when something changes.
    Wait,
    /// Nothing now; ask again at this time at the latest.
    WaitUntil(Instant),
}

impl Decision {
    /// The data to send and its subflow, be it for one segment or for a run; `None`: a repair, or nothing.
    #[must_use]
    pub const fn data(self) -> Option<(SubflowId, DataRange)> {
        match self {
            Decision::Send { subflow, range } | Decision::SendRun { subflow, range } => {
                Some((subflow, range))
            }
            _ => None,
        }
    }

    /// The same decision for one segment only: for who wants to be asked about each.
    #[must_use]
    pub const fn by_segment(self) -> Decision {
        match self {
            Decision::SendRun { subflow, range } => Decision::Send { subflow, range },
            other => other,
        }
    }
}

/// Why data is to be sent a second time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ReinjectionCause {
    /// A probe timeout on the carrying subflow stayed unanswered.
    UnansweredProbe,
    /// The carrying subflow's retransmission timer fired.
    SubflowRto,
    /// The carrying subflow is gone.
    SubflowClosed,
    /// The connection's own retransmission timer fired.
    DataRto,
    /// Loss recovery found it lost on the carrying subflow, and a policy did not wait for the repair there.
    Loss,
    /// A policy asked for it.
    Policy,
}

/// Data that must go out again on another subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Reinjection {
    /// The data, cut to what is not DATA_ACKed.
    pub range: DataRange,
    /// Subflows that carried it and still count as carrying it.
    pub carried_by: SubflowSet,
    /// Cause.
    pub cause: ReinjectionCause,
    /// Time since which it has been waiting.
    pub since: Instant,
}

/// Events reported to a scheduler.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchedulerEvent {
    /// A subflow may carry data from now on.
    SubflowUp(SubflowId),
    /// A subflow is gone; its slot may be used again.
    SubflowDown(SubflowId),
    /// A subflow's probe timeout fired. The probe goes out next.
    ProbeTimeout(SubflowId),
    /// A probe that repeats data was sent on a subflow: there was no new data, or none was risked
    /// on it.
    ProbeRepeated {
        /// The subflow.
        on: SubflowId,
        /// The data, one segment.
        range: DataRange,
    },
    /// A subflow's peer acknowledged data that the subflow carried, in order (subflow level; DATA_ACK may be
    /// behind or ahead). Only for schedulers that [watch](Scheduler::watches_acks).
    Acked {
        /// The subflow.
        on: SubflowId,
        /// The data.
        range: DataRange,
    },
    /// Loss recovery found data lost on a subflow, which will repeat it. Told again when more is found, as long as it
    /// was not repeated. What a policy has repeated on another one in answer has the cause [`ReinjectionCause::Loss`].
    /// Only for schedulers that [watch](Scheduler::watches_losses).
    Lost {
        /// The subflow.
        on: SubflowId,
        /// The data, as far as it is not DATA_ACKed.
        range: DataRange,
    },
    /// A subflow's retransmission timer fired.
    SubflowRto(SubflowId),
    /// The next new segment does not fit the peer's window although `picked` had room.
    PeerWindowBlocked {
        /// The subflow with room, the fastest one.
        picked: SubflowId,
    },
    /// Nothing is unsent, subflows have room, and the application waits for send-buffer space.
    SendBufferBlocked,
}

/// Actions that a scheduler may request outside `next_send`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SchedulerAction {
    /// Send this data on that subflow, ahead of new data.
    Reinject {
        /// The data.
        range: DataRange,
        /// The subflow.
        on: SubflowId,
    },
    /// Treat the subflow as silent until something is received on it: its outstanding
    /// data is reinjected on others.
    Suspect(SubflowId),
    /// Tell the subflow's congestion controller to slow down (NSDI'12 penalisation).
    Penalise {
        /// The subflow.
        subflow: SubflowId,
        /// Strength of the reduction.
        penalty: Penalty,
    },
}

/// Chooses the subflow for data. Its per-subflow state is its own.
pub trait Scheduler: Debug + Send {
    /// Chooses the next data and its subflow. Called repeatedly until it returns a wait. Called
    /// also when `unsent` is empty, so that redundant copies may use the remaining room.
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision;

    /// Chooses the subflow for data that must be sent again. `Send` may name any range within the
    /// item's.
    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision;

    /// Notifies the scheduler of an event.
    fn on_event(
        &mut self,
        _event: SchedulerEvent,
        _cx: &SchedulerContext<'_>,
        _out: &mut Vec<SchedulerAction>,
    ) {
    }

    /// As [`next_send`](Self::next_send), and notes the reason. Asked instead of it while somebody wants to know
    /// reasons; the decision must be the same. Without an implementation there is no reason.
    fn explain_send(&mut self, cx: &SchedulerContext<'_>, _reasons: &mut Vec<Reason>) -> Decision {
        self.next_send(cx)
    }

    /// The same for [`next_reinjection`](Self::next_reinjection).
    fn explain_reinjection(
        &mut self,
        item: &Reinjection,
        cx: &SchedulerContext<'_>,
        _reasons: &mut Vec<Reason>,
    ) -> Decision {
        self.next_reinjection(item, cx)
    }

    /// The same for [`on_event`](Self::on_event), where it asks for data to be sent again.
    fn explain_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
        _reasons: &mut Vec<Reason>,
    ) {
        self.on_event(event, cx, out);
    }

    /// Time after an unanswered probe until its data is reinjected on another subflow, in addition
    /// to the probe timeout itself. `None` leaves both the reinjection and the suspicion of the
    /// subflow to the retransmission timer.
    fn probe_patience(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    /// Whether [`SchedulerEvent::Acked`] is wanted now; asked with each ACK.
    fn watches_acks(&self) -> bool {
        false
    }

    /// Whether [`SchedulerEvent::Lost`] is wanted now; asked when losses are found while there are several subflows.
    fn watches_losses(&self) -> bool {
        false
    }

    /// Whether [`Mapping::delivered`] is to be noted; asked with each ACK while there are several subflows.
    fn watches_delivery(&self) -> bool {
        false
    }
}
