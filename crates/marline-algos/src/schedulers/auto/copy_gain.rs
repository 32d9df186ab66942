//! Benefit of a copy: how much earlier it would arrive than the original, and how much it may currently cost.
//!
//! *Problem.* A copy that arrives after the original is useless, and one that arrives a millisecond earlier is almost
//! useless. The state of one path alone does not show which copies justify their bytes. If the original's path is a
//! second late, every copy is worthwhile. If that path answers steadily, none is. In between, it depends on both paths.
//!
//! *How.* The forecast of the original's path gives the probability that the answer is still outstanding at any later
//! time, given how long it has been awaited. The other path's forecast gives the arrival time of a copy.
//! [`OutstandingAnswer::gain`] is the time that the copy is expected to save, in multiples of its own trip time and
//! limited to [`MAX_GAIN`]. It is zero for a copy that arrives second, and one half if the original is equally likely
//! to take twice as long. [`price`] is the smallest gain that justifies a copy, which grows with the spent share of the
//! budget.
//!
//! *Source.* Hedged requests (Dean and Barroso, CACM 2013) wait for a quantile and then repeat; here there is no
//! threshold. Our contribution: the gain per byte, and a required gain that depends on the budget.

use marline_policy::{Quantile, SubflowView};
use marline_time::{Duration, Instant};

use crate::schedulers::delivery::{arrival_by, return_delay};

/// Multiples of the copy's trip time at which the probability of the original's arrival is evaluated, and the weight of
/// each.
const GAIN_MULTIPLES: [(f32, f32); 4] = [(1.05, 0.1), (1.2, 0.2), (1.5, 0.4), (2.1, 0.8)];
/// Largest gain, which a copy of lost data has.
pub(super) const MAX_GAIN: f32 = 1.5;
/// Multiples of the cost of a wake-up at which the time saved by a copy is evaluated.
const WAKE_COST_MULTIPLES: [u32; 3] = [1, 2, 4];
/// Required gain when the budget is spent, and the largest required gain, which is close to [`MAX_GAIN`].
const FULL_BUDGET_GAIN: f32 = 0.2;
const MAX_REQUIRED_GAIN: f32 = 1.2;

/// Returns the smallest gain that justifies a copy when this share of the budget is spent.
pub(super) fn price(spent: f32) -> f32 {
    let squared = spent * spent;
    (FULL_BUDGET_GAIN * squared * squared * spent).min(MAX_REQUIRED_GAIN)
}

/// Minimum gain that justifies a copy.
#[derive(Copy, Clone, Debug)]
pub(super) struct RequiredGain {
    /// Minimum gain for its bytes, in multiples of the copy's trip time.
    pub(super) least: f32,
    /// Time that a copy must save to justify waking a radio.
    pub(super) wake: Duration,
}

impl RequiredGain {
    /// Returns the total gain required of a copy with this trip time.
    pub(super) fn total(&self, takes: Duration) -> f32 {
        if self.wake.is_zero() {
            return self.least;
        }
        self.least.max(0.0) + self.wake.as_secs_f32() / takes.as_secs_f32().max(1e-6)
    }
}

/// Outstanding answer of a path.
#[derive(Copy, Clone, Debug)]
pub(super) struct OutstandingAnswer<'a> {
    path: &'a SubflowView,
    /// Remaining time until the path has delivered earlier data; zero if it already has.
    ahead: Duration,
    /// Time since the path delivered earlier data.
    waited: Duration,
}

impl<'a> OutstandingAnswer<'a> {
    /// Creates the outstanding answer for the oldest segment in flight; `None` if there is none or its time has not
    /// started.
    pub(super) fn oldest(path: &'a SubflowView, now: Instant) -> Option<Self> {
        let p99 = path.forecast.answer(Quantile::P99)?;
        let waited = (now + p99).since(path.overdue_at?);
        (!waited.is_zero()).then_some(OutstandingAnswer { path, ahead: Duration::ZERO, waited })
    }

    /// Creates the outstanding answer for data with `bytes` sent behind it.
    pub(super) fn for_data_before(path: &'a SubflowView, bytes: u64, now: Instant) -> Self {
        let (queued, passing) = (path.forecast.queued(), path.forecast.transit_time(bytes));
        let since_last = match queued {
            Duration::ZERO => now.since(path.last_sent_at).min(path.forecast.idle_time()),
            _ => Duration::ZERO,
        };
        OutstandingAnswer {
            path,
            ahead: queued.saturating_sub(passing),
            waited: since_last + passing.saturating_sub(queued),
        }
    }

    /// Returns the time that a copy sent on `other` now is expected to save, in multiples of the copy's trip time: 0 to
    /// [`MAX_GAIN`].
    pub(super) fn gain(&self, other: &SubflowView) -> f32 {
        let takes = arrival_by(other, other.mss.into(), Quantile::P50);
        let Some(takes) = takes else { return 0.0 };
        let arrival_risk = self.arrival_risk();
        let gain =
            |(times, weight)| weight * self.arrival_risk_after(takes.mul_f32(times), arrival_risk);
        GAIN_MULTIPLES.into_iter().map(gain).sum()
    }

    /// Returns this gain if it exceeds the required gain and the cost of waking the radio; otherwise `None`.
    pub(super) fn justified_gain(&self, other: &SubflowView, price: RequiredGain) -> Option<f32> {
        let gain = self.gain(other);
        if price.wake.is_zero() {
            return (gain > price.least).then_some(gain);
        }
        let takes = arrival_by(other, other.mss.into(), Quantile::P50)?;
        let gain = gain.max(self.long_term_gain(price.wake, takes));
        (gain > price.total(takes)).then_some(gain)
    }

