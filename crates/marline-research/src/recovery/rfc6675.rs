//! Loss detection by counting SACKed segments (RFC 6675), as senders did before RACK, and as in the tail-loss studies.
//!
//! *Problem.* A new algorithm must be compared with its predecessor, which is more than counting three duplicate ACKs:
//! limited transmit, early retransmit, forward acknowledgment and tail loss probes each avoid some timeouts.
//!
//! *How.* A segment is lost once three segments sent after it were SACKed. In addition:
//! - *Limited transmit* (RFC 3042): the first duplicate ACKs allow new data, so that a third may arrive.
//! - *Early retransmit* (RFC 5827): with fewer than four segments outstanding and nothing new to send, a third cannot
//!   arrive, so fewer are enough. Linux 3.5 to 4.9, like [`EarlyRetransmit::Linux`], accepted any SACK and waited a
//!   quarter of an RTT for reordering to settle.
//! - *FACK* (Mathis and Mahdavi, SIGCOMM 1996; enabled in Linux until reordering is seen): everything more than three
//!   segments below the highest SACK is lost. Without it, the SACK of a tail loss probe is only one of the three
//!   required, and the rest of the tail still waits for the timer.
//! - *Speculative retransmission* (RFC 6675 section 4, NextSeg rule 3): with nothing new to send, all gaps below the
//!   highest SACK are retransmitted. *Rescue* (rule 4): the data left at the end of a recovery is retransmitted once.
//! - *Tail loss probes* with any formula (`marline_algos::recovery::Tlp`), or none.
//!
//! *Source.* RFC 6675, 3042, 5827, and the behavior of Linux 3.14 where named. Reimplemented.
//!
//! *Differences.*
//! - SACKed segments are counted, not bytes or blocks, as in Linux. For full segments this is equivalent, and three
//!   small ones also indicate a loss.
//! - A segment is also marked lost by rules 3 and 4, although the RFC still counts it as in flight. In either case, the
//!   core's PRR determines the resulting window.
//! - Rescue waits for an ACK that advances SND.UNA and for one round trip since the segment was sent.
//! - Reordering raises the threshold beyond its extent (Linux: at most 127) and disables FACK permanently. The extent
//!   is counted in segments of the late segment's size.
//! - A lost retransmission is repaired only by the timer, whereas RACK detects it.

use marline_algos::recovery::no_sack::NoSack;
use marline_algos::recovery::{ProbeConfig, Tlp, no_sack};
use marline_policy::{
    AckOutcome, AckSummary, LimitedTransmit, LossRecovery, Phase, RecoveryContext, SentNotice, Ssn,
    TimeoutAction,
};
use marline_time::{Duration, Instant};

/// Number of SACKed segments above a segment that indicate its loss.
const DUP_THRESH: usize = 3;
/// Upper limit of the threshold that reordering raises.
const MAX_DUP_THRESH: usize = 127;
/// Number of outstanding segments below which early retransmit applies.
const FEW_SEGMENTS: usize = 4;
/// Minimum delay of Linux's early retransmit.
const MIN_EARLY_DELAY: Duration = Duration::from_millis(2);
/// Maximum number of segments beyond the window in limited transmit, for a peer without SACK.
const MAX_LIMITED_TRANSMIT: u32 = 2;

/// Conditions for early retransmit (RFC 5827), in which fewer than three SACKs are enough because fewer than four
/// segments are outstanding.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum EarlyRetransmit {
    /// Disabled.
    #[default]
    Off,
    /// Linux 3.5 to 4.9: any SACK, after a quarter of an RTT.
    Linux,
    /// Exactly RFC 5827: all but one segment SACKed, without delay.
    Rfc5827,
}

/// Settings of [`Rfc6675`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rfc6675Config {
    /// Settings for tail loss probes.
    pub probes: ProbeConfig,
    /// True to allow new data on the first duplicate ACKs.
    pub limited_transmit: bool,
    /// Conditions for early retransmit (RFC 5827).
    pub early_retransmit: EarlyRetransmit,
    /// True to use forward acknowledgment until reordering is seen.
    pub fack: bool,
    /// True to retransmit the data left at the end of a recovery.
    pub rescue: bool,
}

impl Default for Rfc6675Config {
    fn default() -> Self {
        Rfc6675Config {
            probes: ProbeConfig::OFF,
            limited_transmit: true,
            early_retransmit: EarlyRetransmit::Off,
            fack: false,
            rescue: true,
        }
    }
}

