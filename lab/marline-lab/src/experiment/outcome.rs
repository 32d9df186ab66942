//! Outcome of a run.

use std::collections::{BTreeMap, BTreeSet};

use marline_link::LinkStats;
use marline_link::radio::RadioReading;
use serde::{Deserialize, Serialize};

use super::film::Player;
use super::{Calibration, Experiment, Measures};
use crate::results::quantile;
use crate::workload::{Log, Mark, Workload, page};

/// Totals of both directions of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathTotals {
    /// Name of the path.
    pub name: String,
    /// From the client.
    pub up: LinkStats,
    /// To the client.
    pub down: LinkStats,
    /// Energy drawn by the path's radio until the end of the run, if it has one.
    pub radio: Option<RadioReading>,
    /// Accuracy of the forecasts of the path's answers after the warm-up, if [`Variant::score_forecasts`] is set
    /// and the path carried data; in virtual time only.
    ///
    /// [`Variant::score_forecasts`]: super::Variant::score_forecasts
    pub calibration: Option<Calibration>,
}

/// A request with its answer, a block or a burst.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Message number (exchange and voice: even to the client, odd from the client).
    pub index: u32,
    /// Length in bytes (requests: of the answer).
    pub bytes: u32,
    /// Send time (blocks: time at which the stack had accepted the block), in ms after the start.
    pub sent_ms: f64,
    /// Time until the last byte (requests: of the answer) had been read, in ms.
    pub latency_ms: f64,
}

/// Logs of both ends of a workload. Times are on the clock of the run's stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The client's log.
    pub client: Log,
    /// The server's log.
    pub server: Log,
    /// Start of the run's workloads, ns.
    pub start_ns: u64,
    /// Start of this workload, relative to `start_ns`, ns.
    pub from_ns: u64,
    /// Seed of the workload.
    pub seed: u64,
}

/// Outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Logs of the workloads, at least one.
    pub flows: Vec<Flow>,
    /// Start of the workloads on the clock of the logs, ns.
    pub start_ns: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Times of the faults, on the clock of the logs.
    pub faults_ns: Vec<u64>,
    /// The paths that were used.
    pub paths: Vec<PathTotals>,
    /// Payload bytes that both ends also sent on another subflow.
    pub reinjected_bytes: u64,
    /// Reason why the run is incomplete: messages that never arrived.
    pub incomplete: Option<String>,
    /// Reasons why the run may be unreliable, such as late emulated links. Empty in virtual time.
    pub doubts: Vec<String>,
}

impl Flow {
    /// Messages that arrived, in order.
    #[must_use]
    pub fn messages(&self, workload: &Workload) -> Vec<Message> {
        match *workload {
            Workload::Exchange { bytes } | Workload::Voice { bytes, .. } => {
                return self.messages_both_ways(bytes);
            }
            Workload::Web { .. } => {
                return self.pages(workload).into_iter().map(|(page, _)| page).collect();
            }
            _ => {}
        }
        let sent = if workload.is_from_client() { &self.client.sent } else { &self.server.sent };
        let received = self.received_marks(workload).iter();
        let read: BTreeMap<(u8, u32), u64> =
            received.map(|mark| ((mark.stream, mark.index), mark.at_ns)).collect();
        let (sizes, player) = (workload.sizes(self.seed), self.player(workload));
        let size = |index: u32| match &player {
            Some(player) => player.size(index as usize) as u32,
            None => sizes.size_of(index),
        };
        // If a request was sent on several connections, the first answer counts.
        let mut messages: BTreeMap<u32, Message> = BTreeMap::new();
        for Mark { stream, index, at_ns } in sent.iter().copied() {
            let Some(read_ns) = read.get(&(stream, index)) else { continue };
            let (sent_ms, latency_ms) = (ms(self.start_ns, at_ns), ms(at_ns, *read_ns));
            let message = Message { index, bytes: size(index), sent_ms, latency_ms };
            let first = messages.entry(index).or_insert(message);
            if message.latency_ms < first.latency_ms {
                *first = message;
            }
        }
        messages.into_values().collect()
    }

    /// The state of a video's player at the end of the run.
    fn player(&self, workload: &Workload) -> Option<Player> {
        let Workload::Film(film) = *workload else { return None };
        Some(Player::replay(film, self))
    }

    /// Complete pages, each with the time in ms until its first object had been read.
    fn pages(&self, workload: &Workload) -> Vec<(Message, f64)> {
        let times_ns = workload.times_ns(self.seed);
        let mut read: Vec<Vec<u64>> = vec![Vec::new(); times_ns.len()];
        for mark in &self.client.received {
            if let Some(objects) = read.get_mut((mark.index / page::OBJECT_COUNT) as usize) {
                objects.push(mark.at_ns);
            }
        }
        let sizes = workload.sizes(self.seed);
        let whole = |((index, at_ns), read): ((u32, u64), Vec<u64>)| {
            let begun_ns = self.start_ns + self.from_ns + at_ns;
            let (first, last) = (*read.first()?, *read.last()?);
            let (sent_ms, latency_ms) = (ms(self.start_ns, begun_ns), ms(begun_ns, last));
            let message = Message { index, bytes: sizes.size_of(index), sent_ms, latency_ms };
            let is_whole = read.len() == page::OBJECT_COUNT as usize;
            is_whole.then_some((message, ms(begun_ns, first)))
        };
        (0..).zip(times_ns).zip(read).filter_map(whole).collect()
    }

