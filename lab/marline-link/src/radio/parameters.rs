//! Parameters of a radio: power and dwell time of each state.
//!
//! Source: Huang, Qian, Gerber, Mao, Sen, Spatscheck, "A close examination of performance and power
//! characteristics of 4G LTE networks", MobiSys 2012 (tables 3 and 4). **The values could not be checked
//! against the full paper**: only its abstract was available. Every figure in joules is therefore accompanied by runs
//! with each value 20 % lower and higher ([`RadioParameters::variations`]).
//!
//! The paper's tables do not contain `transfer_hold`, the time after a packet that still counts as transfer (for LTE
//! we use the paper's timer of continuous reception, 100 ms). Our own assumption is that packets do not wait for a
//! sleeping WiFi station, which wakes itself to send within a millisecond.

use core::fmt;
use core::str::FromStr;

use marline_time::Duration;

/// Kind of radio.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RadioKind {
    /// 4G.
    Lte,
    /// 3G.
    Umts,
    /// A WiFi station in adaptive power saving.
    Wifi,
}

impl RadioKind {
    /// All kinds.
    pub const ALL: [RadioKind; 3] = [RadioKind::Lte, RadioKind::Umts, RadioKind::Wifi];

    /// The kind's name in link specs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RadioKind::Lte => "lte",
            RadioKind::Umts => "umts",
            RadioKind::Wifi => "wifi",
        }
    }

    /// Guesses the radio from the name of an interface or path. `None` if unknown. Recognizes names used by Linux,
    /// Android and users: `wlan0`, `wlp3s0`, `wifi`, `wwan0`, `rmnet0`, `lte1`, `umts`, `3g`. Case does not matter.
    #[must_use]
    pub fn guess(interface: &str) -> Option<RadioKind> {
        const NAME_PREFIXES: [(&str, RadioKind); 16] = [
            ("wlan", RadioKind::Wifi),
            ("wlp", RadioKind::Wifi),
            ("wlx", RadioKind::Wifi),
            ("wifi", RadioKind::Wifi),
            ("wi-fi", RadioKind::Wifi),
            ("wwan", RadioKind::Lte),
            ("wwp", RadioKind::Lte),
            ("rmnet", RadioKind::Lte),
            ("ccmni", RadioKind::Lte),
            ("pdp_ip", RadioKind::Lte),
            ("lte", RadioKind::Lte),
            ("4g", RadioKind::Lte),
            ("cell", RadioKind::Lte),
            ("umts", RadioKind::Umts),
            ("3g", RadioKind::Umts),
            ("hspa", RadioKind::Umts),
        ];
        let name = interface.to_ascii_lowercase();
        NAME_PREFIXES.iter().find(|(start, _)| name.starts_with(start)).map(|(_, kind)| *kind)
    }
}

impl fmt::Display for RadioKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RadioKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "lte" | "4g" => Ok(RadioKind::Lte),
            "umts" | "3g" => Ok(RadioKind::Umts),
            "wifi" => Ok(RadioKind::Wifi),
            _ => Err(format!("unknown radio `{text}`; known: lte, umts, wifi")),
        }
    }
}

/// A state with its duration and power.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TimedState {
    /// Duration.
    pub lasts: Duration,
    /// Power in microwatts.
    pub power_uw: u64,
}

impl TimedState {
    const fn new(lasts_us: u64, power_uw: u64) -> Self {
        TimedState { lasts: Duration::from_micros(lasts_us), power_uw }
    }
}

/// Parameters of a radio's state machine. Powers are for the whole radio in that state. The energy of bytes is added
/// to the power of transfer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RadioParameters {
    /// Kind of the radio.
    pub kind: RadioKind,
    /// Promotion: from idle until data can be sent.
    pub promotion: TimedState,
    /// Power in microwatts while data is in transit, excluding the energy per byte.
    pub transfer_power_uw: u64,
    /// Time after a packet during which the radio still counts as transferring.
    pub transfer_hold: Duration,
    /// Energy of a byte from the phone, in femtojoules.
    pub up_fj_per_byte: u64,
    /// Energy of a byte to the phone, in femtojoules.
    pub down_fj_per_byte: u64,
    /// The tail, counted from the last packet: successive states before the radio is idle. The first one includes
    /// [`RadioParameters::transfer_hold`] of transfer.
    pub tails: [TimedState; 2],
    /// Interval at which an idle radio listens.
    pub idle_cycle: Duration,
    /// Duration and power of each listening period of an idle radio. Between these periods it draws nothing.
    pub idle_listen: TimedState,
}

