//! Response to loss: entering and leaving recovery, the retransmission timer (RFC 6298), and undoing a reduction of the
//! window.
//!
//! The `LossRecovery` policy decides which segments are lost. PRR or the congestion controller decides how much
//! may be sent while they are repaired. This code manages the phases.
//!
//! The timer runs while anything is unacknowledged, restarts when SND.UNA advances or a probe is sent, and doubles on
//! each expiry until SND.UNA advances, except while segments from the peer arrive (`retry_soon`). On expiry the
//! oldest segment is retransmitted regardless of the window; loss recovery decides which others count as lost.
//!
//! A timeout may be spurious, on a path that was only slow. Three mechanisms detect this, and each
//! undoes the reduction of the episode:
//! - F-RTO (RFC 5682 section 3, the SACK-enhanced form, which also works for peers without SACK): after the timeout,
//!   an ACK covers data that was sent before it and not retransmitted. This is rarely seen while retransmissions are
//!   sent, so after the first ACK that advances SND.UNA up to two segments of new data are sent instead (step 2b),
//!   and the next ACK decides. With timestamps, the next mechanism has decided by then, and retransmissions need not
//!   wait. Nor do they wait if there is no new data, or if another healthy subflow carries it. A timeout within
//!   recovery is not evaluated, since data sent during recovery arrives regardless of the segment that timed out.
//! - Eifel (RFC 3522): the ACK echoes a timestamp older than the first retransmission.
//! - DSACK (RFC 3708): all retransmissions turn out to be duplicates.

use std::sync::Arc;

use marline_policy::{CongestionSignal, Phase, SentKind, Ssn, UnreachableCause};
use marline_time::{Duration, Instant};

use super::prr::Prr;
use super::reliable::SegmentCarrier;
use super::{Subflow, SubflowEvent};

/// Number of segments of new data that F-RTO sends instead of retransmissions (RFC 5682 section 3.1, step 2b).
const FRTO_SEGMENTS: u8 = 2;

/// Bytes acknowledged since the last loss and between the last two losses, for OLIA.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct LossHistory {
    /// Bytes since the last loss.
    pub(super) since_last: u64,
    /// Bytes between the last two losses.
    pub(super) bytes_between: u64,
}

impl LossHistory {
    pub(super) fn on_episode(&mut self) {
        self.bytes_between = core::mem::take(&mut self.since_last);
    }
}

/// Evidence about the last reduction.
#[derive(Copy, Clone, Debug)]
pub(super) struct UndoState {
    /// SND.UNA when the window was reduced.
    pub(super) marker: Ssn,
    /// Bytes retransmitted since the reduction and not yet reported by a DSACK.
    pub(super) unproven: u64,
    /// Our timestamp on the first retransmission.
    pub(super) first_retransmission: Option<u32>,
}

impl UndoState {
    pub(super) const fn new(marker: Ssn) -> Self {
        UndoState { marker, unproven: 0, first_retransmission: None }
    }

    /// Records a retransmission of `bytes`, with this timestamp.
    pub(super) fn on_retransmission(&mut self, bytes: u64, timestamp: u32) {
        self.unproven += bytes;
        self.first_retransmission.get_or_insert(timestamp);
    }

    /// Handles a DSACK for `bytes` bytes that start at `start`. Returns true if it proves that no retransmission was
    /// needed.
    pub(super) fn on_dsack(&mut self, start: Ssn, bytes: u64) -> bool {
        if start < self.marker || self.first_retransmission.is_none() || self.unproven == 0 {
            return false;
        }
        self.unproven = self.unproven.saturating_sub(bytes);
        self.unproven == 0
    }

    /// True if the echoed `timestamp` in an ACK for a retransmitted segment is older than the first retransmission.
    pub(super) fn is_echo_older(&self, timestamp: u32) -> bool {
        self.first_retransmission.is_some_and(|first| (timestamp.wrapping_sub(first) as i32) < 0)
    }
}

/// Retransmission timer and its backoff.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct RtoTimer {
    pub(super) deadline: Option<Instant>,
    /// Expiries since SND.UNA last advanced.
    pub(super) count: u32,
    /// The last answer after timeouts was not accepted as an RTT sample.
    pub(super) is_unreliable: bool,
    /// Carrier of the segments, which determines the minimum timeout.
    pub(super) carrier: SegmentCarrier,
}

impl RtoTimer {
    /// Timeout with its backoff.
    pub(super) fn rto_with_backoff(&self, rto: Duration, max: Duration) -> Duration {
        rto.saturating_mul(1 << self.count.min(20)).min(max)
    }
}

/// Retransmission mode of a subflow.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum RetransmissionMode {
    /// Retransmits as window and timer allow.
    #[default]
    Always,
    /// Pauses, because other subflows carry the data and the path is probed independently.
    Paused,
    /// The next timeout retransmits although the subflow might pause, because an answer is expected.
    Once,
}

