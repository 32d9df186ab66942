//! Budget for extra bytes: limits what copies may cost within ten seconds.
//!
//! *Problem.* Copies shorten the tail of the latency distribution but cost bytes. A limit that is only a share of the
//! payload forbids copies for a flow of small messages, for which they cost almost nothing and help most. A limit that
//! is only a rate is negligible compared with bulk traffic.
//!
//! *How.* Within the last [`WINDOW`], copies may use [`BudgetConfig::share`] of the new data sent, or
//! [`BudgetConfig::rate`] times the window, whichever is more. Bytes are counted in slots of two seconds, so bytes
//! spent now remain counted for ten seconds. Where capacity is idle and free, a share of it may be used instead
//! ([`IdleCapacity`]), which shrinks as the path fills. Callers get the spent share and derive the gain that the next
//! copy must bring from it.

use marline_time::{Duration, Instant, Rate};

/// Time span over which bytes are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Number of slots in the window.
const SLOTS: usize = 5;
const SLOT: Duration = Duration::from_secs(2);

/// Limits for copies.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct BudgetConfig {
    /// Share of the new data, 0 or more. If infinite, nothing counts as spent, regardless of the bytes sent as copies.
    pub share: f64,
    /// Rate that is always allowed, even with little new data.
    pub rate: Rate,
}

impl BudgetConfig {
    /// No limit.
    pub const UNLIMITED: Self = BudgetConfig { share: f64::INFINITY, rate: Rate::ZERO };

    /// Returns true if there is no limit.
    pub(crate) const fn is_unlimited(&self) -> bool {
        self.share.is_infinite()
    }
}

impl Default for BudgetConfig {
    /// The default is 25 % or 16 kB/s.
    fn default() -> Self {
        BudgetConfig { share: 0.25, rate: Rate::from_bits_per_s(128_000) }
    }
}

/// Total capacity of the paths, and the share of their idle capacity that copies may use.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct IdleCapacity {
    /// Sum of the rates of the paths.
    pub(crate) rate: Rate,
    /// Share of the idle capacity, 0 to 1.
    pub(crate) share: f64,
}

impl IdleCapacity {
    /// Value for copies that may use only their budget.
    const NONE: Self = IdleCapacity { rate: Rate::ZERO, share: 0.0 };
}

/// New data and copies within the last ten seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget {
    /// New data and copies per slot, in units of 64 bytes.
    slots: [(u32, u32); SLOTS],
    /// Number of the current slot.
    slot: u32,
}

/// Bytes per unit.
const UNIT: u64 = 64;

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl Budget {
    fn advance_budget_to(&mut self, now: Instant) {
        let slot = (now.as_nanos() / SLOT.as_nanos() as u64) as u32;
        let passed = slot.wrapping_sub(self.slot).min(SLOTS as u32);
        for step in 1..=passed {
            self.slots[(self.slot.wrapping_add(step)) as usize % SLOTS] = (0, 0);
        }
        if passed == SLOTS as u32 {
            self.slots = [(0, 0); SLOTS];
        }
        self.slot = slot;
    }

    fn current(&mut self, now: Instant) -> &mut (u32, u32) {
        self.advance_budget_to(now);
        &mut self.slots[self.slot as usize % SLOTS]
    }

    /// Records new data given to a subflow, or a new datagram given to a path.
    pub(crate) fn on_new(&mut self, now: Instant, bytes: u64) {
        let slot = self.current(now);
        slot.0 = slot.0.saturating_add(units(bytes));
    }

    /// Records a copy given to a subflow or path.
    pub(crate) fn on_copy(&mut self, now: Instant, bytes: u64) {
        let slot = self.current(now);
        slot.1 = slot.1.saturating_add(units(bytes));
    }

    /// Returns the spent share of the bytes that copies may use within the window; it may exceed 1.
    pub(crate) fn spent_share(&mut self, now: Instant, config: &BudgetConfig) -> f32 {
        self.spent_share_with(now, config, || IdleCapacity::NONE)
    }

    /// Like [`spent_share`](Self::spent_share), but copies may instead use a share of idle capacity if that is more.
    /// `idle` is called only if the result depends on it, because this is part of each decision.
    pub(crate) fn spent_share_with(
        &mut self,
        now: Instant,
        config: &BudgetConfig,
        idle: impl FnOnce() -> IdleCapacity,
    ) -> f32 {
        if config.share.is_infinite() {
            return 0.0;
        }
        self.advance_budget_to(now);
        let sum = |of: fn(&(u32, u32)) -> u32| -> u64 {
            self.slots.iter().map(|slot| u64::from(of(slot))).sum::<u64>() * UNIT
        };
        let (new, copies) = (sum(|slot| slot.0), sum(|slot| slot.1));
        let share = (new as f64 * config.share) as u64;
        let allowed = share.max(config.rate.bytes_in(WINDOW));
        if copies == 0 && allowed > 0 {
            return 0.0;
        }
        let idle = idle();
        let unused = idle.rate.bytes_in(WINDOW).saturating_sub(new + copies);
        let whole = allowed.max((unused as f64 * idle.share) as u64);
        if whole == 0 { f32::INFINITY } else { copies as f32 / whole as f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_is_restored_after_ten_seconds() {
        let config = BudgetConfig::default();
        let mut budget = Budget::default();
        let at = |ms: u64| Instant::from_millis(100_000 + ms);
        assert_eq!(budget.spent_share(at(0), &config), 0.0);
        budget.on_copy(at(500), 160_000);
        assert_eq!(budget.spent_share(at(9_900), &config), 1.0);
        assert_eq!(budget.spent_share(at(10_000), &config), 0.0);
        // A quarter of 1 MB, and of another 1 MB that will expire later.
        budget.on_new(at(10_000), 1_000_000);
        budget.on_new(at(13_000), 1_000_000);
        budget.on_copy(at(13_000), 250_000);
        assert!((budget.spent_share(at(13_000), &config) - 0.5).abs() < 0.001);
        assert!((budget.spent_share(at(20_000), &config) - 1.0).abs() < 0.001);
        assert_eq!(budget.spent_share(at(1_000_000), &config), 0.0);
        let none = BudgetConfig { share: 0.0, rate: Rate::ZERO };
        assert_eq!(budget.spent_share(at(1_000_000), &none), f32::INFINITY);
    }

    #[test]
    fn a_share_of_idle_capacity_allows_more_and_shrinks_as_the_path_fills() {
        let (config, now) = (BudgetConfig::default(), Instant::from_millis(100_000));
        // 25 MB in ten seconds, of which a twentieth is 1.25 MB.
        let idle = IdleCapacity { rate: Rate::from_mbit(20), share: 0.05 };
        let mut budget = Budget::default();
        budget.on_new(now, 640_000);
        budget.on_copy(now, 640_000);
        assert_eq!(budget.spent_share(now, &config), 4.0);
        let spent = budget.spent_share_with(now, &config, || idle);
        assert!((spent - 640.0 / 1_186.0).abs() < 0.001, "{spent}");
        // On a full path, only the share of the new data is left.
        budget.on_new(now, 24_000_000);
        let spent = budget.spent_share_with(now, &config, || idle);
        assert_eq!(spent, budget.spent_share(now, &config));
    }

    #[test]
    fn without_a_limit_nothing_is_ever_spent() {
        let mut budget = Budget::default();
        let now = Instant::from_millis(100_000);
        assert_eq!(budget.spent_share(now, &BudgetConfig::UNLIMITED), 0.0);
        budget.on_copy(now, u64::MAX);
        assert_eq!(budget.spent_share(now, &BudgetConfig::UNLIMITED), 0.0);
    }
}