    /// Lower bound for the time that a copy is expected to save, for savings that are long compared with its trip time:
    /// the largest product of a multiple of `wake` and the probability of saving that much.
    fn long_term_gain(&self, wake: Duration, takes: Duration) -> f32 {
        let arrival_risk = self.arrival_risk();
        let in_takes = |time: Duration| time.as_secs_f32() / takes.as_secs_f32().max(1e-6);
        let saves = |times: u32| {
            let time = wake * times;
            in_takes(time) * self.arrival_risk_after(takes + time, arrival_risk)
        };
        WAKE_COST_MULTIPLES.into_iter().map(saves).fold(0.0, f32::max)
    }

    /// Probability that data awaited for this long has not yet arrived.
    fn arrival_risk(&self) -> f32 {
        self.path.forecast.late_probability(self.waited).max(f32::MIN_POSITIVE)
    }

    /// Probability that the original has not arrived after this much more time.
    fn arrival_risk_after(&self, time: Duration, arrival_risk: f32) -> f32 {
        let Some(within) = (time + return_delay(self.path)).checked_sub(self.ahead) else {
            return 1.0;
        };
        let later = self.path.forecast.late_probability(self.waited + within);
        (later / arrival_risk).min(1.0)
    }

    /// Returns the time until the data arrives at this quantile; zero if it should already have arrived. `None` if
    /// nothing is known.
    pub(super) fn time_until_due(&self, quantile: Quantile) -> Option<Duration> {
        let answer = self.path.forecast.answer(quantile)?;
        Some((self.ahead + answer).saturating_sub(self.waited))
    }

    /// Returns the time of the next evaluation: the next quantile of the answer.
    pub(super) fn next_evaluation(&self, now: Instant) -> Option<Instant> {
        let answer = |quantile| self.path.forecast.answer(quantile);
        let p99 = answer(Quantile::P99)?;
        [answer(Quantile::P50)?, answer(Quantile::P90)?, p99, p99 + p99 / 2]
            .into_iter()
            .find_map(|at| at.checked_sub(self.waited).filter(|left| !left.is_zero()))
            .map(|left| now + left)
    }
}

#[cfg(test)]
mod tests {
    use marline_policy::Forecast;
    use marline_testkit::views::{ms, view};

    use super::*;

    fn path(answers: [u64; 3], troubles: f32) -> SubflowView {
        let forecast = Forecast::with_quantiles(answers.map(ms), troubles, None);
        let (overdue_at, sent) =
            (Instant::from_millis(1_000), Instant::from_millis(1_000 - answers[2]));
        SubflowView {
            forecast,
            overdue_at: Some(overdue_at),
            last_sent_at: sent,
            min_rtt: Some(ms(answers[0])),
            ..view(0, answers[0])
        }
    }

    /// Returns the gain of a copy on a path of 20 ms, `after_ms` after the original was sent.
    fn gain(path: &SubflowView, after_ms: u64) -> f32 {
        let now = path.last_sent_at + ms(after_ms);
        OutstandingAnswer::for_data_before(path, 0, now).gain(&self::path([20, 20, 25], 0.0))
    }

    #[test]
    fn a_copy_is_worth_more_the_longer_its_answer_is_overdue() {
        let steady = path([40, 42, 50], 0.1);
        let gains = [41, 45, 60, 200].map(|after_ms| gain(&steady, after_ms));
        assert!(gains.is_sorted(), "{gains:?}");
        assert!(gains[3] > 1.4 && gains[3] <= MAX_GAIN + 0.001, "{gains:?}");
        // It is also sent immediately if the path is slower, but not if the answer is about to arrive.
        assert!(gain(&steady, 0) > 0.5 && gains[0] < 0.05, "{gains:?}");
        // Both would arrive at nearly the same time; a copy on a slow path would not.
        let twin = path([20, 21, 25], 0.0);
        let twin = OutstandingAnswer::for_data_before(&twin, 0, twin.last_sent_at);
        assert!(twin.gain(&path([20, 20, 25], 0.0)) < 0.1);
        assert!(gain(&path([200, 210, 250], 0.0), 0) > 1.4);
    }

    #[test]
    fn a_path_in_trouble_makes_copies_worth_more_from_the_beginning() {
        let (steady, troubled) = (path([20, 22, 30], 0.0), path([20, 22, 30], 5.0));
        assert!(gain(&troubled, 0) > gain(&steady, 0) + 0.1);
    }

    #[test]
    fn the_required_gain_rises_with_the_spent_budget() {
        let prices = [0.0, 0.25, 0.5, 0.9, 1.0, 1.5, 2.0].map(price);
        assert!(
            prices.is_sorted() && prices[0] == 0.0 && prices[4] == FULL_BUDGET_GAIN,
            "{prices:?}"
        );
        assert!(price(2.0) < MAX_GAIN);
    }

    #[test]
    fn only_queued_bytes_ahead_of_the_message_delay_it() {
        let rate = Some(marline_time::Rate::from_mbit(8));
        let busy = SubflowView {
            forecast: Forecast::with_quantiles([ms(40), ms(42), ms(50)], 0.0, rate)
                .delayed_by(ms(30)),
            ..path([40, 42, 50], 0.0)
        };
        let now = busy.last_sent_at;
        // Ten thousand of the bytes are behind it, and take ten of the thirty milliseconds.
        let owed = OutstandingAnswer::for_data_before(&busy, 10_000, now);
        assert_eq!((owed.ahead, owed.waited), (ms(20), Duration::ZERO));
        let owed = OutstandingAnswer::for_data_before(&busy, 40_000, now);
        assert_eq!((owed.ahead, owed.waited), (Duration::ZERO, ms(10)));
    }
}
