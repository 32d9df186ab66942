//! Packet numbers received on one path, and the time of their acknowledgment.
//!
//! Numbers are counted across all paths, so most of them are missing on any one path. Each path acknowledges only
//! numbers received on it, in its newest [`MAX_RANGE_COUNT`] ranges, from which the sender derives the losses on that
//! path.

use marline_policy::PathId;
use marline_time::{Duration, Instant};

use crate::frame::{Ack, MAX_RANGE_COUNT, NumberRange};

/// Number of ack-eliciting frames that trigger an immediate ACK.
const FRAMES_PER_ACK: u32 = 2;
/// Delay of an ACK for a single frame, so that data in the other direction can carry it.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(5);

/// Frames received on a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedFrames {
    /// Ranges in descending order. They are not adjacent.
    ranges: Vec<NumberRange>,
    /// Arrival time of the largest number.
    largest_at: Option<Instant>,
    /// Number of ack-eliciting frames not yet acknowledged.
    waiting: u32,
    due_at: Option<Instant>,
}

impl ReceivedFrames {
    /// Records a received frame; `wants_ack` is false for frames that only acknowledge.
    pub(crate) fn on_frame(&mut self, number: u64, wants_ack: bool, now: Instant) {
        let largest = self.ranges.first().map(|range| range.most);
        if largest.is_none_or(|largest| number > largest) {
            self.largest_at = Some(now);
        }
        self.insert(number);
        if wants_ack {
            self.waiting += 1;
            let at_once = self.waiting >= FRAMES_PER_ACK;
            let due = if at_once { now } else { now + ACK_DELAY };
            self.due_at = Some(self.due_at.map_or(due, |at| at.min(due)));
        }
    }

    /// Returns true if a number was already received, or is too old to be known.
    pub(crate) fn is_known(&self, number: u64) -> bool {
        let at = self.ranges.partition_point(|range| range.least > number);
        match self.ranges.get(at) {
            Some(range) => number <= range.most,
            None => self.ranges.len() >= MAX_RANGE_COUNT,
        }
    }

    fn insert(&mut self, number: u64) {
        // Index of the first range that is not entirely above the number.
        let at = self.ranges.partition_point(|range| range.least > number);
        if self.ranges.get(at).is_some_and(|range| number <= range.most) {
            return;
        }
        let joins_above = at > 0 && self.ranges[at - 1].least == number + 1;
        let joins_below = self.ranges.get(at).is_some_and(|range| range.most + 1 == number);
        match (joins_above, joins_below) {
            (true, true) => {
                self.ranges[at - 1].least = self.ranges[at].least;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].least = number,
            (false, true) => self.ranges[at].most = number,
            (false, false) if at < MAX_RANGE_COUNT => {
                self.ranges.insert(at, NumberRange { least: number, most: number });
                self.ranges.truncate(MAX_RANGE_COUNT);
            }
            (false, false) => {}
        }
    }

    /// Time at which an ACK is due.
    pub(crate) const fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// Returns true if frames wait for an ACK.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Builds the ACK.
    pub(crate) fn ack(&self, path: PathId, now: Instant) -> Ack {
        let delay = self.largest_at.map_or(Duration::ZERO, |at| now.since(at));
        Ack::new(path, delay, &self.ranges)
    }

    /// Records that the ACK was sent.
    pub(crate) fn on_acked(&mut self) {
        (self.waiting, self.due_at) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_hold_exactly_the_received_numbers(numbers in prop::collection::vec(0u64..60, 1..80)) {
            let mut received = ReceivedFrames::default();
            let mut all = BTreeSet::new();
            for number in numbers {
                received.on_frame(number, true, Instant::ZERO);
                all.insert(number);
            }
            // There are fewer ranges than the maximum, so nothing was omitted.
            let told: Vec<u64> =
                received.ranges.iter().rev().flat_map(|range| range.least..=range.most).collect();
            prop_assert_eq!(told, all.into_iter().collect::<Vec<_>>());
            prop_assert!(received.ranges.windows(2).all(|pair| pair[1].most + 1 < pair[0].least));
        }
    }

    #[test]
    fn the_newest_ranges_are_kept() {
        let mut received = ReceivedFrames::default();
        for number in 0..1_000 {
            received.on_frame(number * 2, true, Instant::ZERO);
        }
        assert_eq!(received.ranges.len(), MAX_RANGE_COUNT);
        assert_eq!((received.ranges[0].most, received.ranges[31].least), (1_998, 1_936));
        received.on_frame(3, true, Instant::ZERO);
        assert_eq!(received.ranges[31].least, 1_936);
    }

    #[test]
    fn two_frames_are_acknowledged_immediately_and_one_after_a_moment() {
        let mut received = ReceivedFrames::default();
        let at = Instant::from_millis;
        received.on_frame(1, false, at(0));
        assert_eq!(received.due_at(), None);
        received.on_frame(2, true, at(1));
        assert_eq!(received.due_at(), Some(at(1) + ACK_DELAY));
        received.on_frame(3, true, at(2));
        assert_eq!(received.due_at(), Some(at(2)));
        let ack = received.ack(PathId(1), at(7));
        assert_eq!(ack.delay, Duration::from_millis(5));
        received.on_acked();
        assert!(received.due_at().is_none() && !received.is_waiting());
    }
}
