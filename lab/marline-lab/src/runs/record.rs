//! Stored record of a run.

use marline_link::radio::RadioReading;
use serde::{Deserialize, Serialize};

use crate::bound::Bound;
use crate::experiment::{Calibration, Experiment, Message, Outcome};
use crate::results::quantile;

/// Bytes that were offered to a path, headers included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathBytes {
    /// Its name.
    pub name: String,
    /// From the client.
    pub up_bytes: u64,
    /// To the client.
    pub down_bytes: u64,
    /// Packets lost by chance, by the queue or in an outage, both ways.
    pub dropped_packets: u64,
    /// What its radio drew, if it goes over one.
    #[serde(default)]
    pub radio: Option<RadioJoules>,
    /// How well forecasts of its answers held, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// What a radio drew in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RadioJoules {
    /// Which one.
    pub kind: String,
    /// Caused by traffic: promotions, transfer, tails.
    pub traffic_j: f64,
    /// While idle.
    pub idle_j: f64,
    /// Times it was woken.
    pub promotions: u64,
}

impl RadioJoules {
    fn of(reading: &RadioReading) -> RadioJoules {
        RadioJoules {
            kind: reading.kind.to_string(),
            traffic_j: reading.energy.traffic_j(),
            idle_j: reading.energy.idle_j(),
            promotions: reading.energy.promotions,
        }
    }
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What came, those of the warm-up included.
    pub messages: Vec<Message>,
    /// Messages of the warm-up, at the beginning of the list.
    pub warm_up: usize,
    /// Of each message after the warm-up the earliest it could have come ([`crate::bound`]), ms.
    pub least_ms: Vec<f64>,
    /// Messages that did not come.
    pub missing: u32,
    /// Of those that were sent all the same: when, ms after the start.
    #[serde(default)]
    pub unanswered_ms: Vec<f64>,
    /// What the application read after the warm-up, Mbit/s.
    pub goodput_mbit_per_s: f64,
    /// What the paths carried.
    pub paths: Vec<PathBytes>,
    /// Payload that was sent again on another subflow, bytes.
    pub reinjected_bytes: u64,
    /// When faults struck, ms after the start.
    pub faults_ms: Vec<f64>,
    /// Why it should not be believed.
    pub doubts: Vec<String>,
    /// Why there is nothing.
    pub error: Option<String>,
}

/// Latencies in short; quantiles are those of [`crate::results::quantile`].
#[derive(Copy, Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// How many.
    pub count: usize,
    /// Mean, ms.
    pub mean_ms: f64,
    /// Median, ms.
    pub p50_ms: f64,
    /// 95 % are at most this, ms.
    pub p95_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// The longest, ms.
    pub max_ms: f64,
}

impl Statistics {
    /// Of some latencies; not a number where there are none.
    #[must_use]
    pub fn of(latencies_ms: &[f64]) -> Statistics {
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
    /// What is kept of this.
    ///
    /// # Errors
    /// Those of [`Bound::of`].
    pub fn of(experiment: &Experiment, outcome: &Outcome) -> anyhow::Result<Record> {
        let workload = &experiment.workload;
        let messages = outcome.messages(workload);
        let from_ms = experiment.warm_up.as_secs_f64() * 1e3;
        let lasts_ms = workload.lasts(outcome.seed).as_secs_f64() * 1e3;
        let ends = messages.iter().map(|message| message.sent_ms + message.latency_ms);
        // A stream is cut off; what has an end is over when the last message is there.
        let to_ms = match workload.count() {
            None => lasts_ms,
            // A nanosecond later, so that it counts as well.
            Some(_) => ends.fold(lasts_ms, f64::max) + 1e-6,
        };
        let missing = workload.count().map_or(0, |count| count - messages.len() as u32);
        let path = |path: &crate::experiment::PathTotals| PathBytes {
            name: path.name.clone(),
            up_bytes: path.up.offered_bytes,
            down_bytes: path.down.offered_bytes,
            dropped_packets: path.up.dropped() + path.down.dropped(),
            radio: path.radio.as_ref().map(RadioJoules::of),
            calibration: path.calibration,
        };
        let struck = |at_ns: &u64| (*at_ns as f64 - outcome.start_ns as f64) / 1e6;
        let warm_up = messages.partition_point(|message| message.sent_ms < from_ms);
        let least_ms = Bound::of(experiment, outcome.seed)?.latencies_ms(&messages[warm_up..]);
        Ok(Record {
            warm_up,
            messages,
            least_ms,
            missing,
            unanswered_ms: outcome.unanswered_ms(workload),
            goodput_mbit_per_s: outcome.goodput_mbit_per_s(workload, from_ms, to_ms),
            paths: outcome.paths.iter().map(path).collect(),
            reinjected_bytes: outcome.reinjected_bytes,
            faults_ms: outcome.faults_ns.iter().map(struck).collect(),
            doubts: outcome.doubts.clone(),
            error: None,
        })
    }

    /// The longest delay of a message, ms; what never came is counted until `over_ms` after the start.
    #[must_use]
    pub fn worst_ms(&self, over_ms: f64) -> f64 {
        let open = self.unanswered_ms.iter().map(|sent| over_ms - sent);
        self.latencies_ms().into_iter().chain(open).fold(0.0, f64::max)
    }

    /// A run that failed.
    #[must_use]
    pub fn failed(error: String) -> Record {
        Record { error: Some(error), ..Record::default() }
    }

    /// Latencies after the warm-up, ms.
    #[must_use]
    pub fn latencies_ms(&self) -> Vec<f64> {
        self.messages.iter().skip(self.warm_up).map(|message| message.latency_ms).collect()
    }

    /// All bytes on all paths.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        self.paths.iter().map(|path| path.up_bytes + path.down_bytes).sum()
    }
}
