//! From what two ends noted to what a row is about.

use std::collections::BTreeMap;

use super::row::{Measure, Row};
use crate::experiment::Outcome;
use crate::workload::{Mark, Workload};

/// Bursts at the start that are not looked at: slow start, joins.
const FIRST_BURSTS: u32 = 2;

type Values = BTreeMap<String, Vec<f64>>;

/// What the row wants to know.
pub(super) fn look(row: &Row, logs: &Outcome) -> Values {
    let warm_up = row.experiment.warm_up;
    let from_ns = logs.start_ns + warm_up.as_nanos() as u64;
    let mut values = match row.measure {
        Measure::Answers => answers(logs, from_ns),
        Measure::Blocks => blocks(logs, from_ns),
        Measure::Bursts => bursts(logs),
        Measure::Goodput => Values::new(),
        Measure::Handover => handover(logs, from_ns),
    };
    let workload = &row.experiment.workload;
    if let Workload::Blocks { lasts_ms, .. } = *workload {
        let from_ms = warm_up.as_secs_f64() * 1e3;
        let goodput = logs.goodput_mbit_per_s(workload, from_ms, lasts_ms as f64);
        values.insert("goodput_mbit_per_s".to_owned(), vec![goodput]);
    }
    values
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e6
}

/// By stream and index.
fn by_index(marks: &[Mark]) -> BTreeMap<(u8, u32), u64> {
    marks.iter().map(|mark| ((mark.stream, mark.index), mark.at_ns)).collect()
}

fn answers(logs: &Outcome, from_ns: u64) -> Values {
    let received = by_index(&logs.client.received);
    let mut values = Values::new();
    let mut first: BTreeMap<u32, f64> = BTreeMap::new();
    for sent in logs.client.sent.iter().filter(|sent| sent.at_ns >= from_ns) {
        let Some(back_ns) = received.get(&(sent.stream, sent.index)) else { continue };
        let rtt_ms = ms(sent.at_ns, *back_ns);
        let name = ["first_path_ms", "second_path_ms"][usize::from(sent.stream.min(1))];
        values.entry(name.to_owned()).or_default().push(rtt_ms);
        let best = first.entry(sent.index).or_insert(f64::INFINITY);
        *best = best.min(rtt_ms);
    }
    values.insert("answer_ms".to_owned(), first.into_values().collect());
    values
}

fn blocks(logs: &Outcome, from_ns: u64) -> Values {
    let received = by_index(&logs.client.received);
    let taken = logs.server.sent.iter().filter(|mark| mark.at_ns >= from_ns);
    let latency = taken.filter_map(|mark| {
        received.get(&(mark.stream, mark.index)).map(|read_ns| ms(mark.at_ns, *read_ns))
    });
    Values::from([("block_ms".to_owned(), latency.collect())])
}

fn bursts(logs: &Outcome) -> Values {
    let received = by_index(&logs.client.received);
    let mut values = Values::new();
    let fault_ns = logs.faults_ns.first().copied();
    let mut hit: Option<u32> = None;
    for sent in &logs.server.sent {
        let Some(read_ns) = received.get(&(0, sent.index)) else { continue };
        let before = fault_ns.is_none_or(|fault_ns| *read_ns < fault_ns);
        let name = match hit {
            None if before && sent.index < FIRST_BURSTS => continue,
            None if before => "calm_ms",
            None => {
                hit = Some(sent.index);
                "hit_ms"
            }
            Some(hit) if sent.index == hit + 1 => "second_ms",
            Some(_) => "later_ms",
        };
        values.entry(name.to_owned()).or_default().push(ms(sent.at_ns, *read_ns));
    }
    values
}

fn handover(logs: &Outcome, from_ns: u64) -> Values {
    let received = by_index(&logs.client.received);
    let (mut delays, mut times) = (Vec::new(), Vec::new());
    for sent in logs.client.sent.iter().filter(|sent| sent.at_ns >= from_ns) {
        if let Some(back_ns) = received.get(&(sent.stream, sent.index)) {
            delays.push(ms(sent.at_ns, *back_ns));
            times.push(*back_ns);
        }
    }
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| ms(pair[0], pair[1]));
    let gap = gaps.fold(0.0, f64::max);
    let worst = delays.iter().copied().fold(0.0, f64::max);
    Values::from([
        ("gap_ms".to_owned(), vec![gap]),
        ("worst_ms".to_owned(), vec![worst]),
        ("answer_ms".to_owned(), delays),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Log;

    #[test]
    fn the_burst_that_is_hit_is_the_first_not_read_before_the_fault() {
        let mark = |index, at_ms: u64| Mark { stream: 0, index, at_ns: at_ms * 1_000_000 };
        let sent = (0..6).map(|n| mark(n, 100 * u64::from(n))).collect();
        let read = [10, 110, 210, 310, 800, 820];
        let received = read.iter().zip(0..).map(|(at, n)| mark(n, *at)).collect();
        let logs = Outcome {
            client: Log { received, ..Log::default() },
            server: Log { sent, ..Log::default() },
            faults_ns: vec![405_000_000],
            ..Outcome::default()
        };
        let values = bursts(&logs);
        assert_eq!(values["calm_ms"], [10.0, 10.0]);
        assert_eq!(values["hit_ms"], [400.0]);
        assert_eq!(values["second_ms"], [320.0]);
        assert!(!values.contains_key("later_ms"));
    }
}
