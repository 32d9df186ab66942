//! Tail loss probes (RFC 8985 section 7), with the PTO formulas of earlier drafts and of Linux. There is one probe per
//! episode (two in a row if configured). An episode ends when its outcome is known.
//!
//! *Problem.* A probe that is sent too early retransmits segments that were only late. A probe that is sent too late is
//! no better than the retransmission timer. The formulas have changed over time, mainly for a lone segment, whose ACK
//! the peer may delay ([`PtoFormula`]). An allowance of up to 200 ms makes the probe of a lone segment as late as the
//! retransmission timer, so that a lone message gains nothing.
//!
//! [`PtoFormula::Variation`] is our own. It uses the RTT variation as RFC 9002 section 6.2 does. On a steady path,
//! silence is significant a quarter of a round trip after the usual answer time. On a path with jitter, the RFC's value
//! applies; the timeout is never later than that. It also probes during recovery, where a lost last ACK would otherwise
//! cost a whole RTO. Each ACK restarts its timer, but new segments do not: otherwise a writer with a message every
//! round trip would postpone the probe for the first message indefinitely. The peer's ACK delay for a lone segment is
//! learned as the largest recent excess of such ACKs over the shortest RTT. On a thin stream, where every segment is
//! alone, a fixed allowance would otherwise be most of the delay of a lost message.
//!
//! *Choices.* Linux does not arm the timer while the window has room for unsent data. Here such data is sent
//! immediately (on another subflow, if the scheduler so decides), so the case does not arise. The draft allows two
//! probes in a row and Linux sends one: the parameter `probes` decides. The RFC's rule that an RTT sample must lie
//! between two episodes applies only to its formula and ours.

use marline_policy::{AckOutcome, AckSummary, Phase, RecoveryContext, SentKind, SentNotice, Ssn};
use marline_time::{Duration, Instant, nanos};

/// Default for the peer's longest ACK delay for a lone segment. Receivers in Linux and Marline acknowledge it
/// immediately or within 40 ms.
pub const DEFAULT_PEER_ACK_DELAY: Duration = Duration::from_millis(40);
/// The corresponding delay in RFC 8985 section 7.2, in Linux and in the preceding draft.
pub const RFC_PEER_ACK_DELAY: Duration = Duration::from_millis(200);
/// Shortest probe timeout of [`PtoFormula::Variation`] and [`PtoFormula::Rfc8985`]: with an RTT of microseconds, twice
/// the RTT is shorter than delays of the process scheduler.
pub const MIN_PTO: Duration = Duration::from_millis(5);
/// Shortest probe timeout of the draft.
const DRAFT_MIN_PTO: Duration = Duration::from_millis(10);
/// Margin that Linux adds to two round trips: formerly two ticks, now 2 ms.
const LINUX_MARGIN: Duration = Duration::from_millis(2);
/// Probe timeout before the first RTT sample.
const PTO_WITHOUT_RTT: Duration = Duration::from_secs(1);

/// Probe whose outcome is not yet known.
#[derive(Copy, Clone, Debug)]
struct Episode {
    /// SND.NXT when the probe was sent.
    end: Ssn,
    /// True if the probe retransmitted the last segment.
    repeated: bool,
    /// True if no ACK has arrived since the probe.
    unanswered: bool,
    /// Number of probes sent in the episode.
    probes: u8,
}

/// Probe timeout: silence after which a probe is sent. SRTT is the subflow's. A *lone* segment is the only one
/// outstanding. All formulas are limited by the armed retransmission timer, and yield 1 s before the first RTT sample.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum PtoFormula {
    /// As early as the RTT variation allows; never later than [`Rfc8985`](Self::Rfc8985).
    #[default]
    Variation,
    /// draft-dukkipati-tcpm-tcp-loss-probe-01: 2 SRTT; for a lone segment at least 1.5 SRTT + 200 ms; always at least
    /// 10 ms.
    Dukkipati,
    /// Linux 3.10 to 4.12: the values of the draft.
    Linux310,
    /// Linux after 4.12: 2 SRTT + 200 ms for a lone segment, 2 SRTT + 2 ms for several.
    Linux,
    /// RFC 8985 section 7.2: 2 SRTT, plus the peer's longest ACK delay (200 ms) for a lone segment.
    Rfc8985,
    /// 2 SRTT + 2 ms, even for a lone segment: for peers that acknowledge it immediately.
    NoAllowance,
}

