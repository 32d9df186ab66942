//! Response to loss: entering and leaving recovery, and undoing a reduction of the window.
//!
//! The `LossRecovery` policy decides which segments are lost. PRR or the congestion controller decides how much
//! may be sent while they are repaired. This code manages the phases. The reduction of an episode is undone when
//! there is evidence that no segment was lost (`rto.rs` lists the mechanisms).

use marline_policy::{CongestionSignal, Phase};
use marline_time::Instant;

use super::prr::Prr;
use super::rto::Frto;
use super::undo::UndoState;
use super::{Subflow, SubflowEvent};

/// Bytes acknowledged between losses, for OLIA.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct LossHistory {
    /// Bytes since the last loss.
    pub(super) since_last: u64,
    /// Bytes between the last two losses.
    pub(super) between: u64,
}

impl LossHistory {
    pub(super) fn on_episode(&mut self) {
        self.between = core::mem::take(&mut self.since_last);
    }
}

impl Subflow {
    /// Marks the segments that loss recovery declared lost. Returns the bytes that count as congestion: a lost MTU
    /// probe does not.
    pub(super) fn mark_lost(&mut self, now: Instant) -> u64 {
        let lost = core::mem::take(&mut self.scratch.lost);
        let mut congestion = 0;
        for start in &lost {
            let bytes = self.tx.mark_lost(*start);
            if bytes == 0 {
                continue;
            }
            if self.mtu.is_probe(*start) {
                self.tx.tally.lost = self.tx.tally.lost.saturating_sub(1);
                self.mtu.on_lost();
            } else {
                congestion += bytes;
            }
        }
        self.scratch.lost = lost;
        if congestion > 0 {
            self.tx.forecaster.on_lost(now);
            self.events.push_back(SubflowEvent::Lost);
        }
        congestion
    }

    /// Reduces the window and begins recovery after a loss outside of an episode.
    pub(super) fn enter_recovery(&mut self, now: Instant, prior_in_flight: u64) {
        self.tx.phase = Phase::Recovery;
        self.tx.recovery_point = self.tx.nxt;
        self.tx.undo = None;
        self.tx.frto = Frto::Off;
        self.tx.losses.on_episode();
        self.tx.probe.clear();
        self.mtu.withdraw();
        // Marks and losses of one round trip count as one congestion event.
        if !self.ecn.reduced_this_round(self.tx.una) {
            self.congestion.on_signal(
                CongestionSignal::Loss { bytes_in_flight: prior_in_flight },
                now,
                self.id,
                &self.group,
            );
            self.ecn.on_reduction(self.tx.nxt);
            self.tx.undo = Some(Box::new(UndoState::new(self.tx.una)));
        }
        let mss = u64::from(self.tx.mss);
        *self.tx.prr = Prr::start(prior_in_flight, self.congestion.ssthresh(), mss);
        self.recovery.on_recovery(true, &self.tx.context(now));
    }

    /// Ends the episode if SND.UNA has reached its end.
    pub(super) fn leave_recovery_if_done(&mut self, now: Instant) {
        if self.tx.phase == Phase::Open || self.tx.una < self.tx.recovery_point {
            return;
        }
        self.tx.phase = Phase::Open;
        self.tx.frto = Frto::Off;
        self.tx.force = None;
        self.congestion.on_signal(CongestionSignal::RecoveryDone, now, self.id, &self.group);
        self.recovery.on_recovery(false, &self.tx.context(now));
    }

    /// Undoes the last reduction, which was unnecessary.
    pub(super) fn undo_reduction(&mut self, now: Instant) {
        if self.tx.undo.take().is_none() {
            return;
        }
        self.stats.trouble.undone += 1;
        let was_open = self.tx.phase == Phase::Open;
        self.tx.phase = Phase::Open;
        self.tx.frto = Frto::Off;
        self.tx.force = None;
        self.tx.unmark_all_lost();
        self.congestion.on_signal(CongestionSignal::Spurious, now, self.id, &self.group);
        if !was_open {
            self.recovery.on_recovery(false, &self.tx.context(now));
        }
    }

    /// Drops all SACK state: SACKed segments count as lost again.
    pub(super) fn renege_all(&mut self) {
        for index in 0..self.tx.board.len() {
            if self.tx.board.get(index).is_some_and(|segment| segment.sacked) {
                self.tx.board.renege(index);
                self.tx.queue_lost(index);
            }
        }
        self.tx.sack_cache.retire();
    }
}
