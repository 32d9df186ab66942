//! Energy consumption by purpose.

use core::ops::AddAssign;

use marline_time::Duration;

use super::{RadioKind, RadioState};

/// Femtojoules per joule. Microwatts times nanoseconds are femtojoules, so sums are exact and do not depend on how
/// time is divided.
const FJ_PER_J: f64 = 1e15;

/// Energy reading of a radio.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RadioReading {
    /// Kind of radio.
    pub kind: RadioKind,
    /// State of the radio.
    pub state: RadioState,
    /// Energy drawn so far.
    pub energy: Energy,
}

/// Energy drawn by a radio in femtojoules. [`Energy::traffic_j`] and similar methods convert to joules.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Energy {
    /// Listening while idle.
    pub idle_fj: u128,
    /// Promotions.
    pub promotion_fj: u128,
    /// Base power of transfers, excluding the energy per byte.
    pub transfer_fj: u128,
    /// Energy per byte, summed over the bytes.
    pub bytes_fj: u128,
    /// Tails.
    pub tail_fj: u128,
    /// Number of times the radio was woken.
    pub promotions: u64,
    /// Number of packets transferred.
    pub packets: u64,
    /// Time spent idle.
    pub idle_time: Duration,
}

impl Energy {
    /// No energy yet.
    pub const NONE: Energy = Energy {
        idle_fj: 0,
        promotion_fj: 0,
        transfer_fj: 0,
        bytes_fj: 0,
        tail_fj: 0,
        promotions: 0,
        packets: 0,
        idle_time: Duration::ZERO,
    };

    /// Energy in joules caused by traffic: promotions, transfer, bytes and tails.
    #[must_use]
    pub fn traffic_j(&self) -> f64 {
        (self.promotion_fj + self.transfer_fj + self.bytes_fj + self.tail_fj) as f64 / FJ_PER_J
    }

    /// Energy of the idle radio in joules.
    #[must_use]
    pub fn idle_j(&self) -> f64 {
        self.idle_fj as f64 / FJ_PER_J
    }

    /// Energy in joules of promotions, of transfer including its bytes, and of tails.
    #[must_use]
    pub fn energy_by_state_j(&self) -> [f64; 3] {
        let parts = [self.promotion_fj, self.transfer_fj + self.bytes_fj, self.tail_fj];
        parts.map(|part| part as f64 / FJ_PER_J)
    }
}

impl AddAssign for Energy {
    fn add_assign(&mut self, other: Energy) {
        self.idle_fj += other.idle_fj;
        self.promotion_fj += other.promotion_fj;
        self.transfer_fj += other.transfer_fj;
        self.bytes_fj += other.bytes_fj;
        self.tail_fj += other.tail_fj;
        self.promotions += other.promotions;
        self.packets += other.packets;
        self.idle_time += other.idle_time;
    }
}
