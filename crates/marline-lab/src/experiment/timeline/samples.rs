//! Samples of the subflows of both ends.

use std::fmt::Write as _;

use marline::policy::{Health, Phase, Quantile, SubflowView};
use marline::{FourTuple, SubflowInfo, SubflowState};
use marline_sim::{LinkId, NodeId, Paths, World};
use marline_time::{Duration, Instant};

use super::{TimelineConfig, after_start_us, field};
use crate::experiment::START;
use crate::runs::csv_field;

/// One end of the connection.
#[derive(Debug)]
struct End {
    word: &'static str,
    node: NodeId,
    /// What leaves it, by path.
    links: Vec<LinkId>,
    /// Monitor events that have been looked at.
    seen: usize,
}

/// Looks at the subflows on a grid of time, and when the core reports a change.
#[derive(Debug)]
pub(super) struct Samples {
    ends: [End; 2],
    names: Vec<String>,
    interval: Duration,
    due: Instant,
    max_rows: usize,
    lines: Vec<String>,
    left_out: u64,
}

impl Samples {
    pub(super) fn new(paths: &Paths, names: Vec<String>, config: TimelineConfig) -> Samples {
        let end = |word, node, links: &[LinkId]| End { word, node, links: links.to_vec(), seen: 0 };
        // The grid goes through the start of the workload.
        let interval_ns = config.interval.as_nanos().min(u128::from(u64::MAX)) as u64;
        let due = Instant::from_nanos(START.as_nanos() % interval_ns);
        Samples {
            ends: [
                end("client", paths.client, &paths.up),
                end("server", paths.server, &paths.down),
            ],
            names,
            interval: config.interval,
            due,
            max_rows: config.max_rows,
            lines: Vec::new(),
            left_out: 0,
        }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    pub(super) const fn max_rows(&self) -> usize {
        self.max_rows
    }

    pub(super) fn into_lines(self) -> (Vec<String>, u64) {
        (self.lines, self.left_out)
    }

    /// The world stays as it is until `next`.
    pub(super) fn look(&mut self, world: &World, next: Instant) {
        let mut fresh = [false; 2];
        for (end, fresh) in fresh.iter_mut().enumerate() {
            let events = world.node(self.ends[end].node).monitor().len();
            if events > self.ends[end].seen {
                self.ends[end].seen = events;
                self.sample(world, end, world.now());
                *fresh = true;
            }
        }
        while self.due < next {
            for (end, fresh) in fresh.iter().enumerate() {
                // What was seen just now is not written twice.
                if !(*fresh && self.due == world.now()) {
                    self.sample(world, end, self.due);
                }
            }
            self.due += self.interval;
        }
    }

    /// The run is over.
    pub(super) fn last(&mut self, world: &World) {
        for end in 0..self.ends.len() {
            self.sample(world, end, world.now());
        }
    }

    fn sample(&mut self, world: &World, end: usize, at: Instant) {
        let end = &self.ends[end];
        let endpoint = world.node(end.node).endpoint();
        let connections = world.node(end.node).connections();
        for (id, info) in connections.filter_map(|(id, _)| Some((id, endpoint.info(id)?))) {
            for subflow in &info.subflows {
                if self.lines.len() >= self.max_rows {
                    self.left_out += 1;
                    continue;
                }
                let Some(path) = path_of(subflow.path, self.names.len()) else { continue };
                let view = endpoint.subflow_view(at, id, subflow.id);
                let queued = world.link(end.links[path]).queued_bytes();
                let mut line = String::new();
                // Writing to a String cannot fail.
                let name = csv_field(&self.names[path]);
                let _ = write!(line, "{},{},{name}", after_start_us(at), end.word);
                describe(&mut line, subflow, view.as_ref());
                field(&mut line, Some(queued));
                self.lines.push(line);
            }
        }
    }
}

/// The number of the path that a subflow goes over, of so many.
fn path_of(ends: FourTuple, paths: usize) -> Option<usize> {
    let FourTuple { local, remote } = ends;
    (0..paths).find(|number| {
        let address = Paths::address(*number, 0);
        local.ip() == address || remote.ip() == address
    })
}

/// A TCP state in the words of `ss`.
const fn word(state: SubflowState) -> &'static str {
    match state {
        SubflowState::Closed => "closed",
        SubflowState::SynSent => "syn-sent",
        SubflowState::SynReceived => "syn-recv",
        SubflowState::Established => "established",
        SubflowState::FinWait1 => "fin-wait-1",
        SubflowState::FinWait2 => "fin-wait-2",
        SubflowState::CloseWait => "close-wait",
        SubflowState::Closing => "closing",
        SubflowState::LastAck => "last-ack",
        SubflowState::TimeWait => "time-wait",
    }
}

/// Everything between path and queue.
fn describe(line: &mut String, subflow: &SubflowInfo, view: Option<&SubflowView>) {
    let (health, cause) = match subflow.health {
        Health::Fine => ("fine", None),
        Health::Doubtful { cause, .. } => ("doubtful", Some(csv_field(&cause.to_string()))),
        Health::Silent { cause, .. } => ("silent", Some(csv_field(&cause.to_string()))),
    };
    let phase = match subflow.phase {
        Phase::Open => "open",
        Phase::Recovery => "recovery",
        Phase::Loss => "loss",
    };
    // Writing to a String cannot fail.
    let _ = write!(line, ",{},{},{health}", subflow.id.0, word(subflow.state));
    field(line, cause);
    let _ = write!(line, ",{phase},{}", u8::from(subflow.backup));
    let _ = write!(line, ",{},{},{}", subflow.cwnd, subflow.in_flight, subflow.lost);
    field(line, subflow.srtt.map(|srtt| srtt.as_micros()));
    field(line, subflow.srtt.map(|_| subflow.rttvar.as_micros()));
    let forecast = view.map(|view| view.forecast).filter(|forecast| forecast.is_known());
    for quantile in [Quantile::P50, Quantile::P90, Quantile::P99] {
        let answer = forecast.and_then(|forecast| forecast.answer(quantile));
        field(line, answer.map(|answer| answer.as_micros()));
    }
    field(line, forecast.map(|forecast| forecast.queued().as_micros()));
    field(line, subflow.delivery_rate.map(|rate| rate.bits_per_s()));
    let _ = write!(line, ",{},{}", subflow.mss, subflow.bytes_sent);
}
