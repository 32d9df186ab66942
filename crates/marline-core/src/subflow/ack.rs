//! ACK processing in the sender.
//!
//! The order is fixed, because each step uses the results of the previous one. The cumulative and the selective
//! part go to the scoreboard, RTT and delivery rate are sampled, and the timer restarts. A spurious reduction is
//! undone, a finished recovery ends, and loss is detected, which may start a recovery. Congestion control and
//! pacer come last.

use marline_policy::{
    AckOutcome, AckSample, AckSummary, CongestionSignal, DataRange, DeliveredSegment, Expected,
    Phase, RateSample, SentSegment, Ssn,
};
use marline_time::{Duration, Instant};
use marline_wire::{SackBlocks, TcpFlags};

use super::Subflow;
use super::loss::Frto;
use super::rate::NewestSegment;

/// Limit on the reordering that is reported (Linux: tcp_max_reordering).
const MAX_REORDERING: u64 = 300;
/// Minimum RTT sample, in case the clock does not advance between send and ACK.
const RTT_FLOOR: Duration = Duration::from_micros(1);
/// Length of a tick of timestamps.
const TICK: Duration = Duration::from_nanos(999_999);
/// Delay after which SACKed data at SND.UNA is considered reneged.
const RENEGE_DELAY: Duration = Duration::from_millis(10);
/// Number of consecutive timeouts after which an answer to earlier segments marks the end of an outage.
const OUTAGE_TIMEOUTS: u32 = 2;
/// Number of segments delivered before path MTU probing begins.
const PROBE_MTU_AFTER: u64 = 10;

/// The SACK option, unwrapped and checked.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct SackInput {
    blocks: [(Ssn, Ssn); 4],
    len: usize,
    dsack: Option<(Ssn, Ssn)>,
    /// True if the reported duplicate was caused by an early repeat, and so proves nothing.
    reports_early_repeat: bool,
}

impl SackInput {
    /// True if an early repeat caused the ACK, which is then not a sign of a gap.
    pub(super) const fn reports_early_repeat(&self) -> bool {
        self.reports_early_repeat
    }

    fn as_slice(&self) -> &[(Ssn, Ssn)] {
        &self.blocks[..self.len]
    }
}

/// Parts of a segment that acknowledge data.
#[derive(Copy, Clone, Debug)]
pub(super) struct AckInput {
    pub(super) ack: Ssn,
    pub(super) flags: TcpFlags,
    pub(super) sack: SackInput,
    /// TSecr.
    pub(super) echo: Option<u32>,
    /// The segment has no payload, no FIN and an unchanged window, so it may be a duplicate ACK (RFC 5681 section 2).
    pub(super) duplicate: bool,
}

/// Data delivered by one ACK.
#[derive(Copy, Clone, Debug, Default)]
struct Tally {
    /// Bytes newly delivered, cumulatively or selectively.
    delivered: u64,
    /// Octets by which SND.UNA advanced.
    cumulative: u64,
    /// A segment that was sent once and before the recovery point was delivered.
    original: bool,
    /// Segments delivered by the cumulative part, excluding those already SACKed.
    acked_segments: u32,
    /// The cumulative part covers a retransmitted segment.
    retransmitted: bool,
    /// The process was suspended while some of the data was in flight.
    untimed: bool,
    /// Send time of the newest segment that was sent only once.
    newest_original: Option<Instant>,
    /// Forecast made when that segment was sent, and the number of bytes of its run up to its end.
    newest_expected: (Expected, u64),
    /// Lowest segment that arrived after higher ones, although it was sent once.
    overtaken: Option<Ssn>,
    newest: NewestSegment,
    fin: bool,
}