impl PtoFormula {
    /// Every formula with its name in policy specs.
    pub const ALL: [(&'static str, PtoFormula); 6] = [
        ("variation", PtoFormula::Variation),
        ("draft-dukkipati", PtoFormula::Dukkipati),
        ("linux-3.10", PtoFormula::Linux310),
        ("linux", PtoFormula::Linux),
        ("rfc8985", PtoFormula::Rfc8985),
        ("no-allowance", PtoFormula::NoAllowance),
    ];

    /// Default for the peer's ACK delay for a lone segment.
    #[must_use]
    pub const fn usual_ack_delay(self) -> Duration {
        match self {
            PtoFormula::Variation => DEFAULT_PEER_ACK_DELAY,
            _ => RFC_PEER_ACK_DELAY,
        }
    }

    /// Returns true if an RTT sample must lie between two episodes (RFC 8985 section 7.3).
    const fn needs_fresh_rtt(self) -> bool {
        matches!(self, PtoFormula::Variation | PtoFormula::Rfc8985)
    }
}

/// Settings for tail loss probes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// Formula for the probe timeout; `None` disables probes.
    pub formula: Option<PtoFormula>,
    /// Longest expected ACK delay of the peer for a lone segment, for formulas that allow for it.
    pub peer_ack_delay: Duration,
    /// Maximum number of unanswered probes in a row, at least 1.
    pub most_probes: u8,
}

impl ProbeConfig {
    /// No probes are sent.
    pub const OFF: ProbeConfig =
        ProbeConfig { formula: None, peer_ack_delay: RFC_PEER_ACK_DELAY, most_probes: 1 };

    /// One probe with this formula and its usual ACK delay.
    #[must_use]
    pub const fn new(formula: PtoFormula) -> Self {
        ProbeConfig {
            formula: Some(formula),
            peer_ack_delay: formula.usual_ack_delay(),
            most_probes: 1,
        }
    }
}

impl Default for ProbeConfig {
    fn default() -> Self {
        ProbeConfig::new(PtoFormula::default())
    }
}

/// Probe timer, and outcome of the last probe.
#[derive(Clone, Debug)]
pub struct Tlp {
    // Configuration in compact form, because each idle subflow has one.
    formula: Option<PtoFormula>,
    most_probes: u8,
    peer_ack_delay_ns: u64,
    pto_at: Option<Instant>,
    episode: Option<Episode>,
    lone_ack_delay: LoneAckDelay,
    /// Number of RTT samples when the last probe was sent (low 32 bits).
    samples_at_probe: u32,
}

/// Extra delay of ACKs for lone segments, beyond the shortest RTT.
#[derive(Copy, Clone, Debug, Default)]
struct LoneAckDelay {
    /// Start of the lone segment in flight.
    waiting: Option<Ssn>,
    samples: u32,
    /// Largest recent excess, in nanoseconds.
    excess_ns: u64,
}

impl LoneAckDelay {
    /// Minimum number of samples to use instead of the default.
    const MIN_SAMPLES: u32 = 4;

    fn on_sample(&mut self, excess: Duration) {
        self.samples = self.samples.saturating_add(1);
        let excess_ns = nanos(excess).min(u64::MAX / 16);
        self.excess_ns = excess_ns.max(self.excess_ns * 15 / 16);
    }

    fn known_delay(&self) -> Option<Duration> {
        (self.samples >= Self::MIN_SAMPLES).then(|| Duration::from_nanos(self.excess_ns))
    }
}

