//! Variant: policies, paths and buffers.

use std::time::Duration;

use marline::advanced::ConnectionConfig;
use marline::algos::default_policies;
use marline::config::{BufferTuning, InteractiveParameters};
use marline::datagrams::LaneConfig;
use marline::monitor::Extensions;
use marline::paths::{PathSpec, RadioKind};
use marline::policy::{PathCost, PolicySet, Role, RttConfig};
use marline_sim::Paths;
use serde::{Deserialize, Serialize};

use crate::policies;

/// Maximum buffer size in mode `aggregate` in bytes, as in the program.
const AGGREGATE_BUFFER: u64 = 16 << 20;

/// A configuration of Marline. Policies are specs (docs/research/policies.md); unset values are the defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Name in tables.
    pub name: String,
    /// Paths to use in order, each a name with optional flags as in `marline client --path` (`lte,metered,radio=lte`).
    /// If empty, all paths.
    pub paths: Vec<String>,
    /// Paths that carry data only if no other path can do so.
    pub backup: Vec<String>,
    /// Plain TCP on the first used path.
    pub plain: bool,
    /// Mode of both ends as in `marline client --mode`, or `multimob` (`interactive` with its authors' parameters).
    #[serde(default)]
    pub mode: Option<String>,
    /// Policy that chooses paths for datagrams.
    #[serde(default)]
    pub datagram_policy: Option<String>,
    /// Minimum retransmission timeout of paths with a declared cellular radio.
    #[serde(default)]
    pub radio_rtt: Option<Duration>,
    /// Scheduler.
    pub scheduler: Option<String>,
    /// Path manager.
    pub path_manager: Option<String>,
    /// Congestion control. On the kernel's stacks, the name of the kernel's module.
    pub congestion: Option<String>,
    /// Loss recovery.
    pub recovery: Option<String>,
    /// Maximum send buffer in bytes of payload. On the kernel's stacks SO_SNDBUF, which the kernel doubles for its
    /// overhead.
    pub send_buffer: Option<u64>,
    /// Maximum receive buffer in bytes of payload. On the kernel's stacks SO_RCVBUF, which the kernel also doubles.
    pub receive_buffer: Option<u64>,
    /// Buffer tuning within these limits.
    #[serde(default, with = "BufferTuningText")]
    pub buffer_tuning: BufferTuning,
    /// Disables pacing, as in the stacks of older studies.
    #[serde(default)]
    pub unpaced: bool,
    /// The client's detection of a dead download path from its silence: a
    /// [`ReceiveTimer`](marline::config::ReceiveTimer) as text. The server supports it if it can.
    #[serde(default)]
    pub receive_timer: Option<String>,
    /// The client's keepalive on an idle connection's only subflow: a
    /// [`LoneKeepalive`](marline::config::LoneKeepalive) as text.
    #[serde(default)]
    pub lone_keepalive: Option<String>,
    /// Enables repair by coding, which the scheduler `coded` needs.
    #[serde(default)]
    pub repair: bool,
    /// Enables forecast scores in virtual time: [`PathTotals::calibration`](super::PathTotals::calibration).
    #[serde(default)]
    pub score_forecasts: bool,
}

/// Name of a path in a list of paths with flags.
pub(super) fn path_name(text: &str) -> &str {
    text.split(',').next().unwrap_or_default()
}

/// Text form of [`BufferTuning`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "BufferTuning", rename_all = "kebab-case")]
enum BufferTuningText {
    Fixed,
    Windows,
    WindowsThenRates,
    Rates,
}

impl Variant {
    /// Marline's defaults.
    #[must_use]
    pub fn new(name: &str) -> Variant {
        Variant { name: name.to_owned(), ..Variant::default() }
    }

    /// Plain TCP on one path.
    #[must_use]
    pub fn single_path(name: &str, path: &str) -> Variant {
        Variant { paths: vec![path.to_owned()], plain: true, ..Variant::new(name) }
    }

