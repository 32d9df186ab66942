//! Exchange of the retransmission timeout with the peer (docs/spec/experimental.md).
//!
//! *Problem.* A download path should count as dead when it is silent for longer than the *sender* waits before it
//! retransmits. The receiver sends little and has no RTT samples with which to estimate this time.
//!
//! *Source.* MultiMob: a bit in DSS is the request, and an option contains the timeout in microseconds. The time of the
//! request is not specified. Here, the client sends a request once the extension is agreed on, and later when the
//! receive timer starts and the last answer is older than the configured age. It sends at most one per second, and half
//! as often after each unanswered request.
//!
//! The answer is the largest timeout of the usable subflows, without backoff. Both options are sent on pure ACKs.
//! These may be lost, because they influence only the length of the timer. A request costs the peer one segment, and
//! it answers at most ten per second. An answer is used only after a request, and only within the bounds of the
//! receive timer.

use marline_time::{Duration, Instant};

use crate::on_demand::UnusedState;

/// Minimum time between two requests.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two answers.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);
/// Limit on doublings of the time between unanswered requests.
const MAX_BACKOFF: u32 = 6;

/// State of both sides of the exchange.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct RtoExchange {
    /// The peer's timeout, and the time at which it was received.
    peer_rto: Option<(Duration, Instant)>,
    /// Time of the last request, and number of unanswered ones.
    last_request: Option<(Instant, u32)>,
    /// A request has not been answered.
    open: bool,
    /// Time of the last answer to the peer.
    answered_at: Option<Instant>,
}

impl UnusedState for RtoExchange {
    const UNUSED: &'static Self =
        &RtoExchange { peer_rto: None, last_request: None, open: false, answered_at: None };
}

impl RtoExchange {
    /// Last timeout reported by the peer.
    pub(super) fn peer_rto(&self) -> Option<Duration> {
        self.peer_rto.map(|(rto, _)| rto)
    }

    /// True if a request is due: the known value is older than `refresh`.
    pub(super) fn is_due(&self, now: Instant, refresh: Duration) -> bool {
        let old = self.peer_rto.is_none_or(|(_, at)| now.since(at) >= refresh);
        let rested = self.last_request.is_none_or(|(at, in_vain)| {
            now.since(at) >= REQUEST_INTERVAL * (1 << in_vain.min(MAX_BACKOFF))
        });
        old && rested
    }

    /// Records a request.
    pub(super) fn record_rto_request(&mut self, now: Instant) {
        let in_vain = self.last_request.map_or(0, |(_, in_vain)| in_vain + u32::from(self.open));
        self.last_request = Some((now, in_vain));
        self.open = true;
    }

    /// Handles an answer. `false` if there was no request.
    pub(super) fn on_peer_rto(&mut self, now: Instant, rto: Duration) -> bool {
        let wanted = core::mem::take(&mut self.open);
        if wanted {
            self.peer_rto = Some((rto, now));
            self.last_request = self.last_request.map(|(at, _)| (at, 0));
        }
        wanted
    }

    /// True if the peer's request may be answered now.
    pub(super) fn may_answer(&mut self, now: Instant) -> bool {
        let rested = self.answered_at.is_none_or(|at| now.since(at) >= ANSWER_INTERVAL);
        if rested {
            self.answered_at = Some(now);
        }
        rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFRESH: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// Times of requests, in ms, if there is a reason every 100 ms and all or none are answered.
    fn questions(answered: bool) -> Vec<u64> {
        let mut exchange = RtoExchange::default();
        let mut last_request = Vec::new();
        for ms in (0..60_000).step_by(100) {
            if exchange.is_due(at(ms), REFRESH) {
                exchange.record_rto_request(at(ms));
                last_request.push(ms);
                assert!(!answered || exchange.on_peer_rto(at(ms), Duration::from_millis(300)));
            }
        }
        last_request
    }

    #[test]
    fn an_answer_is_valid_for_the_refresh_time() {
        assert_eq!(questions(true), [0, 10_000, 20_000, 30_000, 40_000, 50_000]);
    }

    #[test]
    fn requests_back_off_without_answers() {
        assert_eq!(questions(false), [0, 1_000, 3_000, 7_000, 15_000, 31_000]);
    }

    #[test]
    fn an_unsolicited_rto_answer_is_ignored() {
        let mut exchange = RtoExchange::default();
        assert!(!exchange.on_peer_rto(at(0), Duration::from_secs(4_000)));
        exchange.record_rto_request(at(0));
        assert!(exchange.on_peer_rto(at(10), Duration::from_millis(300)));
        assert!(!exchange.on_peer_rto(at(11), Duration::ZERO), "only one answer per request");
        assert_eq!(exchange.peer_rto, Some((Duration::from_millis(300), at(10))));
    }

    #[test]
    fn a_flood_of_questions_gets_ten_answers_a_second() {
        let mut exchange = RtoExchange::default();
        let answers = (0..10_000).filter(|ms| exchange.may_answer(at(*ms))).count();
        assert_eq!(answers, 100);
    }
}
