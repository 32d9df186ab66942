//! Frames in transit on one path, which become acknowledged, lost or overdue.
//!
//! *Source.* RFC 9002 section 6.1: a frame is lost if the third frame sent after it on the same path has been
//! acknowledged, or if any later frame has been acknowledged and enough time has passed. *Differs:* numbers are counted
//! across all paths, so frames are ordered as they were sent on this path, not by number. Before a frame is lost, it is
//! *overdue* if its acknowledgment has not arrived by the forecast p99.

use std::collections::{BTreeMap, VecDeque};

use marline_policy::{Expected, RateSample};
use marline_time::{Duration, Instant, Rate};

use crate::frame::NumberRange;

/// Number of frames by which an acknowledged frame must be later for a frame to count as lost.
const REORDERING: u64 = 3;
/// Assumed clock resolution.
const CLOCK_RESOLUTION: Duration = Duration::from_millis(1);

/// Sent frame whose acknowledgment is pending.
#[derive(Copy, Clone, Debug)]
pub(crate) struct SentFrame {
    /// Position in the sending order of the path.
    pub(crate) place: u64,
    pub(crate) at: Instant,
    pub(crate) bytes: u32,
    pub(crate) expected: Expected,
    /// Time at which the acknowledgment is overdue; `None` if nothing was known about the path, or once this was
    /// reported.
    pub(crate) overdue_at: Option<Instant>,
    /// True for an MTU probe, whose loss does not indicate congestion.
    pub(crate) probes_mtu: bool,
    /// True if the window, not the application, limited sending when the frame was sent.
    pub(crate) limited: bool,
    delivered: u64,
    delivered_at: Instant,
    first_at: Instant,
}

/// Properties of a frame to send.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) bytes: u32,
    pub(crate) expected: Expected,
    pub(crate) overdue_at: Option<Instant>,
    pub(crate) probes_mtu: bool,
    pub(crate) limited: bool,
}

/// Frames in transit.
#[derive(Debug)]
pub(crate) struct OutstandingFrames {
    sent: BTreeMap<u64, SentFrame>,
    /// Numbers by position. The first number is removed as soon as its frame is acknowledged or lost.
    order: VecDeque<u64>,
    /// Position of the first entry.
    front: u64,
    in_flight: u64,
    largest_answered: Option<u64>,
    delivered: u64,
    delivered_at: Instant,
    first_at: Instant,
    most: usize,
}

/// Result of an acknowledgment.
#[derive(Debug, Default)]
pub(crate) struct AckResult {
    pub(crate) frames: Vec<(u64, SentFrame)>,
    pub(crate) bytes: u64,
    /// Frame with the largest number in the acknowledgment, if newly acknowledged: its RTT is known.
    pub(crate) largest: Option<SentFrame>,
}

impl OutstandingFrames {
    pub(crate) const fn new(most: usize) -> Self {
        OutstandingFrames {
            sent: BTreeMap::new(),
            order: VecDeque::new(),
            front: 0,
            in_flight: 0,
            largest_answered: None,
            delivered: 0,
            delivered_at: Instant::ZERO,
            first_at: Instant::ZERO,
            most,
        }
    }

