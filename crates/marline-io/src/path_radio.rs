//! Radio technology of a path, as configured. Its energy consumption is computed by an observer.

use core::fmt;
use core::str::FromStr;

/// Radio technology.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum RadioKind {
    /// 4G.
    Lte,
    /// 3G.
    Umts,
    /// A WiFi station.
    Wifi,
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
