//! From a mode's name to the policies behind it.

use marline::policy::{PathHealthConfig, Role};
use marline::{ConnectionConfig, Duration, Interactive, Linger, interactive};
use marline_algos::Registry;
use serde::{Deserialize, Serialize};

use super::Span;

/// What can be chosen by name: the built-in policies and those of the literature.
#[must_use]
pub fn registry() -> Registry {
    marline_research::registry()
}

/// What the paths are for; the names are Apple's, `redundant` is ours.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One path at a time; the others wait and take over.
    Handover,
    /// WiFi carries; a path flagged `backup` sleeps until no other works (MultiMob).
    Interactive,
    /// All paths stand ready, the quickest carries: low delay.
    #[default]
    Balanced,
    /// All paths carry at once: throughput.
    Aggregate,
    /// Every path carries everything: the lowest delay, for the price of the bytes.
    Redundant,
}

/// Which end of connections a command is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// It opens them.
    Client,
    /// It accepts them.
    Server,
}

impl Mode {
    /// Scheduler and path manager of the mode.
    #[must_use]
    pub const fn policies(self, side: Side) -> (&'static str, &'static str) {
        let [client, server, path_manager] = Interactive::Prompt.specs();
        match (self, side) {
            (Mode::Handover, _) => ("min-rtt", "backup"),
            (Mode::Interactive, Side::Client) => (client, path_manager),
            (Mode::Interactive, Side::Server) => (server, "full-mesh"),
            (Mode::Balanced | Mode::Aggregate, _) => ("min-rtt", "full-mesh"),
            (Mode::Redundant, _) => ("redundant", "full-mesh"),
        }
    }

    /// The path health monitor of the mode.
    #[must_use]
    pub fn path_health(self) -> Option<PathHealthConfig> {
        (self == Mode::Interactive).then(|| Interactive::Prompt.path_health_config())
    }
}

/// A connection that has no path is kept this long: a laptop's lid is closed over lunch.
pub const DEFAULT_LINGER: Span = Span(std::time::Duration::from_secs(3_600));

/// What both ends can choose.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The mode.
    pub mode: Mode,
    // Policies are specs: a name, perhaps with parameters and wrappers (docs/policy-list.md).
    /// Instead of the mode's scheduler.
    pub scheduler: Option<String>,
    /// Instead of the mode's path manager.
    pub path_manager: Option<String>,
    /// Instead of CUBIC.
    pub congestion: Option<String>,
    /// Instead of RACK-TLP.
    pub recovery: Option<String>,
    /// How long a connection without a path is kept.
    pub linger: Option<Span>,
    /// DSS checksums.
    pub dss_checksum: bool,
}

impl Choice {
    /// Specs in force: scheduler, path manager, congestion control, loss recovery.
    #[must_use]
    pub fn names(&self, side: Side) -> [String; 4] {
        let (scheduler, path_manager) = self.mode.policies(side);
        let or = |chosen: &Option<String>, default: &str| {
            chosen.clone().unwrap_or_else(|| default.to_owned())
        };
        [
            or(&self.scheduler, scheduler),
            or(&self.path_manager, path_manager),
            or(&self.congestion, "cubic"),
            or(&self.recovery, "rack-tlp"),
        ]
    }

    /// How connections behave.
    ///
    /// # Errors
    /// A name, key or value that is not known; the error lists those there are.
    pub fn connection(&self, registry: &Registry, side: Side) -> anyhow::Result<ConnectionConfig> {
        let [scheduler, path_manager, congestion, recovery] = self.names(side);
        let policies = registry
            .policy_set(&scheduler, &path_manager, &congestion, &recovery)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        let mut connection = ConnectionConfig::new(policies.clone());
        if self.mode == Mode::Interactive {
            let role = if side == Side::Client { Role::Client } else { Role::Server };
            interactive(&mut connection, role, Interactive::Prompt);
            // What was chosen by name holds.
            connection.policies = policies;
        }
        let linger = self.linger.unwrap_or(DEFAULT_LINGER).0;
        connection.linger = Linger::new(Duration::from_millis(linger.as_millis() as u64));
        connection.dss_checksum = self.dss_checksum;
        if self.mode == Mode::Aggregate {
            // Unequal paths keep data waiting for the slower one's: room for 100 ms at 1 Gbit/s.
            connection.send_buffer = 16 << 20;
            connection.receive_buffer = 16 << 20;
        }
        Ok(connection)
    }
}
