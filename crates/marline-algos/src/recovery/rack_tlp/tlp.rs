//! TLP: RFC 8985 section 7. One probe per episode; an episode ends when its verdict is known.
//!
//! Two rules for when to probe. [`Eagerness::Rfc8985`] is the RFC's: twice the SRTT, only while nothing
//! is being repaired. [`Eagerness::Adaptive`] takes the variation into account as RFC 9002 section 6.2
//! does: on a steady path silence means something after a quarter of a round trip more than usual,
//! and on a path that jitters the RFC's value holds. It is never later than the RFC's. It also probes
//! during recovery, where a lost last ACK would otherwise cost a whole RTO. Its timer does not start
//! anew with each new segment, only with each ACK: who writes a message every round trip would put
//! off the probe for the first as long as he writes.
//!
//! How long the peer sits on the ACK of a lone segment is learned: what such ACKs took beyond the
//! shortest RTT, its largest value of late. On a thin stream, where every segment is a lone one, the
//! allowance would otherwise be most of what a lost message waits.

use marline_policy::{AckSummary, AckVerdict, Phase, RecoveryContext, Ssn};
use marline_time::{Duration, Instant};

use super::MIN_PTO;

/// Probe timeout before there is an RTT.
const PTO_WITHOUT_RTT: Duration = Duration::from_secs(1);

/// A probe that was sent and whose verdict is open.
#[derive(Copy, Clone, Debug)]
struct Episode {
    /// SND.NXT when the probe was sent.
    end: Ssn,
    /// The probe repeated the last segment.
    repeated: bool,
    /// Nothing was heard since.
    unanswered: bool,
}

/// When silence calls for a probe.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Eagerness {
    /// As RFC 8985 section 7.2 has it.
    Rfc8985,
    /// As early as the path's variation allows.
    Adaptive,
}

/// The probe timer and the verdict on the last probe.
#[derive(Clone, Debug)]
pub(super) struct Tlp {
    eagerness: Eagerness,
    pto_at: Option<Instant>,
    episode: Option<Episode>,
    peer_ack_delay: Duration,
    lone: LoneAcks,
    /// RTT samples there were when the last probe was sent.
    samples_at_probe: u64,
}

/// What the ACKs of lone segments took beyond the shortest RTT.
#[derive(Copy, Clone, Debug, Default)]
struct LoneAcks {
    /// The lone segment under way: its start.
    waiting: Option<Ssn>,
    samples: u32,
    /// The largest of late.
    excess: Duration,
}

impl LoneAcks {
    /// As few samples are believed.
    const ENOUGH: u32 = 4;

    fn on_sample(&mut self, excess: Duration) {
        self.samples = self.samples.saturating_add(1);
        self.excess = excess.max(self.excess * 15 / 16);
    }

    fn known(&self) -> Option<Duration> {
        (self.samples >= Self::ENOUGH).then_some(self.excess)
    }
}

impl Tlp {
    pub(super) const fn new(eagerness: Eagerness, peer_ack_delay: Duration) -> Self {
        let lone = LoneAcks { waiting: None, samples: 0, excess: Duration::ZERO };
        Tlp { eagerness, pto_at: None, episode: None, peer_ack_delay, lone, samples_at_probe: 0 }
    }

    pub(super) const fn set_peer_ack_delay(&mut self, delay: Duration) {
        self.peer_ack_delay = delay;
    }

    pub(super) const fn timeout(&self) -> Option<Instant> {
        self.pto_at
    }

    /// Sets the timer anew if a probe may be sent (section 7.2), else clears it.
    pub(super) fn schedule(&mut self, cx: &RecoveryContext<'_>, phase: Phase) {
        self.pto_at = self.may_probe(cx, phase).then(|| {
            let at = cx.now + self.pto(cx);
            cx.rto_at.map_or(at, |rto_at| at.min(rto_at))
        });
    }

    /// New data went out.
    pub(super) fn on_new(&mut self, start: Ssn, cx: &RecoveryContext<'_>) {
        self.lone.waiting = (cx.board.len() == 1).then_some(start);
        let before = self.pto_at;
        self.schedule(cx, cx.phase);
        if self.eagerness == Eagerness::Adaptive {
            self.pto_at = self.pto_at.map(|at| before.map_or(at, |before| at.min(before)));
        }
    }

