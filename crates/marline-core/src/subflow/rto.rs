//! Retransmission timer (RFC 6298), and the response to its expiry.
//!
//! The timer runs while anything is unacknowledged, restarts when SND.UNA advances or a probe is
//! sent, and doubles on each expiry until SND.UNA advances, except while the peer is heard
//! (`retry_soon`). On expiry the oldest segment is retransmitted regardless of the window; loss
//! recovery decides which others count as lost.
//!
//! A timeout may be spurious, on a path that was only slow. Three mechanisms detect this, and each
//! undoes the reduction (`loss.rs`):
//! - F-RTO (RFC 5682 section 3, the SACK-enhanced form, which serves peers without SACK as well):
//!   after the timeout, an ACK covers data that was sent before it and not retransmitted. While
//!   retransmissions are sent that is rarely seen, so the first ACK that advances SND.UNA is
//!   answered by up to two segments of new data instead (step 2b), and the next ACK decides. With
//!   timestamps the next mechanism has decided by then, and retransmissions need not wait; nor do
//!   they wait where there is no new data, or where another healthy subflow carries it. A timeout
//!   within recovery is not evaluated, since data sent during recovery arrives regardless of the
//!   segment that timed out.
//! - Eifel (RFC 3522): the ACK echoes a timestamp older than the first retransmission.
//! - DSACK (RFC 3708): all retransmissions turn out to be duplicates.

use std::sync::Arc;

use marline_policy::{CongestionSignal, Phase, SentKind, SilenceCause};
use marline_time::{Duration, Instant};

use super::reliable::Beneath;
use super::undo::Undo;
use super::{Subflow, SubflowEvent};

/// The timer and its backoff.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct RtoTimer {
    pub(super) deadline: Option<Instant>,
    /// Firings since SND.UNA last moved.
    pub(super) count: u32,
    /// The last answer that came after timeouts was not believed to be a round trip.
    pub(super) doubted: bool,
    /// What carries the segments: the shortest timeout follows from it.
    pub(super) beneath: Beneath,
}

impl RtoTimer {
    /// The timeout with its backoff.
    pub(super) fn backed_off(&self, rto: Duration, max: Duration) -> Duration {
        rto.saturating_mul(1 << self.count.min(20)).min(max)
    }
}

/// Whether a subflow repeats what is lost.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Repeats {
    /// As its window and its timer allow.
    #[default]
    Always,
    /// Not now: others carry that data, and probes ask for the peer at their own pace.
    Rests,
    /// The next timeout repeats, although it might rest: there is a reason to expect an answer.
    Once,
}

/// Segments of new data that F-RTO sends in place of repeats (RFC 5682 section 3.1, step 2b).
const FRTO_SEGMENTS: u8 = 2;

/// How far F-RTO has come with the last timeout.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Frto {
    /// No timeout, or one that was real, or one that is not to be judged.
    #[default]
    Off,
    /// Waits for the first ACK that moves SND.UNA.
    Listening,
    /// Step 2b: so many segments of new data are wanted; nothing is repeated meanwhile.
    Wants(u8),
    /// Step 3: the new data is out, the next ACK tells.
    Asked,
    /// It has told nothing, and is not asked again.
    Spent,
}

impl Frto {
    /// Whether repeats wait for its answer.
    pub(super) const fn holds_repeats(self) -> bool {
        matches!(self, Frto::Wants(_) | Frto::Asked)
    }
}

impl Subflow {
    /// An ACK that brought no verdict on the timeout. `moved`: it moved SND.UNA.
    pub(super) fn advance_frto(&mut self, moved: bool) {
        let within = self.tx.phase == Phase::Loss && self.tx.una < self.tx.recovery_point;
        self.tx.frto = match self.tx.frto {
            Frto::Listening if moved && within && !self.timestamps.enabled => {
                Frto::Wants(FRTO_SEGMENTS)
            }
            // Step 3a: a duplicate, or a SACK of the new data alone.
            Frto::Asked | Frto::Wants(_) if !moved => Frto::Off,
            Frto::Asked | Frto::Wants(_) => Frto::Spent,
            other => other,
        };
    }

    /// F-RTO asks for new data in place of repeats. If there is none or no room for it, call
    /// [`frto_has_no_data`](Self::frto_has_no_data).
    pub(crate) const fn awaits_frto_data(&self) -> bool {
        matches!(self.tx.frto, Frto::Wants(_)) && !self.dead
    }

    /// Whether new data may go for it.
    pub(crate) fn has_room_for_frto(&self) -> bool {
        let room = self.tx.board.bytes_in_flight() < self.send_window();
        room && self.state.may_send() && !self.fin_wanted
    }

    /// There is no (more) new data for F-RTO: repeats go on unless some is out already.
    pub(crate) fn frto_has_no_data(&mut self) {
        if let Frto::Wants(left) = self.tx.frto {
            self.tx.frto = if left < FRTO_SEGMENTS { Frto::Asked } else { Frto::Spent };
        }
    }