impl Subflow {
    /// Decodes the SACK option of a segment that acknowledges `ack`.
    pub(super) fn read_sack(&self, ack: Ssn, option: &SackBlocks) -> SackInput {
        let mut input = SackInput::default();
        if option.len == 0 || !self.tx.sack_enabled {
            return input;
        }
        let mut first = None;
        for (i, block) in option.as_slice().iter().enumerate() {
            let near = self.tx.una.0;
            let (Some(left), Some(right)) =
                (block.left.unwrap_near(self.iss, near), block.right.unwrap_near(self.iss, near))
            else {
                continue;
            };
            let (left, right) = (Ssn(left), Ssn(right));
            if left >= right || right > self.tx.nxt {
                continue;
            }
            if i == 0 {
                first = Some((left, right));
            }
            // RFC 2883: a first block below the ACK, or within the second, reports a duplicate.
            let within_second = i == 1 && first.is_some_and(|(l, r)| left <= l && r <= right);
            if (i == 0 && right <= ack) || within_second {
                let known = ack.0.saturating_sub(self.tx.max_window);
                input.dsack = first.filter(|(l, _)| l.0 >= known);
                input.reports_early_repeat = input
                    .dsack
                    .take_if(|range| self.tx.notes.early.covers(range.0, range.1))
                    .is_some();
                input.len = 0;
            }
            if right > ack {
                input.blocks[input.len] = (left.max(ack), right);
                input.len += 1;
            }
        }
        input.blocks[..input.len].sort_unstable();
        input
    }

    /// Applies an acceptable ACK. Returns the octets by which SND.UNA advanced.
    pub(super) fn on_ack(&mut self, now: Instant, input: &AckInput) -> u64 {
        let prior_una = self.tx.una;
        let prior_in_flight = self.tx.board.bytes_in_flight();
        let prior_lost = self.tx.board.bytes_lost();
        self.on_ecn_echo(now, input, prior_in_flight);
        let silent = input.ack == prior_una && input.sack.len == 0 && input.sack.dsack.is_none();
        if silent && (!input.duplicate || self.tx.board.is_empty()) {
            return 0;
        }
        self.scratch.delivered.clear();
        let mut tally = Tally::default();
        if input.ack > prior_una {
            self.take_cumulative(input.ack, &mut tally);
        }
        if input.sack.len > 0 {
            self.take_selective(&input.sack, &mut tally);
        }
        self.record_reordering(&tally);
        let rtt = self.sample_rtt(now, input, &tally);
        let rate = if tally.untimed {
            self.tx.rate.skip_sample(now, tally.newest);
            None
        } else {
            self.tx.rate.sample(now, tally.newest, self.tx.rtt.min())
        };
        if tally.cumulative > 0 {
            self.tx.rto.count = 0;
            self.tx.force = None;
            self.rearm_rto(now);
            self.tx.board.shrink_if_empty();
            self.watch_for_reneging(now);
        }
        if tally.delivered > 0 {
            self.tx.probe.clear();
        }
        self.judge_reduction(now, input, &tally);
        let was_open = self.tx.phase == Phase::Open;
        self.leave_recovery_if_done(now);
        let lost = self.detect_loss(now, input, prior_una, prior_in_flight);
        let left = !was_open && self.tx.phase == Phase::Open;
        if self.tx.phase == Phase::Open && (lost > 0 || left && self.tx.board.bytes_lost() > 0) {
            // If this ACK undid a timeout, the whole flight had been marked lost. It still counts when recovery
            // starts (RFC 9937: all data that was neither acknowledged nor SACKed).
            self.enter_recovery(now, prior_in_flight + prior_lost);
        }
        let counted = self.count_delivered(tally.delivered, tally.cumulative > 0, input.duplicate);
        if tally.delivered > 0 || lost > 0 {
            // Without SACK, duplicate ACKs have been counted in advance.
            let delivered = tally.delivered;
            self.control(now, Outcome { delivered, prior_in_flight, lost, rtt, rate });
        }
        self.reduce(counted, tally.cumulative > 0 && lost == 0);
        if tally.fin {
            self.on_fin_acked(now);
        }
        tally.cumulative
    }

    fn on_ecn_echo(&mut self, now: Instant, input: &AckInput, in_flight: u64) {
        if !self.ecn.on_ack(input.flags, input.ack, self.tx.nxt) || self.tx.phase != Phase::Open {
            return;
        }
        self.tx.undo = None;
        self.congestion.on_signal(
            CongestionSignal::Ecn { bytes_in_flight: in_flight },
            now,
            self.id,
            &self.group,
        );
    }

