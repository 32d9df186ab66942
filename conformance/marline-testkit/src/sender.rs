//! Small sender for unit tests of loss recovery, with a scoreboard like the core's.

use marline_policy::{
    AckOutcome, AckSummary, DeliveredSegment, Dsn, LossRecovery, Phase, RateStamp, RecoveryContext,
    RttConfig, RttEstimator, Scoreboard, SentKind, SentNotice, SentSegment, Ssn, TimeoutAction,
};
use marline_time::{Duration, Instant};

use crate::views::{MSS, ms};

/// Segment size in bytes.
pub const SEGMENT: u64 = MSS as u64;

/// The sender and its loss recovery.
pub struct Sender<R: ?Sized> {
    /// Loss recovery under test.
    pub recovery: Box<R>,
    /// Outstanding segments.
    pub board: Scoreboard,
    /// RTT estimator.
    pub rtt: RttEstimator,
    /// Virtual time.
    pub now: Instant,
    /// SND.UNA.
    pub una: u64,
    /// SND.NXT.
    pub snd_nxt: u64,
    /// Congestion phase of the subflow.
    pub phase: Phase,
    /// Time at which the retransmission timer will fire.
    pub rto_at: Option<Instant>,
    /// True if the peer sends SACKs.
    pub sack: bool,
    /// True if no data is waiting to be sent.
    pub app_limited: bool,
}

/// Start of a segment. Segments are numbered from 1, like their sequence numbers in units of [`SEGMENT`].
#[must_use]
pub const fn seq(segment: u64) -> Ssn {
    Ssn(1 + (segment - 1) * SEGMENT)
}

/// Numbers of the segments that start at these positions.
#[must_use]
pub fn numbers(lost: &[Ssn]) -> Vec<u64> {
    lost.iter().map(|at| (at.0 - 1) / SEGMENT + 1).collect()
}

impl<R: LossRecovery + ?Sized> Sender<R> {
    /// Creates a sender on a path that has had this RTT for a long time.
    #[must_use]
    pub fn with_recovery(recovery: Box<R>, rtt_ms: u64) -> Self {
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

    /// Calls the loss recovery.
    pub fn with<T>(&mut self, ask: impl FnOnce(&mut R, &RecoveryContext<'_>) -> T) -> T {
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

    /// Lets time pass.
    pub fn wait(&mut self, millis: u64) {
        self.now += ms(millis);
    }

    /// Sends a segment beyond SND.NXT.
    pub fn send_one(&mut self, kind: SentKind) {
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

    /// Sends this many new segments.
    pub fn send(&mut self, segments: u64) {
        (0..segments).for_each(|_| self.send_one(SentKind::New));
    }

    /// Retransmits an outstanding segment.
    ///
    /// # Panics
    /// If it is not outstanding.
    pub fn resend(&mut self, segment: u64, kind: SentKind) {
        let index = self.board.index_of(seq(segment)).expect("still outstanding");
        self.board.mark_retransmitted(index, self.now, RateStamp::default());
        let notice = SentNotice { start: seq(segment), end: seq(segment + 1), kind };
        self.with(|r, cx| r.on_sent(&notice, cx));
    }

    /// Receives an ACK for all segments before `una`, with SACKs for whole segments.
    pub fn ack(&mut self, una: u64, sacks: &[u64]) -> (Vec<u64>, AckOutcome) {
        self.ack_with(una, sacks, |_| {})
    }

    /// Like [`ack`](Self::ack), with an ACK that `change` modifies first.
    pub fn ack_with(
        &mut self,
        una: u64,
        sacks: &[u64],
        change: impl FnOnce(&mut AckSummary<'_>),
    ) -> (Vec<u64>, AckOutcome) {
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

    /// Marks segments lost, as the core does at the policy's request.
    ///
    /// # Panics
    /// If one of them was not in flight.
    pub fn mark(&mut self, lost: &[Ssn]) {
        for at in lost {
            let index = self.board.index_of(*at).expect("lost segments are on the board");
            assert!(self.board.mark_lost(index) > 0, "segment {at:?} was not in flight");
        }
    }

    /// Enters this phase.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.with(|r, cx| r.on_recovery(phase != Phase::Open, cx));
    }

    /// Advances to the next timeout and fires it.
    ///
    /// # Panics
    /// If no timer is set.
    pub fn fire(&mut self) -> (Vec<u64>, TimeoutAction) {
        self.now = self.recovery.next_timeout().expect("no timer is set");
        let mut lost = Vec::new();
        let action = self.with(|r, cx| r.on_timeout(cx, &mut lost));
        self.mark(&lost);
        (numbers(&lost), action)
    }

    /// Time until the recovery's timer fires.
    #[must_use]
    pub fn timeout_in(&self) -> Option<Duration> {
        self.recovery.next_timeout().map(|at| at - self.now)
    }
}
