//! Voluntary rest of a real-time thread, in small portions.
//!
//! The kernel gives real-time threads 95 % of a processor and reserves the rest for others, in one
//! piece: 50 ms of each second. A link that stalls for so long is worse than one that is
//! occasionally 60 us late. So a thread that hardly sleeps accumulates a debt and pays it in short
//! sleeps. Idle sleep counts as payment, too: with enough of it this does nothing.
//!
//! The debt is an eighth of the time, not a twentieth: interrupts and wake-ups take part of the
//! rest. At full load (two paths of 1 Gbit/s on two processors, others busy there) three of four
//! runs stood still for some 40 ms without any of this, three of four with a sixteenth, one of ten
//! with an eighth, at the same throughput.

use marline_time::Duration;

/// What is owed to other threads.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    debt: Duration,
}

impl Rest {
    /// One part in so many of the time belongs to others.
    const SHARE: u32 = 8;
    /// Paid when there is so much of it.
    const REST_STEP: Duration = Duration::from_micros(60);
    /// Rounds at full load take half a millisecond: what they owe is paid at once. More than this is
    /// forgotten, or a stall would be followed by another.
    const LONGEST: Duration = Duration::from_micros(300);

    /// A round took `round`, of which `slept` was sleep. What is to be slept now, if anything.
    pub(crate) fn after(&mut self, round: Duration, slept: Duration) -> Option<Duration> {
        self.debt = (self.debt + round / Self::SHARE).saturating_sub(slept).min(Self::LONGEST);
        (self.debt >= Self::REST_STEP).then(|| std::mem::take(&mut self.debt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn a_busy_thread_rests_an_eighth_of_its_time() {
        let mut rest = Rest::default();
        let given: Duration = (0..100_000).filter_map(|_| rest.after(US(10), US(0))).sum();
        assert!((US(120_000)..=US(125_000)).contains(&given), "{given:?}");
    }

    #[test]
    fn a_stall_is_not_paid_in_full() {
        assert_eq!(Rest::default().after(US(40_000), US(0)), Some(Rest::LONGEST));
    }

    #[test]
    fn a_thread_that_sleeps_an_eighth_needs_no_rest() {
        let mut rest = Rest::default();
        // In shorter rounds, or the debt is due before the sleep.
        for round in 0..100_000 {
            let slept = if round % 8 == 0 { US(40) } else { US(0) };
            assert_eq!(rest.after(US(40), slept), None, "round {round}");
        }
    }
}