    fn take_cumulative(&mut self, ack: Ssn, tally: &mut Tally) {
        tally.cumulative = ack.since(self.tx.una);
        self.tx.una = ack;
        while let Some(segment) = self.tx.board.pop_acked(ack) {
            self.tx.release(&segment);
            tally.retransmitted |= segment.retransmitted();
            tally.untimed |= segment.untimed;
            tally.fin |= segment.fin;
            if !segment.sacked {
                self.deliver(&segment, false, tally);
            }
        }
        // A segment split by the ACK keeps its loss mark under a new start.
        if self.tx.board.front().is_some_and(|front| front.lost && front.start == ack) {
            self.tx.queue_lost(0);
        }
        self.mtu.on_delivered_up_to(ack);
    }

    fn take_selective(&mut self, sack: &SackInput, tally: &mut Tally) {
        for &(left, right) in sack.as_slice() {
            let known = self
                .tx
                .notes
                .sacks
                .iter()
                .copied()
                .find(|&(l, r)| left <= l && r <= right && l < r);
            match known {
                Some((l, r)) => {
                    self.sack_part(left, right, left, l, tally);
                    self.sack_part(left, right, r, right, tally);
                }
                None => self.sack_part(left, right, left, right, tally),
            }
        }
        self.tx.notes.sacks = sack.blocks;
        for stale in &mut self.tx.notes.sacks[sack.len..] {
            *stale = (Ssn(0), Ssn(0));
        }
    }

    /// Marks the segments that are completely in the block `left..right` and belong to entries that touch `from..to`.
    fn sack_part(&mut self, left: Ssn, right: Ssn, from: Ssn, to: Ssn, tally: &mut Tally) {
        if from >= to {
            return;
        }
        let Some(mut index) = self.tx.board.index_of(from) else { return };
        while let Some(entry) = self.tx.board.get(index).copied() {
            if entry.start >= to {
                break;
            }
            let (first, last) = entry.segments_within(left, right);
            if !entry.sacked && first < last {
                index += usize::from(self.tx.cut(index, first));
                self.tx.cut(index, last);
                if let Some(part) = self.tx.board.get(index).copied() {
                    self.tx.board.mark_sacked(index);
                    self.deliver(&part, true, tally);
                }
            }
            index += 1;
        }
    }

    fn deliver(&mut self, segment: &SentSegment, by_sack: bool, tally: &mut Tally) {
        let retransmitted = segment.retransmitted();
        if !by_sack {
            tally.acked_segments = tally.acked_segments.saturating_add(segment.segments() as u32);
        }
        tally.delivered += segment.len();
        tally.untimed |= segment.untimed;
        let (sent_at, stamp) = (segment.sent_at, segment.rate);
        self.tx.rate.on_delivered(segment.len(), sent_at, stamp, &mut tally.newest);
        if !retransmitted {
            tally.original |= segment.end <= self.tx.recovery_point;
            if tally.newest_original <= Some(segment.sent_at) {
                tally.newest_original = Some(segment.sent_at);
                let through = segment.end.since(segment.mapping_start);
                tally.newest_expected = (segment.rate.expected, through);
            }
            if segment.start < self.tx.highest_sacked {
                tally.overtaken =
                    Some(tally.overtaken.map_or(segment.start, |s| s.min(segment.start)));
            }
        }
        if by_sack {
            self.tx.highest_sacked = self.tx.highest_sacked.max(segment.end);
            self.record_sacked(segment);
        }
        let later = retransmitted || segment.start >= self.tx.recovery_point;
        let payload = segment.segment_end(segment.start).since(segment.start);
        self.mtu.on_passed(self.bytes_of_segment(payload), later);
        if let Some(size) = self.mtu.on_delivered(segment.start, segment.end) {
            self.apply_mss();
            self.events.push_back(super::SubflowEvent::MtuFound(size));
        }
        self.scratch.delivered.push(DeliveredSegment {
            start: segment.start,
            end: segment.end,
            sent_at: segment.sent_at,
            retransmitted: retransmitted || segment.untimed,
            by_sack,
        });
    }

