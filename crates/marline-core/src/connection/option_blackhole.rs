//! Detection of an option black hole: a middlebox that drops segments with MPTCP options after the handshake.
//!
//! *Problem.* No segment that a client sends after the handshake is answered. If a middlebox drops them because of
//! their options, only plain TCP gets through, and RFC 8684 defines no segment without options for this case. If the
//! path is only briefly dead, a fallback would permanently cost the connection all its other paths, without any
//! benefit.
//!
//! *How.* The client probes without options: a segment like a keepalive (RFC 9293 section 3.8.4), one octet before
//! SND.UNA and without payload, which any TCP has to answer and which changes no state. It is sent with the repeated
//! data. An answer shows that the path works and that the repeated data is lost. The first answer may be chance. After
//! the second, the options must be the cause. Silence shows that the path is dead, and the data is still repeated with
//! its options.
//!
//! The retransmission timer does not back off while segments from the peer arrive (`subflow/loss.rs`), so that the
//! third timeout of a working path expires as early as the second one of a dead path.
//!
//! A Marline server answers such a segment with an ACK without options, so that the answer passes a middlebox that
//! drops options in that direction. Other servers may answer with options. If those are dropped, it takes more timeouts
//! than most outages cause to fall back to plain TCP. If options of an earlier connection passed between these
//! addresses, no number of timeouts leads to a fallback.
//!
//! If segments are carried in our own datagrams, middleboxes do not see their options, and none of this applies.
//!
//! SYN/ACKs repeated after third ACKs were sent count as answers without a probe.
//!
//! A client that has not written data and may not join before the server has sent a DSS probes with options, because
//! the server does not retransmit the DATA_ACK that answers the third ACK.

use marline_time::{Duration, Instant};

use super::repeats::Repeats;
use crate::on_demand::UnusedState;

/// Number of answered probes without options that prove an option black hole, if data with options is not answered
/// meanwhile.
const MIN_ANSWERS: u32 = 2;

/// Consequences of a retransmission timeout of the first data.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum TimeoutOutcome {
    /// The data is repeated.
    Repeat,
    /// The data is repeated, together with a probe without options.
    Ask,
    /// Options do not pass.
    GiveUp,
}

/// State of a client on a path on which no segment with options was answered since the handshake.
#[derive(Debug, Default)]
pub(super) struct OptionBlackhole {
    /// SYN/ACKs received again after our third ACK was sent.
    syn_acks_repeated: u32,
    /// Timeouts of the first data. The retransmission timer's own count is reset when a segment from the peer
    /// arrives.
    timeouts: u32,
    /// Time of the last probe without options.
    probed_at: Option<Instant>,
    /// Number of answered probes.
    answers: u32,
    /// Repeated requests for a DATA_ACK.
    request_repeats: Repeats,
}

impl UnusedState for OptionBlackhole {
    const UNUSED: &'static Self = &OptionBlackhole {
        syn_acks_repeated: 0,
        timeouts: 0,
        probed_at: None,
        answers: 0,
        request_repeats: Repeats::NONE,
    };
}

impl OptionBlackhole {
    /// Counts a SYN/ACK repeated after our third ACK. Returns the total number.
    pub(super) const fn count_repeated_syn_ack(&mut self) -> u32 {
        self.syn_acks_repeated += 1;
        self.syn_acks_repeated
    }

    /// Starts the wait for a DATA_ACK, which is expected within `rto`.
    pub(super) fn wait_for_data_ack(&mut self, now: Instant, rto: Duration) {
        self.request_repeats = Repeats::begin(now, rto);
    }

    /// Time of the next request for a DATA_ACK.
    pub(super) fn next_request_at(&self) -> Option<Instant> {
        self.request_repeats.next_timeout()
    }

    /// True if a request is due. With data in flight (`busy`) none is needed.
    pub(super) fn is_request_due(&mut self, now: Instant, rto: Duration, busy: bool) -> bool {
        self.request_repeats.is_due(now, rto, !busy)
    }

