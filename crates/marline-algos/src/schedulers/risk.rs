//! Lateness estimate of a path: the share of its recent segments that were not acknowledged in
//! time.
//!
//! *Problem.* Whether an immediate copy is worth its bytes depends on the probability that the
//! original does not arrive in time. Neither RTT nor window show it: a path that loses 3 % and one
//! that loses nothing look alike between two losses.
//!
//! *How.* For each subflow: segments sent and segments late, both with a memory of `memory`
//! segments (older ones count e times less). A segment is late if its acknowledgment was not
//! received after SRTT + 4 x RTTVAR (at least 1.25 SRTT), a probe or retransmission timeout, or a
//! loss that recovery found; late segments within one SRTT count as one event. The path is risky
//! while the share of late ones is above `tail`.
//!
//! - With the defaults (3.5 % of 20) one late segment in a good phase makes the path risky for the
//!   next 7 segments. The losses of a bad phase add up, to `most`, after which it takes 34 good
//!   ones. A path with constant 3 % loss is nearly always risky; one with 0.1 % hardly ever.
//! - While copies are made, the path still carries everything, so that any improvement shows at
//!   once.
//! - A path without history is risky: it begins with half a late segment. So the first segments of
//!   a connection and those after a handover are on both paths.
//! - A segment is also copied if nothing was received on a path of the class for `stale`: its RTT
//!   is then outdated, and so is the choice of the fastest path.
//!
//! *Limit:* the first losses of a bad phase are not foreseen. They cost a hedging delay each.

use marline_policy::{SchedulerContext, SchedulerEvent, SubflowId, SubflowView};
use marline_time::{Duration, Instant};

use super::classes::Class;
use super::per_subflow::PerSubflow;

/// Late segments that a new path is charged with.
const DOUBT: f64 = 0.5;

/// When a path is risky.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct RiskConfig {
    /// Share of late segments above which it is, 0 to 1.
    pub tail: f64,
    /// Segments that are remembered, 1 to 10,000.
    pub memory: u32,
    /// Late segments that are remembered at most.
    pub most: f64,
    /// Silence after which nothing is known of a path.
    pub stale: Duration,
}

impl Default for RiskConfig {
    fn default() -> Self {
        RiskConfig { tail: 0.035, memory: 20, most: 4.0, stale: Duration::from_secs(2) }
    }
}

#[derive(Copy, Clone, Debug)]
struct Record {
    sent: f64,
    late: f64,
    /// When something was late last.
    late_at: Option<Instant>,
    /// As it was last seen; less than that means a loss.
    bytes_since_loss: u64,
}

impl Default for Record {
    fn default() -> Self {
        Record { sent: 0.0, late: DOUBT, late_at: None, bytes_since_loss: 0 }
    }
}

/// The risk of every path of a connection.
#[derive(Clone, Debug)]
pub(super) struct Risk {
    config: RiskConfig,
    records: PerSubflow<Record>,
}

impl Risk {
    pub(super) fn new(config: RiskConfig) -> Self {
        Risk { config, records: PerSubflow::new() }
    }

    fn record(&mut self, id: SubflowId) -> &mut Record {
        self.records.of(id)
    }

    /// A segment goes on `on`; whether that is risky.
    pub(super) fn on_sent(&mut self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
        let config = self.config;
        let before =
            core::mem::replace(&mut self.record(on.id).bytes_since_loss, on.bytes_since_loss);
        if on.bytes_since_loss < before {
            self.on_late(on.id, cx);
        }
        let record = self.record(on.id);
        let kept = 1.0 - 1.0 / f64::from(config.memory);
        record.sent = record.sent.mul_add(kept, 1.0);
        record.late *= kept;
        let unknown = |view: &SubflowView| cx.now.since(view.last_heard_at) > config.stale;
        let class = Class::of(on);
        record.late > config.tail * record.sent
            || cx.subflows.iter().any(|view| Class::of(view) == class && unknown(view))
    }

    /// An answer on this path is late.
    pub(super) fn on_late(&mut self, id: SubflowId, cx: &SchedulerContext<'_>) {
        let srtt = cx.subflow(id).and_then(|view| view.srtt).unwrap_or_default();
        let most = self.config.most;
        let record = self.record(id);
        if record.late_at.is_some_and(|last| cx.now.since(last) < srtt) {
            return;
        }
        record.late_at = Some(cx.now);
        record.late = (record.late + 1.0).min(most);
    }

    pub(super) fn on_event(&mut self, event: SchedulerEvent, cx: &SchedulerContext<'_>) {
        match event {
            SchedulerEvent::ProbeTimeout(id) | SchedulerEvent::SubflowRto(id) => {
                self.on_late(id, cx);
            }
            SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) => {
                *self.record(id) = Record::default();
            }
            _ => {}
        }
    }
}
