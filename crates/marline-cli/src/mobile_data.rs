//! Notice about paths that look like mobile data and have no limit, with the amount that the mode may send there.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline::Client;
use marline::paths::{PathStatus, RadioKind};
use marline_link::radio::RadioKind as GuessedRadio;

use crate::config::client::ClientPlan;
use crate::config::policies::Mode;
use crate::path_quotas::PathQuotas;

/// The system's directory of interfaces.
const INTERFACES: &str = "/sys/class/net";
/// Kernel's table of PPP over Ethernet sessions, which are not mobile data.
const PPP_OVER_ETHERNET: &str = "/proc/net/pppoe";
/// Interval of checks for new paths.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Largest number of interfaces remembered as logged.
const MAX_REMEMBERED: usize = 64;

/// Logs each such interface once. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct MobileDataNotice(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    settings: Settings,
    logged: BTreeSet<String>,
}

/// Settings that determine what is sent over a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    mode: Mode,
    /// True if policies were chosen by name, so that the description of the mode does not apply.
    own_policies: bool,
    /// True if the paths were named.
    named: bool,
}

impl Settings {
    fn from_plan(plan: &ClientPlan) -> Settings {
        Settings {
            mode: plan.runtime.mode,
            own_policies: plan.own_policies,
            named: !plan.paths.is_empty(),
        }
    }
}

impl MobileDataNotice {
    pub(crate) fn new(plan: &ClientPlan) -> MobileDataNotice {
        let state = State { settings: Settings::from_plan(plan), logged: BTreeSet::new() };
        MobileDataNotice(Arc::new(Mutex::new(state)))
    }

    /// Applies another configuration.
    pub(crate) fn change(&self, plan: &ClientPlan) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).settings = Settings::from_plan(plan);
    }

    /// Checks the client's paths.
    pub(crate) fn check_paths(&self, client: &Client, quotas: &PathQuotas) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, path) in client.paths().iter().enumerate() {
            let has_quota = quotas.quota_use(number).is_some();
            if let Some(line) = state.notice_for(path, has_quota, is_mobile_interface) {
                tracing::warn!("{line}");
            }
        }
    }

    /// Checks the paths repeatedly until dropped.
    pub(crate) async fn watch_paths(&self, client: &Client, quotas: &PathQuotas) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.check_paths(client, quotas);
        }
    }
}

impl State {
    /// The line for this path, if it needs one and has not been logged.
    fn notice_for(
        &mut self,
        path: &PathStatus,
        has_quota: bool,
        is_mobile_interface: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let interface = path.interface.as_deref().filter(|_| path.up)?;
        let is_cellular = match path.spec.radio {
            Some(radio) => radio != RadioKind::Wifi,
            None => is_mobile_interface(interface),
        };
        let limited = path.backup || path.metered || has_quota;
        if !is_cellular || limited || self.logged.contains(interface) {
            return None;
        }
        if self.logged.len() >= MAX_REMEMBERED {
            self.logged.clear();
        }
        self.logged.insert(interface.to_owned());
        Some(line(&self.settings, &path.spec.short_name(), interface))
    }
}

fn line(settings: &Settings, path: &str, interface: &str) -> String {
    let shown = match path == interface {
        true => format!("path {path}"),
        false => format!("path {path} ({interface})"),
    };
    let spends = spending_text(settings);
    let remedy = match settings.named {
        true => "add `,metered` or `,backup` to its --path to limit that".to_owned(),
        false => format!(
            "to limit that, name the paths and add `,metered` or `,backup` to this one, or type \
             `marline path {path} metered`"
        ),
    };
    format!("{shown} looks like mobile data: {spends}; {remedy}")
}

/// The amount that the mode may send over a path without a limit (docs/research/auto.md).
fn spending_text(settings: &Settings) -> String {
    if settings.own_policies {
        return "the chosen policies may send any share of the data over it".to_owned();
    }
    let does = match settings.mode {
        Mode::Balanced => {
            "sends data over it whenever that is faster, and copies of up to a quarter of the new data, \
             16 kB/s or a twentieth of the idle capacity"
        }
        Mode::Redundant => "copies everything to it when no new data is waiting",
        Mode::Aggregate => "sends data over all paths at once",
        Mode::Handover => "sends all data over it whenever it is the path in use",
        Mode::Interactive => "may send all data over it at any time",
    };
    format!("mode {} {does}", settings.mode.name())
}

fn is_mobile_interface(interface: &str) -> bool {
    is_mobile_by_sysfs(interface, Path::new(INTERFACES), Path::new(PPP_OVER_ETHERNET))
}

/// Detects mobile data by the kernel's device type, or else by the interface's name.
fn is_mobile_by_sysfs(interface: &str, interfaces: &Path, ppp_over_ethernet: &Path) -> bool {
    let event = std::fs::read_to_string(interfaces.join(interface).join("uevent"));
    if event.is_ok_and(|text| text.lines().any(|line| line == "DEVTYPE=wwan")) {
        return true;
    }
    if interface.starts_with("ppp") {
        // The first line is the header of the table.
        let sessions = std::fs::read_to_string(ppp_over_ethernet).unwrap_or_default();
        return sessions.lines().count() < 2;
    }
    matches!(GuessedRadio::guess(interface), Some(GuessedRadio::Lte | GuessedRadio::Umts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mode: Mode, named: bool) -> Settings {
        Settings { mode, own_policies: false, named }
    }

    #[test]
    fn the_mobile_data_notice_names_path_use_and_limits() {
        let named = line(&settings(Mode::Balanced, true), "wwan0", "wwan0");
        for part in ["path wwan0 looks like mobile data", "quarter", "`,metered`", "`,backup`"] {
            assert!(named.contains(part), "{part} not in {named}");
        }
        assert!(!named.contains('\n'));
        // Naming only this path would remove the others.
        let found = line(&settings(Mode::Redundant, false), "wwan0", "wwan0");
        assert!(found.contains("marline path wwan0 metered"), "{found}");
        assert!(found.contains("mode redundant copies everything"), "{found}");
        let called = line(&settings(Mode::Handover, true), "phone", "usb0");
        assert!(called.starts_with("path phone (usb0)"), "{called}");
    }

    #[test]
    fn the_kernels_device_type_counts_and_else_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let pppoe = dir.path().join("pppoe");
        let mobile = |interface: &str| is_mobile_by_sysfs(interface, dir.path(), &pppoe);
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