impl Tlp {
    /// Creates the state before the first probe.
    #[must_use]
    pub const fn new(config: ProbeConfig) -> Self {
        let lone = LoneAckDelay { waiting: None, samples: 0, excess_ns: 0 };
        Tlp {
            formula: config.formula,
            most_probes: config.most_probes,
            peer_ack_delay_ns: nanos(config.peer_ack_delay),
            pto_at: None,
            episode: None,
            lone_ack_delay: lone,
            samples_at_probe: 0,
        }
    }

    /// Sets the peer's longest expected ACK delay for a lone segment.
    pub const fn set_peer_ack_delay(&mut self, delay: Duration) {
        self.peer_ack_delay_ns = nanos(delay);
    }

    fn is_adaptive(&self) -> bool {
        self.formula == Some(PtoFormula::Variation)
    }

    /// Time at which a probe may become due.
    #[must_use]
    pub const fn timeout(&self) -> Option<Instant> {
        self.pto_at
    }

    /// Restarts the timer if a probe may be sent (section 7.2), otherwise clears it.
    pub fn schedule(&mut self, cx: &RecoveryContext<'_>, phase: Phase) {
        let pto = self.formula.filter(|_| self.may_probe(cx, phase));
        self.pto_at = pto.map(|formula| {
            let at = cx.now + self.pto(formula, cx);
            cx.rto_at.map_or(at, |rto_at| at.min(rto_at))
        });
    }

    /// Processes a transmission.
    pub fn on_sent(&mut self, sent: &SentNotice, cx: &RecoveryContext<'_>) {
        match sent.kind {
            SentKind::New => self.on_new(sent.start, cx),
            SentKind::Retransmission => self.on_repeat(cx),
            SentKind::ProbeNew => self.on_probe(cx, false),
            SentKind::ProbeRepeat => self.on_probe(cx, true),
        }
    }

    /// Handles the sending of new data.
    fn on_new(&mut self, start: Ssn, cx: &RecoveryContext<'_>) {
        self.lone_ack_delay.waiting = (cx.board.segments() == 1).then_some(start);
        let before = self.pto_at;
        self.schedule(cx, cx.phase);
        if self.is_adaptive() {
            self.pto_at = self.pto_at.map(|at| before.map_or(at, |before| at.min(before)));
        }
    }

    fn may_probe(&self, cx: &RecoveryContext<'_>, phase: Phase) -> bool {
        let calm = match phase {
            Phase::Open => cx.board.segments_sacked() == 0,
            Phase::Recovery => self.is_adaptive(),
            Phase::Loss => false,
        };
        let another = |episode: &Episode| episode.unanswered && episode.probes < self.most_probes;
        calm && cx.sack_enabled
            && self.episode.as_ref().is_none_or(another)
            && cx.board.bytes_in_flight() > 0
    }

    /// Computes the probe timeout (TLP_calc_PTO of the RFC).
    fn pto(&self, formula: PtoFormula, cx: &RecoveryContext<'_>) -> Duration {
        let Some(srtt) = cx.rtt.srtt() else { return PTO_WITHOUT_RTT };
        let lone = cx.board.segments() == 1;
        let delay_ns = if lone { self.peer_ack_delay_ns } else { 0 };
        let delay = Duration::from_nanos(delay_ns);
        let rfc = srtt * 2 + delay;
        match formula {
            PtoFormula::Rfc8985 => rfc.max(MIN_PTO),
            PtoFormula::Variation => {
                let usual = (srtt + cx.rtt.rttvar() * 4).max(srtt * 5 / 4);
                let learned = self.lone_ack_delay.known_delay().unwrap_or(Duration::MAX);
                let delay = delay.min(learned).min((srtt / 2).max(MIN_PTO * 2));
                (usual + delay).min(rfc).max(MIN_PTO)
            }
            PtoFormula::Dukkipati | PtoFormula::Linux310 => {
                let least = if lone { srtt * 3 / 2 + delay } else { Duration::ZERO };
                (srtt * 2).max(least).max(DRAFT_MIN_PTO)
            }
            PtoFormula::Linux if lone => rfc,
            PtoFormula::Linux | PtoFormula::NoAllowance => srtt * 2 + LINUX_MARGIN,
        }
    }