    /// Measures of videos and pages.
    #[must_use]
    pub fn measures(&self, workload: &Workload) -> Measures {
        if let Some(player) = self.player(workload) {
            return player.measures();
        }
        if matches!(workload, Workload::Web { .. }) {
            let first: Vec<f64> =
                self.pages(workload).iter().map(|(_, first_ms)| *first_ms).collect();
            return Measures::from([("first_ms", quantile(&first, 0.5))]);
        }
        Measures::default()
    }

    /// Messages as seen by their reader.
    const fn received_marks(&self, workload: &Workload) -> &Vec<Mark> {
        let reader = match workload {
            Workload::Upload { .. } => &self.server,
            _ => &self.client,
        };
        &reader.received
    }

    /// Messages in both directions by number: even to the client, odd from the client.
    fn messages_both_ways(&self, bytes: u32) -> Vec<Message> {
        let mut messages = Vec::new();
        for (way, from, to) in [(0, &self.server, &self.client), (1, &self.client, &self.server)] {
            let read: BTreeMap<u32, u64> =
                to.received.iter().map(|mark| (mark.index, mark.at_ns)).collect();
            messages.extend(from.sent.iter().filter_map(|sent| {
                let latency_ms = ms(sent.at_ns, *read.get(&sent.index)?);
                let (index, sent_ms) = (2 * sent.index + way, ms(self.start_ns, sent.at_ns));
                Some(Message { index, bytes, sent_ms, latency_ms })
            }));
        }
        messages.sort_by_key(|message| message.index);
        messages
    }

    /// Send times of unanswered requests, in ms after the start.
    #[must_use]
    pub fn unanswered_ms(&self, workload: &Workload) -> Vec<f64> {
        if !matches!(workload, Workload::Ask { .. } | Workload::Dialogue { .. }) {
            return Vec::new();
        }
        let answered: BTreeSet<(u8, u32)> =
            self.client.received.iter().map(|mark| (mark.stream, mark.index)).collect();
        let open = |mark: &&Mark| !answered.contains(&(mark.stream, mark.index));
        let sent = self.client.sent.iter().filter(open);
        sent.map(|mark| ms(self.start_ns, mark.at_ns)).collect()
    }

    /// Rate in Mbit/s at which whole messages were read between two times after the start.
    #[must_use]
    pub fn goodput_mbit_per_s(&self, workload: &Workload, from_ms: f64, to_ms: f64) -> f64 {
        let span = from_ms..to_ms;
        // Messages of these workloads are not in the log, or have no fixed size.
        let is_composed =
            matches!(workload, Workload::Film(_) | Workload::Web { .. } | Workload::Voice { .. });
        let bytes: f64 = if is_composed {
            let messages = self.messages(workload).into_iter();
            let read = messages.filter(|of| span.contains(&(of.sent_ms + of.latency_ms)));
            read.map(|message| f64::from(message.bytes)).sum()
        } else {
            let sizes = workload.sizes(self.seed);
            let within = |mark: &&Mark| span.contains(&ms(self.start_ns, mark.at_ns));
            let read = self.received_marks(workload).iter().filter(within);
            read.map(|mark| f64::from(sizes.size_of(mark.index))).sum()
        };
        bytes * 8.0 / ((to_ms - from_ms) / 1e3) / 1e6
    }

    /// Number of missing messages that may still arrive. Excludes lost datagrams.
    #[must_use]
    pub fn count_missing(&self, workload: &Workload) -> usize {
        let Some(wanted) = workload.count() else { return 0 };
        if matches!(workload, Workload::Voice { .. }) {
            return 0;
        }
        let came = self.messages(workload).len() + self.client.skipped as usize;
        (wanted as usize).saturating_sub(came)
    }
}

impl Outcome {
    /// Logs of the first workload.
    ///
    /// # Panics
    /// There are none.
    #[must_use]
    pub fn first(&self) -> &Flow {
        &self.flows[0]
    }

    /// Number of missing messages of all workloads.
    #[must_use]
    pub fn count_missing(flows: &[Flow], experiment: &Experiment) -> usize {
        let all = flows.iter().zip(&experiment.loads);
        all.map(|(flow, load)| flow.count_missing(&load.workload)).sum()
    }

    /// Messages of the first workload that arrived, in order.
    #[must_use]
    pub fn messages(&self, workload: &Workload) -> Vec<Message> {
        self.first().messages(workload)
    }

    /// Latencies in ms of the messages sent at least `warm_up` after the start.
    #[must_use]
    pub fn latencies_ms(&self, workload: &Workload, warm_up: std::time::Duration) -> Vec<f64> {
        let from_ms = warm_up.as_secs_f64() * 1e3;
        let messages = self.messages(workload).into_iter();
        messages.filter(|message| message.sent_ms >= from_ms).map(|m| m.latency_ms).collect()
    }

    /// Goodput of the first workload, like [`Flow::goodput_mbit_per_s`].
    #[must_use]
    pub fn goodput_mbit_per_s(&self, workload: &Workload, from_ms: f64, to_ms: f64) -> f64 {
        self.first().goodput_mbit_per_s(workload, from_ms, to_ms)
    }

    /// Bytes offered to all links in both directions, including headers.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        self.paths.iter().map(|path| path.up.offered_bytes + path.down.offered_bytes).sum()
    }
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e6
}