    /// Sets the scheduler.
    #[must_use]
    pub fn scheduler(self, spec: &str) -> Variant {
        Variant { scheduler: Some(spec.to_owned()), ..self }
    }

    /// Sets the congestion control.
    #[must_use]
    pub fn congestion(self, spec: &str) -> Variant {
        Variant { congestion: Some(spec.to_owned()), ..self }
    }

    /// Sets the loss recovery.
    #[must_use]
    pub fn recovery(self, spec: &str) -> Variant {
        Variant { recovery: Some(spec.to_owned()), ..self }
    }

    /// Limits the buffers to this many bytes of payload.
    #[must_use]
    pub fn buffers(self, send: Option<u64>, receive: Option<u64>) -> Variant {
        Variant { send_buffer: send, receive_buffer: receive, ..self }
    }

    /// Fixes the buffers at this many bytes of payload, as an application can.
    #[must_use]
    pub fn fixed_buffers(self, send: u64, receive: u64) -> Variant {
        let fixed = self.buffers(Some(send), Some(receive));
        Variant { buffer_tuning: BufferTuning::Fixed, ..fixed }
    }

    /// Enables forecast scores.
    #[must_use]
    pub fn with_forecast_scores(self) -> Variant {
        Variant { score_forecasts: true, ..self }
    }

