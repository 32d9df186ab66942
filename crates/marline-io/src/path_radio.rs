//! Radio technology of a path, as configured. The energy consumption is computed by an observer.

use core::fmt;
use core::str::FromStr;

/// Radio technology.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RadioKind {
    /// 4G.
    Lte,
    /// 3G.
    Umts,
    /// WiFi station.
    Wifi,
}

impl RadioKind {
    /// Milliseconds from the last packet until the radio sleeps; 0 for WiFi, which is cheap to wake.
    ///
    /// Huang et al., MobiSys 2012, as in the energy estimates: LTE's tail, and UMTS's DCH and FACH.
    #[must_use]
    pub const fn tail_ms(self) -> u16 {
        match self {
            RadioKind::Lte => 11_576,
            RadioKind::Umts => 8_910,
            RadioKind::Wifi => 0,
        }
    }
}

impl fmt::Display for RadioKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RadioKind::Lte => "lte",
            RadioKind::Umts => "umts",
            RadioKind::Wifi => "wifi",
        })
    }
}

impl FromStr for RadioKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "lte" | "4g" => Ok(RadioKind::Lte),
            "umts" | "3g" => Ok(RadioKind::Umts),
            "wifi" => Ok(RadioKind::Wifi),
            _ => Err("radios are lte, umts and wifi"),
        }
    }
}