/// Loss recovery that counts SACKed segments, for one subflow.
#[derive(Clone, Debug)]
pub struct Rfc6675 {
    config: Rfc6675Config,
    tlp: Tlp,
    no_sack: NoSack,
    sack_enabled: bool,
    mss: u32,
    dup_thresh: usize,
    reordering_seen: bool,
    /// Position after the highest byte delivered.
    highest: Ssn,
    /// Position below which all segments have already been judged.
    judged: Ssn,
    /// End of the delay of early retransmit.
    early_at: Option<Instant>,
    /// True if the current recovery has already used its rescue.
    rescued: bool,
}

impl Rfc6675 {
    /// Creates loss recovery with these settings.
    #[must_use]
    pub const fn new(config: Rfc6675Config) -> Self {
        Rfc6675 {
            config,
            tlp: Tlp::new(config.probes),
            no_sack: NoSack::new(),
            sack_enabled: true,
            mss: 0,
            dup_thresh: DUP_THRESH,
            reordering_seen: false,
            highest: Ssn(0),
            judged: Ssn(0),
            early_at: None,
            rescued: false,
        }
    }

    /// Measures reordering: how far below the highest delivered byte a segment arrives that was sent only once.
    fn detect_reordering(&mut self, ack: &AckSummary<'_>) {
        for segment in ack.delivered {
            if segment.end > self.highest {
                self.highest = segment.end;
            } else if segment.end < self.highest && !segment.retransmitted {
                let size = segment.end.since(segment.start).max(1);
                let extent = self.highest.since(segment.end).div_ceil(size);
                let needed = usize::try_from(extent + 1).unwrap_or(MAX_DUP_THRESH);
                self.dup_thresh = self.dup_thresh.max(needed).min(MAX_DUP_THRESH);
                self.reordering_seen = true;
            }
        }
    }

    /// Returns the position below which segments are lost according to SACKs.
    fn lost_boundary(&self, cx: &RecoveryContext<'_>, certain: bool) -> usize {
        let Some(top) = cx.board.index_of(Ssn(self.highest.0.saturating_sub(1))) else { return 0 };
        if certain && cx.app_limited {
            return top;
        }
        if self.config.fack && !self.reordering_seen {
            return (top + 1).saturating_sub(self.dup_thresh);
        }
        let mut sacked = 0;
        (0..=top)
            .rev()
            .find(|index| {
                sacked += usize::from(cx.board.get(*index).is_some_and(|s| s.sacked));
                sacked >= self.dup_thresh
            })
            .unwrap_or(0)
    }

    /// Reports segments below `end` that are lost and were neither retransmitted nor reported earlier.
    fn report_lost(&mut self, cx: &RecoveryContext<'_>, end: usize, lost: &mut Vec<Ssn>) {
        let first = cx.board.front().map_or(self.judged, |front| front.start.max(self.judged));
        let first = cx.board.index_of(first).unwrap_or(cx.board.len());
        for segment in (first..end).filter_map(|index| cx.board.get(index)) {
            if segment.in_flight() && !segment.retransmitted() {
                lost.push(segment.start);
            }
            self.judged = segment.end;
        }
    }

    fn detect(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        let repairing = cx.phase == Phase::Recovery;
        let end = self.lost_boundary(cx, repairing);
        self.report_lost(cx, end, lost);
        if !repairing && !lost.is_empty() {
            // At the start of recovery, also report the gaps above if there is nothing better to send.
            let end = self.lost_boundary(cx, true);
            self.report_lost(cx, end, lost);
        }
    }

    /// Returns true if early retransmit applies to the outstanding segments.
    fn allows_early_retransmit(&self, cx: &RecoveryContext<'_>) -> bool {
        let (few, sacked) = (cx.board.len() < FEW_SEGMENTS, cx.board.segments_sacked());
        let enough = match self.config.early_retransmit {
            EarlyRetransmit::Off => false,
            EarlyRetransmit::Linux => sacked > 0,
            EarlyRetransmit::Rfc5827 => sacked > 0 && sacked + 1 == cx.board.len(),
        };
        enough
            && few
            && cx.app_limited
            && cx.phase == Phase::Open
            && cx.board.front().is_some_and(|front| front.in_flight())
            && !cx.board.iter().any(|s| s.in_flight() && s.retransmitted())
    }

    fn early_retransmit(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        if !self.allows_early_retransmit(cx) {
            self.early_at = None;
            return;
        }
        let delay = cx.rtt.srtt().map_or(Duration::ZERO, |srtt| (srtt / 4).max(MIN_EARLY_DELAY));
        let at = cx.now + delay;
        let at_once = self.config.early_retransmit == EarlyRetransmit::Rfc5827
            || delay.is_zero()
            || cx.rto_at.is_some_and(|rto_at| rto_at <= at);
        if at_once {
            self.retransmit_few(cx, lost);
        } else {
            self.early_at = Some(at);
        }
    }

