//! Costs of a path other than time: metered bytes, a data allowance, waking a radio, and imminent loss of the path.
//!
//! *Problem.* By arrival times alone, the best use of a second path is to copy everything onto it. This is wrong if its
//! bytes cost money, or if its first packet wakes a radio that then draws power for ten seconds. No measurement reveals
//! these costs, so they must be configured.
//!
//! A fading radio signal is similar: packets still pass, but the path will soon fail.
//!
//! The configuration of an address states the costs of its paths ([`PathCost`]). The view of a subflow contains the
//! current consequences: whether it is metered, and what share of a wake-up a packet costs ([`PathCost::wake_share`]).
//! A subflow on a fading path is [degraded](crate::Health::Degraded).

use marline_time::{Duration, Instant};

/// Costs of using a path.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathCost {
    /// Bytes on the path cost money.
    pub metered: bool,
    /// Bytes on the path may count against an allowance, as with mobile data. Unlike a metered path, it carries new
    /// data as any other path does, but its idle capacity is not used for copies.
    pub limited: bool,
    /// The path is about to fail, because its radio signal fades.
    pub fading: bool,
    /// Milliseconds from the last packet until the radio sleeps; 0 if the path has no radio whose sleep
    /// matters.
    pub tail_ms: u16,
}

impl PathCost {
    /// No costs.
    pub const NONE: Self = PathCost { metered: false, limited: false, fading: false, tail_ms: 0 };

    /// Returns true if using the path has no costs.
    #[must_use]
    pub const fn is_none(self) -> bool {
        !self.metered && !self.limited && !self.fading && !self.has_radio()
    }

    /// Returns true if the path has a radio that should sleep.
    #[must_use]
    pub const fn has_radio(self) -> bool {
        self.tail_ms > 0
    }

    /// Share of a wake-up that a packet costs now, 0 to 1, if the last packet was sent or received at
    /// `used_at`.
    ///
    /// A radio stays awake for its tail time after each packet. A packet that finds it asleep costs a whole tail. A
    /// packet that finds it awake extends the waking time by the time since the previous packet, so continuous use is
    /// charged for each moment once.
    #[must_use]
    pub fn wake_share(self, now: Instant, used_at: Instant) -> f32 {
        if !self.has_radio() {
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
        assert!(!PathCost { limited: true, ..PathCost::NONE }.is_none());
    }
}
