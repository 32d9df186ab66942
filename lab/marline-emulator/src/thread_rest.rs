//! Voluntary sleep of a real-time thread, in small portions.
//!
//! The kernel gives real-time threads 95 % of a processor and reserves the rest for others, in one piece: 50 ms of
//! every second. A link that stalls for 50 ms is worse than one that is occasionally 60 us late. A thread that hardly
//! sleeps therefore accumulates a debt of sleep and repays it in short sleeps. Idle sleep also counts, so a thread
//! that sleeps enough never needs extra sleep.
//!
//! The debt is an eighth of the time, not a twentieth, because interrupts and wake-ups take part of the sleep. At full
//! load (two paths of 1 Gbit/s on two busy processors), three of four runs stalled for some 40 ms without extra sleep,
//! three in four with a sixteenth, and one in ten with an eighth, at the same throughput.

use marline_time::Duration;

/// Sleep that a real-time thread owes to other threads.
#[derive(Debug, Default)]
pub(crate) struct SleepDebt {
    debt: Duration,
}

impl SleepDebt {
    /// Divisor of the elapsed time: the quotient is owed to other threads.
    const SHARE: u32 = 8;
    /// Debt above which it is repaid.
    const MIN_SLEEP: Duration = Duration::from_micros(60);
    /// Maximum debt. Rounds at full load take half a millisecond, and their debt is repaid immediately. Debt beyond it
    /// is dropped, because otherwise one stall would cause another.
    const MAX_DEBT: Duration = Duration::from_micros(300);

    /// Returns the time to sleep now, if any, after a round of length `round` that included `slept` of sleep.
    pub(crate) fn sleep_time(&mut self, round: Duration, slept: Duration) -> Option<Duration> {
        self.debt = (self.debt + round / Self::SHARE).saturating_sub(slept).min(Self::MAX_DEBT);
        (self.debt >= Self::MIN_SLEEP).then(|| std::mem::take(&mut self.debt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn a_busy_thread_sleeps_an_eighth_of_the_time() {
        let mut rest = SleepDebt::default();
        let given: Duration = (0..100_000).filter_map(|_| rest.sleep_time(US(10), US(0))).sum();
        assert!((US(120_000)..=US(125_000)).contains(&given), "{given:?}");
    }

    #[test]
    fn the_debt_after_a_stall_is_limited() {
        assert_eq!(SleepDebt::default().sleep_time(US(40_000), US(0)), Some(SleepDebt::MAX_DEBT));
    }

    #[test]
    fn a_thread_asleep_for_an_eighth_of_the_time_needs_no_extra_sleep() {
        let mut rest = SleepDebt::default();
        // Shorter rounds, because otherwise the debt is due before the sleep.
        for round in 0..100_000 {
            let slept = if round % 8 == 0 { US(40) } else { US(0) };
            assert_eq!(rest.sleep_time(US(40), slept), None, "round {round}");
        }
    }
}
