//! Detection of a middlebox that drops segments with MPTCP options once the handshake is through: an option black
//! hole.
//!
//! *Problem.* Nothing that a client sends after the handshake is answered. If a middlebox drops it for its options,
//! only plain TCP gets through, and RFC 8684 has no segment without options that could say so. If the path is dead
//! for a moment, falling back would cost the connection all its other paths, for good, and help nothing.
//!
//! *How.* The client asks without options: a segment like a keepalive (RFC 9293 section 3.8.4), one octet before
//! SND.UNA and without payload, which any TCP has to answer and which neither moves nor says anything. It goes out
//! beside the repeated data. An answer says that the path works, and that the repeated data is lost: by chance if
//! that happens once, for its options if it happens again. Silence says that the path is dead, and the data goes on
//! being repeated with its options.
//!
//! The retransmission timer does not back off while the peer is heard (`subflow/rto.rs`), so that the third timeout
//! of a path that works comes when the second one of a dead path does.
//!
//! A Marline server answers such a segment with an ACK that has no options either, so that the answer passes a
//! middlebox that drops them in that direction. Others may answer with options. Where those are dropped, nothing
//! but a number of timeouts that few outages last for leads to plain TCP; and not even that where an earlier
//! connection's options passed between the same addresses.
//!
//! Where segments travel in datagrams of our own nobody sees their options, and none of this applies.
//!
//! SYN/ACKs that come again while third ACKs go out are an answer without having asked.
//!
//! A client that writes nothing yet, and may not join before the server has shown a DSS, asks with its options: the
//! DATA_ACK that answers the third ACK is no data, and nobody repeats it.

use marline_time::{Duration, Instant};

use super::repeats::Repeats;
use crate::on_demand::Unused;

/// Answers to segments without options, beside data with options that has none, that show what is in the way.
const ENOUGH_ANSWERS: u32 = 2;

/// What follows from a retransmission timeout of the first data.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum TimeoutOutcome {
    /// It is repeated.
    Repeat,
    /// It is repeated, and a segment without options goes along.
    Ask,
    /// Options do not pass.
    GiveUp,
}

/// What a client knows of a path on which nothing with options was answered since the handshake.
#[derive(Debug, Default)]
pub(super) struct OptionBlackhole {
    /// SYN/ACKs that came again although our third ACK went out.
    syn_acks_repeated: u32,
    /// Timeouts of the first data. The retransmission timer's own count goes back when the peer is heard.
    timeouts: u32,
    /// When the last segment without options went out.
    asked_at: Option<Instant>,
    /// How many of them were answered.
    answers: u32,
    /// The client asks for a DATA_ACK.
    questions: Repeats,
}

impl Unused for OptionBlackhole {
    const UNUSED: &'static Self = &OptionBlackhole {
        syn_acks_repeated: 0,
        timeouts: 0,
        asked_at: None,
        answers: 0,
        questions: Repeats::NONE,
    };
}

impl OptionBlackhole {
    /// A SYN/ACK came again although our third ACK went out. How many did.
    pub(super) const fn count_repeated_syn_ack(&mut self) -> u32 {
        self.syn_acks_repeated += 1;
        self.syn_acks_repeated
    }

    /// The client waits for a DATA_ACK, which comes within `rto`.
    pub(super) fn wait_for_data_ack(&mut self, now: Instant, rto: Duration) {
        self.questions = Repeats::begin(now, rto);
    }

    /// When it asks for one.
    pub(super) fn asks_at(&self) -> Option<Instant> {
        self.questions.next_timeout()
    }

    /// Whether it asks now. With data under way (`busy`) there is no need to.
    pub(super) fn is_question_due(&mut self, now: Instant, rto: Duration, busy: bool) -> bool {
        self.questions.is_due(now, rto, !busy)
    }

    /// The first data timed out. `heard_at`: when anything was heard last on its subflow; `patience`: timeouts of a
    /// silent path after which one that works has been asked often enough; `passes`: the options of an earlier
    /// connection passed here.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        heard_at: Instant,
        patience: u32,
        passes: bool,
    ) -> TimeoutOutcome {
        let patience = patience.max(1);
        self.timeouts = self.timeouts.saturating_add(1);
        self.answers += u32::from(self.asked_at.is_some_and(|at| heard_at > at));
        let unheard = patience.saturating_mul(2).saturating_add(2);
        if self.answers >= ENOUGH_ANSWERS || (self.timeouts >= unheard && !passes) {
            TimeoutOutcome::GiveUp
        } else if self.timeouts.saturating_add(1) >= patience {
            self.asked_at = Some(now);
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

    /// Outcomes of timeouts a second apart; the peer is heard half a second after those of these numbers.
    fn outcomes(patience: u32, heard_after: &[u64]) -> Vec<TimeoutOutcome> {
        outcomes_where(patience, false, heard_after)
    }

    /// The same where options of an earlier connection passed, or did not; of twenty timeouts at most.
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
    fn a_path_that_answers_twice_without_options_has_no_way_for_them() {
        assert_eq!(outcomes(2, &[1, 2]), [Ask, Ask, GiveUp]);
        assert_eq!(outcomes(4, &[3, 4]), [Repeat, Repeat, Ask, Ask, GiveUp]);
        assert_eq!(
            outcomes(1, &[1, 2]),
            [Ask, Ask, GiveUp],
            "there is no timeout before the first"
        );
        assert_eq!(outcomes(0, &[1, 2]), outcomes(1, &[1, 2]));
        assert_eq!(outcomes(2, &[1, 4]), [Ask, Ask, Ask, Ask, GiveUp], "an answer may be lost");
    }

    #[test]
    fn what_was_heard_before_anybody_asked_tells_nothing() {
        assert_eq!(outcomes(4, &[1, 2])[..5], [Repeat, Repeat, Ask, Ask, Ask]);
    }

    #[test]
    fn a_silent_path_is_asked_again_and_given_up_in_the_end() {
        assert_eq!(outcomes(2, &[]), [Ask, Ask, Ask, Ask, Ask, GiveUp]);
        assert_eq!(outcomes(2, &[4]), [Ask, Ask, Ask, Ask, Ask, GiveUp], "lost by chance");
    }

    #[test]
    fn silence_alone_is_an_outage_where_options_passed_before() {
        assert_eq!(outcomes_where(2, true, &[]), [Ask; 20]);
        let answered = outcomes_where(2, true, &[10, 11]);
        assert_eq!((answered.len(), answered.last()), (12, Some(&GiveUp)), "{answered:?}");
    }
}
