//! Statistics of a row from the logs of both ends.

use std::collections::BTreeMap;

use super::row::{Measure, Row};
use crate::bound::Bound;
use crate::experiment::{Experiment, Outcome};
use crate::workload::{Mark, Sizes, Workload};

/// Number of bursts at the start that are skipped because of slow start and joins.
const SKIPPED_BURSTS: u32 = 2;

/// Values by name.
type Values = BTreeMap<String, Vec<f64>>;

/// Collects values, and lower bounds for latencies.
struct ValueCollector<'a> {
    outcome: &'a Outcome,
    bound: &'a Bound,
    sizes: Sizes,
    values: Values,
}

/// Computes the values that the row measures. Each latency `NAME_ms` has a lower bound `NAME_least_ms`.
pub(super) fn measure_values(
    row: &Row,
    experiment: &Experiment,
    outcome: &Outcome,
) -> anyhow::Result<Values> {
    let workload = experiment.workload();
    let warm_up = experiment.warm_up;
    let from_ns = outcome.start_ns + warm_up.as_nanos() as u64;
    let bound = Bound::for_experiment(experiment, outcome.seed)?;
    let sizes = workload.sizes(outcome.seed);
    let mut look = ValueCollector { outcome, bound: &bound, sizes, values: Values::new() };
    match row.measure {
        Measure::Answers => look.answers(from_ns),
        Measure::Blocks => look.blocks(from_ns),
        Measure::Bursts => look.bursts(),
        Measure::Goodput => {}
        Measure::Handover => look.handover(from_ns),
    }
    if let Workload::Blocks { lasts_ms, .. } = *workload {
        let from_ms = warm_up.as_secs_f64() * 1e3;
        let goodput = outcome.goodput_mbit_per_s(workload, from_ms, lasts_ms as f64);
        look.values.insert("goodput_mbit_per_s".to_owned(), vec![goodput]);
    }
    Ok(look.values)
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e6
}

/// Times by stream and index.
fn index_marks(marks: &[Mark]) -> BTreeMap<(u8, u32), u64> {
    marks.iter().map(|mark| ((mark.stream, mark.index), mark.at_ns)).collect()
}

impl ValueCollector<'_> {
    fn push(&mut self, name: &str, value: f64) {
        self.values.entry(name.to_owned()).or_default().push(value);
    }

    /// Adds a latency and its lower bound.
    fn latency(&mut self, name: &str, sent: Mark, latency_ms: f64) {
        let sent_ms = ms(self.outcome.start_ns, sent.at_ns);
        let least_ms = self.bound.latency_ms(sent_ms, self.sizes.size_of(sent.index));
        self.push(&format!("{name}_ms"), latency_ms);
        self.push(&format!("{name}_least_ms"), least_ms);
    }

    fn answers(&mut self, from_ns: u64) {
        let received = index_marks(&self.outcome.first().client.received);
        let mut first: BTreeMap<u32, (Mark, f64)> = BTreeMap::new();
        for sent in self.outcome.first().client.sent.iter().filter(|sent| sent.at_ns >= from_ns) {
            let Some(back_ns) = received.get(&(sent.stream, sent.index)) else { continue };
            let rtt_ms = ms(sent.at_ns, *back_ns);
            self.push(["first_path_ms", "second_path_ms"][usize::from(sent.stream.min(1))], rtt_ms);
            let best = first.entry(sent.index).or_insert((*sent, rtt_ms));
            if rtt_ms < best.1 {
                *best = (*sent, rtt_ms);
            }
        }
        for (sent, rtt_ms) in first.into_values() {
            self.latency("answer", sent, rtt_ms);
        }
    }

    fn blocks(&mut self, from_ns: u64) {
        let received = index_marks(&self.outcome.first().client.received);
        for taken in self.outcome.first().server.sent.iter().filter(|mark| mark.at_ns >= from_ns) {
            if let Some(read_ns) = received.get(&(taken.stream, taken.index)) {
                self.latency("block", *taken, ms(taken.at_ns, *read_ns));
            }
        }
    }

    fn bursts(&mut self) {
        let received = index_marks(&self.outcome.first().client.received);
        let fault_ns = self.outcome.faults_ns.first().copied();
        let mut hit: Option<u32> = None;
        for sent in &self.outcome.first().server.sent {
            let Some(read_ns) = received.get(&(0, sent.index)) else { continue };
            let before = fault_ns.is_none_or(|fault_ns| *read_ns < fault_ns);
            let name = match hit {
                None if before && sent.index < SKIPPED_BURSTS => continue,
                None if before => "calm",
                None => {
                    hit = Some(sent.index);
                    "hit"
                }
                Some(hit) if sent.index == hit + 1 => "second",
                Some(_) => "later",
            };
            self.latency(name, *sent, ms(sent.at_ns, *read_ns));
        }
    }

    fn handover(&mut self, from_ns: u64) {
        let received = index_marks(&self.outcome.first().client.received);
        let (mut worst, mut times) = (0.0, Vec::new());
        for sent in self.outcome.first().client.sent.iter().filter(|sent| sent.at_ns >= from_ns) {
            if let Some(back_ns) = received.get(&(sent.stream, sent.index)) {
                let delay_ms = ms(sent.at_ns, *back_ns);
                worst = f64::max(worst, delay_ms);
                self.latency("answer", *sent, delay_ms);
                times.push(*back_ns);
            }
        }
        times.sort_unstable();
        let gap = times.windows(2).map(|pair| ms(pair[0], pair[1])).fold(0.0, f64::max);
        self.push("gap_ms", gap);
        self.push("worst_ms", worst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Flow;
    use crate::workload::{Gap, Log};

    #[test]
    fn the_affected_burst_is_the_first_unread_before_the_fault() {
        let mark = |index, at_ms: u64| Mark { stream: 0, index, at_ns: at_ms * 1_000_000 };
        let sent = (0..6).map(|n| mark(n, 100 * u64::from(n))).collect();
        let read = [10, 110, 210, 310, 800, 820];
        let received = read.iter().zip(0..).map(|(at, n)| mark(n, *at)).collect();
        let flow = Flow {
            client: Log { received, ..Log::default() },
            server: Log { sent, ..Log::default() },
            ..Flow::default()
        };
        let logs =
            Outcome { flows: vec![flow], faults_ns: vec![405_000_000], ..Outcome::default() };
        let gap = Gap { least_ms: 100.0, most_ms: 100.0 };
        let workload = Workload::Bursts { bytes: 100, gap, count: 6 };
        let experiment = Experiment::over(&[("wifi", "delay=1ms")], workload);
        let bound = Bound::for_experiment(&experiment, 1).expect("bound");
        let (sizes, values) = (workload.sizes(1), Values::new());
        let mut look = ValueCollector { outcome: &logs, bound: &bound, sizes, values };
        look.bursts();
        let values = look.values;
        assert_eq!(values["calm_ms"], [10.0, 10.0]);
        assert_eq!(values["hit_ms"], [400.0]);
        assert_eq!(values["second_ms"], [320.0]);
        assert!(!values.contains_key("later_ms"));
        assert_eq!(values["hit_least_ms"], [1.0]);
    }
}