    /// Number of bytes in transit.
    pub(crate) const fn bytes_in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) const fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns the oldest frame in transit.
    pub(crate) fn oldest(&self) -> Option<&SentFrame> {
        self.order.front().and_then(|number| self.sent.get(number))
    }

    /// Numbers of the frames in transit, in sending order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.order.iter().filter(|number| self.sent.contains_key(number)).copied()
    }

    /// Number of frames sent so far.
    pub(crate) fn sent_count(&self) -> u64 {
        self.front + self.order.len() as u64
    }

    /// Records a sent frame, whose number is new on this path.
    pub(crate) fn on_sent(&mut self, number: u64, now: Instant, sending: &Sending) {
        if self.sent.is_empty() {
            (self.delivered_at, self.first_at) = (now, now);
        }
        let sent = SentFrame {
            place: self.sent_count(),
            at: now,
            bytes: sending.bytes,
            expected: sending.expected,
            overdue_at: sending.overdue_at,
            probes_mtu: sending.probes_mtu,
            limited: sending.limited,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_at: self.first_at,
        };
        self.in_flight += u64::from(sending.bytes);
        self.sent.insert(number, sent);
        self.order.push_back(number);
        while self.sent.len() > self.most
            && let Some(number) = self.order.front().copied()
        {
            self.remove(number);
            self.drop_settled();
        }
    }

    fn remove(&mut self, number: u64) -> Option<SentFrame> {
        let sent = self.sent.remove(&number)?;
        self.in_flight -= u64::from(sent.bytes);
        Some(sent)
    }

    fn drop_settled(&mut self) {
        while self.order.front().is_some_and(|number| !self.sent.contains_key(number)) {
            self.order.pop_front();
            self.front += 1;
        }
    }

    /// Handles the acknowledgment of these numbers, in descending order.
    pub(crate) fn on_answer(&mut self, ranges: &[NumberRange], now: Instant) -> AckResult {
        let mut answered = AckResult::default();
        for range in ranges {
            // Most ranges contain only numbers that are already acknowledged. The numbers descend.
            let least = self.sent.first_key_value().map(|(least, _)| *least);
            if least.is_none_or(|least| range.most < least) {
                break;
            }
            while let Some((number, _)) = self.sent.range(range.least..=range.most).next_back()
                && let number = *number
                && let Some(sent) = self.remove(number)
            {
                if ranges.first().is_some_and(|first| first.most == number) {
                    answered.largest = Some(sent);
                }
                let place = self.largest_answered.map_or(sent.place, |place| place.max(sent.place));
                self.largest_answered = Some(place);
                answered.bytes += u64::from(sent.bytes);
                answered.frames.push((number, sent));
            }
        }
        self.drop_settled();
        if answered.bytes > 0 {
            self.delivered += answered.bytes;
            self.delivered_at = now;
        }
        answered
    }

    /// Returns the rate at which the path has delivered since the newest acknowledged frame was sent
    /// (draft-cheng-iccrg-delivery-rate-estimation).
    pub(crate) fn rate(&mut self, newest: &SentFrame, now: Instant) -> RateSample {
        self.first_at = newest.at;
        let sending = newest.at.since(newest.first_at);
        let interval = now.since(newest.delivered_at).max(sending).max(CLOCK_RESOLUTION);
        let delivered = self.delivered - newest.delivered;
        RateSample {
            rate: Rate::over(delivered, interval),
            delivered,
            interval,
            app_limited: !newest.limited,
            prior_delivered: newest.delivered,
        }
    }

    /// Removes and returns the frames that are now lost, judged by the longer of the smoothed and the latest round
    /// trip. Also returns the time of the next loss.
    pub(crate) fn take_lost(
        &mut self,
        now: Instant,
        rtt: Duration,
    ) -> (Vec<(u64, SentFrame)>, Option<Instant>) {
        let mut lost = Vec::new();
        let Some(largest) = self.largest_answered else { return (lost, None) };
        let wait = (rtt + rtt / 8).max(CLOCK_RESOLUTION);
        let mut next = None;
        for number in &self.order {
            let Some(sent) = self.sent.get(number) else { continue };
            if sent.place >= largest {
                break;
            }
            if sent.place + REORDERING <= largest || now >= sent.at + wait {
                lost.push((*number, *sent));
            } else {
                next = Some(sent.at + wait);
                break;
            }
        }
        for (number, _) in &lost {
            self.remove(*number);
        }
        self.drop_settled();
        (lost, next)
    }

    /// Removes and returns all frames, because the path has been silent for too long.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, SentFrame)> {
        self.in_flight = 0;
        self.front += self.order.len() as u64;
        self.order.clear();
        core::mem::take(&mut self.sent).into_iter().collect()
    }

    /// Time at which the next acknowledgment is overdue, except those already reported.
    pub(crate) fn next_overdue(&self) -> Option<Instant> {
        // The frames are in sending order: the first unreported one is due first, unless the forecast has changed.
        self.order.iter().find_map(|number| self.sent.get(number)?.overdue_at)
    }

    /// Returns the numbers of frames that are now overdue and not yet reported; with `with_later`, also of all frames
    /// sent after them. An overdue frame before an acknowledged frame is lost, and is not evidence about later frames.
    pub(crate) fn take_overdue(&mut self, now: Instant, with_later: bool) -> Vec<u64> {
        let (mut numbers, mut stalled) = (Vec::new(), false);
        for number in &self.order {
            let Some(sent) = self.sent.get_mut(number) else { continue };
            let answers_later = self.largest_answered.is_some_and(|place| sent.place < place);
            let due = sent.overdue_at.is_some_and(|at| at <= now);
            stalled |= with_later && due && !answers_later;
            if (due || stalled) && sent.overdue_at.take().is_some() {
                numbers.push(*number);
            }
        }
        numbers
    }

    /// Returns the oldest frame sent after the last acknowledged one.
    pub(crate) fn oldest_unanswered(&self) -> Option<&SentFrame> {
        let after = self.largest_answered.map_or(0, |place| place + 1);
        let skipped = after.saturating_sub(self.front) as usize;
        self.order.iter().skip(skipped).find_map(|number| self.sent.get(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;
    const RTT: Duration = Duration::from_millis(40);

    fn sending(overdue_ms: Option<u64>) -> Sending {
        Sending {
            bytes: 100,
            expected: Expected::default(),
            overdue_at: overdue_ms.map(MS),
            probes_mtu: false,
            limited: false,
        }
    }

    fn one(number: u64) -> [NumberRange; 1] {
        [NumberRange { least: number, most: number }]
    }

    fn numbers(frames: &[(u64, SentFrame)]) -> Vec<u64> {
        frames.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn three_later_frames_or_time_reveal_a_loss_in_sending_order() {
        let mut outstanding = OutstandingFrames::new(100);
        // The frame with the small number is a late copy, which was sent last.
        for (ms, number) in [(0, 10), (1, 20), (2, 30), (3, 40), (4, 5)] {
            outstanding.on_sent(number, MS(ms), &sending(None));
        }
        let answered = outstanding.on_answer(&one(40), MS(40));
        assert_eq!((answered.bytes, outstanding.bytes_in_flight()), (100, 400));
        assert_eq!(answered.largest.unwrap().at, MS(3));
        let (lost, next) = outstanding.take_lost(MS(40), RTT);
        assert_eq!(numbers(&lost), [10]);
        assert_eq!(next, Some(MS(46)));
        let (lost, next) = outstanding.take_lost(MS(47), RTT);
        assert_eq!((numbers(&lost), next), (vec![20, 30], None));
        assert_eq!(numbers(&outstanding.on_answer(&one(5), MS(50)).frames), [5]);
        assert!(outstanding.is_empty() && outstanding.bytes_in_flight() == 0);
    }

    #[test]
    fn overdue_frames_are_reported_once_and_unknown_numbers_ignored() {
        let mut outstanding = OutstandingFrames::new(100);
        outstanding.on_sent(1, MS(0), &sending(Some(50)));
        outstanding.on_sent(2, MS(10), &sending(Some(60)));
        assert_eq!(outstanding.take_overdue(MS(49), true), [0; 0]);
        assert_eq!(outstanding.take_overdue(MS(50), true), [1, 2]);
        assert_eq!(outstanding.take_overdue(MS(90), true), [0; 0]);
        assert_eq!(outstanding.next_overdue(), None);
        let all = [NumberRange { least: 0, most: u64::MAX }];
        assert_eq!(numbers(&outstanding.on_answer(&all, MS(99)).frames), [2, 1]);
        assert_eq!(outstanding.on_answer(&all, MS(99)).bytes, 0);
    }

    #[test]
    fn a_lost_frame_does_not_make_later_frames_overdue() {
        let mut outstanding = OutstandingFrames::new(100);
        for (ms, number) in [(0, 1), (1, 2), (30, 3)] {
            outstanding.on_sent(number, MS(ms), &sending(Some(ms + 50)));
        }
        outstanding.on_answer(&one(2), MS(40));
        assert_eq!(outstanding.oldest_unanswered().map(|sent| sent.at), Some(MS(30)));
        assert_eq!(outstanding.take_overdue(MS(60), true), [1]);
        assert_eq!(outstanding.take_overdue(MS(80), true), [3]);
        outstanding.on_sent(4, MS(81), &sending(Some(150)));
        outstanding.on_answer(&one(3), MS(90));
        outstanding.on_answer(&one(4), MS(91));
        assert!(outstanding.oldest_unanswered().is_none());
    }

    #[test]
    fn with_isolated_losses_each_frame_is_overdue_separately() {
        let mut outstanding = OutstandingFrames::new(100);
        outstanding.on_sent(1, MS(0), &sending(Some(50)));
        outstanding.on_sent(2, MS(10), &sending(Some(60)));
        assert_eq!(outstanding.take_overdue(MS(55), false), [1]);
        assert_eq!(outstanding.take_overdue(MS(60), false), [2]);
    }

    #[test]
    fn the_number_of_frames_is_bounded() {
        let mut outstanding = OutstandingFrames::new(10);
        for number in 0..1_000 {
            outstanding.on_sent(number, MS(number), &sending(None));
        }
        assert_eq!((outstanding.sent.len(), outstanding.order.len()), (10, 10));
        assert_eq!(outstanding.bytes_in_flight(), 1_000);
    }

    #[test]
    fn the_rate_is_that_of_delivery() {
        let mut outstanding = OutstandingFrames::new(100);
        // 100 bytes are sent every 2 ms, and acknowledged every 10 ms.
        for number in 0..20 {
            outstanding.on_sent(number, MS(number * 2), &sending(None));
        }
        let mut last = None;
        for number in 0..20 {
            let now = MS(100 + number * 10);
            let answered = outstanding.on_answer(&one(number), now);
            last = answered.largest.map(|sent| outstanding.rate(&sent, now));
        }
        let rate = last.unwrap().rate.bytes_per_s();
        assert!((6_000..11_000).contains(&rate), "{rate}");
    }
}
