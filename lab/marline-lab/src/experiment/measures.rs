//! Measures of videos, pages and deadlines, in addition to latencies and goodput.

use serde::{Deserialize, Serialize};

use super::{Load, Message};
use crate::workload::Workload;

/// Measures by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measures(Vec<(String, f64)>);

impl<const N: usize> From<[(&'static str, f64); N]> for Measures {
    fn from(named: [(&'static str, f64); N]) -> Measures {
        Measures(named.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

impl Measures {
    /// Names and units of a workload's measures.
    #[must_use]
    pub fn names(load: &Load) -> Vec<(&'static str, &'static str)> {
        let own: &[(&str, &str)] = match load.workload {
            Workload::Film(_) => &[
                ("startup_ms", "ms"),
                ("stalls", ""),
                ("stalled_ms", "ms"),
                ("film_kbit_per_s", "kbit/s"),
            ],
            Workload::Web { .. } => &[("first_ms", "ms")],
            _ => &[],
        };
        own.iter().copied().chain(load.deadline.map(|_| ("late_percent", "%"))).collect()
    }

    /// Value of a measure. `None` if it does not exist.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Adds the percentage of messages that missed the workload's deadline or did not arrive.
    #[must_use]
    pub(crate) fn add_late_share(
        mut self,
        load: &Load,
        counted: &[Message],
        missing: u32,
    ) -> Measures {
        if let Some(deadline) = load.deadline {
            let limit_ms = deadline.as_secs_f64() * 1e3;
            let late = counted.iter().filter(|message| message.latency_ms > limit_ms).count();
            let all = counted.len() as f64 + f64::from(missing);
            let percent = 100.0 * (late as f64 + f64::from(missing)) / all;
            self.0.push(("late_percent".to_owned(), percent));
        }
        self
    }
}
