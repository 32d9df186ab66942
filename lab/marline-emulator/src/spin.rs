//! Spin time before a deadline, adapted to the lateness of sleeps.
//!
//! *Problem.* A sleep ends late, by 5 us or by 100 us, depending on the machine and its load. Spinning through that
//! time costs CPU time for every packet. The spin is therefore as long as the recent lateness of sleeps: a
//! quantile of it, tracked by steps that are larger upwards than downwards (the asymmetric step of quantile estimators
//! such as FAME, simplified to a share of the distance), up to the requested maximum.
//!
//! If packets are due at intervals shorter than a spin, the thread would never sleep. At real-time priority it then
//! blocks other threads on its processor, and the kernel stops it for 50 ms of every second, which is worse than being
//! 50 us late. All spins together therefore have a budget.

use marline_time::{Duration, Instant};

/// Controller for the spin time.
#[derive(Debug)]
pub(crate) struct Spin {
    most: Duration,
    /// Current spin time, at most `most`.
    length: Duration,
    budget: Duration,
    last: Instant,
    spinning: bool,
}

impl Spin {
    /// Divisor of the elapsed time: the quotient is the budget of all spins.
    const BUDGET_DIVISOR: u32 = 3;
    /// Maximum unused budget.
    const MAX_BUDGET: Duration = Duration::from_millis(2);
    /// Divisor of an increase: this part of a sleep's excess over the estimate is added immediately.
    const RISE_DIVISOR: u32 = 4;
    /// Divisor of a decrease. With both divisors, one in 17 sleeps may be later than the estimate.
    const RELEASE_DIVISOR: u32 = 64;
    /// Time for work between the end of a sleep and the packet.
    const MARGIN: Duration = Duration::from_micros(5);

    /// Creates a controller with spins of at most `most`.
    pub(crate) fn new(most: Duration) -> Self {
        let budget = Self::MAX_BUDGET;
        Spin { most, length: most, budget, last: Instant::ZERO, spinning: false }
    }

    /// Time to spin before a deadline, at `now`. Must be called once per round, because a round that may spin but is
    /// shorter than the spin is charged to the budget.
    pub(crate) fn allowed(&mut self, now: Instant) -> Duration {
        let round = now.since(self.last);
        self.last = now;
        if self.spinning && round < self.length {
            self.budget = self.budget.saturating_sub(round);
        }
        self.budget = (self.budget + round / Self::BUDGET_DIVISOR).min(Self::MAX_BUDGET);
        // Keeps a reserve, so that spins do not stop in the middle of every wait.
        self.spinning = self.budget > self.length;
        if self.spinning { self.length } else { Duration::ZERO }
    }

    /// Records how late a sleep ended.
    pub(crate) fn on_late_wakeup(&mut self, late: Duration) {
        let needed = (late + Self::MARGIN).min(self.most);
        if needed > self.length {
            self.length += (needed - self.length) / Self::RISE_DIVISOR;
        } else {
            self.length -= (self.length - needed) / Self::RELEASE_DIVISOR;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// The share of rounds that were allowed to spin, for rounds of length `round_us` over a second.
    fn share(length_us: u64, round_us: u64) -> f64 {
        let mut spin = Spin::new(US(length_us));
        let rounds = 1_000_000 / round_us;
        let at = |number: u64| Instant::from_micros(number * round_us);
        let allowed = (0..rounds).filter(|n| !spin.allowed(at(*n)).is_zero()).count();
        allowed as f64 / rounds as f64
    }

    #[test]
    fn a_thread_that_would_never_sleep_spins_a_third_of_the_time() {
        assert!((0.30..0.36).contains(&share(60, 1)), "{}", share(60, 1));
        assert!((0.30..0.36).contains(&share(60, 40)), "{}", share(60, 40));
        // Rounds that sleep cost nothing.
        assert_eq!(share(60, 500), 1.0);
        assert_eq!(share(0, 1), 0.0);
    }

    #[test]
    fn a_spin_is_as_long_as_sleeps_are_late() {
        let mut spin = Spin::new(US(60));
        for _ in 0..1_000 {
            spin.on_late_wakeup(US(8));
        }
        assert!((US(13)..US(14)).contains(&spin.length), "{:?}", spin.length);
        // One sleep in ten is late, and the spin covers it.
        for number in 0..1_000 {
            spin.on_late_wakeup(US(if number % 10 == 0 { 40 } else { 8 }));
        }
        assert!((US(25)..US(45)).contains(&spin.length), "{:?}", spin.length);
        // On a machine where every sleep is very late, the spin is the maximum.
        for _ in 0..100 {
            spin.on_late_wakeup(US(5_000));
        }
        assert!((US(59)..=US(60)).contains(&spin.length), "{:?}", spin.length);
        let mut none = Spin::new(Duration::ZERO);
        none.on_late_wakeup(US(100));
        assert_eq!(none.length, Duration::ZERO);
    }
}
