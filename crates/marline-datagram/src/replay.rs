//! Replay window: the packet numbers that have been received. It also drops the second copy of a datagram.
//!
//! *Problem.* A copy on a slow path may arrive seconds after the original, and must be distinguished from a new
//! datagram. At line rate, these seconds span hundreds of thousands of numbers. Most lanes send a hundred packets per
//! second and must not need memory for so large a window.
//!
//! *Solution.* The window has a bit for each number, in a ring that ends at the largest received one (the ring of RFC
//! 6479). Older numbers count as received: they may be late, but are never delivered twice. The ring begins small.
//! Whenever half of it passes in less than [`SPAN`], it is doubled, up to the caller's maximum; the content is
//! preserved.

use marline_time::{Duration, Instant};

/// Minimum time that the window spans, within the caller's maximum.
pub(crate) const SPAN: Duration = Duration::from_secs(2);
/// Size of the smallest window, in numbers.
const MIN_WINDOW: u64 = 1_024;

/// Set of received numbers.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One bit per number, at the number modulo the length, which is a power of two.
    words: Vec<u64>,
    /// Largest received number plus one.
    next: u64,
    /// Number of received packet numbers.
    seen: u64,
    most: u64,
    /// First number of the current half of the window, and the time at which it began.
    half: (u64, Instant),
}

impl ReplayWindow {
    /// Creates a window that grows to `most` numbers, rounded up to a power of two and to at least 1,024.
    #[must_use]
    pub fn new(most: u64, now: Instant) -> Self {
        let most = most.clamp(MIN_WINDOW, 1 << 40).next_power_of_two();
        ReplayWindow {
            words: vec![0; (MIN_WINDOW / 64) as usize],
            next: 0,
            seen: 0,
            most,
            half: (0, now),
        }
    }

    /// Current size, in packet numbers.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.words.len() as u64 * 64
    }

    /// Always false: the window covers at least 1,024 numbers.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns true if a number is new, without recording it: a number is recorded only once its packet is
    /// authenticated.
    #[must_use]
    pub fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return number < u64::MAX;
        }
        self.next - number <= self.len() && !self.bit(number)
    }

    /// Records a number. Returns true if it was new.
    pub fn record(&mut self, number: u64, now: Instant) -> bool {
        if !self.is_new(number) {
            return false;
        }
        if number >= self.next {
            self.advance_to(number + 1, now);
        }
        let (word, bit) = self.bit_position(number);
        self.words[word] |= bit;
        self.seen += 1;
        true
    }

    /// Returns the number after the largest received one, and the count of received numbers.
    #[must_use]
    pub const fn progress(&self) -> (u64, u64) {
        (self.next, self.seen)
    }

    /// Moves the window up to `next`.
    fn advance_to(&mut self, next: u64, now: Instant) {
        let passed = next.saturating_sub(self.half.0);
        if passed >= self.len() / 2 {
            // A jump in the numbers means losses, and is not evidence of their rate.
            let jumped = next - self.next > self.len() / 4;
            if now.since(self.half.1) < SPAN && !jumped && self.len() < self.most {
                self.double();
            }
            self.half = (next, now);
        }
        let mut number = next - (next - self.next).min(self.len());
        while number < next {
            let (word, bit) = self.bit_position(number);
            // After a jump, whole words can be cleared.
            let whole = number.is_multiple_of(64) && next - number >= 64;
            self.words[word] &= if whole { 0 } else { !bit };
            number += if whole { 64 } else { 1 };
        }
        self.next = next;
    }

    fn double(&mut self) {
        let mut larger = ReplayWindow { words: vec![0; self.words.len() * 2], ..self.clone() };
        for number in self.next.saturating_sub(self.len())..self.next {
            if self.bit(number) {
                let (word, bit) = larger.bit_position(number);
                larger.words[word] |= bit;
            }
        }
        // Numbers older than the smaller window are unknown, so they count as received.
        let oldest = self.next.saturating_sub(self.len());
        for number in self.next.saturating_sub(larger.len())..oldest {
            let (word, bit) = larger.bit_position(number);
            larger.words[word] |= bit;
        }
        *self = larger;
    }

    fn bit(&self, number: u64) -> bool {
        let (word, bit) = self.bit_position(number);
        self.words[word] & bit != 0
    }

    const fn bit_position(&self, number: u64) -> (usize, u64) {
        let at = number & (self.len() - 1);
        ((at / 64) as usize, 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use marline_time::{Rng, SeedTree};

    use super::*;

    #[test]
    fn a_million_replays_and_reorderings_are_each_accepted_once() {
        let mut rng = SeedTree::new(11).stream("replay");
        let mut window = ReplayWindow::new(1 << 18, Instant::ZERO);
        let mut taken = BTreeSet::new();
        let (mut front, mut twice) = (0u64, 0u32);
        for step in 0..1_000_000u64 {
            // 10,000 numbers arrive per second; half of the arrivals are old ones.
            let now = Instant::from_micros(step * 100);
            let number = if rng.chance(0.5) {
                front += 1 + rng.below(3);
                front
            } else {
                front.saturating_sub(rng.below(50_000))
            };
            let new = window.is_new(number);
            assert_eq!(window.record(number, now), new);
            twice += u32::from(new && !taken.insert(number));
        }
        assert_eq!(twice, 0);
        assert!(taken.len() > 400_000);
        assert!(window.len() >= 20_000, "{}", window.len());
    }

    #[test]
    fn a_number_within_the_replay_window_is_never_a_replay() {
        // Every second number uses a path that takes 1.5 s longer.
        let mut window = ReplayWindow::new(1 << 18, Instant::ZERO);
        let per_ms = 20;
        for ms in 0..10_000u64 {
            let now = Instant::from_millis(ms);
            for index in 0..per_ms {
                let number = ms * per_ms + index;
                if number % 2 == 0 {
                    assert!(window.record(number, now));
                } else if let Some(late) = number.checked_sub(1_500 * per_ms) {
                    // The window is short while it grows: late numbers at the beginning are lost, not duplicated.
                    assert!(window.record(late, now) || ms < 4_000, "{late} at {ms} ms");
                }
            }
        }
    }

    #[test]
    fn a_jump_forgets_nothing_and_admits_nothing_twice() {
        let mut window = ReplayWindow::new(1 << 12, Instant::ZERO);
        let at = Instant::from_millis;
        assert!(window.record(0, at(0)) && !window.record(0, at(0)));
        assert!(window.record(1 << 40, at(1)));
        assert!(!window.is_new(0) && !window.is_new(1 << 40));
        assert!(window.is_new((1 << 40) - 1) && !window.is_new((1 << 40) - (1 << 20)));
        assert!(!window.is_new(u64::MAX));
        assert!(window.record(u64::MAX - 1, at(2)) && !window.record(u64::MAX - 1, at(3)));
    }

    #[test]
    fn a_slow_lane_keeps_a_small_window() {
        let mut window = ReplayWindow::new(1 << 18, Instant::ZERO);
        for number in 0..100_000u64 {
            window.record(number, Instant::from_millis(number * 10));
        }
        assert_eq!(window.len(), MIN_WINDOW);
    }
}
