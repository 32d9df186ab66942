//! Mobile data: a notice about paths that look like mobile data, with the amount that may be sent there in the
//! current mode, and NetworkManager's information about metered interfaces.
//!
//! The library treats interfaces of cellular modems as limited. A phone that shares its network over USB or WiFi looks
//! like any other interface, but announces itself in DHCP, which NetworkManager evaluates. The command `nmcli` is run
//! when paths or their addresses have changed.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline::Client;
use marline::paths::PathStatus;
use tokio::process::Command;

use crate::config::client::ClientPlan;
use crate::config::policies::Mode;
use crate::path_quotas::PathQuotas;

/// Path of NetworkManager's command-line tool.
const NMCLI: &str = "/usr/bin/nmcli";
/// Time limit for the command.
const NMCLI_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest output that is read, in bytes.
const MAX_OUTPUT: usize = 64 << 10;
/// Interval between checks for new paths.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of interfaces remembered as logged.
const MAX_REMEMBERED: usize = 64;

/// Logs each interface that looks like mobile data once. Clones share their state.
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
    has_custom_policies: bool,
    /// True if the paths are configured by name.
    named: bool,
}

impl Settings {
    fn from_plan(plan: &ClientPlan) -> Settings {
        Settings {
            mode: plan.runtime.mode,
            has_custom_policies: plan.has_custom_policies,
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
            if let Some(line) = state.notice_for(path, has_quota) {
                tracing::warn!("{line}");
            }
        }
    }

    /// Checks the paths repeatedly until dropped.
    pub(crate) async fn watch_paths(&self, client: &Client, quotas: &PathQuotas) {
        let mut known = None;
        loop {
            let paths = client.paths();
            let addresses: Vec<_> =
                paths.iter().map(|path| (path.interface.clone(), path.addresses.clone())).collect();
            if known.as_ref() != Some(&addresses) {
                report_metered(client, &paths, &metered_interfaces(NMCLI).await);
                known = Some(addresses);
            }
            self.check_paths(client, quotas);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

impl State {
    /// Returns the line for this path, if it needs one and has not been logged.
    fn notice_for(&mut self, path: &PathStatus, has_quota: bool) -> Option<String> {
        let interface = path.interface.as_deref().filter(|_| path.up)?;
        let decided = path.backup || path.metered || path.spec.limited.is_some() || has_quota;
        if !path.limited || decided || self.logged.contains(interface) {
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
        true => {
            "add `,metered` or `,backup` to its --path to limit this, or `,unmetered`".to_owned()
        }
        false => format!(
            "to limit this, name the paths and add `,metered` or `,backup` to this one, or run \
             `marline path {path} metered` (or `unmetered`)"
        ),
    };
    format!("{shown} looks like mobile data: {spends}; {remedy}")
}

/// Returns the amount that the mode may send over a path without a limit (docs/research/auto.md).
fn spending_text(settings: &Settings) -> String {
    if settings.has_custom_policies {
        return "the chosen policies may send any share of the data over it".to_owned();
    }
    let does = match settings.mode {
        Mode::Balanced => {
            "sends data over it whenever that is faster, and copies of up to a quarter of the new data or \
             16 kB/s"
        }
        Mode::Redundant => "copies everything to it when no new data is waiting",
        Mode::Aggregate => "sends data over all paths at once",
        Mode::Handover => "sends all data over it whenever it is the path in use",
        Mode::Interactive => "may send all data over it at any time",
    };
    format!("mode {} {does}", settings.mode.name())
}

/// Marks the client's paths that NetworkManager considers metered.
fn report_metered(client: &Client, paths: &[PathStatus], metered: &BTreeSet<String>) {
    for (number, path) in paths.iter().enumerate() {
        let limited = path.interface.as_ref().is_some_and(|name| metered.contains(name));
        if let Err(error) = client.report_limited(&number.to_string(), limited) {
            tracing::debug!("{error}");
        }
    }
}

/// Returns the names of the interfaces that NetworkManager considers metered. Empty if NetworkManager does not run.
async fn metered_interfaces(nmcli: &str) -> BTreeSet<String> {
    let mut command = Command::new(nmcli);
    command.args(["-t", "-e", "no", "-f", "GENERAL.DEVICE,GENERAL.METERED", "device", "show"]);
    command.env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(NMCLI_TIMEOUT, command.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            let read = &output.stdout[..output.stdout.len().min(MAX_OUTPUT)];
            parse_metered(&String::from_utf8_lossy(read))
        }
        // Usually NetworkManager is not installed.
        Ok(ended) => {
            let why = ended.map_or_else(|error| error.to_string(), |of| of.status.to_string());
            tracing::debug!("{nmcli}: {why}; metered interfaces are not known");
            BTreeSet::new()
        }
        Err(_) => {
            tracing::warn!(
                "{nmcli}: no answer within {NMCLI_TIMEOUT:?}; metered interfaces are not known"
            );
            BTreeSet::new()
        }
    }
}

/// Reads `nmcli`'s terse output: a line with the device, then one with `yes`, `yes (guessed)`, `no` or `unknown`.
fn parse_metered(output: &str) -> BTreeSet<String> {
    let (mut metered, mut device) = (BTreeSet::new(), "");
    for line in output.lines() {
        match line.split_once(':') {
            Some(("GENERAL.DEVICE", name)) => device = name,
            Some(("GENERAL.METERED", state)) if state.starts_with("yes") && !device.is_empty() => {
                metered.insert(device.to_owned());
            }
            _ => {}
        }
    }
    metered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mode: Mode, named: bool) -> Settings {
        Settings { mode, has_custom_policies: false, named }
    }

    #[test]
    fn the_mobile_data_notice_names_path_use_and_limits() {
        let named = line(&settings(Mode::Balanced, true), "wwan0", "wwan0");
        for part in ["path wwan0 looks like mobile data", "quarter", "`,metered`", "`,backup`"] {
            assert!(named.contains(part), "{part} not in {named}");
        }
        assert!(!named.contains('\n'));
        // Adding only this path with --path would remove the others.
        let found = line(&settings(Mode::Redundant, false), "wwan0", "wwan0");
        assert!(found.contains("marline path wwan0 metered"), "{found}");
        assert!(found.contains("mode redundant copies everything"), "{found}");
        let called = line(&settings(Mode::Handover, true), "phone", "usb0");
        assert!(called.starts_with("path phone (usb0)"), "{called}");
    }

    #[test]
    fn metered_interfaces_are_those_that_network_manager_reports_or_guesses() {
        let output = "GENERAL.DEVICE:wlan0\nGENERAL.METERED:yes (guessed)\n\nGENERAL.DEVICE:eth0\n\
                      GENERAL.METERED:no (guessed)\n\nGENERAL.DEVICE:usb0\nGENERAL.METERED:yes\n\n\
                      GENERAL.DEVICE:lo\nGENERAL.METERED:unknown\n";
        let found: Vec<String> = parse_metered(output).into_iter().collect();
        assert_eq!(found, ["usb0", "wlan0"]);
        assert!(parse_metered("GENERAL.METERED:yes\nError: no\n:::\n").is_empty());
    }

    #[tokio::test]
    async fn a_command_that_is_absent_or_fails_reports_nothing() {
        for nmcli in ["/nonexistent/nmcli", "/bin/false"] {
            assert!(metered_interfaces(nmcli).await.is_empty());
        }
    }
}