    /// Builds the policies from the registry.
    ///
    /// # Errors
    /// A name is unknown.
    pub fn policies(&self) -> anyhow::Result<PolicySet> {
        let (registry, mut set) = (policies::registry(), default_policies());
        let [scheduler, path_manager, _] = self.mode_specs()?;
        if self.mode.is_some() || self.scheduler.is_some() {
            set.scheduler = registry.scheduler(self.scheduler.as_deref().unwrap_or(scheduler))?;
        }
        if self.mode.is_some() || self.path_manager.is_some() {
            let spec = self.path_manager.as_deref().unwrap_or(path_manager);
            set.path_manager = registry.path_manager(spec)?;
        }
        if let Some(spec) = &self.congestion {
            set.congestion = registry.congestion(spec)?;
        }
        if let Some(spec) = &self.recovery {
            set.recovery = registry.recovery(spec)?;
        }
        Ok(set)
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(self, name: &str) -> Variant {
        Variant { mode: Some(name.to_owned()), ..self }
    }

    /// The MultiMob variant of the mode, if any.
    ///
    /// # Errors
    /// The mode is unknown.
    pub fn interactive(&self) -> anyhow::Result<Option<InteractiveParameters>> {
        Ok(match self.mode.as_deref() {
            Some("interactive") => Some(InteractiveParameters::Prompt),
            Some("multimob") => Some(InteractiveParameters::Multimob),
            _ => self.mode_specs().map(|_| None)?,
        })
    }

    /// Gives each simulated host the path health monitor of the mode, if it has one. The connections of a host
    /// share it.
    ///
    /// # Errors
    /// The mode is unknown.
    pub fn share_path_health(&self, paths: &mut Paths) -> anyhow::Result<()> {
        if let Some(parameters) = self.interactive()? {
            for host in [paths.client, paths.server] {
                let endpoint = paths.world.node_mut(host).endpoint_mut();
                endpoint.set_path_health_monitor(parameters.path_health_monitor());
            }
        }
        Ok(())
    }

    /// Scheduler, path manager and datagram policy of a mode, except MultiMob's modes.
    fn mode_specs(&self) -> anyhow::Result<[&'static str; 3]> {
        Ok(match self.mode.as_deref() {
            Some("handover") => ["auto", "backup", "auto"],
            None | Some("balanced" | "interactive" | "multimob") => ["auto", "full-mesh", "auto"],
            Some("aggregate") => ["auto,budget=0", "full-mesh,sleep=off", "auto,budget=0"],
            Some("redundant") => {
                ["auto,budget=unlimited", "full-mesh,sleep=off", "auto,budget=unlimited"]
            }
            Some(other) => anyhow::bail!(
                "unknown mode `{other}`; known: handover, interactive, balanced, aggregate, \
                    redundant, multimob"
            ),
        })
    }

    /// A path with its flags: those of [`paths`](Self::paths), and [`backup`](Self::backup).
    ///
    /// # Errors
    /// The flags cannot be parsed.
    pub fn path_spec(&self, name: &str) -> anyhow::Result<PathSpec> {
        let named = |text: &&String| path_name(text) == name;
        let text = self.paths.iter().find(named).map_or(name, String::as_str);
        let mut spec: PathSpec = text.parse()?;
        spec.backup |= self.backup.iter().any(|backup| backup == name);
        Ok(spec)
    }

    /// Costs of a path as configured in Marline.
    ///
    /// # Errors
    /// The same as [`path_spec`](Self::path_spec).
    pub fn path_cost(&self, name: &str) -> anyhow::Result<PathCost> {
        let spec = self.path_spec(name)?;
        let tail_ms = spec.radio.map_or(0, RadioKind::tail_ms);
        let limited = spec.limited == Some(true);
        Ok(PathCost { metered: spec.metered, limited, tail_ms, ..PathCost::NONE })
    }

    /// Configuration of both ends' datagram lanes.
    ///
    /// # Errors
    /// A policy's name or the mode is unknown.
    pub fn lane(&self) -> anyhow::Result<LaneConfig> {
        let registry = policies::registry();
        let [_, _, usual] = self.mode_specs()?;
        let policy = registry.datagram_policy(self.datagram_policy.as_deref().unwrap_or(usual))?;
        let congestion = self.congestion.as_deref().unwrap_or("cubic-westwood");
        Ok(LaneConfig::new(policy, registry.congestion(congestion)?))
    }

    /// Configuration of the connections of one end.
    ///
    /// # Errors
    /// The same as [`Variant::connection`], or the mode is unknown.
    pub fn end(&self, role: Role) -> anyhow::Result<ConnectionConfig> {
        let mut config = self.connection()?;
        if let Some(parameters) = self.interactive()? {
            marline::advanced::interactive(&mut config, role, parameters);
        }
        Ok(config)
    }

    /// Configuration of the connections of both ends, without the mode's changes.
    ///
    /// # Errors
    /// A policy's name is unknown, or a receive timer or keepalive cannot be parsed.
    pub fn connection(&self) -> anyhow::Result<ConnectionConfig> {
        let mut config = ConnectionConfig::new(self.policies()?);
        config.mptcp = !self.plain;
        config.buffer_tuning = self.buffer_tuning;
        if self.mode.as_deref() == Some("aggregate") {
            if self.buffer_tuning == BufferTuning::default() {
                config.buffer_tuning = BufferTuning::Rates;
            }
            config.send_buffer = AGGREGATE_BUFFER;
            config.receive_buffer = AGGREGATE_BUFFER;
        }
        config.radio_rtt =
            self.radio_rtt.map(|min_rto| RttConfig { min_rto, ..RttConfig::default() });
        config.send_buffer = self.send_buffer.unwrap_or(config.send_buffer);
        config.receive_buffer = self.receive_buffer.unwrap_or(config.receive_buffer);
        config.pacing &= !self.unpaced;
        config.score_forecasts = self.score_forecasts;
        if let Some(spec) = &self.receive_timer {
            config.receive_timer = Some(spec.parse()?);
            let help = Extensions::IDLE.union(Extensions::RTO);
            config.extensions = config.extensions.union(help);
        }
        config.lone_keepalive = self.lone_keepalive.as_deref().map(str::parse).transpose()?;
        if self.repair {
            config.extensions = config.extensions.union(Extensions::REPAIR);
        }
        Ok(config)
    }
}