/// Milliwatts per Mbit/s, times 100, as femtojoules per byte: 1 mW per Mbit/s is 1 nJ per bit.
const fn fj_per_byte(mw_per_mbit_s_x100: u64) -> u64 {
    mw_per_mbit_s_x100 * 8 * 10_000
}

const LTE: RadioParameters = RadioParameters {
    kind: RadioKind::Lte,
    promotion: TimedState::new(260_100, 1_210_700),
    transfer_power_uw: 1_288_040,
    transfer_hold: Duration::from_millis(100),
    up_fj_per_byte: fj_per_byte(43_839),
    down_fj_per_byte: fj_per_byte(5_197),
    tails: [TimedState::new(11_576_000, 1_060_000), TimedState::new(0, 0)],
    idle_cycle: Duration::from_millis(1_280),
    idle_listen: TimedState::new(43_200, 594_300),
};

/// A packet in the second tail (FACH) immediately returns the radio to the first (DCH), because the source does not
/// give the promotion between them. It does not give idle listening either, so LTE's cycle and power are used.
const UMTS: RadioParameters = RadioParameters {
    kind: RadioKind::Umts,
    promotion: TimedState::new(582_100, 659_400),
    transfer_power_uw: 817_880,
    transfer_hold: Duration::from_millis(100),
    up_fj_per_byte: fj_per_byte(86_898),
    down_fj_per_byte: fj_per_byte(12_212),
    tails: [TimedState::new(8_090_000, 803_900), TimedState::new(820_000, 601_300)],
    idle_cycle: LTE.idle_cycle,
    idle_listen: LTE.idle_listen,
};

const WIFI: RadioParameters = RadioParameters {
    kind: RadioKind::Wifi,
    promotion: TimedState::new(79_100, 124_400),
    transfer_power_uw: 132_860,
    transfer_hold: Duration::from_millis(100),
    up_fj_per_byte: fj_per_byte(28_317),
    down_fj_per_byte: fj_per_byte(13_701),
    tails: [TimedState::new(238_100, 119_300), TimedState::new(0, 0)],
    idle_cycle: Duration::from_millis(308),
    idle_listen: TimedState::new(7_600, 77_200),
};

/// Scales one parameter.
type ScaleParameter = fn(&mut RadioParameters, &dyn Fn(u64) -> u64);

/// Parameters that a sensitivity run varies one at a time.
const SCALED_PARAMETERS: [(&str, ScaleParameter); 8] = [
    ("promotion time", |p, by| p.promotion.lasts = scale_time(p.promotion.lasts, by)),
    ("promotion power", |p, by| p.promotion.power_uw = by(p.promotion.power_uw)),
    ("transfer power", |p, by| p.transfer_power_uw = by(p.transfer_power_uw)),
    ("transfer hold", |p, by| p.transfer_hold = scale_time(p.transfer_hold, by)),
    ("energy of bytes", |p, by| {
        p.up_fj_per_byte = by(p.up_fj_per_byte);
        p.down_fj_per_byte = by(p.down_fj_per_byte);
    }),
    ("tail time", |p, by| {
        p.tails.iter_mut().for_each(|tail| tail.lasts = scale_time(tail.lasts, by));
    }),
    ("tail power", |p, by| p.tails.iter_mut().for_each(|tail| tail.power_uw = by(tail.power_uw))),
    ("idle power", |p, by| p.idle_listen.power_uw = by(p.idle_listen.power_uw)),
];

fn scale_time(time: Duration, by: &dyn Fn(u64) -> u64) -> Duration {
    Duration::from_nanos(by(marline_time::nanos(time)))
}

impl RadioParameters {
    /// Published parameters of a kind of radio.
    #[must_use]
    pub const fn published(kind: RadioKind) -> Self {
        match kind {
            RadioKind::Lte => LTE,
            RadioKind::Umts => UMTS,
            RadioKind::Wifi => WIFI,
        }
    }

    /// True if packets wait for the promotion of an idle radio.
    #[must_use]
    pub const fn waits_for_promotion(&self) -> bool {
        !matches!(self.kind, RadioKind::Wifi)
    }

    /// Time from the last packet until the radio is idle.
    #[must_use]
    pub fn tail(&self) -> Duration {
        self.tails[0].lasts + self.tails[1].lasts
    }

    /// Variants in which one parameter is scaled to `percent` and the others are unchanged.
    #[must_use]
    pub fn variations(&self, percent: u64) -> Vec<(&'static str, RadioParameters)> {
        let by = |value: u64| value.saturating_mul(percent) / 100;
        let one = |(name, turn): &(&'static str, ScaleParameter)| {
            let mut other = *self;
            turn(&mut other, &by);
            (*name, other)
        };
        SCALED_PARAMETERS.iter().map(one).collect()
    }
}