    /// Handles a timeout of the first data. `heard_at` is the time of the last segment received on its subflow.
    /// `patience` is the configured number of timeouts; probes start at the timeout before the last. `passes` is true
    /// if options of an earlier connection passed here.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        heard_at: Instant,
        patience: u32,
        passes: bool,
    ) -> TimeoutOutcome {
        let patience = patience.max(1);
        self.timeouts = self.timeouts.saturating_add(1);
        self.answers += u32::from(self.probed_at.is_some_and(|at| heard_at > at));
        let since_last_rx = patience.saturating_mul(2).saturating_add(2);
        if self.answers >= MIN_ANSWERS || (self.timeouts >= since_last_rx && !passes) {
            TimeoutOutcome::GiveUp
        } else if self.timeouts.saturating_add(1) >= patience {
            self.probed_at = Some(now);
            TimeoutOutcome::Ask
        } else {
            TimeoutOutcome::Repeat
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TimeoutOutcome::{Ask, GiveUp, Repeat};
    use super::*;

    const UP: Instant = Instant::from_millis(50);

    /// Outcomes of timeouts a second apart. A segment from the peer arrives half a second after the timeouts with
    /// these numbers.
    fn outcomes(patience: u32, heard_after: &[u64]) -> Vec<TimeoutOutcome> {
        outcomes_where(patience, false, heard_after)
    }

    /// Outcomes of at most twenty timeouts. `passes` is true if options of an earlier connection passed.
    fn outcomes_where(patience: u32, passes: bool, heard_after: &[u64]) -> Vec<TimeoutOutcome> {
        let mut blackhole = OptionBlackhole::default();
        let mut outcomes = Vec::new();
        while outcomes.last() != Some(&GiveUp) && outcomes.len() < 20 {
            let number = outcomes.len() as u64 + 1;
            let heard = heard_after.iter().rfind(|after| **after < number);
            let heard_at = heard.map_or(UP, |after| Instant::from_millis(after * 1_000 + 500));
            let now = Instant::from_secs(number);
            outcomes.push(blackhole.on_timeout(now, heard_at, patience, passes));
        }
        outcomes
    }

    #[test]
    fn two_answers_without_options_give_up_the_options() {
        assert_eq!(outcomes(2, &[1, 2]), [Ask, Ask, GiveUp]);
        assert_eq!(outcomes(4, &[3, 4]), [Repeat, Repeat, Ask, Ask, GiveUp]);
        assert_eq!(
            outcomes(1, &[1, 2]),
            [Ask, Ask, GiveUp],
            "no timeout precedes the first request"
        );
        assert_eq!(outcomes(0, &[1, 2]), outcomes(1, &[1, 2]));
        assert_eq!(
            outcomes(2, &[1, 4]),
            [Ask, Ask, Ask, Ask, GiveUp],
            "a single lost answer is tolerated"
        );
    }

    #[test]
    fn answers_before_the_probe_prove_nothing() {
        assert_eq!(outcomes(4, &[1, 2])[..5], [Repeat, Repeat, Ask, Ask, Ask]);
    }

    #[test]
    fn a_silent_path_is_asked_again_and_given_up_in_the_end() {
        assert_eq!(outcomes(2, &[]), [Ask, Ask, Ask, Ask, Ask, GiveUp]);
        assert_eq!(outcomes(2, &[4]), [Ask, Ask, Ask, Ask, Ask, GiveUp], "random loss");
    }

    #[test]
    fn silence_alone_is_an_outage_where_options_passed_before() {
        assert_eq!(outcomes_where(2, true, &[]), [Ask; 20]);
        let answered = outcomes_where(2, true, &[10, 11]);
        assert_eq!((answered.len(), answered.last()), (12, Some(&GiveUp)), "{answered:?}");
    }
}
