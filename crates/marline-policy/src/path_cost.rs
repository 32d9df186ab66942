//! Cost of a path beside time: bytes that are charged for, a radio that sleeps, and that it will soon be gone.
//!
//! *Problem.* By arrival times alone the best use of a second path is to copy everything onto it. Where its bytes cost
//! money, or its first packet switches on a radio that then draws power for ten seconds, that is the wrong bargain;
//! and no measurement tells, so it has to be said.
//!
//! The same is so of a radio whose signal fades: packets still pass, and soon none will.
//!
//! Whoever configures an address says what its paths cost ([`PathCost`]). A view of a subflow has what follows from it
//! now: that it is metered, which share of a wake-up a packet costs ([`PathCost::wake_share`]), and that a subflow on a
//! path that fades is [doubtful](crate::Health::Doubtful).

use marline_time::{Duration, Instant};

/// What using a path costs.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathCost {
    /// Bytes on it cost money.
    pub metered: bool,
    /// It will soon be gone: its radio's signal fades.
    pub fading: bool,
    /// Milliseconds from its last packet until its radio sleeps; 0: it has no radio whose sleep matters.
    pub tail_ms: u16,
}

impl PathCost {
    /// Nothing but time.
    pub const NONE: Self = PathCost { metered: false, fading: false, tail_ms: 0 };

    /// Whether it costs nothing but time.
    #[must_use]
    pub const fn is_none(self) -> bool {
        !self.metered && !self.fading && self.tail_ms == 0
    }

    /// Which share of a wake-up a packet costs now, 0 to 1, where one was last sent or received at `used_at`.
    ///
    /// A radio stays awake for its tail after each packet. A packet that finds it asleep costs a whole tail, one that
    /// finds it awake prolongs that by the time since the packet before. So who goes on using it pays for each
    /// moment once.
    #[must_use]
    pub fn wake_share(self, now: Instant, used_at: Instant) -> f32 {
        if self.tail_ms == 0 {
            return 0.0;
        }
        let tail = Duration::from_millis(self.tail_ms.into());
        (now.since(used_at).as_secs_f32() / tail.as_secs_f32()).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_costs_the_time_for_which_it_keeps_a_radio_awake() {
        let lte = PathCost { tail_ms: 10_000, ..PathCost::NONE };
        let share = |ms| lte.wake_share(Instant::from_millis(60_000), Instant::from_millis(ms));
        assert_eq!([60_000, 55_000, 50_000, 1].map(share), [0.0, 0.5, 1.0, 1.0]);
        assert_eq!(PathCost::NONE.wake_share(Instant::from_secs(9), Instant::ZERO), 0.0);
        assert!(PathCost::NONE.is_none() && !lte.is_none());
        assert!(!PathCost { fading: true, ..PathCost::NONE }.is_none());
    }
}
