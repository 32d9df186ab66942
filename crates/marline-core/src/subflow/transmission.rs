//! Send side of a subflow: sequence positions, scoreboard and related state.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use marline_policy::{
    DataRange, Forecast, Forecaster, Phase, Quantile, RateStamp, RecoveryContext, RttEstimator,
    Scoreboard, SentKind, SentSegment, Ssn,
};
use marline_time::{Duration, Instant};

use super::SubflowConfig;
use super::early_repeat::EarlyRepeats;
use super::forecast_score::Scorer;
use super::loss::{Frto, LossHistory, RtoTimer, UndoState};
use super::path_health::Tally;
use super::prr::Prr;
use super::rate::RateSampler;
use crate::on_demand::{OnDemand, UnusedState};

/// Limit on outdated entries in the retransmission queue, beyond the number of scoreboard entries.
const MAX_OUTDATED: usize = 64;

/// State of a tail loss probe.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Probe {
    #[default]
    None,
    /// The timer requests a probe, with new data if there is any.
    Wanted,
    /// There is no new data, so the last segment is repeated.
    RepeatLast,
}

impl Probe {
    pub(super) fn is_none(self) -> bool {
        self == Probe::None
    }

    pub(super) fn clear(&mut self) {
        *self = Probe::None;
    }
}

/// Usage of the window. An unused window must not grow. RFC 9293 does not cover this, RFC 7661 describes the problem,
/// and Linux's solution is used: the strongest sign of use within a window counts.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct WindowUse {
    limited: bool,
    max_in_flight: u64,
    round_end: Ssn,
}

impl WindowUse {
    /// Records sent data; `in_flight` includes it.
    pub(super) fn on_sent(&mut self, una: Ssn, nxt: Ssn, in_flight: u64, limited: bool) {
        let new_round = una >= self.round_end;
        if new_round || limited || (!self.limited && in_flight > self.max_in_flight) {
            self.limited = limited;
            self.max_in_flight = in_flight;
            self.round_end = nxt;
        }
    }

    /// True if the window limits the sender. In slow start, half of it in use is enough, because the window doubles
    /// each round trip.
    pub(super) const fn is_limited(&self, window: u64, ssthresh: u64) -> bool {
        self.limited || (window < ssthresh && window < 2 * self.max_in_flight)
    }
}

/// Notes about data in flight that are not on the scoreboard.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FlightNotes {
    /// SACK blocks of the last ACK, whose inner parts need not be examined again.
    pub(super) sacks: [(Ssn, Ssn); 4],
    pub(super) early: EarlyRepeats,
}

impl UnusedState for FlightNotes {
    const UNUSED: &'static Self =
        &FlightNotes { sacks: [(Ssn(0), Ssn(0)); 4], early: EarlyRepeats::NONE };
}

/// Sending half of a subflow.
#[derive(Debug)]
pub(super) struct Transmission {
    pub(super) board: Scoreboard,
    /// SND.UNA: first unacknowledged position.
    pub(super) una: Ssn,
    /// SND.NXT: next new position.
    pub(super) nxt: Ssn,
    pub(super) phase: Phase,
    /// Recovery and loss phases end when SND.UNA reaches this position.
    pub(super) recovery_point: Ssn,
    pub(super) rtt: RttEstimator,
    pub(super) forecaster: Forecaster,
    /// Scores the forecasts of answer times, if that is enabled.
    pub(super) scorer: Option<Box<Scorer>>,
    pub(super) rto: RtoTimer,
    pub(super) prr: OnDemand<Prr>,
    pub(super) rate: RateSampler,
    pub(super) sack_enabled: bool,
    /// Without SACK: bytes represented by duplicate ACKs and not yet covered by an ACK.
    pub(super) unidentified_bytes: u64,
    /// Payload of a full segment, in bytes.
    pub(super) mss: u32,
    /// The peer's window scale shift.
    pub(super) window_shift: u8,
    /// Peer's window in its last acceptable segment.
    pub(super) window: u64,
    /// Largest window of the peer so far.
    pub(super) max_window: u64,
    pub(super) undo: Option<Box<UndoState>>,
    pub(super) frto: Frto,
    /// One retransmission of this kind may be sent regardless of the window.
    pub(super) force: Option<SentKind>,
    pub(super) probe: Probe,
    /// The connection had no new data the last time there was room.
    pub(super) starved: bool,
    /// One past the highest byte that was ever SACKed.
    pub(super) highest_sacked: Ssn,
    pub(super) window_use: WindowUse,
    pub(super) losses: LossHistory,
    pub(super) last_sent_at: Instant,
    /// Segments not yet reported to the path health monitor.
    pub(super) tally: Tally,
    /// Starts of entries marked lost; some may be out of date.
    lost: OnDemand<BinaryHeap<Reverse<u64>>>,
    pub(super) notes: OnDemand<FlightNotes>,
    /// Released data, in a buffer that the endpoint lends while segments are received.
    pub(super) released: OnDemand<Vec<DataRange>>,
}