    /// Its path has a radio that sleeps, or none: which bounds the timeout has from its next start on, where they
    /// differ.
    pub(crate) fn set_radio(&mut self, radio: bool) {
        let Some(bounds) = &self.config.radio_rtt else { return };
        self.tx.rtt.set_config(Arc::clone(if radio { bounds } else { &self.config.rtt }));
    }

    /// Starts the timer anew, or stops it if nothing is unacknowledged.
    pub(super) fn rearm_rto(&mut self, now: Instant) {
        let tx = &mut self.tx;
        tx.rto.deadline = if tx.board.is_empty() { None } else { Some(now + tx.timeout()) };
    }

    /// Starts the timer unless it runs. During the handshake it is that of the SYN or SYN/ACK.
    pub(super) fn arm_rto(&mut self, now: Instant) {
        if self.tx.rto.deadline.is_none() && !self.state.is_handshake() {
            self.rearm_rto(now);
        }
    }

    /// The timer has fired. `may_rest`: others carry what is unacknowledged, and the path is probed.
    pub(crate) fn rest_or_repeat(&mut self, may_rest: bool) {
        let rests = may_rest && self.repeats != Repeats::Once;
        self.repeats = if rests { Repeats::Rests } else { Repeats::Always };
    }

    /// The way out is back. What was repeated into nothing says nothing of the path: the timer fires
    /// now instead of at the end of a backoff that may be as long again as the outage was.
    pub(crate) fn retry_now(&mut self, now: Instant) {
        self.repeats = Repeats::Once;
        let rto = &mut self.tx.rto;
        if !self.dead && rto.count > 0 && rto.deadline.is_some_and(|at| at > now) {
            rto.deadline = Some(now);
            rto.count -= 1;
        }
    }

    /// The peer is heard again, the first time for `unheard`, but what was repeated is not acknowledged.
    /// Backoff is for a path of which nothing is known; of this one it is known that it works one way at
    /// least, and what goes out on it from now on must not wait for the end of an outage's backoff (RFC 6069
    /// does so at the word of a router). Where our direction is still dead the timer finds that out at its
    /// usual pace.
    ///
    /// If nothing at all came for two timeouts, it was not our direction alone that was dead, and what comes
    /// now is the end of that. Then the backoff is over, and the oldest segment is repeated at once. Perhaps
    /// it went out when the path had just come back; that costs a segment, and not to repeat it a timeout.
    pub(crate) fn retry_soon(&mut self, now: Instant, unheard: Duration) {
        self.repeats = Repeats::Once;
        if self.dead || self.tx.rto.count == 0 || self.refuses_payload() {
            return;
        }
        let timeout = self.tx.rto_without_backoff();
        let is_over = unheard >= timeout * 2;
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

    /// The peer acknowledged what it has, and took back its window although something is in flight.
    pub(crate) fn refuses_payload(&self) -> bool {
        self.tx.window == 0
            && !self.tx.board.is_empty()
            && self.last_heard_at > self.tx.last_sent_at
    }

    /// The window is open again after it was taken back: what was refused is due.
    pub(super) fn on_window_returned(&mut self, now: Instant) {
        let rto = &mut self.tx.rto;
        rto.count = rto.count.min(1);
        self.retry_now(now);
    }

    /// The timer fired while data was unacknowledged.
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
            self.die();
            return;
        }
        self.tx.rto.count += 1;
        self.stats.trouble.rtos += 1;
        self.health.on_overdue(now, SilenceCause::RetransmissionTimeout);
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
            self.tx.undo = Some(Box::new(Undo::new(self.tx.una)));
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
        self.tx.force = Some(SentKind::Retransmission);
        self.tx.rto.deadline = Some(now + self.tx.timeout());
    }

    /// The oldest segment goes again as a window probe (RFC 9293 section 3.8.6.1): its pauses grow, and while the peer
    /// answers, nothing is lost, and nothing ends.
    fn probe_window(&mut self, now: Instant) {
        self.tx.rto.count = (self.tx.rto.count + 1).min(self.config.retries.saturating_sub(1));
        if let Some(start) = self.tx.board.front().map(|front| front.start) {
            self.tx.mark_lost(start);
        }
        self.tx.force = Some(SentKind::Retransmission);
        self.tx.rto.deadline = Some(now + self.tx.timeout());
    }

    /// Bytes of the oldest segment that is not acknowledged, with the least header it can have.
    fn oldest_segment(&self) -> u64 {
        let oldest = self.tx.board.front();
        oldest.map_or(0, |segment| {
            self.bytes_of_segment(segment.segment_end(segment.start).since(segment.start))
        })
    }

    /// Marks what the timeout makes lost: what loss recovery says, and the oldest segment always.
    fn mark_lost_by_timeout(&mut self, now: Instant) {
        if self.tx.board.front().is_some_and(|front| front.sacked) {
            // The peer took back what it had SACKed (RFC 2018 section 8): believe none of it.
            self.renege_all();
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
        if let Some(start) = self.tx.board.front().map(|front| front.start) {
            self.tx.mark_lost(start);
        }
    }
}
