//! Radio technology of a path, as configured, and detection of mobile data from the kind of interface, and of a
//! battery. An observer computes the energy consumption.

use core::fmt;
use core::str::FromStr;
use std::fs::read_to_string;
use std::path::Path;

/// The kernel's directory of interfaces.
const INTERFACES: &str = "/sys/class/net";
/// The kernel's directory of batteries and power supplies.
const POWER_SUPPLIES: &str = "/sys/class/power_supply";
/// Kernel's table of PPP over Ethernet sessions, which are not mobile data.
const PPP_OVER_ETHERNET: &str = "/proc/net/pppoe";
/// Common beginnings of interface names of cellular modems on Linux and Android.
const MOBILE_NAMES: [&str; 11] =
    ["wwan", "wwp", "rmnet", "ccmni", "pdp_ip", "lte", "4g", "cell", "umts", "3g", "hspa"];

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
    /// Returns the milliseconds from the last packet until the radio sleeps; 0 for WiFi, which is cheap to wake.
    ///
    /// From Huang et al., MobiSys 2012, as in the energy estimates: the tail of LTE, and DCH plus FACH of UMTS.
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
            _ => Err("unknown radio (expected lte, umts or wifi)"),
        }
    }
}

/// Returns true if an interface appears to be mobile data, according to the kernel's device type or else to its name.
#[must_use]
pub fn is_mobile_interface(interface: &str) -> bool {
    is_mobile_by_files(interface, Path::new(INTERFACES), Path::new(PPP_OVER_ETHERNET))
}

/// Returns true if this machine has a battery. Batteries of attached devices do not count.
#[must_use]
pub fn has_battery() -> bool {
    has_battery_by_files(Path::new(POWER_SUPPLIES))
}

fn has_battery_by_files(supplies: &Path) -> bool {
    let text = |path: &Path, name: &str| read_to_string(path.join(name)).unwrap_or_default();
    let is_own = |path: &Path| {
        text(path, "type").trim() == "Battery" && text(path, "scope").trim() != "Device"
    };
    std::fs::read_dir(supplies)
        .is_ok_and(|entries| entries.flatten().any(|entry| is_own(&entry.path())))
}

fn is_mobile_by_files(interface: &str, interfaces: &Path, ppp_over_ethernet: &Path) -> bool {
    let event = read_to_string(interfaces.join(interface).join("uevent"));
    if event.is_ok_and(|text| text.lines().any(|line| line == "DEVTYPE=wwan")) {
        return true;
    }
    if interface.starts_with("ppp") {
        // The first line is the header of the table.
        return read_to_string(ppp_over_ethernet).unwrap_or_default().lines().count() < 2;
    }
    let name = interface.to_ascii_lowercase();
    MOBILE_NAMES.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_battery_of_a_mouse_is_not_the_machines() {
        let dir = tempfile::tempdir().unwrap();
        let add = |name: &str, kind: &str, scope: &str| {
            let supply = dir.path().join(name);
            std::fs::create_dir(&supply).unwrap();
            std::fs::write(supply.join("type"), kind).unwrap();
            std::fs::write(supply.join("scope"), scope).unwrap();
        };
        assert!(!has_battery_by_files(&dir.path().join("missing")));
        add("AC", "Mains\n", "");
        add("hidpp_battery_0", "Battery\n", "Device\n");
        assert!(!has_battery_by_files(dir.path()));
        add("BAT0", "Battery\n", "");
        assert!(has_battery_by_files(dir.path()));
    }

    #[test]
    fn mobile_data_is_detected_by_device_type_or_name() {
        let dir = tempfile::tempdir().unwrap();
        let pppoe = dir.path().join("pppoe");
        let mobile = |interface: &str| is_mobile_by_files(interface, dir.path(), &pppoe);
        for (interface, event) in
            [("usb7", "DEVTYPE=wwan\nINTERFACE=usb7\n"), ("eth0", "INTERFACE=eth0\n")]
        {
            std::fs::create_dir(dir.path().join(interface)).unwrap();
            std::fs::write(dir.path().join(interface).join("uevent"), event).unwrap();
        }
        assert!(mobile("usb7") && mobile("wwan0") && mobile("rmnet_data0") && mobile("ppp0"));
        assert!(!mobile("eth0") && !mobile("wlan0") && !mobile("usb0"));
        // A wired line with PPP over Ethernet.
        std::fs::write(&pppoe, "Id Address Device\n1 00:11:22:33:44:55 eth0\n").unwrap();
        assert!(!mobile("ppp0"));
    }
}
