//! Linux-like scheduler, for comparisons: detects silent paths like current kernels.
//!
//! *Problem.* The stall that users of the kernel see when WiFi fails is caused neither by the scheduler nor by TCP, but
//! by the time until the connection uses another subflow. Comparisons in virtual time need an accurate model of this
//! delay.
//!
//! *How.* The sender works as follows:
//! - A retransmission timer of the connection runs while anything is not DATA_ACKed: 200 ms, restarted by each DATA_ACK
//!   that advances. When it fires, each subflow that has unacknowledged data and has received nothing since the last
//!   expiry gets a mark.
//! - At that time, the oldest data is sent again on a subflow without outstanding data: immediately on a regular one,
//!   on a backup only if every subflow that holds data has two marks.
//! - New data stays on its subflow. A subflow with more than four marks is *stale* while another one has fewer than
//!   three: its outstanding data and new data are sent on other subflows, including backups, until a segment is
//!   received on it.
//!
//! *Source.* The behavior of Linux 6.12 (its `stale_loss_cnt` of 4), reimplemented. The lab's real-time experiments
//! measure the kernel itself. The stall of this model lies within those results (tests of `marline-lab`).
//!
//! *Differences.* Among regular subflows, the one with the lowest SRTT is chosen, where the kernel compares the
//! duration of their queues. Data that the kernel gives to a subflow with a closed window waits here without a subflow,
//! and is treated as if it had been given to one. When the timer fires, 32 kB are sent again, whereas the kernel sends
//! one fragment of the application's data of up to that size.
//!
//! *p99 of a small message* on a path that fails: 400 ms plus the backup's delay, in each direction.

