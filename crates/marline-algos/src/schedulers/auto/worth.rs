//! Worth of a copy: how much earlier it would be there than the original, and what that may cost now.
//!
//! *Problem.* A copy that arrives after the original was for nothing, and one that arrives a
//! millisecond before it nearly so. Which copies are worth their bytes can not be said by the state
//! of a path alone: behind a path that is late by a second every copy is, in front of one that
//! answers steadily none is, and in between it depends on both paths.
//!
//! *How.* The forecast of the path that carries the original says how likely it is that the answer
//! is still out after any time, given how long it has been waited for; the other path's forecast says when a
//! copy would arrive. [`Owed::gain`] is the time that the copy is expected to save, in times that the
//! copy itself takes, counted up to [`MOST_TIMES`]: nothing for a copy that comes second, half for one behind a path
//! that is as likely as not to take twice as long. [`price`] is the least gain that is paid for, which grows
//! with what the budget has spent.
//!
//! *Source.* Hedged requests (Dean and Barroso, CACM 2013) wait for a quantile and then repeat; this is the same
//! without a threshold. Ours: the gain per byte, and a price that depends on the budget.

use marline_policy::{Quantile, SubflowView};
use marline_time::{Duration, Instant};

use crate::schedulers::delivery::{arrival_by, way_back};

/// Times of the copy's own way at which the original is asked about, and what each stands for.
const TIMES: [(f32, f32); 4] = [(1.05, 0.1), (1.2, 0.2), (1.5, 0.4), (2.1, 0.8)];
/// The largest gain: that of a copy of what is not coming.
pub(super) const MOST_TIMES: f32 = 1.5;
/// Multiples of the cost of a wake-up at which is asked what a copy saves.
const WAKE_TIMES: [u32; 3] = [1, 2, 4];
/// The price where the budget is spent, and the largest there is, close to [`MOST_TIMES`].
const PRICE_OF_LAST: f32 = 0.2;
const MOST_PRICE: f32 = 1.2;

/// Least gain that is paid for where this share of the budget is spent.
pub(super) fn price(spent: f32) -> f32 {
    let squared = spent * spent;
    (PRICE_OF_LAST * squared * squared * spent).min(MOST_PRICE)
}

/// What a copy has to gain.
#[derive(Copy, Clone, Debug)]
pub(super) struct Price {
    /// For its bytes, in times that it takes itself.
    pub(super) least: f32,
    /// For waking a radio.
    pub(super) wake: Duration,
}

impl Price {
    /// All of it, for a copy that takes so long.
    pub(super) fn total(&self, takes: Duration) -> f32 {
        if self.wake.is_zero() {
            return self.least;
        }
        self.least.max(0.0) + self.wake.as_secs_f32() / takes.as_secs_f32().max(1e-6)
    }
}

/// An answer that a path owes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Owed<'a> {
    path: &'a SubflowView,
    /// What the path had to do before, counted from now; zero: it is through with it.
    ahead: Duration,
    /// How long ago it was.
    waited: Duration,
}

impl<'a> Owed<'a> {
    /// For the oldest segment that is on its way; `None`: there is none, or its time has not begun.
    pub(super) fn oldest(path: &'a SubflowView, now: Instant) -> Option<Self> {
        let p99 = path.forecast.answer(Quantile::P99)?;
        let waited = (now + p99).since(path.overdue_at?);
        (!waited.is_zero()).then_some(Owed { path, ahead: Duration::ZERO, waited })
    }

    /// For what so many bytes were sent behind.
    pub(super) fn before_last(path: &'a SubflowView, bytes: u64, now: Instant) -> Self {
        let (queued, passing) = (path.forecast.queued(), path.forecast.passing(bytes));
        let since_last = match queued {
            Duration::ZERO => now.since(path.last_sent_at).min(path.forecast.idle_for()),
            _ => Duration::ZERO,
        };
        Owed {
            path,
            ahead: queued.saturating_sub(passing),
            waited: since_last + passing.saturating_sub(queued),
        }
    }

    /// Time that a copy which leaves now on `other` is expected to save, in times that it takes itself: 0 to
    /// [`MOST_TIMES`].
    pub(super) fn gain(&self, other: &SubflowView) -> f32 {
        let takes = arrival_by(other, other.mss.into(), Quantile::P50);
        let Some(takes) = takes else { return 0.0 };
        let still_owed = self.still_owed();
        let gain = |(times, weight)| weight * self.chance_after(takes.mul_f32(times), still_owed);
        TIMES.into_iter().map(gain).sum()
    }