    /// Records SACKed data for schedulers that send copies: it has arrived, regardless of the stream's order.
    fn record_sacked(&mut self, segment: &SentSegment) {
        let range = DataRange::new(segment.dsn, segment.dsn.plus(segment.payload_len()));
        if range.is_empty() || segment.repair {
            return;
        }
        match self.scratch.sacked.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.scratch.sacked.push(range),
        }
    }

    /// Records the degree of reordering, for monitoring: loss recovery is based on time.
    fn record_reordering(&mut self, tally: &Tally) {
        let Some(lowest) = tally.overtaken else { return };
        let distance = self.tx.highest_sacked.0.saturating_sub(lowest.0);
        let mss = u64::from(self.tx.mss.max(1));
        let segments = ((distance + mss / 2) / mss).clamp(1, MAX_REORDERING);
        let stats = &mut *self.stats.trouble;
        stats.reorderings = stats.reorderings.saturating_add(1);
        stats.reordering = stats.reordering.max(segments as u32);
    }

    /// Takes an RTT sample by Karn's rule: from segments that were sent once, otherwise from the timestamp. An ACK
    /// that reports a duplicate gives no sample. A retransmission caused it, so the data that it newly acknowledges
    /// had arrived long before and earlier ACKs were lost. Its echo is even older (RFC 7323 section 5.3: a segment
    /// outside the window does not change the echo). The sample would be as long as the silence. After an outage the
    /// timeout would be seconds, and a scheduler that uses the RTT would avoid the path, which would then never be
    /// measured again. Nor does data in flight give a sample if the process was suspended.
    fn sample_rtt(&mut self, now: Instant, input: &AckInput, tally: &Tally) -> Option<Duration> {
        if tally.untimed || input.sack.dsack.is_some() || self.proves_spurious_timeout(input, tally)
        {
            return None;
        }
        if self.is_end_of_outage(input) {
            self.tx.rto.is_unreliable = true;
            return None;
        }
        let echoed = input.echo.and_then(|echo| self.timestamps.sent_at(now, echo));
        let echoed = echoed.map(|tick_end| tick_end - TICK);
        // A segment that was sent once may have arrived long ago. This is possible if it is acknowledged together
        // with a retransmission (few SACK blocks fit next to a DSS, and some are lost), or if the peer already echoes
        // a later segment (the ACK of this one was lost).
        let sent_at = match tally.newest_original {
            Some(sent_at) if !tally.retransmitted && echoed.is_none_or(|at| at <= sent_at) => {
                sent_at
            }
            _ if tally.cumulative > 0 => echoed?,
            _ => return None,
        };
        let rtt = now.since(sent_at).max(RTT_FLOOR);
        if self.is_unreliable(rtt) {
            return None;
        }
        let is_exact = tally.newest_original == Some(sent_at);
        let (expected, through) = tally.newest_expected;
        let own_delay = self.tx.forecaster.own_delay(&expected, through);
        if let Some(scorer) = &mut self.tx.scorer {
            let sent_until = if is_exact { sent_at } else { sent_at + TICK };
            let latest = self.tx.forecaster.forecast(now);
            scorer.on_answer(sent_at..=sent_until, rtt, own_delay, &latest);
        }
        self.tx.rtt.on_sample(rtt, now);
        self.tx.rto.is_unreliable = false;
        if is_exact {
            self.tx.forecaster.on_delivered(now, sent_at, tally.delivered);
        }
        // No answer is faster than the fastest one measured. So a larger estimated delay of the sender's own bytes is
        // an error: until a long enough packet train has been measured, they leave faster than estimated.
        let most_own = rtt.saturating_sub(self.tx.rtt.min().unwrap_or(rtt));
        self.tx.forecaster.on_answer(now, rtt, own_delay.min(most_own), &expected);
        Some(rtt)
    }

    /// True if the sample may be the length of a silence: after a timeout, a segment that the peer sends on its own
    /// may acknowledge data that arrived long before. On a path that became slow, the next sample is just as long.
    fn is_unreliable(&mut self, rtt: Duration) -> bool {
        let before = core::mem::take(&mut self.implausible_rtt_ms);
        if self.tx.rto.count == 0 || rtt <= self.tx.rto_without_backoff() * 2 {
            return false;
        }
        let rtt_ms = u32::try_from(rtt.as_millis()).unwrap_or(u32::MAX).max(1);
        let confirms = before > 0 && rtt_ms / 2 <= before && before / 2 <= rtt_ms;
        if !confirms {
            self.implausible_rtt_ms = rtt_ms;
        }
        !confirms
    }

    /// True if a single ACK after a timeout acknowledges more segments than a delayed ACK does, all sent before the
    /// timeout. Their own ACKs were lost, as after an outage. On a path that only became slow, the ACKs arrive one by
    /// one.
    fn proves_spurious_timeout(&self, input: &AckInput, tally: &Tally) -> bool {
        let before =
            |undo: &super::loss::UndoState| input.echo.is_none_or(|e| undo.is_echo_older(e));
        self.tx.phase == Phase::Loss
            && tally.acked_segments > 2
            && self.tx.undo.as_deref().is_some_and(before)
    }

    /// True if segments sent before two consecutive timeouts are answered after them: the path was interrupted or the
    /// peer's process was suspended, and all segments waited until that ended. If the next answer takes as long, the
    /// path is slow.
    fn is_end_of_outage(&self, input: &AckInput) -> bool {
        let before =
            |undo: &super::loss::UndoState| input.echo.is_none_or(|e| undo.is_echo_older(e));
        self.tx.rto.count >= OUTAGE_TIMEOUTS
            && !self.tx.rto.is_unreliable
            && self.tx.undo.as_deref().is_some_and(before)
    }

    /// Starts a timer for SACKed data at SND.UNA, which should have been acknowledged. Without an ACK for it, the
    /// timer fires and drops the SACK state.
    fn watch_for_reneging(&mut self, now: Instant) {
        if self.tx.board.front().is_some_and(|front| front.sacked) {
            let patience = self.tx.rtt.srtt().map_or(RENEGE_DELAY, |srtt| srtt / 2);
            let at = now + patience.max(RENEGE_DELAY);
            self.tx.rto.deadline = Some(self.tx.rto.deadline.map_or(at, |rto| rto.min(at)));
        }
    }

    /// Evaluates the three mechanisms that detect a spurious reduction.
    fn judge_reduction(&mut self, now: Instant, input: &AckInput, tally: &Tally) {
        let Some(undo) = self.tx.undo.as_mut() else { return };
        let repeated =
            input.sack.dsack.is_some_and(|(start, end)| undo.on_dsack(start, end.since(start)));
        let echoes_original = self.tx.phase != Phase::Open
            && tally.retransmitted
            && input.echo.is_some_and(|echo| undo.is_echo_older(echo));
        let watched = self.tx.phase == Phase::Loss && self.tx.frto != Frto::Off;
        if repeated || echoes_original || watched && tally.original {
            self.undo_reduction(now);
        } else if tally.cumulative > 0 || tally.delivered > 0 || input.duplicate {
            self.advance_frto(tally.cumulative > 0);
        }
    }

    /// Runs loss detection, marks the lost segments, and returns the bytes lost to congestion.
    fn detect_loss(
        &mut self,
        now: Instant,
        input: &AckInput,
        prior_una: Ssn,
        prior_in_flight: u64,
    ) -> u64 {
        let scratch = &mut *self.scratch;
        let summary = AckSummary {
            prior_una,
            una: self.tx.una,
            delivered: &scratch.delivered,
            dsack: input.sack.dsack,
            echoed_sent_at: input.echo.and_then(|echo| self.timestamps.sent_at(now, echo)),
            has_sack: input.sack.len > 0,
            duplicate: input.duplicate && input.ack == prior_una && !self.tx.board.is_empty(),
        };
        scratch.lost.clear();
        let context = self.tx.context(now);
        let outcome: AckOutcome = self.recovery.on_ack(&summary, &context, &mut scratch.lost);
        if outcome.probe_repaired_loss && self.tx.phase == Phase::Open {
            self.tx.undo = None;
            self.tx.losses.on_episode();
            let signals = [
                CongestionSignal::Loss { bytes_in_flight: prior_in_flight },
                CongestionSignal::RecoveryDone,
            ];
            for signal in signals {
                self.congestion.on_signal(signal, now, self.id, &self.group);
            }
        }
        if self.scratch.lost.is_empty() { 0 } else { self.mark_lost(now) }
    }

    /// Updates congestion control and pacer.
    fn control(&mut self, now: Instant, outcome: Outcome) {
        let mss = u64::from(self.tx.mss);
        let in_flight = self.tx.board.bytes_in_flight();
        let (window, ssthresh) = (self.congestion.window(), self.congestion.ssthresh());
        self.tx.losses.since_last += outcome.delivered;
        let sample = AckSample {
            now,
            delivered: outcome.delivered,
            total_delivered: self.tx.rate.delivered(),
            lost: outcome.lost,
            prior_in_flight: outcome.prior_in_flight,
            bytes_in_flight: in_flight,
            rtt: outcome.rtt,
            srtt: self.tx.rtt.srtt(),
            min_rtt: self.tx.rtt.min(),
            rate: outcome.rate,
            cwnd_limited: self.tx.window_use.is_limited(window, ssthresh),
            in_recovery: self.tx.phase == Phase::Recovery,
        };
        self.congestion.on_ack(&sample, self.id, &self.group);
        self.set_pace();
        if self.tx.phase == Phase::Open && self.tx.rate.delivered() > PROBE_MTU_AFTER * mss {
            self.mtu.request_probe_if_due(now);
        }
    }

    /// Bytes that PRR counts as delivered by an ACK. `moved` is true if it advanced SND.UNA. Without SACK, a duplicate
    /// ACK represents an unidentified segment, and the later ACK that covers this segment does not count it again; that
    /// ACK has delivered at least one segment, which filled the gap. Duplicates represent at most the data in flight at
    /// the first loss, because ACKs are easy to forge.
    fn count_delivered(&mut self, delivered: u64, moved: bool, duplicate: bool) -> u64 {
        if self.tx.sack_enabled {
            return delivered;
        }
        let mss = u64::from(self.tx.mss);
        if moved {
            let unidentified_bytes = core::mem::take(&mut self.tx.unidentified_bytes);
            if self.tx.phase == Phase::Recovery {
                self.tx.unidentified_bytes =
                    unidentified_bytes.saturating_sub(delivered.saturating_sub(mss));
            }
            return delivered.saturating_sub(unidentified_bytes).max(delivered.min(mss));
        }
        let most = match self.tx.phase {
            Phase::Open => self.tx.board.bytes_in_flight(),
            Phase::Recovery | Phase::Loss => self.tx.recovery_point.since(self.tx.una),
        };
        let counts = duplicate && !self.tx.board.is_empty();
        let counted =
            if counts { mss.min(most.saturating_sub(self.tx.unidentified_bytes)) } else { 0 };
        self.tx.unidentified_bytes += counted;
        counted
    }

    /// Updates the allowance in recovery. `safe` is true if SND.UNA advanced and no further loss was detected.
    fn reduce(&mut self, delivered: u64, safe: bool) {
        if self.tx.phase != Phase::Recovery {
            return;
        }
        let in_flight = self.tx.board.bytes_in_flight().saturating_sub(self.tx.unidentified_bytes);
        self.tx.prr.on_ack(delivered, in_flight, safe, u64::from(self.tx.mss));
    }

    /// Sets the pacer's rate from the current window.
    pub(super) fn set_pace(&mut self) {
        let segment = self.segment_size().largest;
        if let Some(rate) = self.congestion.pacing_rate() {
            self.pacer.set_rate(rate, segment);
            return;
        }
        let Some(srtt) = self.tx.rtt.srtt() else { return };
        let window = self.congestion.window();
        let percent = if window < self.congestion.ssthresh() / 2 { 200 } else { 120 };
        self.pacer.set_window(window, srtt, percent, segment);
    }
}

/// Results of the earlier steps, for congestion control.
#[derive(Copy, Clone, Debug)]
struct Outcome {
    /// Delivered bytes, as counted for the window.
    delivered: u64,
    prior_in_flight: u64,
    lost: u64,
    rtt: Option<Duration>,
    rate: Option<RateSample>,
}