impl Transmission {
    pub(super) fn new(config: &SubflowConfig, mss: u32, now: Instant) -> Self {
        Transmission {
            board: Scoreboard::default(),
            una: Ssn(0),
            nxt: Ssn(0),
            phase: Phase::Open,
            recovery_point: Ssn(0),
            rtt: RttEstimator::new(Arc::clone(&config.rtt)),
            forecaster: Forecaster::default(),
            scorer: config.score_forecasts.then(Box::default),
            rto: RtoTimer::default(),
            prr: OnDemand::new(),
            rate: RateSampler::default(),
            sack_enabled: true,
            unidentified_bytes: 0,
            mss,
            window_shift: 0,
            window: 0,
            max_window: 0,
            undo: None,
            frto: Frto::Off,
            force: None,
            probe: Probe::None,
            highest_sacked: Ssn(0),
            starved: false,
            window_use: WindowUse::default(),
            losses: LossHistory::default(),
            last_sent_at: now,
            tally: Tally::default(),
            lost: OnDemand::new(),
            notes: OnDemand::new(),
            released: OnDemand::new(),
        }
    }

    /// Creates the stamp of a transmission of this many bytes.
    pub(super) fn stamp(&mut self, now: Instant, bytes: u64) -> RateStamp {
        if let Some(scorer) = &mut self.scorer {
            let oldest = self.board.front().map(|oldest| oldest.first_sent_at);
            scorer.on_sent(now, oldest, &self.forecaster.forecast(now), &self.rtt);
        }
        let stamp = self.rate.stamp(now, self.board.bytes_in_flight());
        RateStamp { expected: self.forecaster.on_sent(now, bytes), ..stamp }
    }

    /// Time at which the answer to the oldest segment in flight is overdue.
    pub(super) fn overdue_at(&self, forecast: &Forecast) -> Option<Instant> {
        let oldest = self.board.front().filter(|oldest| oldest.in_flight())?;
        // The first segment of a run, or of its remainder.
        let through = oldest.segment_end(oldest.start).since(oldest.mapping_start);
        let own_delay = self.forecaster.own_delay(&oldest.rate.expected, through);
        let answer = forecast.answer(Quantile::P99)? + own_delay;
        // If answers hardly vary, the margin covers the delay of an ACK that waits for a second segment.
        Some(oldest.sent_at + answer + forecast.answer(Quantile::P50)? / 16)
    }