use marline_policy::{
    DataRange, Decision, Dsn, Reinjection, ReinjectionCause, Scheduler, SchedulerAction,
    SchedulerContext, SchedulerEvent, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

use super::classes;
use super::per_subflow::PerSubflow;

/// Interval of the connection's retransmission timer.
const TIMER: Duration = Duration::from_millis(200);
/// Number of marks above which a subflow becomes stale, if another one has fewer than [`ACTIVE_MARKS`].
const STALE_MARKS: u32 = 4;
/// Number of marks below which a subflow counts as active.
const ACTIVE_MARKS: u32 = STALE_MARKS - 1;
/// Number of marks that all subflows holding the data must exceed before a backup repeats it.
const BACKUP_MARKS: u32 = 1;
/// Number of bytes repeated when the timer fires.
const TIMEOUT_REPEAT_BYTES: u64 = 32_768;

/// Marks of a subflow for its current silence.
#[derive(Copy, Clone, Debug, Default)]
struct SilenceMarks {
    marks: u32,
    received_at: Instant,
    stale: bool,
}

/// Data to send again.
#[derive(Copy, Clone, Debug)]
struct Repeat {
    on: SubflowId,
    end: Dsn,
}

/// Scheduler that models the one in Linux.
#[derive(Debug, Default)]
pub struct Linux {
    timer: Option<Instant>,
    una: Dsn,
    silences: PerSubflow<SilenceMarks>,
    repeat: Option<Repeat>,
}

impl Linux {
    fn silence(&mut self, id: SubflowId) -> &mut SilenceMarks {
        self.silences.value_mut(id)
    }

    fn is_stale(&self, view: &SubflowView) -> bool {
        let silence = self.silences.get(view.id);
        silence.stale && silence.received_at == view.last_rx_at
    }

    fn active<'a>(&'a self, cx: &'a SchedulerContext<'_>) -> impl Iterator<Item = &'a SubflowView> {
        cx.subflows.iter().filter(|view| view.is_active() && !self.is_stale(view))
    }

    fn run_timer(&mut self, cx: &SchedulerContext<'_>) {
        if cx.mappings.oldest().is_none() && cx.unsent.is_empty() {
            self.timer = None;
        } else if self.timer.is_none() || cx.data_una > self.una {
            self.timer = Some(cx.now + TIMER);
        }
        self.una = cx.data_una;
        if self.timer.is_some_and(|at| at <= cx.now) {
            self.timer = Some(cx.now + TIMER);
            self.on_timer(cx);
        }
    }

    fn on_timer(&mut self, cx: &SchedulerContext<'_>) {
        let holds = |view: &&SubflowView| view.bytes_in_flight + view.bytes_queued > 0;
        let mut least_marks = u32::MAX;
        for view in cx.subflows.iter().filter(|view| view.is_active()).filter(holds) {
            least_marks = least_marks.min(self.add_mark(view));
        }
        for view in cx.subflows.iter().filter(|view| view.is_active()).filter(holds) {
            self.mark_stale(view, cx);
        }
        let idle = |backup: bool| {
            self.active(cx).find(|view| !holds(view) && view.backup == backup).map(|view| view.id)
        };
        let backup = || idle(true).filter(|_| least_marks > BACKUP_MARKS);
        if let (Some(on), None) = (idle(false).or_else(backup), self.repeat) {
            let end = cx.data_una.plus(TIMEOUT_REPEAT_BYTES).min(cx.written);
            self.repeat = Some(Repeat { on, end });
        }
    }

    /// Adds a mark for a subflow that holds data when the timer fires. Returns the number of marks for its current
    /// silence.
    fn add_mark(&mut self, view: &SubflowView) -> u32 {
        let silence = self.silence(view.id);
        if silence.marks == 0 || silence.received_at != view.last_rx_at {
            let again = silence.marks > 0;
            *silence = SilenceMarks {
                marks: u32::from(!again),
                received_at: view.last_rx_at,
                stale: false,
            };
        } else {
            silence.marks += 1;
        }
        silence.marks
    }

    fn mark_stale(&mut self, view: &SubflowView, cx: &SchedulerContext<'_>) {
        let silence = *self.silence(view.id);
        if silence.stale || silence.marks <= STALE_MARKS {
            return;
        }
        let other = self.active(cx).find(|other| {
            let marks = self.silences.get(other.id).marks;
            other.id != view.id && marks < ACTIVE_MARKS
        });
        let Some(on) = other.map(|other| other.id) else { return };
        self.silence(view.id).stale = true;
        self.repeat = Some(Repeat { on, end: cx.written });
    }

    /// Returns the next part of the data to send again, if any.
    fn next_repeat(&mut self, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let Repeat { on, end } = self.repeat?;
        let sent = cx.mappings.next_not_on(on, cx.data_una).map(|mapping| mapping.range);
        let part = sent.unwrap_or(cx.unsent);
        let part = DataRange::new(part.start, part.end.min(end).max(part.start));
        match cx.subflow(on).filter(|view| view.is_active() && !part.is_empty()) {
            Some(view) => view.is_ready().then_some(Decision::Send { subflow: on, range: part }),
            None => {
                self.repeat = None;
                None
            }
        }
    }

    fn until_timer(&self, other: Decision) -> Decision {
        match (self.timer, other) {
            (Some(timer), Decision::WaitUntil(at)) => Decision::WaitUntil(at.min(timer)),
            (Some(timer), _) => Decision::WaitUntil(timer),
            (None, other) => other,
        }
    }
}

impl Scheduler for Linux {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.run_timer(cx);
        if let Some(decision) = self.next_repeat(cx) {
            return decision;
        }
        let regular = self.active(cx).any(|view| !view.backup);
        let candidates = || self.active(cx).filter(|view| view.backup != regular);
        let ready = candidates().filter(|view| view.is_ready());
        match ready.min_by_key(|view| classes::rank(view)) {
            Some(view) if !cx.unsent.is_empty() => {
                Decision::Send { subflow: view.id, range: cx.unsent }
            }
            _ => self.until_timer(classes::wait(candidates())),
        }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        match item.cause {
            // The connection does not react when a subflow's own timer fires or a subflow repairs a loss.
            ReinjectionCause::UnansweredProbe
            | ReinjectionCause::SubflowRto
            | ReinjectionCause::DataRto
            | ReinjectionCause::Loss => Decision::Wait,
            ReinjectionCause::SubflowClosed | ReinjectionCause::Policy => {
                classes::reinject(item, cx)
            }
        }
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        _: &SchedulerContext<'_>,
        _: &mut Vec<SchedulerAction>,
    ) {
        if let SchedulerEvent::SubflowUp(id) = event {
            *self.silence(id) = SilenceMarks::default();
        }
    }

    fn probe_patience(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests;
