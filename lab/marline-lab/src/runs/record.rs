//! Stored record of a run.

use std::time::Duration;

use marline_link::radio::RadioReading;
use serde::{Deserialize, Serialize};

use crate::bound::Bound;
use crate::experiment::{
    Calibration, Experiment, Flow, Load, Measures, Message, Outcome, PathTotals,
};
use crate::results::quantile;

/// Bytes offered to a path, including headers, with the path's losses and energy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathBytes {
    /// Name of the path.
    pub name: String,
    /// Price of the path's bytes in both directions, in the currency of its price per GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// From the client.
    pub up_bytes: u64,
    /// To the client.
    pub down_bytes: u64,
    /// Packets lost at random, in the queue or in an outage, in both directions.
    pub dropped_packets: u64,
    /// Energy of the path's radio, if it has one.
    #[serde(default)]
    pub radio: Option<RadioJoules>,
    /// Accuracy of the forecasts of the path's answers, if enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// Energy of a radio in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RadioJoules {
    /// Kind of radio.
    pub kind: String,
    /// Energy caused by traffic in J: promotions, transfer, tails.
    pub traffic_j: f64,
    /// Energy while idle in J.
    pub idle_j: f64,
    /// Number of promotions.
    pub promotions: u64,
}

impl RadioJoules {
    fn from_reading(reading: &RadioReading) -> RadioJoules {
        RadioJoules {
            kind: reading.kind.to_string(),
            traffic_j: reading.energy.traffic_j(),
            idle_j: reading.energy.idle_j(),
            promotions: reading.energy.promotions,
        }
    }
}

/// A stored run: its first workload, and the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Messages that arrived, including those of the warm-up.
    pub messages: Vec<Message>,
    /// Number of warm-up messages at the beginning of the list.
    pub warm_up: usize,
    /// Lower bound on the latency of each message after the warm-up ([`crate::bound`]), in ms.
    pub least_ms: Vec<f64>,
    /// Number of messages that did not arrive.
    pub missing: u32,
    /// Send times of unanswered requests in ms after the start.
    #[serde(default)]
    pub unanswered_ms: Vec<f64>,
    /// Rate in Mbit/s at which the application read after the warm-up.
    pub goodput_mbit_per_s: f64,
    /// Measures of videos, pages and deadlines.
    #[serde(default)]
    pub measures: Measures,
    /// Load of each path.
    pub paths: Vec<PathBytes>,
    /// Payload bytes that were also sent on another subflow.
    pub reinjected_bytes: u64,
    /// Times of the faults in ms after the start.
    pub faults_ms: Vec<f64>,
    /// Reasons why the run may be unreliable.
    pub doubts: Vec<String>,
    /// Error of a failed run.
    pub error: Option<String>,
    /// The other workloads of the run. Values that concern the whole run are equal in all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Record>,
}

/// Summary of latencies. Quantiles are those of [`crate::results::quantile`].
#[derive(Copy, Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Number of messages.
    pub count: usize,
    /// Mean in ms.
    pub mean_ms: f64,
    /// Median in ms.
    pub p50_ms: f64,
    /// 95th percentile in ms.
    pub p95_ms: f64,
    /// 99th percentile in ms.
    pub p99_ms: f64,
    /// Maximum in ms.
    pub max_ms: f64,
}

impl Statistics {
    /// Statistics of these latencies. NaN without latencies.
    #[must_use]
    pub fn from_latencies(latencies_ms: &[f64]) -> Statistics {
        let count = latencies_ms.len();
        Statistics {
            count,
            mean_ms: latencies_ms.iter().sum::<f64>() / count as f64,
            p50_ms: quantile(latencies_ms, 0.5),
            p95_ms: quantile(latencies_ms, 0.95),
            p99_ms: quantile(latencies_ms, 0.99),
            max_ms: quantile(latencies_ms, 1.0),
        }
    }

    /// Names and values, for tables in long form.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("messages", self.count as f64),
            ("mean_ms", self.mean_ms),
            ("p50_ms", self.p50_ms),
            ("p95_ms", self.p95_ms),
            ("p99_ms", self.p99_ms),
            ("max_ms", self.max_ms),
        ]
    }
}

