//! Spin time before a deadline, adapted to the lateness of sleeps.
//!
//! *Problem.* A sleep ends late, by 5 us or by 100 us, depending on the machine and its load.
//! Spinning through that time costs a processor, more with every packet. So the spin is as long as
//! the recent lateness of sleeps: a quantile of their lateness, tracked by steps that are larger
//! upwards than downwards (the asymmetric step of quantile estimators such as FAME, simplified to a
//! share of the distance), and never longer than asked for.
//!
//! Where packets are due more often than a spin is long the thread would never sleep: at real-time
//! priority that keeps others off its processor, and then the kernel stops it for 50 ms of each
//! second, which is worse than being 50 us late. So all spinning together has a budget.

use marline_time::{Duration, Instant};

/// Decides on spins.
#[derive(Debug)]
pub(crate) struct Spin {
    most: Duration,
    /// What is needed at present, at most `most`.
    length: Duration,
    budget: Duration,
    last: Instant,
    spinning: bool,
}

impl Spin {
    /// Spinning may take one part in so many of the time.
    const SHARE: u32 = 3;
    /// Unused time is kept up to this.
    const MAX_BUDGET: Duration = Duration::from_millis(2);
    /// Of how much a sleep was later than expected, one part in so many is believed at once.
    const RISE: u32 = 4;
    /// And of how much it was earlier. One in 17 sleeps may be later than the estimate says.
    const RELEASE_DIVISOR: u32 = 64;
    /// Between the end of a sleep in time and the packet there is still some work.
    const MARGIN: Duration = Duration::from_micros(5);

    /// Spins of at most `most`.
    pub(crate) fn new(most: Duration) -> Self {
        let budget = Self::MAX_BUDGET;
        Spin { most, length: most, budget, last: Instant::ZERO, spinning: false }
    }

    /// How long before a deadline to spin, at `now`. To be asked once a round: a round that was
    /// allowed to spin and was short did so.
    pub(crate) fn allowed(&mut self, now: Instant) -> Duration {
        let round = now.since(self.last);
        self.last = now;
        if self.spinning && round < self.length {
            self.budget = self.budget.saturating_sub(round);
        }
        self.budget = (self.budget + round / Self::SHARE).min(Self::MAX_BUDGET);
        // Some in stock, so that it does not stop in the middle of each wait.
        self.spinning = self.budget > self.length;
        if self.spinning { self.length } else { Duration::ZERO }
    }

    /// A sleep ended so much after its time.
    pub(crate) fn overslept(&mut self, late: Duration) {
        let needed = (late + Self::MARGIN).min(self.most);
        if needed > self.length {
            self.length += (needed - self.length) / Self::RISE;
        } else {
            self.length -= (self.length - needed) / Self::RELEASE_DIVISOR;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// Rounds of `round` for a second; the share of them that were allowed to spin.
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
            spin.overslept(US(8));
        }
        assert!((US(13)..US(14)).contains(&spin.length), "{:?}", spin.length);
        // A tenth of the sleeps is late: the spin covers them.
        for number in 0..1_000 {
            spin.overslept(US(if number % 10 == 0 { 40 } else { 8 }));
        }
        assert!((US(25)..US(45)).contains(&spin.length), "{:?}", spin.length);
        // A machine on which every sleep is very late gets what was asked for and not more.
        for _ in 0..100 {
            spin.overslept(US(5_000));
        }
        assert!((US(59)..=US(60)).contains(&spin.length), "{:?}", spin.length);
        let mut none = Spin::new(Duration::ZERO);
        none.overslept(US(100));
        assert_eq!(none.length, Duration::ZERO);
    }
}