/// F-RTO state of the last timeout.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Frto {
    /// There was no timeout, a genuine one, or one that is not evaluated.
    #[default]
    Off,
    /// F-RTO waits for the first ACK that advances SND.UNA.
    Listening,
    /// Step 2b: this many segments of new data should be sent. Nothing is retransmitted until then.
    WaitForNewData(u8),
    /// Step 3: the new data was sent, and the next ACK decides.
    Asked,
    /// There was no verdict, and F-RTO makes no further attempt.
    GaveUp,
}

impl Frto {
    /// True if retransmissions wait for the verdict.
    pub(super) const fn defers_retransmissions(self) -> bool {
        matches!(self, Frto::WaitForNewData(_) | Frto::Asked)
    }
}

/// Recovery.
impl Subflow {
    /// Marks the segments that loss recovery declared lost. Returns the bytes that count as congestion, which
    /// excludes a lost MTU probe.
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

    /// Reduces the window and begins recovery after a loss outside an episode.
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
    pub(super) fn drop_sack_state(&mut self) {
        for index in 0..self.tx.board.len() {
            if self.tx.board.get(index).is_some_and(|segment| segment.sacked) {
                self.tx.board.renege(index);
                self.tx.queue_lost(index);
            }
        }
        if let Some(notes) = self.tx.notes.if_used() {
            notes.sacks = Default::default();
        }
    }
}

/// Retransmission timer.
impl Subflow {
    /// Advances F-RTO after an ACK without a verdict. `moved` is true if it advanced SND.UNA.
    pub(super) fn advance_frto(&mut self, moved: bool) {
        let within = self.tx.phase == Phase::Loss && self.tx.una < self.tx.recovery_point;
        self.tx.frto = match self.tx.frto {
            Frto::Listening if moved && within && !self.timestamps.enabled => {
                Frto::WaitForNewData(FRTO_SEGMENTS)
            }
            // Step 3a: a duplicate, or a SACK of only the new data.
            Frto::Asked | Frto::WaitForNewData(_) if !moved => Frto::Off,
            Frto::Asked | Frto::WaitForNewData(_) => Frto::GaveUp,
            other => other,
        };
    }

    /// True if F-RTO requests new data instead of retransmissions. If there is no data or no room for it, call
    /// [`on_no_frto_data`](Self::on_no_frto_data).
    pub(crate) const fn awaits_frto_data(&self) -> bool {
        matches!(self.tx.frto, Frto::WaitForNewData(_)) && !self.is_dead
    }

    /// True if new data may be sent for F-RTO.
    pub(crate) fn has_room_for_frto(&self) -> bool {
        let room = self.tx.board.bytes_in_flight() < self.send_window();
        room && self.state.may_send() && !self.fin_wanted
    }

    /// Handles the case that F-RTO has no new data to send. Retransmissions continue unless some new data was sent.
    pub(crate) fn on_no_frto_data(&mut self) {
        if let Frto::WaitForNewData(left) = self.tx.frto {
            self.tx.frto = if left < FRTO_SEGMENTS { Frto::Asked } else { Frto::GaveUp };
        }
    }

    /// From the timer's next start, uses the bounds of the timeout for a path with or without a radio that sleeps.
    pub(crate) fn set_radio(&mut self, radio: bool) {
        let Some(bounds) = &self.config.radio_rtt else { return };
        self.tx.rtt.set_config(Arc::clone(if radio { bounds } else { &self.config.rtt }));
    }

    /// Restarts the timer, or stops it if all data is acknowledged.
    pub(super) fn rearm_rto(&mut self, now: Instant) {
        let tx = &mut self.tx;
        tx.rto.deadline = if tx.board.is_empty() { None } else { Some(now + tx.timeout()) };
    }

    /// Starts the timer unless it is running. During the handshake, this is the timer of the SYN or SYN/ACK.
    pub(super) fn arm_rto(&mut self, now: Instant) {
        if self.tx.rto.deadline.is_none() && !self.state.is_handshake() {
            self.rearm_rto(now);
        }
    }

    /// Selects the mode after an expiry. `may_rest` is true if other subflows carry the unacknowledged data and the
    /// path is probed.
    pub(crate) fn pause_or_repeat(&mut self, may_rest: bool) {
        let rests = may_rest && self.repeats != RetransmissionMode::Once;
        self.repeats = if rests { RetransmissionMode::Paused } else { RetransmissionMode::Always };
    }

    /// Fires the timer now because the path works again. Retransmissions lost during the outage prove nothing about
    /// the path now, and the backoff could last as long as the outage.
    pub(crate) fn retry_now(&mut self, now: Instant) {
        self.repeats = RetransmissionMode::Once;
        let rto = &mut self.tx.rto;
        if !self.is_dead && rto.count > 0 && rto.deadline.is_some_and(|at| at > now) {
            rto.deadline = Some(now);
            rto.count -= 1;
        }
    }

