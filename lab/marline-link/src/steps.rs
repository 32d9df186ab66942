//! Step functions of time: a value that changes at given times, once or periodically.

use marline_time::{Duration, nanos};

/// A step function of the time since the link's start. The first value also applies before the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps<T> {
    points: Vec<(Duration, T)>,
    period: Option<Duration>,
}

impl<T: Copy> Steps<T> {
    /// A step function from values and their ascending start times. With a `period`, it repeats.
    ///
    /// Fails if there are no steps, times do not ascend, or the period does not end after the last step.
    pub fn new(points: Vec<(Duration, T)>, period: Option<Duration>) -> Result<Self, &'static str> {
        let Some(last) = points.last() else { return Err("there are no steps") };
        if period.is_some_and(|period| period <= last.0 || period.is_zero()) {
            return Err("the period does not end after the last step");
        }
        if points.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return Err("the times of the steps do not ascend");
        }
        Ok(Steps { points, period })
    }

    /// Returns the same steps, starting at `start`.
    ///
    /// # Errors
    /// The steps do not repeat.
    pub fn with_start(&self, start: Duration) -> Result<Self, &'static str> {
        let Some(period) = self.period else { return Err("the steps do not repeat") };
        let start = Duration::from_nanos(nanos(start) % nanos(period));
        let after = self.points.partition_point(|(from, _)| *from <= start);
        let (earlier, later) = self.points.split_at(after);
        let mut points = vec![(Duration::ZERO, self.value_at(start).0)];
        points.extend(later.iter().map(|(at, value)| (*at - start, *value)));
        // The earlier steps are moved to the end of the period. The last of them applies at `start`.
        let wrapped = earlier.iter().filter(|(at, _)| *at < start);
        points.extend(wrapped.map(|(at, value)| (*at + period - start, *value)));
        Steps::new(points, Some(period))
    }

    /// The value after `elapsed`, and the elapsed time at the next change, if any.
    #[must_use]
    pub fn value_at(&self, elapsed: Duration) -> (T, Option<Duration>) {
        let (cycle_start, within) = match self.period {
            None => (Duration::ZERO, elapsed),
            Some(period) => {
                let within = nanos(elapsed) % nanos(period);
                (elapsed.saturating_sub(Duration::from_nanos(within)), Duration::from_nanos(within))
            }
        };
        let after = self.points.partition_point(|(from, _)| *from <= within);
        let value = self.points[after.saturating_sub(1)].1;
        let next = match self.points.get(after) {
            Some((from, _)) => Some(cycle_start + *from),
            None => self.period.map(|period| cycle_start + period),
        };
        (value, next)
    }

    /// The steps.
    #[must_use]
    pub fn points(&self) -> &[(Duration, T)] {
        &self.points
    }

    /// The period, if the steps repeat.
    #[must_use]
    pub const fn period(&self) -> Option<Duration> {
        self.period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn steps_hold_until_the_next_and_repeat() {
        let steps = Steps::new(vec![(S(0), 'a'), (S(3), 'b')], Some(S(5))).unwrap();
        assert_eq!(steps.value_at(S(0)), ('a', Some(S(3))));
        assert_eq!(steps.value_at(S(4)), ('b', Some(S(5))));
        assert_eq!(steps.value_at(S(12)), ('a', Some(S(13))));
        let once = Steps::new(vec![(S(1), 'a'), (S(3), 'b')], None).unwrap();
        assert_eq!(once.value_at(S(0)), ('a', Some(S(1))));
        assert_eq!(once.value_at(S(99)), ('b', None));
    }

    #[test]
    fn shifted_steps_have_the_same_values() {
        let steps = Steps::new(vec![(S(0), 'a'), (S(3), 'b'), (S(4), 'c')], Some(S(5))).unwrap();
        for start in 0..12 {
            let from = steps.with_start(S(start)).unwrap();
            for at in 0..12 {
                assert_eq!(from.value_at(S(at)).0, steps.value_at(S(start + at)).0, "{start} {at}");
            }
            assert_eq!(from.period(), steps.period());
        }
        assert!(Steps::new(vec![(S(0), 'a')], None).unwrap().with_start(S(1)).is_err());
    }

    #[test]
    fn wrong_steps_are_refused() {
        assert!(Steps::<u8>::new(vec![], None).is_err());
        assert!(Steps::new(vec![(S(1), 1), (S(1), 2)], None).is_err());
        assert!(Steps::new(vec![(S(0), 1), (S(5), 2)], Some(S(5))).is_err());
    }
}
