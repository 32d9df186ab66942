//! Serde schema of an experiment file.

use std::fmt;

use marline::config::BufferTuning;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::values::{Bytes, Span, Time};
use crate::experiment::Stack;
use crate::scenario::{Event, Host, Path};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    pub(super) title: Option<String>,
    pub(super) seed: Option<u64>,
    pub(super) warm_up: Option<Time>,
    pub(super) patience: Option<Time>,
    pub(super) timelines: Option<Time>,
    #[serde(default)]
    pub(super) qlog: bool,
    #[serde(default, rename = "path")]
    pub(super) paths: Vec<Path>,
    #[serde(default)]
    pub(super) client: Host,
    #[serde(default)]
    pub(super) server: Host,
    #[serde(default, rename = "event")]
    pub(super) events: Vec<Event>,
    #[serde(default, rename = "fault")]
    pub(super) faults: Vec<RawFault>,
    #[serde(default, rename = "background")]
    pub(super) background: Vec<RawBackground>,
    #[serde(rename = "workload")]
    pub(super) workloads: RawWorkloads,
    #[serde(default, rename = "variant")]
    pub(super) variants: Vec<RawVariant>,
    #[serde(default, rename = "stop")]
    pub(super) stops: Vec<RawStop>,
    #[serde(default, rename = "check")]
    pub(super) checks: Vec<RawCheck>,
    /// Sweep, which is parsed separately.
    #[serde(default, rename = "sweep")]
    pub(super) _sweep: toml::Table,
}

/// Table `workload`, or several in a list.
#[derive(Debug)]
pub(super) struct RawWorkloads {
    pub(super) all: Vec<RawWorkload>,
    pub(super) is_list: bool,
}

impl<'de> Deserialize<'de> for RawWorkloads {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Not an untagged enum, whose errors have no position.
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawWorkloads;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("[workload] or [[workload]]")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawWorkloads, A::Error> {
                let one = Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                Ok(RawWorkloads { all: vec![one], is_list: false })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<RawWorkloads, A::Error> {
                let all = Deserialize::deserialize(SeqAccessDeserializer::new(list))?;
                Ok(RawWorkloads { all, is_list: true })
            }
        }
        from.deserialize_any(Either)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWorkload {
    pub(super) kind: String,
    pub(super) name: Option<String>,
    pub(super) connection: Option<String>,
    pub(super) from: Option<Time>,
    pub(super) deadline: Option<Time>,
    pub(super) rate: Option<String>,
    pub(super) bytes: Option<Span<Bytes>>,
    pub(super) request: Option<Bytes>,
    pub(super) answer: Option<Bytes>,
    pub(super) pieces: Option<Span<Bytes>>,
    pub(super) unanswered: Option<Bytes>,
    pub(super) gap: Option<Span<Time>>,
    pub(super) count: Option<u32>,
    pub(super) lasts: Option<Time>,
}

impl RawWorkload {
    /// Names of the given keys, except the common ones.
    pub(super) fn given_keys(&self) -> Vec<&'static str> {
        let all = [
            ("bytes", self.bytes.is_some()),
            ("request", self.request.is_some()),
            ("answer", self.answer.is_some()),
            ("pieces", self.pieces.is_some()),
            ("unanswered", self.unanswered.is_some()),
            ("gap", self.gap.is_some()),
            ("count", self.count.is_some()),
            ("lasts", self.lasts.is_some()),
            ("rate", self.rate.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawBackground {
    pub(super) path: String,
    pub(super) congestion: Option<String>,
    #[serde(default)]
    pub(super) direction: Direction,
    pub(super) from: Option<Time>,
    pub(super) until: Option<Time>,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Direction {
    Up,
    #[default]
    Down,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStop {
    pub(super) end: RawEnd,
    pub(super) at: Time,
    pub(super) lasts: Time,
}

#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawEnd {
    Client,
    Server,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCheck {
    pub(super) asks: Option<String>,
    pub(super) measure: String,
    pub(super) below: Option<Time>,
    pub(super) variant: Option<String>,
    pub(super) workload: Option<String>,
    pub(super) from: Option<String>,
    pub(super) until: Option<String>,
    pub(super) at_most: Option<f64>,
    pub(super) at_least: Option<f64>,
    pub(super) of: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFault {
    pub(super) path: String,
    #[serde(default = "down")]
    pub(super) command: String,
    /// Burst during which the fault occurs.
    pub(super) burst: Option<usize>,
    /// Range of the time from the burst's start to the fault.
    pub(super) after: Option<Span<Time>>,
    /// Burst whose interval, up to the next burst's start, contains the fault.
    pub(super) around_burst: Option<usize>,
    /// Range of the fault's time after the start.
    pub(super) between: Option<Span<Time>>,
    pub(super) lasts: Option<Time>,
}

fn down() -> String {
    "down".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawVariant {
    pub(super) name: String,
    #[serde(default)]
    pub(super) paths: Vec<String>,
    #[serde(default)]
    pub(super) backup: Vec<String>,
    #[serde(default)]
    pub(super) plain: bool,
    pub(super) scheduler: Option<String>,
    pub(super) path_manager: Option<String>,
    pub(super) congestion: Option<String>,
    pub(super) recovery: Option<String>,
    pub(super) send_buffer: Option<Bytes>,
    pub(super) receive_buffer: Option<Bytes>,
    pub(super) buffer_tuning: Option<RawTuning>,
    #[serde(default)]
    pub(super) unpaced: bool,
    pub(super) mode: Option<String>,
    pub(super) datagram_policy: Option<String>,
    pub(super) radio_rtt: Option<Time>,
    pub(super) receive_timer: Option<String>,
    pub(super) lone_keepalive: Option<String>,
    #[serde(default)]
    pub(super) repair: bool,
    #[serde(default)]
    pub(super) score_forecasts: bool,
    pub(super) stacks: Option<Vec<Stack>>,
}

/// Names of [`BufferTuning`] variants.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawTuning {
    Fixed,
    Windows,
    WindowsThenRates,
    Rates,
}

impl From<RawTuning> for BufferTuning {
    fn from(raw: RawTuning) -> Self {
        match raw {
            RawTuning::Fixed => BufferTuning::Fixed,
            RawTuning::Windows => BufferTuning::Windows,
            RawTuning::WindowsThenRates => BufferTuning::WindowsThenRates,
            RawTuning::Rates => BufferTuning::Rates,
        }
    }
}
