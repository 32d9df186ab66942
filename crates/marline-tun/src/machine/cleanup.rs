//! Removal of the changes made by `marline up`: by the process itself, by its helper, or by a later one.

use anyhow::Context;

use super::netlink::{Routing, RuleSet};
use super::{resolver_file, reverse_path};

/// Extent of a cleanup after an earlier `marline up`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CleanupExtent {
    /// Everything, at the user's request.
    Everything,
    /// Everything but a kill switch and its dependencies, after a process with a kill switch was killed.
    AllButSwitch,
}

/// Result of a cleanup.
#[derive(Copy, Clone, Debug)]
pub struct CleanupResult {
    /// Number of removed rules and routes.
    pub removed: usize,
    /// True if there was a kill switch.
    pub removed_kill_switch: bool,
    /// True if the kill switch is still active.
    pub held: bool,
}

/// Removes our existing rules and routes and restores the other changes. Needs a tokio runtime.
///
/// # Errors
/// A system call fails.
pub async fn clean_up(extent: CleanupExtent) -> anyhow::Result<CleanupResult> {
    let routing = Routing::open()?;
    let had_switch = routing.has(RuleSet::KillSwitch).await?;
    let held = had_switch && extent == CleanupExtent::AllButSwitch;
    if !held {
        reverse_path::restore();
        // This precedes the removal of rules, because it can be retried after a failure, and names do not resolve
        // without it.
        resolver_file::restore().context("/etc/resolv.conf still names the tunnel's resolver")?;
    }
    let mut removed = routing.clear(RuleSet::Routing).await?;
    if !held {
        removed += routing.clear(RuleSet::KillSwitch).await?;
    }
    Ok(CleanupResult { removed, removed_kill_switch: had_switch, held })
}
