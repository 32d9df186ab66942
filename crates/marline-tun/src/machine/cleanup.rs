//! Removal of what a `marline up` has changed, by itself, by another process or by a later one.

use anyhow::Context;

use super::netlink::{Part, Routing};
use super::{resolver_file, reverse_path};

/// How much of what an earlier `marline up` has left is undone.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it: a person has asked for that.
    Everything,
    /// All but a kill switch and what goes with it: the one that had it was killed.
    AllButSwitch,
}

/// What was undone.
#[derive(Copy, Clone, Debug)]
pub struct CleanedUp {
    /// Rules and routes that were removed.
    pub removed: usize,
    /// There was a kill switch.
    pub had_switch: bool,
    /// It still holds.
    pub held: bool,
}

/// Removes the rules and routes of ours that are there, and restores what else was changed. Needs a tokio runtime.
///
/// # Errors
/// The system's.
pub async fn clean_up(extent: Extent) -> anyhow::Result<CleanedUp> {
    let routing = Routing::open()?;
    let had_switch = routing.has(Part::Switch).await?;
    let held = had_switch && extent == Extent::AllButSwitch;
    if !held {
        reverse_path::restore();
        // Before the rules, as it can be asked again if it fails, and without it no name resolves.
        resolver_file::restore().context("/etc/resolv.conf still names the tunnel's resolver")?;
    }
    let mut removed = routing.clear(Part::Lead).await?;
    if !held {
        removed += routing.clear(Part::Switch).await?;
    }
    Ok(CleanedUp { removed, had_switch, held })
}