    /// Context for loss recovery.
    pub(super) fn context(&self, now: Instant) -> RecoveryContext<'_> {
        RecoveryContext {
            now,
            board: &self.board,
            rtt: &self.rtt,
            phase: self.phase,
            snd_nxt: self.nxt,
            rto_at: self.rto.deadline,
            sack_enabled: self.sack_enabled,
            app_limited: self.starved,
            mss: self.mss,
        }
    }

    /// Retransmission timeout with its backoff.
    pub(super) fn timeout(&self) -> Duration {
        self.rto.rto_with_backoff(self.rto_without_backoff(), self.rtt.config().max_rto)
    }

    /// Retransmission timeout without backoff.
    pub(super) fn rto_without_backoff(&self) -> Duration {
        self.rtt.rto().max(self.rto.carrier.least_rto())
    }

    /// Marks the entry that contains `start` as lost. Returns its bytes if it was in flight.
    pub(super) fn mark_lost(&mut self, start: Ssn) -> u64 {
        let Some(index) = self.board.index_of(start) else { return 0 };
        let bytes = self.board.mark_lost(index);
        if bytes > 0 {
            let segments = self.segments_at(index);
            self.tally.lost += segments;
            if let Some(scorer) = &mut self.scorer {
                scorer.on_lost(segments);
            }
            self.queue_lost(index);
        }
        bytes
    }

    /// Number of segments of the entry at `index`.
    fn segments_at(&self, index: usize) -> u32 {
        self.board.get(index).map_or(0, |entry| entry.segments() as u32)
    }

    /// Splits the entry at `index` so that its first part ends at `at`, if that is inside. Returns true if it was
    /// split.
    pub(super) fn cut(&mut self, index: usize, at: Ssn) -> bool {
        let before = self.board.len();
        self.board.split(index, at);
        let cut = self.board.len() > before;
        if cut && self.board.get(index + 1).is_some_and(|tail| tail.lost) {
            self.queue_lost(index + 1);
        }
        cut
    }

    /// Splits off the first segment of the entry at `index`.
    pub(super) fn cut_off_segment(&mut self, index: usize) {
        if let Some(entry) = self.board.get(index) {
            let at = entry.segment_end(entry.start);
            self.cut(index, at);
        }
    }

    /// Queues the lost entry at `index` for retransmission.
    pub(super) fn queue_lost(&mut self, index: usize) {
        if let Some(segment) = self.board.get(index) {
            self.lost.push(Reverse(segment.start.0));
        }
        if self.lost.len() > 2 * self.board.len() + MAX_OUTDATED {
            self.drop_outdated_lost();
        }
    }

    /// Removes outdated entries: a segment that is SACKed before its retransmission leaves one, each time a peer
    /// reneges.
    #[cold]
    fn drop_outdated_lost(&mut self) {
        let lost = self.board.iter().filter(|segment| segment.lost);
        let starts: BinaryHeap<_> = lost.map(|segment| Reverse(segment.start.0)).collect();
        *self.lost = starts;
    }

    /// Lowest entry that waits for retransmission.
    pub(super) fn pop_lost(&mut self) -> Option<usize> {
        if self.board.bytes_lost() == 0 {
            self.forget_lost();
            return None;
        }
        while let Some(Reverse(start)) = self.lost.pop() {
            let index = self.board.index_of(Ssn(start));
            if let Some(index) = index.filter(|&i| self.board.get(i).is_some_and(|s| s.lost)) {
                return Some(index);
            }
        }
        debug_assert!(false, "a lost segment is missing from the retransmission queue");
        self.board.iter().position(|segment| segment.lost)
    }

    fn forget_lost(&mut self) {
        if let Some(lost) = self.lost.if_used() {
            lost.clear();
        }
    }

    /// Releases the payload of `segment`.
    pub(super) fn release(&mut self, segment: &SentSegment) {
        let range = DataRange::new(segment.dsn, segment.dsn.plus(segment.payload_len()));
        if range.is_empty() || segment.repair {
            return;
        }
        match self.released.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.released.push(range),
        }
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        self.board.shrink();
        if self.board.is_empty() {
            self.lost.retire();
            self.notes.retire();
        }
        if self.phase == Phase::Open {
            self.prr.retire();
        }
        if self.released.is_empty() {
            self.released.retire();
        }
    }

    /// Memory held, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let lost = self.lost.capacity() * size_of::<Reverse<u64>>();
        let released = self.released.capacity() * size_of::<DataRange>();
        self.board.memory() + (lost + released) as u64
    }

    /// Removes all loss marks.
    pub(super) fn unmark_all_lost(&mut self) {
        for index in 0..self.board.len() {
            if self.board.bytes_lost() == 0 {
                break;
            }
            if self.board.get(index).is_some_and(|segment| segment.lost) {
                let segments = self.segments_at(index);
                self.tally.lost = self.tally.lost.saturating_sub(segments);
                if let Some(scorer) = &mut self.scorer {
                    scorer.on_loss_unmarked(segments);
                }
            }
            self.board.unmark_lost(index);
        }
        self.forget_lost();
    }
}