    fn retransmit_few(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        self.early_at = None;
        let end = self.lost_boundary(cx, true).max(1);
        self.report_lost(cx, end, lost);
    }

    /// NextSeg rule 4: retransmits the newest segment if a partial ACK left nothing else to repair.
    fn rescue(&mut self, ack: &AckSummary<'_>, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        let partial = cx.phase == Phase::Recovery && ack.una > ack.prior_una;
        if !self.config.rescue || self.rescued || !partial || !cx.app_limited {
            return;
        }
        let Some(last) = cx.board.iter().next_back() else { return };
        let overdue = cx.rtt.srtt().is_some_and(|srtt| last.sent_at + srtt <= cx.now);
        let all_repaired = lost.is_empty() && cx.board.bytes_lost() == 0;
        if all_repaired && overdue && last.in_flight() && last.start >= self.judged {
            self.rescued = true;
            lost.push(last.start);
        }
    }

    const fn clear_verdicts(&mut self) {
        self.judged = Ssn(0);
        self.early_at = None;
        self.rescued = false;
    }

    /// Returns the number of duplicate ACKs that indicate a loss to a sender without SACK.
    fn duplicates_needed(&self, cx: &RecoveryContext<'_>) -> u32 {
        let few = cx.board.len() < FEW_SEGMENTS && cx.app_limited;
        if few && self.config.early_retransmit != EarlyRetransmit::Off {
            return (cx.board.len() as u32).saturating_sub(1).max(1);
        }
        no_sack::DUP_THRESH
    }
}

impl Default for Rfc6675 {
    fn default() -> Self {
        Rfc6675::new(Rfc6675Config::default())
    }
}

impl LossRecovery for Rfc6675 {
    fn on_sent(&mut self, sent: &SentNotice, cx: &RecoveryContext<'_>) {
        self.tlp.on_sent(sent, cx);
    }

    fn on_ack(
        &mut self,
        ack: &AckSummary<'_>,
        cx: &RecoveryContext<'_>,
        lost: &mut Vec<Ssn>,
    ) -> AckOutcome {
        let before = lost.len();
        (self.sack_enabled, self.mss) = (cx.sack_enabled, cx.mss);
        if cx.sack_enabled {
            self.detect_reordering(ack);
            self.detect(cx, lost);
            if lost.len() == before {
                self.early_retransmit(cx, lost);
                self.rescue(ack, cx, lost);
            } else {
                self.early_at = None;
            }
        } else {
            self.no_sack.on_ack(ack, cx, self.duplicates_needed(cx), lost);
        }
        self.tlp.on_ack(ack, cx, lost.len() > before)
    }

    fn next_timeout(&self) -> Option<Instant> {
        match (self.early_at, self.tlp.timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn on_timeout(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) -> TimeoutAction {
        let before = lost.len();
        if self.early_at.is_some_and(|at| at <= cx.now) {
            self.early_at = None;
            if self.allows_early_retransmit(cx) {
                self.retransmit_few(cx, lost);
            }
        }
        if self.tlp.is_probe_due(cx) && lost.len() == before {
            return TimeoutAction::SendProbe;
        }
        TimeoutAction::None
    }

    fn on_rto(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        self.tlp.end_episode();
        self.no_sack.restart();
        self.clear_verdicts();
        // RFC 6675 section 5.1: all data that was not SACKed must be retransmitted.
        lost.extend(cx.board.iter().filter(|s| s.in_flight()).map(|s| s.start));
    }

    fn on_recovery(&mut self, entered: bool, cx: &RecoveryContext<'_>) {
        if entered {
            self.tlp.end_episode();
            self.early_at = None;
        } else {
            self.no_sack.restart();
            self.clear_verdicts();
            self.tlp.schedule(cx, Phase::Open);
        }
    }

    fn set_peer_ack_delay(&mut self, delay: Duration) {
        self.tlp.set_peer_ack_delay(delay);
    }

    fn limited_transmit(&self) -> LimitedTransmit {
        if !self.config.limited_transmit {
            return LimitedTransmit::Off;
        }
        if self.sack_enabled {
            return LimitedTransmit::BySack;
        }
        let segments = self.no_sack.duplicates().min(MAX_LIMITED_TRANSMIT);
        LimitedTransmit::Beyond(u64::from(segments) * u64::from(self.mss))
    }
}

#[cfg(test)]
mod tests;