    fn may_probe(&self, cx: &RecoveryContext<'_>, phase: Phase) -> bool {
        let calm = match self.eagerness {
            Eagerness::Rfc8985 => phase == Phase::Open && cx.board.segments_sacked() == 0,
            Eagerness::Adaptive if phase == Phase::Open => cx.board.segments_sacked() == 0,
            Eagerness::Adaptive => phase == Phase::Recovery,
        };
        calm && cx.sack_enabled && self.episode.is_none() && cx.board.bytes_in_flight() > 0
    }

    /// TLP_calc_PTO.
    fn pto(&self, cx: &RecoveryContext<'_>) -> Duration {
        let Some(srtt) = cx.rtt.srtt() else { return PTO_WITHOUT_RTT };
        let lone = cx.board.len() == 1;
        let delay = if lone { self.peer_ack_delay } else { Duration::ZERO };
        let rfc = srtt * 2 + delay;
        let pto = match self.eagerness {
            Eagerness::Rfc8985 => rfc,
            Eagerness::Adaptive => {
                let usual = (srtt + cx.rtt.rttvar() * 4).max(srtt * 5 / 4);
                let learned = self.lone.known().unwrap_or(Duration::MAX);
                (usual + delay.min(learned).min((srtt / 2).max(MIN_PTO * 2))).min(rfc)
            }
        };
        pto.max(MIN_PTO)
    }

    /// Something was repeated: only an eager prober watches over that too.
    pub(super) fn on_repeat(&mut self, cx: &RecoveryContext<'_>) {
        match self.eagerness {
            Eagerness::Rfc8985 => self.cancel(),
            Eagerness::Adaptive => self.schedule(cx, cx.phase),
        }
    }

    pub(super) const fn cancel(&mut self) {
        self.pto_at = None;
    }

    /// Recovery or a timeout takes over: the probe's verdict no longer matters.
    pub(super) const fn end_episode(&mut self) {
        self.pto_at = None;
        self.episode = None;
    }

    /// Whether the timer has run out and a probe is due.
    pub(super) fn fires(&mut self, cx: &RecoveryContext<'_>) -> bool {
        if self.pto_at.is_none_or(|at| at > cx.now) {
            return false;
        }
        self.pto_at = None;
        // Section 7.3: probes must not prevent the samples by which SRTT learns that the path has
        // become longer.
        let rtt_is_fresh = cx.rtt.samples() > self.samples_at_probe;
        rtt_is_fresh && self.may_probe(cx, cx.phase)
    }

    pub(super) const fn on_probe(&mut self, cx: &RecoveryContext<'_>, repeated: bool) {
        self.pto_at = None;
        self.samples_at_probe = cx.rtt.samples();
        self.episode = Some(Episode { end: cx.snd_nxt, repeated, unanswered: true });
    }

    /// TLP_process_ack (section 7.4).
    pub(super) fn on_ack(&mut self, ack: &AckSummary<'_>, cx: &RecoveryContext<'_>) -> AckVerdict {
        let lone = ack.delivered.iter().find(|segment| Some(segment.start) == self.lone.waiting);
        if let (Some(segment), Some(least)) = (lone, cx.rtt.min()) {
            self.lone.waiting = None;
            if !segment.retransmitted {
                self.lone.on_sample(cx.now.since(segment.sent_at).saturating_sub(least));
            }
        }
        let mut verdict = AckVerdict::default();
        let Some(episode) = &mut self.episode else { return verdict };
        let sign_of_life = ack.una > ack.prior_una
            || !ack.delivered.is_empty()
            || ack.dsack.is_some()
            || ack.duplicate;
        if sign_of_life && episode.unanswered {
            episode.unanswered = false;
            verdict.probe_answered = true;
        }
        let episode = *episode;
        if ack.una < episode.end {
            return verdict;
        }
        let both_arrived =
            ack.dsack.is_some_and(|(start, end)| start < episode.end && episode.end <= end);
        let plain_duplicate = ack.duplicate && !ack.has_sack && ack.dsack.is_none();
        if !episode.repeated || both_arrived {
            self.episode = None;
        } else if ack.una > episode.end {
            // Later data was acknowledged and no DSACK came: only the probe had arrived.
            self.episode = None;
            verdict.probe_repaired_loss = true;
        } else if plain_duplicate && ack.una == ack.prior_una {
            self.episode = None;
        }
        verdict
    }
}
