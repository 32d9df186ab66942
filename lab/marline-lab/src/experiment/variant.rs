//! Variants of a contestant: policies, paths and buffers.

use marline::advanced::ConnectionConfig;
use marline::policy::{PolicySet, Role};
use marline::{BufferTuning, Extensions, Interactive, default_policies};
use serde::{Deserialize, Serialize};

use crate::policies;

/// A way to use the paths. Policies are specs (docs/research/policies.md); unset values are what is shipped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// What tables call it.
    pub name: String,
    /// The paths it uses, by name and in order; empty: all.
    pub paths: Vec<String>,
    /// Paths that carry data only if no other can.
    pub backup: Vec<String>,
    /// Plain TCP on the first of its paths.
    pub plain: bool,
    /// A mode for both ends: `interactive` (MultiMob as in `marline client --mode interactive`) or
    /// `multimob` (with the parameters of its authors).
    #[serde(default)]
    pub mode: Option<String>,
    /// The scheduler.
    pub scheduler: Option<String>,
    /// The path manager.
    pub path_manager: Option<String>,
    /// The congestion control; on the kernel's stacks the kernel's of this name.
    pub congestion: Option<String>,
    /// The loss recovery.
    pub recovery: Option<String>,
    /// Largest send buffer, bytes of payload; on the kernel's stacks SO_SNDBUF, which it doubles for
    /// its own needs.
    pub send_buffer: Option<u64>,
    /// Largest receive buffer, likewise.
    pub receive_buffer: Option<u64>,
    /// How large they are below that.
    #[serde(default, with = "BufferTuningText")]
    pub buffer_tuning: BufferTuning,
    /// Nothing is paced: the stacks of older studies did not.
    #[serde(default)]
    pub unpaced: bool,
    /// The client detects a dead download path by its silence: a
    /// [`ReceiveTimer`](marline::ReceiveTimer) as text. The server helps if it can.
    #[serde(default)]
    pub receive_timer: Option<String>,
    /// The client watches an idle connection's only subflow: a
    /// [`LoneKeepalive`](marline::LoneKeepalive) as text.
    #[serde(default)]
    pub lone_keepalive: Option<String>,
    /// Repair by coding is asked for: what the scheduler `coded` needs.
    #[serde(default)]
    pub repair: bool,
    /// Forecasts of answers are judged, in virtual time: [`PathTotals::calibration`](super::PathTotals::calibration).
    #[serde(default)]
    pub score_forecasts: bool,
}

/// How [`BufferTuning`] is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "BufferTuning", rename_all = "kebab-case")]
enum BufferTuningText {
    Fixed,
    Windows,
    Rates,
}

impl Variant {
    /// Marline as it is shipped.
    #[must_use]
    pub fn new(name: &str) -> Variant {
        Variant { name: name.to_owned(), ..Variant::default() }
    }

    /// Plain TCP on one path.
    #[must_use]
    pub fn alone(name: &str, path: &str) -> Variant {
        Variant { paths: vec![path.to_owned()], plain: true, ..Variant::new(name) }
    }

    /// With this scheduler.
    #[must_use]
    pub fn scheduler(self, spec: &str) -> Variant {
        Variant { scheduler: Some(spec.to_owned()), ..self }
    }

    /// With this congestion control.
    #[must_use]
    pub fn congestion(self, spec: &str) -> Variant {
        Variant { congestion: Some(spec.to_owned()), ..self }
    }

    /// With this loss recovery.
    #[must_use]
    pub fn recovery(self, spec: &str) -> Variant {
        Variant { recovery: Some(spec.to_owned()), ..self }
    }

    /// With buffers of at most this many bytes of payload.
    #[must_use]
    pub fn buffers(self, send: Option<u64>, receive: Option<u64>) -> Variant {
        Variant { send_buffer: send, receive_buffer: receive, ..self }
    }

    /// With buffers of exactly this many bytes of payload, as set by an application.
    #[must_use]
    pub fn fixed_buffers(self, send: u64, receive: u64) -> Variant {
        let fixed = self.buffers(Some(send), Some(receive));
        Variant { buffer_tuning: BufferTuning::Fixed, ..fixed }
    }

    /// With its forecasts of answers judged.
    #[must_use]
    pub fn scoring_forecasts(self) -> Variant {
        Variant { score_forecasts: true, ..self }
    }

    /// The policies, by the names the registry knows.
    ///
    /// # Errors
    /// A name is not known.
    pub fn policies(&self) -> anyhow::Result<PolicySet> {
        let (registry, mut set) = (policies::registry(), default_policies());
        if let Some(spec) = &self.scheduler {
            set.scheduler = registry.scheduler(spec)?;
        }
        if let Some(spec) = &self.path_manager {
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

    /// With this mode.
    #[must_use]
    pub fn mode(self, name: &str) -> Variant {
        Variant { mode: Some(name.to_owned()), ..self }
    }

    /// The MultiMob variant of the mode, if any.
    ///
    /// # Errors
    /// There is no such mode.
    pub fn interactive(&self) -> anyhow::Result<Option<Interactive>> {
        Ok(match self.mode.as_deref() {
            None => None,
            Some("interactive") => Some(Interactive::Prompt),
            Some("multimob") => Some(Interactive::Multimob),
            Some(other) => {
                anyhow::bail!("unknown mode `{other}`; there are interactive and multimob")
            }
        })
    }

    /// The connections of one end.
    ///
    /// # Errors
    /// As [`Variant::connection`], or there is no such mode.
    pub fn end(&self, role: Role) -> anyhow::Result<ConnectionConfig> {
        let mut config = self.connection()?;
        if let Some(parameters) = self.interactive()? {
            marline::advanced::interactive(&mut config, role, parameters);
        }
        Ok(config)
    }

    /// The connections of both ends, but for what a mode makes of each.
    ///
    /// # Errors
    /// A policy's name is not known, or a receive timer or keepalive cannot be read.
    pub fn connection(&self) -> anyhow::Result<ConnectionConfig> {
        let mut config = ConnectionConfig::new(self.policies()?);
        config.mptcp = !self.plain;
        config.send_buffer = self.send_buffer.unwrap_or(config.send_buffer);
        config.receive_buffer = self.receive_buffer.unwrap_or(config.receive_buffer);
        config.buffer_tuning = self.buffer_tuning;
        config.pacing &= !self.unpaced;
        config.score_forecasts = self.score_forecasts;
        if let Some(spec) = &self.receive_timer {
            config.receive_timer = Some(spec.parse()?);
            let help = Extensions::IDLE.with(Extensions::RTO);
            config.extensions = config.extensions.with(help);
        }
        config.lone_keepalive = self.lone_keepalive.as_deref().map(str::parse).transpose()?;
        if self.repair {
            config.extensions = config.extensions.with(Extensions::REPAIR);
        }
        Ok(config)
    }
}
