//! Replay window: which packet numbers have been seen. It is also what drops the second copy of a datagram.
//!
//! *Problem.* A copy on a slow path comes up to seconds after the first, and must be told from a new datagram; at
//! line rate seconds are hundreds of thousands of numbers. Most lanes send a hundred packets a second, and must not
//! pay for those.
//!
//! *How.* A bit for each number, in a ring that ends at the largest one seen (RFC 6479 has the ring). What is older
//! than the ring counts as seen: it may be late, but is never delivered twice. The ring begins small. Whenever half
//! of it has gone by in less than [`SPAN`], it is doubled, up to the most that the caller allows; what it held stays
//! in it.

use marline_time::{Duration, Instant};

/// Time that the window spans at least, while the caller's bound allows.
pub(crate) const SPAN: Duration = Duration::from_secs(2);
/// Numbers of the smallest window.
const LEAST: u64 = 1_024;

/// Numbers that have been seen.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// A bit of each number, at its remainder by the length; the length is a power of two.
    words: Vec<u64>,
    /// Numbers below this have been seen, or are too old: the largest seen and one.
    next: u64,
    /// How many have been seen.
    seen: u64,
    most: u64,
    /// Number at which the running half began, and when.
    half: (u64, Instant),
}

impl ReplayWindow {
    /// A window that grows to `most` numbers, rounded up to a power of two and to 1,024 at least.
    #[must_use]
    pub fn new(most: u64, now: Instant) -> Self {
        let most = most.clamp(LEAST, 1 << 40).next_power_of_two();
        ReplayWindow {
            words: vec![0; (LEAST / 64) as usize],
            next: 0,
            seen: 0,
            most,
            half: (0, now),
        }
    }

    /// Numbers that it holds now.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.words.len() as u64 * 64
    }

    /// Never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether a number is new. It changes nothing: a number is noted only once its packet has proved to be genuine.
    #[must_use]
    pub fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return number < u64::MAX;
        }
        self.next - number <= self.len() && !self.bit(number)
    }

    /// Notes a number; whether it was new.
    pub fn note(&mut self, number: u64, now: Instant) -> bool {
        if !self.is_new(number) {
            return false;
        }
        if number >= self.next {
            self.slide(number + 1, now);
        }
        let (word, bit) = self.place(number);
        self.words[word] |= bit;
        self.seen += 1;
        true
    }

    /// The number after the largest one seen, and how many have been seen.
    #[must_use]
    pub const fn progress(&self) -> (u64, u64) {
        (self.next, self.seen)
    }

    /// Makes room up to `next`.
    fn slide(&mut self, next: u64, now: Instant) {
        let passed = next.saturating_sub(self.half.0);
        if passed >= self.len() / 2 {
            // A jump of numbers is losses: it does not tell how fast they come.
            let jumped = next - self.next > self.len() / 4;
            if now.since(self.half.1) < SPAN && !jumped && self.len() < self.most {
                self.double();
            }
            self.half = (next, now);
        }
        let mut number = next - (next - self.next).min(self.len());
        while number < next {
            let (word, bit) = self.place(number);
            // Whole words at once where a jump covers them.
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
                let (word, bit) = larger.place(number);
                larger.words[word] |= bit;
            }
        }
        // Older than what the smaller one held: nobody knows, so they count as seen.
        let oldest = self.next.saturating_sub(self.len());
        for number in self.next.saturating_sub(larger.len())..oldest {
            let (word, bit) = larger.place(number);
            larger.words[word] |= bit;
        }
        *self = larger;
    }

    fn bit(&self, number: u64) -> bool {
        let (word, bit) = self.place(number);
        self.words[word] & bit != 0
    }

    const fn place(&self, number: u64) -> (usize, u64) {
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
    fn a_million_replays_and_reorderings_are_each_taken_once() {
        let mut rng = SeedTree::new(11).stream("replay");
        let mut window = ReplayWindow::new(1 << 18, Instant::ZERO);
        let mut taken = BTreeSet::new();
        let (mut front, mut twice) = (0u64, 0u32);
        for step in 0..1_000_000u64 {
            // 10,000 numbers a second; half of the arrivals are old ones.
            let now = Instant::from_micros(step * 100);
            let number = if rng.chance(0.5) {
                front += 1 + rng.below(3);
                front
            } else {
                front.saturating_sub(rng.below(50_000))
            };
            let new = window.is_new(number);
            assert_eq!(window.note(number, now), new);
            twice += u32::from(new && !taken.insert(number));
        }
        assert_eq!(twice, 0);
        assert!(taken.len() > 400_000);
        assert!(window.len() >= 20_000, "{}", window.len());
    }

    #[test]
    fn what_is_younger_than_the_span_is_never_taken_for_a_replay() {
        // Every second number goes by a path that takes 1.5 s longer.
        let mut window = ReplayWindow::new(1 << 18, Instant::ZERO);
        let per_ms = 20;
        for ms in 0..10_000u64 {
            let now = Instant::from_millis(ms);
            for index in 0..per_ms {
                let number = ms * per_ms + index;
                if number % 2 == 0 {
                    assert!(window.note(number, now));
                } else if let Some(late) = number.checked_sub(1_500 * per_ms) {
                    // While it grows it is short: those from the first moments are lost, not doubled.
                    assert!(window.note(late, now) || ms < 4_000, "{late} at {ms} ms");
                }
            }
        }
    }

    #[test]
    fn a_jump_forgets_nothing_and_admits_nothing_twice() {
        let mut window = ReplayWindow::new(1 << 12, Instant::ZERO);
        let at = Instant::from_millis;
        assert!(window.note(0, at(0)) && !window.note(0, at(0)));
        assert!(window.note(1 << 40, at(1)));
        assert!(!window.is_new(0) && !window.is_new(1 << 40));
        assert!(window.is_new((1 << 40) - 1) && !window.is_new((1 << 40) - (1 << 20)));
        assert!(!window.is_new(u64::MAX));
        assert!(window.note(u64::MAX - 1, at(2)) && !window.note(u64::MAX - 1, at(3)));
    }

    #[test]
    fn a_slow_lane_keeps_a_small_window() {
        let mut window = ReplayWindow::new(1 << 18, Instant::ZERO);
        for number in 0..100_000u64 {
            window.note(number, Instant::from_millis(number * 10));
        }
        assert_eq!(window.len(), LEAST);
    }
}
