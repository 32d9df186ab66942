//! Energy information base: the energy per byte over each choice of interfaces, for each pair of rates.

use marline_link::radio::{RadioKind, RadioParameters, TimedState};
use marline_time::Duration;

/// Interfaces that carry data.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum InterfaceSet {
    /// WiFi, while the cellular radio sleeps.
    #[default]
    Wifi,
    /// The cellular radio, while WiFi sleeps.
    Cellular,
    /// Both interfaces.
    Both,
}

impl InterfaceSet {
    const ALL: [InterfaceSet; 3] = [InterfaceSet::Wifi, InterfaceSet::Cellular, InterfaceSet::Both];

    pub(super) const fn has_wifi(self) -> bool {
        !matches!(self, InterfaceSet::Cellular)
    }

    pub(super) const fn has_cellular(self) -> bool {
        !matches!(self, InterfaceSet::Wifi)
    }
}

/// Expected rates of a transfer.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second over WiFi.
    pub wifi: f64,
    /// Bytes per second over the cellular interface.
    pub cellular: f64,
    /// Share of the bytes that this side sends, 0 to 1.
    pub sent_share: f64,
}

/// Power of one radio.
#[derive(Copy, Clone, Debug)]
struct Power {
    /// Base power during a transfer, excluding the cost per byte, in W.
    transfer_w: f64,
    /// Mean power without a transfer, in W.
    idle_w: f64,
    /// Energy per sent byte, in J.
    sent_j: f64,
    /// Energy per received byte, in J.
    received_j: f64,
}

impl Power {
    fn from_radio(radio: &RadioParameters) -> Self {
        let awake = radio.idle_listen.lasts.div_duration_f64(radio.idle_cycle);
        Power {
            transfer_w: watts(radio.transfer_power_uw),
            idle_w: awake * watts(radio.idle_listen.power_uw),
            sent_j: radio.up_fj_per_byte as f64 * 1e-15,
            received_j: radio.down_fj_per_byte as f64 * 1e-15,
        }
    }

    /// Returns the power at this rate in bytes per second, of which `sent_share` is sent.
    fn power_at(&self, rate: f64, sent_share: f64) -> f64 {
        let byte_j = sent_share * self.sent_j + (1.0 - sent_share) * self.received_j;
        self.transfer_w + rate * byte_j
    }
}

fn watts(microwatts: u64) -> f64 {
    microwatts as f64 * 1e-6
}

fn joules(stay: &TimedState) -> f64 {
    stay.lasts.as_secs_f64() * watts(stay.power_uw)
}

/// Energy base for WiFi and one cellular radio, computed from their powers on demand.
#[derive(Copy, Clone, Debug)]
pub struct EnergyBase {
    wifi: Power,
    cellular: Power,
    /// Energy of the cellular radio's promotion and tail, in J.
    wake_j: f64,
    tail: Duration,
}

impl EnergyBase {
    /// Creates the base for this cellular radio, with the published powers.
    #[must_use]
    pub fn new(cellular: RadioKind) -> Self {
        let radio = RadioParameters::published(cellular);
        EnergyBase {
            wifi: Power::from_radio(&RadioParameters::published(RadioKind::Wifi)),
            cellular: Power::from_radio(&radio),
            wake_j: joules(&radio.promotion) + radio.tails.iter().map(joules).sum::<f64>(),
            tail: radio.tail(),
        }
    }

    /// Returns the energy per byte of this choice at these rates, in J. `wake_j_per_byte` is the cost per byte of
    /// waking the cellular radio, if it is used. Infinite if the rates are zero.
    #[must_use]
    pub fn per_byte(&self, set: InterfaceSet, rates: &Rates, wake_j_per_byte: f64) -> f64 {
        let rate = f64::from(u8::from(set.has_wifi())) * rates.wifi
            + f64::from(u8::from(set.has_cellular())) * rates.cellular;
        if rate <= 0.0 {
            return f64::INFINITY;
        }
        let power = |used: bool, power: &Power, rate: f64| {
            if used { power.power_at(rate, rates.sent_share) } else { power.idle_w }
        };
        let watts = power(set.has_wifi(), &self.wifi, rates.wifi)
            + power(set.has_cellular(), &self.cellular, rates.cellular);
        watts / rate + if set.has_cellular() { wake_j_per_byte } else { 0.0 }
    }