    /// Shortens the timer when a segment arrives, the first after `since_last_rx` without one, while retransmissions
    /// are not
    /// acknowledged. Backoff is for a path in an unknown state. This one works in at least one direction, and new data
    /// must not wait for the end of an outage's backoff (RFC 6069 does so after a router's report). If our direction is
    /// still dead, the timer detects that in its usual time.
    ///
    /// If nothing was received for two timeouts, both directions were dead, and this segment marks the end of the
    /// outage. The backoff then ends, and the oldest segment is retransmitted immediately. If it was already sent
    /// after the outage, this costs a segment; without the retransmission, it could cost a timeout.
    pub(crate) fn retry_soon(&mut self, now: Instant, since_last_rx: Duration) {
        self.repeats = RetransmissionMode::Once;
        if self.is_dead || self.tx.rto.count == 0 || self.refuses_payload() {
            return;
        }
        let timeout = self.tx.rto_without_backoff();
        let is_over = since_last_rx >= timeout * 2;
        let due = if is_over { now } else { now.max(self.tx.last_sent_at + timeout) };
        let rto = &mut self.tx.rto;
        if is_over {
            rto.count = 1;
        }
        if rto.deadline.is_some_and(|at| at > due) {
            rto.deadline = Some(due);
            rto.count -= 1;
        }
    }

    /// True if the peer answered the last segment with a window of zero although data is in flight: it is refusing the
    /// payload, and the path works.
    pub(crate) fn refuses_payload(&self) -> bool {
        self.tx.window == 0 && !self.tx.board.is_empty() && self.last_rx_at > self.tx.last_sent_at
    }

    /// Retransmits immediately when the peer opens a window that it had withdrawn.
    pub(super) fn on_window_returned(&mut self, now: Instant) {
        let rto = &mut self.tx.rto;
        rto.count = rto.count.min(1);
        self.retry_now(now);
    }

    /// Handles an expiry of the timer while data was unacknowledged.
    pub(super) fn on_rto(&mut self, now: Instant) {
        self.tx.rto.deadline = None;
        if self.tx.board.is_empty() {
            return;
        }
        if self.refuses_payload() {
            self.probe_window(now);
            return;
        }
        if self.tx.rto.count >= self.config.retries {
            self.end_after_retries();
            return;
        }
        self.tx.rto.count += 1;
        self.stats.trouble.rtos += 1;
        self.health.on_overdue(now, UnreachableCause::RetransmissionTimeout);
        self.events.push_back(SubflowEvent::Rto { count: self.tx.rto.count });
        let in_flight = self.tx.board.bytes_in_flight();
        if self.mtu.on_rto(self.tx.rto.count, self.oldest_segment()) {
            self.apply_mss();
        }
        self.tx.probe.clear();
        let first = self.tx.phase != Phase::Loss;
        let was_recovery = self.tx.phase == Phase::Recovery;
        self.tx.phase = Phase::Loss;
        self.mark_lost_by_timeout(now);
        if first {
            if !was_recovery {
                self.recovery.on_recovery(true, &self.tx.context(now));
            }
            self.tx.undo = Some(Box::new(UndoState::new(self.tx.una)));
            self.ecn.on_reduction(self.tx.nxt);
            self.tx.losses.on_episode();
        }
        self.tx.recovery_point = self.tx.nxt;
        self.tx.frto = if was_recovery { Frto::Off } else { Frto::Listening };
        self.congestion.on_signal(
            CongestionSignal::Rto { bytes_in_flight: in_flight, first },
            now,
            self.id,
            &self.group,
        );
        self.retransmit_oldest(now);
    }

    /// Sends the oldest segment again as a window probe (RFC 9293 section 3.8.6.1). The intervals grow. While the
    /// peer answers, this is neither a loss nor a reason to give up the subflow.
    fn probe_window(&mut self, now: Instant) {
        self.tx.rto.count = (self.tx.rto.count + 1).min(self.config.retries.saturating_sub(1));
        self.mark_oldest_lost();
        self.retransmit_oldest(now);
    }

    fn mark_oldest_lost(&mut self) {
        if let Some(start) = self.tx.board.front().map(|front| front.start) {
            self.tx.mark_lost(start);
        }
    }

    /// Retransmits the oldest segment regardless of the window, and starts the timer.
    fn retransmit_oldest(&mut self, now: Instant) {
        self.tx.force = Some(SentKind::Retransmission);
        self.tx.rto.deadline = Some(now + self.tx.timeout());
    }

    /// Size in bytes of the oldest unacknowledged segment, with the smallest header possible.
    fn oldest_segment(&self) -> u64 {
        let oldest = self.tx.board.front();
        oldest.map_or(0, |segment| {
            self.bytes_of_segment(segment.segment_end(segment.start).since(segment.start))
        })
    }

    /// Marks segments lost after the timeout: those that loss recovery reports, and always the oldest one.
    fn mark_lost_by_timeout(&mut self, now: Instant) {
        if self.tx.board.front().is_some_and(|front| front.sacked) {
            // The peer dropped data that it had SACKed (RFC 2018 section 8): discard all SACK state.
            self.drop_sack_state();
        }
        self.tx.forecaster.on_lost(now);
        self.tx.cut_off_segment(0);
        let mut lost = core::mem::take(&mut self.scratch.lost);
        lost.clear();
        self.recovery.on_rto(&self.tx.context(now), &mut lost);
        for start in &lost {
            self.tx.mark_lost(*start);
        }
        self.scratch.lost = lost;
        self.mark_oldest_lost();
    }
}
