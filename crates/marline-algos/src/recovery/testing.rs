//! A sender in miniature: it keeps a scoreboard as the core does and asks loss recovery.

use marline_policy::{
    AckSummary, AckVerdict, DeliveredSegment, Dsn, LossRecovery, Phase, RateStamp, RecoveryContext,
    RttConfig, RttEstimator, Scoreboard, SentKind, SentNotice, SentSegment, Ssn, TimeoutAction,
};
use marline_time::{Duration, Instant};

use crate::testing::{MSS, ms};

pub(super) const SEGMENT: u64 = MSS as u64;

pub(super) struct Sender<R: ?Sized> {
    pub(super) recovery: Box<R>,
    pub(super) board: Scoreboard,
    pub(super) rtt: RttEstimator,
    pub(super) now: Instant,
    pub(super) una: u64,
    pub(super) snd_nxt: u64,
    pub(super) phase: Phase,
    pub(super) rto_at: Option<Instant>,
    pub(super) sack: bool,
    /// Nothing waits to be sent.
    pub(super) app_limited: bool,
}

/// Segments count from 1, as their sequence numbers do in units of [`SEGMENT`].
pub(super) const fn seq(segment: u64) -> Ssn {
    Ssn(1 + (segment - 1) * SEGMENT)
}

pub(super) fn numbers(lost: &[Ssn]) -> Vec<u64> {
    lost.iter().map(|at| (at.0 - 1) / SEGMENT + 1).collect()
}

impl<R: LossRecovery + ?Sized> Sender<R> {
    /// A sender whose path has had this RTT for long.
    pub(super) fn with_recovery(recovery: Box<R>, rtt_ms: u64) -> Self {
        let mut rtt = RttEstimator::new(RttConfig::default());
        (0..100).for_each(|_| rtt.on_sample(ms(rtt_ms), Instant::ZERO));
        Sender {
            recovery,
            board: Scoreboard::default(),
            rtt,
            now: Instant::from_secs(1),
            una: 1,
            snd_nxt: 1,
            phase: Phase::Open,
            rto_at: None,
            sack: true,
            app_limited: true,
        }
    }

    pub(super) fn with<T>(&mut self, ask: impl FnOnce(&mut R, &RecoveryContext<'_>) -> T) -> T {
        let cx = RecoveryContext {
            now: self.now,
            board: &self.board,
            rtt: &self.rtt,
            phase: self.phase,
            snd_nxt: Ssn(self.snd_nxt),
            rto_at: self.rto_at,
            sack_enabled: self.sack,
            app_limited: self.app_limited,
            mss: MSS,
        };
        ask(&mut *self.recovery, &cx)
    }

    pub(super) fn wait(&mut self, millis: u64) {
        self.now += ms(millis);
    }

    pub(super) fn send_one(&mut self, kind: SentKind) {
        let (start, end) = (Ssn(self.snd_nxt), Ssn(self.snd_nxt + SEGMENT));
        self.board.push(SentSegment {
            start,
            end,
            dsn: Dsn(start.0 - 1),
            mapping_start: start,
            sent_at: self.now,
            first_sent_at: self.now,
            transmissions: 1,
            mapping_len: MSS as u16,
            ..SentSegment::default()
        });
        self.snd_nxt = end.0;
        self.with(|r, cx| r.on_sent(&SentNotice { start, end, kind }, cx));
    }

    pub(super) fn send(&mut self, segments: u64) {
        (0..segments).for_each(|_| self.send_one(SentKind::New));
    }

    pub(super) fn resend(&mut self, segment: u64, kind: SentKind) {
        let index = self.board.index_of(seq(segment)).expect("still outstanding");
        self.board.mark_retransmitted(index, self.now, RateStamp::default());
        let notice = SentNotice { start: seq(segment), end: seq(segment + 1), kind };
        self.with(|r, cx| r.on_sent(&notice, cx));
    }

    /// An ACK up to (not including) segment `una` with SACKs for whole segments.
    pub(super) fn ack(&mut self, una: u64, sacks: &[u64]) -> (Vec<u64>, AckVerdict) {
        self.ack_with(una, sacks, |_| {})
    }

    pub(super) fn ack_with(
        &mut self,
        una: u64,
        sacks: &[u64],
        change: impl FnOnce(&mut AckSummary<'_>),
    ) -> (Vec<u64>, AckVerdict) {
        let prior_una = Ssn(self.una);
        let una = seq(una).max(prior_una);
        let mut delivered = Vec::new();
        let note = |s: &SentSegment, by_sack| DeliveredSegment {
            start: s.start,
            end: s.end,
            sent_at: s.sent_at,
            retransmitted: s.retransmitted(),
            by_sack,
        };
        while let Some(segment) = self.board.pop_acked(una) {
            if !segment.sacked {
                delivered.push(note(&segment, false));
            }
        }
        for sack in sacks {
            let Some(index) = self.board.index_of(seq(*sack)) else { continue };
            if self.board.mark_sacked(index) > 0 {
                delivered.extend(self.board.get(index).map(|s| note(s, true)));
            }
        }
        self.una = una.0;
        let mut summary = AckSummary {
            prior_una,
            una,
            delivered: &delivered,
            dsack: None,
            echoed_sent_at: None,
            has_sack: !sacks.is_empty(),
            duplicate: una == prior_una && !self.board.is_empty(),
        };
        change(&mut summary);
        let mut lost = Vec::new();
        let verdict = self.with(|r, cx| r.on_ack(&summary, cx, &mut lost));
        self.mark(&lost);
        (numbers(&lost), verdict)
    }

    pub(super) fn mark(&mut self, lost: &[Ssn]) {
        for at in lost {
            let index = self.board.index_of(*at).expect("lost segments are on the board");
            assert!(self.board.mark_lost(index) > 0, "{at:?} was not in flight");
        }
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.with(|r, cx| r.on_recovery(phase != Phase::Open, cx));
    }

    /// Goes to the next timeout and lets it fire.
    pub(super) fn fire(&mut self) -> (Vec<u64>, TimeoutAction) {
        self.now = self.recovery.next_timeout().expect("a timer runs");
        let mut lost = Vec::new();
        let action = self.with(|r, cx| r.on_timeout(cx, &mut lost));
        self.mark(&lost);
        (numbers(&lost), action)
    }

    pub(super) fn timeout_in(&self) -> Option<Duration> {
        self.recovery.next_timeout().map(|at| at - self.now)
    }
}