impl Record {
    /// Builds the record of an outcome.
    ///
    /// # Errors
    /// The same as [`Bound::for_experiment`].
    pub fn from_outcome(experiment: &Experiment, outcome: &Outcome) -> anyhow::Result<Record> {
        let price = |path: &PathTotals| {
            let known = experiment.scenario.paths.iter().find(|known| known.name == path.name);
            let bytes = path.up.offered_bytes + path.down.offered_bytes;
            known.and_then(|known| known.price).map(|per_gb| per_gb * bytes as f64 / 1e9)
        };
        let path = |path: &PathTotals| PathBytes {
            price: price(path),
            name: path.name.clone(),
            up_bytes: path.up.offered_bytes,
            down_bytes: path.down.offered_bytes,
            dropped_packets: path.up.dropped() + path.down.dropped(),
            radio: path.radio.as_ref().map(RadioJoules::from_reading),
            calibration: path.calibration,
        };
        let struck = |at_ns: &u64| (*at_ns as f64 - outcome.start_ns as f64) / 1e6;
        let whole = Record {
            paths: outcome.paths.iter().map(path).collect(),
            reinjected_bytes: outcome.reinjected_bytes,
            faults_ms: outcome.faults_ns.iter().map(struck).collect(),
            doubts: outcome.doubts.clone(),
            ..Record::default()
        };
        let bound = Bound::for_experiment(experiment, outcome.seed)?;
        let flows = experiment.loads.iter().zip(&outcome.flows);
        let mut records =
            flows.map(|(load, flow)| whole.of_flow(load, flow, &bound, experiment.warm_up));
        let first = records.next().unwrap_or_default();
        Ok(Record { beside: records.collect(), ..first })
    }

    /// The record of a workload of this run.
    fn of_flow(&self, load: &Load, flow: &Flow, bound: &Bound, warm_up: Duration) -> Record {
        let workload = &load.workload;
        let messages = flow.messages(workload);
        let from_ms = warm_up.max(load.from).as_secs_f64() * 1e3;
        let ends_ms = load.ends(flow.seed).as_secs_f64() * 1e3;
        let ends = messages.iter().map(|message| message.sent_ms + message.latency_ms);
        // A stream is cut off at its planned end. A finite workload ends with its last message.
        let to_ms = match workload.count() {
            None => ends_ms,
            // Slightly later, to include the last message.
            Some(_) => ends.fold(ends_ms, f64::max) + 1e-6,
        };
        let missing = workload.count().map_or(0, |count| count - messages.len() as u32);
        let warm_up = messages.partition_point(|message| message.sent_ms < from_ms);
        Record {
            least_ms: bound.latencies_for_workload(workload, &messages[warm_up..]),
            measures: flow.measures(workload).add_late_share(load, &messages[warm_up..], missing),
            warm_up,
            messages,
            missing,
            unanswered_ms: flow.unanswered_ms(workload),
            goodput_mbit_per_s: flow.goodput_mbit_per_s(workload, from_ms, to_ms),
            ..self.clone()
        }
    }

    /// The records of all workloads, in order.
    pub fn workloads(&self) -> impl Iterator<Item = &Record> {
        core::iter::once(self).chain(&self.beside)
    }

    /// Price of all bytes. `None` without a price.
    #[must_use]
    pub fn price(&self) -> Option<f64> {
        let prices: Vec<f64> = self.paths.iter().filter_map(|path| path.price).collect();
        (!prices.is_empty()).then(|| prices.iter().sum())
    }

    /// The longest latency in ms. A missing message counts until `over_ms` after the start.
    #[must_use]
    pub fn worst_ms(&self, over_ms: f64) -> f64 {
        let open = self.unanswered_ms.iter().map(|sent| over_ms - sent);
        self.latencies_ms().into_iter().chain(open).fold(0.0, f64::max)
    }

    /// Creates the record of a failed run.
    #[must_use]
    pub fn failed(error: String) -> Record {
        Record { error: Some(error), ..Record::default() }
    }

    /// Latencies after the warm-up in ms.
    #[must_use]
    pub fn latencies_ms(&self) -> Vec<f64> {
        self.messages.iter().skip(self.warm_up).map(|message| message.latency_ms).collect()
    }

    /// Bytes offered to all paths.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        self.paths.iter().map(|path| path.up_bytes + path.down_bytes).sum()
    }
}