    /// Handles a retransmission. Only the adaptive formula also probes for retransmissions.
    fn on_repeat(&mut self, cx: &RecoveryContext<'_>) {
        if self.is_adaptive() {
            self.schedule(cx, cx.phase);
        } else {
            self.cancel();
        }
    }

    const fn cancel(&mut self) {
        self.pto_at = None;
    }

    /// Ends the episode without an outcome, because recovery or a timeout takes over.
    pub const fn end_episode(&mut self) {
        self.pto_at = None;
        self.episode = None;
    }

    /// Returns true if the timer has expired and a probe is due.
    pub fn is_probe_due(&mut self, cx: &RecoveryContext<'_>) -> bool {
        if self.pto_at.is_none_or(|at| at > cx.now) {
            return false;
        }
        self.pto_at = None;
        // Section 7.3: probes must not prevent the samples by which SRTT adapts to a longer path.
        let rtt_is_fresh = cx.rtt.samples() as u32 != self.samples_at_probe
            || !self.formula.is_some_and(PtoFormula::needs_fresh_rtt)
            || self.episode.is_some();
        rtt_is_fresh && self.may_probe(cx, cx.phase)
    }

    fn on_probe(&mut self, cx: &RecoveryContext<'_>, repeated: bool) {
        self.samples_at_probe = cx.rtt.samples() as u32;
        let probes = self.episode.map_or(1, |before| before.probes.saturating_add(1));
        let repeated = repeated || self.episode.is_some_and(|before| before.repeated);
        self.episode = Some(Episode { end: cx.snd_nxt, repeated, unanswered: true, probes });
        self.schedule(cx, cx.phase);
    }

    /// Handles an ACK, with or without detected losses: evaluates the probe and restarts the timer.
    pub fn on_ack(
        &mut self,
        ack: &AckSummary<'_>,
        cx: &RecoveryContext<'_>,
        found_losses: bool,
    ) -> AckOutcome {
        let outcome = self.process_ack(ack, cx);
        if found_losses {
            self.cancel();
        } else if ack.una > ack.prior_una || !ack.delivered.is_empty() {
            self.schedule(cx, cx.phase);
        }
        outcome
    }

    /// Handles an ACK during an episode (TLP_process_ack of the RFC, section 7.4).
    fn process_ack(&mut self, ack: &AckSummary<'_>, cx: &RecoveryContext<'_>) -> AckOutcome {
        let lone =
            ack.delivered.iter().find(|segment| Some(segment.start) == self.lone_ack_delay.waiting);
        if let (Some(segment), Some(least)) = (lone, cx.rtt.min()) {
            self.lone_ack_delay.waiting = None;
            if !segment.retransmitted {
                self.lone_ack_delay.on_sample(cx.now.since(segment.sent_at).saturating_sub(least));
            }
        }
        let mut outcome = AckOutcome::default();
        let Some(episode) = &mut self.episode else { return outcome };
        let sign_of_life = ack.una > ack.prior_una
            || !ack.delivered.is_empty()
            || ack.dsack.is_some()
            || ack.duplicate;
        if sign_of_life && episode.unanswered {
            episode.unanswered = false;
            outcome.probe_answered = true;
        }
        let episode = *episode;
        if ack.una < episode.end {
            return outcome;
        }
        let both_arrived =
            ack.dsack.is_some_and(|(start, end)| start < episode.end && episode.end <= end);
        let plain_duplicate = ack.duplicate && !ack.has_sack && ack.dsack.is_none();
        if !episode.repeated || both_arrived {
            self.episode = None;
        } else if ack.una > episode.end {
            // Later data was acknowledged without a DSACK, so only the probe had arrived.
            self.episode = None;
            outcome.probe_repaired_loss = true;
        } else if plain_duplicate && ack.una == ack.prior_una {
            self.episode = None;
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