    /// Returns the cheapest choice for `ahead` more bytes. `cellular_unused` is the time since the cellular radio was
    /// last used (`None`: never). The current choice is kept unless another is cheaper by the share `margin`.
    #[must_use]
    pub fn cheapest(
        &self,
        used: InterfaceSet,
        rates: &Rates,
        ahead: f64,
        cellular_unused: Option<Duration>,
        margin: f64,
    ) -> InterfaceSet {
        // A radio that is awake stays awake for the rest of its tail anyway. Using it extends this by the time since
        // its last use.
        let asleep = cellular_unused.map_or(1.0, |t| t.div_duration_f64(self.tail).min(1.0));
        let wake = asleep * self.wake_j / ahead.max(1.0);
        let cost = |set: InterfaceSet| {
            let cost = self.per_byte(set, rates, if used.has_cellular() { 0.0 } else { wake });
            if set == used { cost * (1.0 - margin) } else { cost }
        };
        // The current choice wins ties.
        let better = |best: InterfaceSet, set: InterfaceSet| {
            if cost(set) < cost(best) { set } else { best }
        };
        InterfaceSet::ALL.into_iter().fold(used, better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 125_000.0;

    fn down(wifi: f64, cellular: f64) -> Rates {
        Rates { wifi: wifi * MBIT, cellular: cellular * MBIT, sent_share: 0.0 }
    }

    /// Computed by hand from the table of powers in docs/research/link.md: 132.86 mW + 137.01 mW per Mbit/s (WiFi),
    /// 1,288.04 + 51.97 (LTE); idle 1.90 and 20.06 mW.
    #[test]
    fn the_energy_per_byte_follows_the_power_table() {
        let base = EnergyBase::new(RadioKind::Lte);
        let nj_per_bit = |set| base.per_byte(set, &down(4.0, 10.0), 0.0) / 8.0 * 1e9;
        let by_hand = [
            (InterfaceSet::Wifi, (132.86 + 4.0 * 137.01 + 20.06) / 4.0),
            (InterfaceSet::Cellular, (1_288.04 + 519.7 + 1.90) / 10.0),
            (InterfaceSet::Both, (132.86 + 548.04 + 1_288.04 + 519.7) / 14.0),
        ];
        for (set, expected) in by_hand {
            assert!((nj_per_bit(set) - expected).abs() < 0.05, "{set:?}: {}", nj_per_bit(set));
        }
        let up = Rates { sent_share: 1.0, ..down(4.0, 10.0) };
        let sent = base.per_byte(InterfaceSet::Wifi, &up, 0.0) / 8.0 * 1e9;
        assert!((sent - (152.92 / 4.0 + 283.17)).abs() < 0.05, "{sent}");
        assert_eq!(base.per_byte(InterfaceSet::Wifi, &down(0.0, 9.0), 0.0), f64::INFINITY);
    }

    #[test]
    fn the_choice_moves_from_cellular_to_both_to_wifi_as_wifi_becomes_faster() {
        let base = EnergyBase::new(RadioKind::Lte);
        let awake = Some(Duration::ZERO);
        let at = |wifi| base.cheapest(InterfaceSet::Wifi, &down(wifi, 10.0), 1e9, awake, 0.0);
        assert_eq!([0.5, 2.9].map(at), [InterfaceSet::Cellular; 2]);
        assert_eq!([3.1, 3.6].map(at), [InterfaceSet::Both; 2]);
        assert_eq!([4.0, 20.0].map(at), [InterfaceSet::Wifi; 2]);
    }

    #[test]
    fn a_radio_that_sleeps_is_woken_for_enough_bytes_only() {
        let base = EnergyBase::new(RadioKind::Lte);
        let over =
            |ahead, unused| base.cheapest(InterfaceSet::Wifi, &down(1.0, 10.0), ahead, unused, 0.0);
        // The wake-up costs 12.6 J, and 0.11 uJ per bit is saved.
        assert_eq!(over(10e6, None), InterfaceSet::Wifi);
        assert_eq!(over(20e6, None), InterfaceSet::Cellular);
        assert_eq!(over(10e6, Some(Duration::from_secs(60))), InterfaceSet::Wifi);
        assert_eq!(over(10e6, Some(Duration::from_secs(1))), InterfaceSet::Cellular);
    }

    #[test]
    fn the_current_interface_set_stays_within_the_margin() {
        let base = EnergyBase::new(RadioKind::Lte);
        let awake = Some(Duration::ZERO);
        let stays = |used, wifi| base.cheapest(used, &down(wifi, 10.0), 1e9, awake, 0.1) == used;
        for used in InterfaceSet::ALL {
            assert!(stays(used, 3.0), "{used:?} costs nearly the same");
        }
        assert!(!stays(InterfaceSet::Cellular, 20.0) && !stays(InterfaceSet::Wifi, 1.0));
    }
}
