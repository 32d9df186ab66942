//! Samples of the subflows of both ends.

use marline::monitor::{SubflowInfo, SubflowState};
use marline::policy::{Quantile, SubflowView};
use marline_sim::{LinkId, NodeId, Paths, World};
use marline_time::{Duration, Instant};

use super::{TimelineConfig, after_start_us};
use crate::experiment::START;
use crate::experiment::simulation::path_of;
use crate::results::{Cell, Column, Table};

/// One end of the connection.
#[derive(Debug)]
struct End {
    word: &'static str,
    node: NodeId,
    /// Outgoing links, by path.
    links: Vec<LinkId>,
    /// Number of monitor events already processed.
    seen: usize,
}

/// Samples the subflows at a fixed interval, and when the core reports a change.
#[derive(Debug)]
pub(super) struct Samples {
    ends: [End; 2],
    names: Vec<String>,
    interval: Duration,
    due: Instant,
    max_rows: usize,
    rows: Table,
    left_out: u64,
}

impl Samples {
    pub(super) fn new(paths: &Paths, names: Vec<String>, config: TimelineConfig) -> Samples {
        let end = |word, node, links: &[LinkId]| End { word, node, links: links.to_vec(), seen: 0 };
        // One of the sample times is the start of the workload.
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
            rows: table(),
            left_out: 0,
        }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    pub(super) const fn max_rows(&self) -> usize {
        self.max_rows
    }

    pub(super) fn into_rows(self) -> (Table, u64) {
        (self.rows, self.left_out)
    }

    /// Samples the simulation, which does not change until `next`.
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
                // Do not repeat a sample that was just taken because of a change.
                if !(*fresh && self.due == world.now()) {
                    self.sample(world, end, self.due);
                }
            }
            self.due += self.interval;
        }
    }

    /// Takes the samples at the end of the run.
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
                if self.rows.rows() >= self.max_rows {
                    self.left_out += 1;
                    continue;
                }
                let path = path_of(subflow.path).filter(|path| *path < self.names.len());
                let Some(path) = path else { continue };
                let view = endpoint.subflow_view(at, id, subflow.id);
                let queued = world.link(end.links[path]).queued_bytes();
                let sample = Sample {
                    time_us: after_start_us(at),
                    end: end.word,
                    path: &self.names[path],
                    queued_bytes: queued,
                    subflow,
                    view: view.as_ref(),
                };
                sample.append_to(&mut self.rows);
            }
        }
    }
}

/// A TCP state's name, as in `ss`.
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

/// Sample of a subflow.
struct Sample<'a> {
    time_us: i64,
    end: &'a str,
    path: &'a str,
    /// Queue of the path's link.
    queued_bytes: u64,
    subflow: &'a SubflowInfo,
    view: Option<&'a SubflowView>,
}

impl Sample<'_> {
    fn append_to(&self, rows: &mut Table) {
        let Sample { time_us, end, path, queued_bytes, subflow, view } = *self;
        let (health, cause) = (subflow.health.path_health().name(), subflow.health.cause());
        let forecast = view.map(|view| view.forecast).filter(|forecast| forecast.is_known());
        let answer = |quantile| forecast.and_then(|forecast| forecast.answer(quantile)).map(to_us);
        let row: [Cell<'_>; 22] = [
            time_us.into(),
            end.into(),
            path.into(),
            Cell::Count(subflow.id.0.into()),
            word(subflow.state).into(),
            health.into(),
            cause.into(),
            subflow.phase.name().into(),
            subflow.backup.into(),
            subflow.cwnd.into(),
            subflow.in_flight.into(),
            subflow.lost.into(),
            subflow.srtt.map(to_us).into(),
            subflow.srtt.map(|_| to_us(subflow.rttvar)).into(),
            answer(Quantile::P50).into(),
            answer(Quantile::P90).into(),
            answer(Quantile::P99).into(),
            forecast.map(|forecast| to_us(forecast.queued())).into(),
            subflow.delivery_rate.map(|rate| rate.bits_per_s()).into(),
            subflow.mss.into(),
            subflow.bytes_sent.into(),
            queued_bytes.into(),
        ];
        rows.push(row);
    }
}

fn to_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The empty table.
pub(super) fn table() -> Table {
    let columns = vec![
        Column::integer("time_us", "us"),
        Column::text("end"),
        Column::text("path"),
        Column::count("subflow", ""),
        Column::text("state"),
        Column::text("health"),
        Column::text("cause"),
        Column::text("phase"),
        Column::flag("backup"),
        Column::count("cwnd_bytes", "B"),
        Column::count("in_flight_bytes", "B"),
        Column::count("lost_bytes", "B"),
        Column::count("srtt_us", "us"),
        Column::count("rttvar_us", "us"),
        Column::count("forecast_p50_us", "us"),
        Column::count("forecast_p90_us", "us"),
        Column::count("forecast_p99_us", "us"),
        Column::count("forecast_queued_us", "us"),
        Column::count("delivery_bits_per_s", "bit/s"),
        Column::count("mss_bytes", "B"),
        Column::count("sent_bytes", "B"),
        Column::count("link_queue_bytes", "B"),
    ];
    Table::new("subflows", columns)
}