    /// The same gain if it is paid for: more than the price, and than what it costs to wake the radio.
    pub(super) fn paid_gain(&self, other: &SubflowView, price: Price) -> Option<f32> {
        let gain = self.gain(other);
        if price.wake.is_zero() {
            return (gain > price.least).then_some(gain);
        }
        let takes = arrival_by(other, other.mss.into(), Quantile::P50)?;
        let gain = gain.max(self.long_gain(price.wake, takes));
        (gain > price.total(takes)).then_some(gain)
    }

    /// Time that a copy is expected to save at least, where savings are long beside its own way: each of some
    /// multiples of `wake`, times the chance that it saves so much.
    fn long_gain(&self, wake: Duration, takes: Duration) -> f32 {
        let still_owed = self.still_owed();
        let in_takes = |time: Duration| time.as_secs_f32() / takes.as_secs_f32().max(1e-6);
        let saves = |times: u32| {
            let time = wake * times;
            in_takes(time) * self.chance_after(takes + time, still_owed)
        };
        WAKE_TIMES.into_iter().map(saves).fold(0.0, f32::max)
    }

    /// The chance that what was waited for so long has not come yet.
    fn still_owed(&self) -> f32 {
        self.path.forecast.chance_later(self.waited).max(f32::MIN_POSITIVE)
    }

    /// The chance that the original is not there after this time.
    fn chance_after(&self, time: Duration, still_owed: f32) -> f32 {
        let Some(within) = (time + way_back(self.path)).checked_sub(self.ahead) else { return 1.0 };
        let later = self.path.forecast.chance_later(self.waited + within);
        (later / still_owed).min(1.0)
    }

    /// Time until it is there by this quantile; zero: it should be there. `None` where nothing is known.
    pub(super) fn due_in(&self, quantile: Quantile) -> Option<Duration> {
        let answer = self.path.forecast.answer(quantile)?;
        Some((self.ahead + answer).saturating_sub(self.waited))
    }

    /// When to look again: after the next quantile of the answer that it is not there by.
    pub(super) fn look_again_at(&self, now: Instant) -> Option<Instant> {
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
        let forecast = Forecast::of(answers.map(ms), troubles, None);
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

    /// The gain of a copy on a path of 20 ms, so many ms after the original left.
    fn gain(path: &SubflowView, after_ms: u64) -> f32 {
        let now = path.last_sent_at + ms(after_ms);
        Owed::before_last(path, 0, now).gain(&self::path([20, 20, 25], 0.0))
    }

    #[test]
    fn the_longer_an_answer_is_owed_the_more_a_copy_is_worth() {
        let steady = path([40, 42, 50], 0.1);
        let gains = [41, 45, 60, 200].map(|after_ms| gain(&steady, after_ms));
        assert!(gains.is_sorted(), "{gains:?}");
        assert!(gains[3] > 1.4 && gains[3] <= MOST_TIMES + 0.001, "{gains:?}");
        // At once it is, too, if the path is slower; not when the answer is about to come.
        assert!(gain(&steady, 0) > 0.5 && gains[0] < 0.05, "{gains:?}");
        // Both would be there at nearly the same time; a slow one would not.
        let twin = path([20, 21, 25], 0.0);
        let twin = Owed::before_last(&twin, 0, twin.last_sent_at);
        assert!(twin.gain(&path([20, 20, 25], 0.0)) < 0.1);
        assert!(gain(&path([200, 210, 250], 0.0), 0) > 1.4);
    }

    #[test]
    fn a_path_in_trouble_makes_copies_worth_more_from_the_beginning() {
        let (steady, troubled) = (path([20, 22, 30], 0.0), path([20, 22, 30], 5.0));
        assert!(gain(&troubled, 0) > gain(&steady, 0) + 0.1);
    }

    #[test]
    fn the_price_rises_with_what_is_spent() {
        let prices = [0.0, 0.25, 0.5, 0.9, 1.0, 1.5, 2.0].map(price);
        assert!(prices.is_sorted() && prices[0] == 0.0 && prices[4] == PRICE_OF_LAST, "{prices:?}");
        assert!(price(2.0) < MOST_TIMES);
    }

    #[test]
    fn what_is_ahead_has_to_leave_first_and_what_is_behind_is_not_waited_for() {
        let rate = Some(marline_time::Rate::from_mbit(8));
        let busy = SubflowView {
            forecast: Forecast::of([ms(40), ms(42), ms(50)], 0.0, rate).busy_for(ms(30)),
            ..path([40, 42, 50], 0.0)
        };
        let now = busy.last_sent_at;
        // Ten thousand of the bytes are behind it, which takes ten of the thirty milliseconds.
        let owed = Owed::before_last(&busy, 10_000, now);
        assert_eq!((owed.ahead, owed.waited), (ms(20), Duration::ZERO));
        let owed = Owed::before_last(&busy, 40_000, now);
        assert_eq!((owed.ahead, owed.waited), (Duration::ZERO, ms(10)));
    }
}
