//! Mapping from a mode's name to its policies.

use std::sync::OnceLock;

use anyhow::ensure;
use marline::advanced::{ConnectionConfig, interactive};
use marline::config::{BufferTuning, InteractiveParameters, Linger};
use marline::datagrams::LaneConfig;
use marline::policy::{PathHealthConfig, Role};
use marline::time::Duration;
use marline_algos::Registry;
use serde::{Deserialize, Serialize};

use super::DurationValue;

/// Returns the registry of all policies: those passed to [`crate::main_with`], or else the built-in ones and those of
/// the literature.
#[must_use]
pub fn registry() -> Registry {
    CHOSEN_POLICIES.get().cloned().unwrap_or_else(marline_research::registry)
}

/// Policies with which this program was started.
static CHOSEN_POLICIES: OnceLock<Registry> = OnceLock::new();

/// Sets the policies of this process. A program with its own policies must call this once, before anything else.
///
/// # Errors
/// Policies were already set.
pub fn choose(registry: Registry) -> anyhow::Result<()> {
    ensure!(
        CHOSEN_POLICIES.set(registry).is_ok(),
        "the policies of a process can only be set once, at its start"
    );
    Ok(())
}

/// Mode of path use: one policy, with different budgets for bytes and radios. The names `handover`, `interactive` and
/// `aggregate` are Apple's.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One path at a time; the others are backups.
    Handover,
    /// WiFi carries the data; paths flagged `backup` are opened only when no other works (MultiMob).
    Interactive,
    /// All paths are open; data takes the path on which it arrives first, and copies add up to a quarter: low
    /// delay.
    #[default]
    Balanced,
    /// All paths carry data at once, with few copies and large buffers: high throughput.
    Aggregate,
    /// All data is copied to the other paths when no new data waits, without a limit: lowest delay.
    Redundant,
}

/// Side of a command's connections.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side opens the connections.
    Client,
    /// This side accepts the connections.
    Server,
}

impl Mode {
    /// Returns the name of the mode.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Handover => "handover",
            Mode::Interactive => "interactive",
            Mode::Balanced => "balanced",
            Mode::Aggregate => "aggregate",
            Mode::Redundant => "redundant",
        }
    }

    /// Returns the scheduler and path manager of the mode.
    #[must_use]
    pub const fn policies(self, side: Side) -> (&'static str, &'static str) {
        let [client, server, path_manager] = InteractiveParameters::Prompt.specs();
        match (self, side) {
            (Mode::Handover, _) => ("auto", "backup"),
            (Mode::Interactive, Side::Client) => (client, path_manager),
            (Mode::Interactive, Side::Server) => (server, "full-mesh"),
            (Mode::Balanced, _) => ("auto", "full-mesh"),
            (Mode::Aggregate, _) => ("auto,budget=0", "full-mesh,sleep=off"),
            (Mode::Redundant, _) => ("auto,budget=unlimited", "full-mesh,sleep=off"),
        }
    }

    /// Returns the datagram policy of the mode, with the same budget as for streams.
    #[must_use]
    pub const fn datagram_policy(self) -> &'static str {
        match self {
            Mode::Handover | Mode::Interactive | Mode::Balanced => "auto",
            Mode::Aggregate => "auto,budget=0",
            Mode::Redundant => "auto,budget=unlimited",
        }
    }

    /// Returns the path health monitor of the mode.
    #[must_use]
    pub fn path_health(self) -> Option<PathHealthConfig> {
        (self == Mode::Interactive).then(|| InteractiveParameters::Prompt.path_health_config())
    }
}

/// Default time for which a connection without a path is kept: long enough for a laptop that is closed during lunch.
pub const DEFAULT_LINGER: DurationValue = DurationValue(std::time::Duration::from_secs(3_600));

/// Choices common to both ends.
#[derive(Clone, Debug, Default)]
pub struct PolicyChoice {
    /// Mode, whose policies apply unless overridden below.
    pub mode: Mode,
    // Policies are specs: a name, perhaps with parameters and wrappers (docs/concepts/policy-list.md).
    /// Scheduler, instead of the mode's.
    pub scheduler: Option<String>,
    /// Path manager, instead of the mode's.
    pub path_manager: Option<String>,
    /// Congestion control, instead of `cubic-westwood`.
    pub congestion: Option<String>,
    /// Loss recovery, instead of RACK-TLP.
    pub recovery: Option<String>,
    /// Time for which a connection without a path is kept.
    pub linger: Option<DurationValue>,
    /// True to use DSS checksums.
    pub dss_checksum: bool,
}

impl PolicyChoice {
    /// Returns the effective specs: scheduler, path manager, congestion control, loss recovery.
    #[must_use]
    pub fn names(&self, side: Side) -> [String; 4] {
        let (scheduler, path_manager) = self.mode.policies(side);
        let or = |chosen: &Option<String>, default: &str| {
            chosen.clone().unwrap_or_else(|| default.to_owned())
        };
        [
            or(&self.scheduler, scheduler),
            or(&self.path_manager, path_manager),
            or(&self.congestion, "cubic-westwood"),
            or(&self.recovery, "rack-tlp"),
        ]
    }

    /// Returns the configuration of lanes for datagrams, with this policy instead of the mode's.
    ///
    /// # Errors
    /// Same as [`connection`](Self::connection).
    pub fn lane(&self, registry: &Registry, policy: Option<&str>) -> anyhow::Result<LaneConfig> {
        // Both sides send, and none of these settings depends on the side.
        let [_, _, congestion, _] = self.names(Side::Client);
        let wrong = |error: marline::algos::PolicyError| anyhow::anyhow!("{error}");
        let policy = policy.unwrap_or(self.mode.datagram_policy());
        let policy = registry.datagram_policy(policy).map_err(wrong)?;
        Ok(LaneConfig::new(policy, registry.congestion(&congestion).map_err(wrong)?))
    }

    /// Returns the configuration of connections.
    ///
    /// # Errors
    /// An unknown name, key or value; the error lists the known ones.
    pub fn connection(&self, registry: &Registry, side: Side) -> anyhow::Result<ConnectionConfig> {
        let [scheduler, path_manager, congestion, recovery] = self.names(side);
        let policies = registry
            .policy_set(&scheduler, &path_manager, &congestion, &recovery)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        let mut connection = ConnectionConfig::new(policies.clone());
        if self.mode == Mode::Interactive {
            let role = if side == Side::Client { Role::Client } else { Role::Server };
            interactive(&mut connection, role, InteractiveParameters::Prompt);
            // Policies chosen by name take precedence.
            connection.policies = policies;
        }
        let linger = self.linger.unwrap_or(DEFAULT_LINGER).0;
        connection.linger = Linger::new(Duration::from_millis(linger.as_millis() as u64));
        connection.dss_checksum = self.dss_checksum;
        if self.mode == Mode::Aggregate {
            // On unequal paths, data waits for earlier data on the slower path: the buffers hold 100 ms at 1 Gbit/s. By
            // windows alone, a path that is unused because it is slow would never get room.
            connection.buffer_tuning = BufferTuning::Rates;
            connection.send_buffer = 16 << 20;
            connection.receive_buffer = 16 << 20;
        }
        Ok(connection)
    }
}
