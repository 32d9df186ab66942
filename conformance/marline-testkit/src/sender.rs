//! Miniature sender for unit tests of loss recoveries: it keeps a scoreboard like the core and
//! consults the policy.

use marline_policy::{
    AckOutcome, AckSummary, DeliveredSegment, Dsn, LossRecovery, Phase, RateStamp, RecoveryContext,
    RttConfig, RttEstimator, Scoreboard, SentKind, SentNotice, SentSegment, Ssn, TimeoutAction,
};
use marline_time::{Duration, Instant};

use crate::views::{MSS, ms};

/// Bytes of every segment.
pub const SEGMENT: u64 = MSS as u64;

/// The sender, with the recovery it asks.
pub struct Sender<R: ?Sized> {
    /// The recovery.
    pub recovery: Box<R>,
    /// What is outstanding.
    pub board: Scoreboard,
    /// The RTT as measured.
    pub rtt: RttEstimator,
    /// Virtual time.
    pub now: Instant,
    /// SND.UNA.
    pub una: u64,
    /// SND.NXT.
    pub snd_nxt: u64,
    /// What the subflow is doing.
    pub phase: Phase,
    /// When the retransmission timer would fire.
    pub rto_at: Option<Instant>,
    /// The peer sends SACKs.
    pub sack: bool,
    /// Nothing waits to be sent.
    pub app_limited: bool,
}

/// Segments count from 1, as their sequence numbers do in units of [`SEGMENT`].
#[must_use]
pub const fn seq(segment: u64) -> Ssn {
    Ssn(1 + (segment - 1) * SEGMENT)
}

/// The numbers of segments that begin there.
#[must_use]
pub fn numbers(lost: &[Ssn]) -> Vec<u64> {
    lost.iter().map(|at| (at.0 - 1) / SEGMENT + 1).collect()
}

impl<R: LossRecovery + ?Sized> Sender<R> {
    /// A sender whose path has had this RTT for long.
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

    /// Asks the recovery something.
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

    /// Sends so many new segments.
    pub fn send(&mut self, segments: u64) {
        (0..segments).for_each(|_| self.send_one(SentKind::New));
    }

    /// Sends an outstanding segment again.
    ///
    /// # Panics
    /// It is not outstanding.
    pub fn resend(&mut self, segment: u64, kind: SentKind) {
        let index = self.board.index_of(seq(segment)).expect("still outstanding");
        self.board.mark_retransmitted(index, self.now, RateStamp::default());
        let notice = SentNotice { start: seq(segment), end: seq(segment + 1), kind };
        self.with(|r, cx| r.on_sent(&notice, cx));
    }

    /// An ACK up to (not including) segment `una` with SACKs for whole segments.
    pub fn ack(&mut self, una: u64, sacks: &[u64]) -> (Vec<u64>, AckOutcome) {
        self.ack_with(una, sacks, |_| {})
    }

    /// The same with an ACK that `change` changes before it is shown.
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

    /// Marks segments lost, as the core does by the recovery's word.
    ///
    /// # Panics
    /// One of them was not in flight.
    pub fn mark(&mut self, lost: &[Ssn]) {
        for at in lost {
            let index = self.board.index_of(*at).expect("lost segments are on the board");
            assert!(self.board.mark_lost(index) > 0, "{at:?} was not in flight");
        }
    }

    /// Goes on to another phase.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.with(|r, cx| r.on_recovery(phase != Phase::Open, cx));
    }

    /// Goes to the next timeout and lets it fire.
    ///
    /// # Panics
    /// No timer runs.
    pub fn fire(&mut self) -> (Vec<u64>, TimeoutAction) {
        self.now = self.recovery.next_timeout().expect("a timer runs");
        let mut lost = Vec::new();
        let action = self.with(|r, cx| r.on_timeout(cx, &mut lost));
        self.mark(&lost);
        (numbers(&lost), action)
    }

    /// How long until the recovery's timer fires.
    #[must_use]
    pub fn timeout_in(&self) -> Option<Duration> {
        self.recovery.next_timeout().map(|at| at - self.now)
    }
}
