//! Ten connections on one WiFi. Measures how soon the nine mostly idle ones move after the active one finds the path
//! silent.

use anyhow::Context as _;
use marline::monitor::{ConnectionId, MonitorKind};
use marline::paths::AddressPairFault;
use marline_lab::figure::{Figure, Plot, cdf};
use marline_sim::{ExchangeSizes, Pace, Paths, ResponseServer, Units};
use marline_time::{Duration, Instant, Rng};
use serde::{Deserialize, Serialize};

use super::phone_scenario::{DrawnLinks, LTE, PhoneScenario, WIFI, ms};
use super::radios::cell;
use super::systems::{self, System};
use crate::estimate::{Estimate, Samples, pooled_quantile};
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// At least 105 successful roots are needed to show a share of 95 %.
const NEIGHBORS: Part = Part::new("neighbours", 110, 440);
/// Connections besides the active one.
const OTHER_CONNECTIONS: usize = 9;
/// Size of requests and answers.
const BYTES: u64 = 200;
/// Request interval of the active connection and of each of the others, which start at random times.
const BUSY: Duration = Duration::from_millis(100);
const REQUEST_INTERVAL: Duration = Duration::from_secs(9);
/// Start of the second within which WiFi goes silent.
const SILENT: Duration = Duration::from_secs(10);
const END: Instant = Instant::from_secs(40);
/// Shortest retransmission timeout. What was sent over the silent WiFi first arrives later than this.
const SHORTEST_RTO: Duration = Duration::from_millis(200);

/// Reactions of the other connections, ms after WiFi went silent, ascending. A missing reaction counts as the end of
/// the run.
#[derive(Serialize, Deserialize)]
struct Moves {
    /// When the active connection had a cellular subflow.
    first_ms: f64,
    /// When each of the others had a cellular subflow.
    others_ms: Vec<f64>,
    /// Latency of each other connection's first request after the silence.
    delays_ms: Vec<f64>,
    /// True if the path health monitor found losses or retransmissions before the active connection moved.
    has_verdict: bool,
    /// Other connections that had sent nothing since the silence when the active one moved.
    idle: u64,
    /// How many of these moved before their own next request.
    reacted: u64,
    /// First requests of other connections that had moved before.
    late_requests: u64,
    /// How many of these reached the server before a timeout.
    sent_elsewhere: u64,
    /// How many of these were also answered before a timeout.
    answered_elsewhere: u64,
}

/// What one of the other connections did after the silence.
struct Reaction {
    /// When it had a cellular subflow.
    moved: Instant,
    /// When its first request was sent, was read by the server, and was answered.
    request: Option<[Instant; 3]>,
}

/// Results of a root, by each of [`contestants`].
type MovesBySystem = Vec<Moves>;
/// Selection of one of the two lists of [`Moves`].
type SelectTimes = fn(&Moves) -> &[f64];

fn contestants() -> Vec<System> {
    vec![
        systems::authors(),
        systems::tuned(),
        systems::tuned_uncoupled(),
        systems::vanilla_backup(),
        systems::authors_with_plain_join(),
    ]
}

/// Indexes into [`contestants`]: the judged system, and that system with plain joins. A Fast JOIN already tells the
/// server that the other paths failed.
const AUTHORS: usize = 0;
const AUTHORS_WITH_PLAIN_JOIN: usize = 4;

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let (moved, rows) = context.judge_part(NEIGHBORS, measure, |moved| Ok(verdicts(moved)))?;
    let title = "One affected connection and nine others on the same address pair (99 % intervals)";
    all.tables.push(Table::new("others", title, rows));
    all.grids.push(grid(&moved));
    all.figures.push(figure(&moved));
    Ok(())
}

fn measure(root: &Root) -> anyhow::Result<MovesBySystem> {
    contestants().iter().map(|system| measure_moves(system, root)).collect()
}

fn quantile(moved: &Samples<MovesBySystem>, place: usize, of: SelectTimes, share: f64) -> Estimate {
    moved.estimate(|picked| pooled_quantile(picked.iter().map(|root| of(&root[place])), share))
}

fn verdicts(moved: &Samples<MovesBySystem>) -> Vec<Row> {
    let row = |place: usize, what: &str, of: fn(&Moves) -> (u64, u64)| {
        let share = moved.share(|root| of(&root[place])).percent();
        Row::new(format!("authors' parameters: {what}")).estimate(&share, "%").at_least(95.0)
    };
    let first = moved.mean(|root| root[AUTHORS].first_ms).value;
    let opened = row(AUTHORS, "backup opened upon losses or retransmissions", |moves| {
        (u64::from(moves.has_verdict), 1)
    });
    let avoided =
        row(AUTHORS, "next requests of the others not first sent over bad WiFi", |moves| {
            (moves.sent_elsewhere, moves.late_requests)
        });
    let reacted = row(AUTHORS, "others that moved before their next request", |moves| {
        (moves.reacted, moves.idle)
    });
    let followed = row(
        AUTHORS_WITH_PLAIN_JOIN,
        "answers that followed the client to LTE immediately, plain JOIN",
        |moves| (moves.answered_elsewhere, moves.sent_elsewhere),
    );
    vec![
        followed
            .statement("server-follows-the-client")
            .paper_claim("server follows the path used by the client")
            .with_remark("answered within 200 ms, the shortest retransmission timeout"),
        opened
            .statement("losses-open-the-backup")
            .paper_claim("trigger backup creation upon excessive losses or retransmissions")
            .with_remark(format!("cellular subflow {first:.0} ms after WiFi went silent, mean")),
        avoided
            .statement("bad-path-is-not-primary")
            .paper_claim("prevents primary use when bad")
            .with_remark("read by the server within 200 ms"),
        reacted
            .statement("one-suffers-others-react")
            .paper_claim("others react")
            .with_remark("of those that had sent nothing since WiFi went silent"),
    ]
}

fn grid(moved: &Samples<MovesBySystem>) -> Grid {
    let columns = [
        ("system", ""),
        ("affected connection moved, mean", "ms"),
        ("other connections moved, median", "ms"),
        ("other connections moved, last", "ms"),
        ("median next request on the other connections", "ms"),
        ("worst next request on the other connections", "ms"),
    ];
    let title = "One affected connection and nine others on the same address pair: times after WiFi went silent";
    let mut grid = Grid::new("neighbours", title, &columns);
    for (place, system) in contestants().iter().enumerate() {
        let lists: [SelectTimes; 2] = [|moves| &moves.others_ms, |moves| &moves.delays_ms];
        let mut cells = vec![Value::Text(system.name.to_owned())];
        cells.push(cell(moved.mean(|root| root[place].first_ms)));
        for of in lists {
            let worst = moved.all().iter().filter_map(|root| of(&root[place]).last());
            cells.push(cell(quantile(moved, place, of, 0.5)));
            cells.push(Value::new(worst.copied().fold(0.0, f64::max), ""));
        }
        grid.rows.push(cells);
    }
    grid
}

fn figure(moved: &Samples<MovesBySystem>) -> Figure {
    let mut plot =
        Plot::new("When the other nine moved", "time after WiFi went silent (ms)", "share").log_x();
    for (place, system) in contestants().iter().enumerate().filter(|(_, s)| s.multimob) {
        let roots = moved.all().iter();
        let all: Vec<f64> = roots.flat_map(|root| root[place].others_ms.iter().copied()).collect();
        plot = plot.steps(system.name, &cdf(&all));
    }
    let caption = "Each of the nine sends a request every 9 s; without a path health monitor, each detects the failure \
                   separately.";
    plot.figure("neighbours", caption)
}

/// Requests every `gap` from a start time on.
fn request_units(from: Instant, gap: Duration) -> Box<Units> {
    let times = (0..).map(|n| from + gap * n).take_while(|at| *at < END).collect();
    Box::new(Units::new(Pace::At { bytes: BYTES, times }, BYTES, 5, 6))
}

fn measure_moves(system: &System, root: &Root) -> anyhow::Result<Moves> {
    let links = DrawnLinks::draw(root);
    let scenario = PhoneScenario::experiment_over_links(&links.wifi, &links.lte, None, root.seed)?;
    let mut paths = scenario.stage(system, root.seed)?;
    let mut rng = root.rng("neighbours");
    let start = Instant::from_secs(1);
    let sizes = ExchangeSizes { request_bytes: BYTES, answer_bytes: BYTES };
    paths.listen(Box::new(move |_| Box::new(ResponseServer::new(sizes, 6, 5))));
    let mut ids = vec![paths.connect(WIFI, request_units(start, BUSY)).context("cannot connect")?];
    for _ in 0..OTHER_CONNECTIONS {
        let from = start + REQUEST_INTERVAL.mul_f64(rng.unit());
        ids.push(
            paths.connect(WIFI, request_units(from, REQUEST_INTERVAL)).context("cannot connect")?,
        );
    }
    let silent = Instant::ZERO + SILENT + Duration::from_secs(1).mul_f64(rng.unit());
    paths.schedule_path_change(silent, WIFI, false);
    paths.world.run_until(END);
    let others: Vec<Reaction> = (1..=OTHER_CONNECTIONS)
        .map(|number| Reaction {
            moved: moved_at(&paths, ids[number], silent),
            request: first_request(&paths, number, silent),
        })
        .collect();
    let first = moved_at(&paths, ids[0], silent);
    Ok(Moves {
        has_verdict: has_verdict(&paths, silent, first),
        ..count_moves(&others, silent, first)
    })
}

/// When a connection had a cellular subflow after the silence.
fn moved_at(paths: &Paths, id: ConnectionId, silent: Instant) -> Instant {
    let lte = Paths::address(LTE, 0);
    let mut monitor = paths.world.node(paths.client).monitor().iter();
    let event = monitor.find(|event| {
        event.connection == id
            && event.at > silent
            && match &event.kind {
                MonitorKind::SubflowEstablished { path, .. } => path.local.ip() == lte,
                _ => false,
            }
    });
    event.map_or(END, |event| event.at)
}

/// True if the client's path health monitor found losses or retransmissions between these times.
fn has_verdict(paths: &Paths, from: Instant, until: Instant) -> bool {
    use AddressPairFault::{Loss, Retransmissions};
    paths.world.node(paths.client).monitor().iter().any(|event| {
        let found = matches!(
            event.kind,
            MonitorKind::AddressPair { fault: Some(Loss | Retransmissions), .. }
        );
        found && event.at > from && event.at < until
    })
}

/// Times when the first request after the silence was sent, read by the server, and answered.
fn first_request(paths: &Paths, number: usize, silent: Instant) -> Option<[Instant; 3]> {
    let report = paths.client_report(number)?;
    let index = report.sent.iter().position(|at| *at > silent)?;
    let whole = (index as u64 + 1) * BYTES;
    let arrivals = paths.server_report(number).map_or(&[][..], |server| server.arrivals.as_slice());
    let read = arrivals.iter().find(|(_, bytes)| *bytes >= whole).map_or(END, |(at, _)| *at);
    let answered = report.received.get(index).copied().unwrap_or(END);
    Some([report.sent[index], read, answered])
}

/// All of [`Moves`] but the verdict.
fn count_moves(others: &[Reaction], silent: Instant, first: Instant) -> Moves {
    let ascending = |values: &mut dyn Iterator<Item = f64>| {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let count = |is_met: &dyn Fn(&Reaction) -> bool| {
        others.iter().filter(|other| is_met(other)).count() as u64
    };
    let sent = |other: &Reaction| other.request.map_or(END, |[sent, ..]| sent);
    let is_late = |other: &Reaction| other.request.is_some() && sent(other) > other.moved;
    let arrived = |other: &Reaction| {
        is_late(other)
            && other.request.is_some_and(|[sent, read, _]| read.since(sent) < SHORTEST_RTO)
    };
    let answered = |other: &Reaction| {
        let in_time = |[sent, _, answered]: [Instant; 3]| answered.since(sent) < SHORTEST_RTO;
        arrived(other) && other.request.is_some_and(in_time)
    };
    let delay = |[sent, _, answered]: [Instant; 3]| ms(answered.since(sent));
    Moves {
        first_ms: ms(first.since(silent)),
        others_ms: ascending(&mut others.iter().map(|other| ms(other.moved.since(silent)))),
        delays_ms: ascending(&mut others.iter().filter_map(|other| other.request.map(delay))),
        has_verdict: false,
        idle: count(&|other| sent(other) > first),
        reacted: count(&|other| sent(other) > first && other.moved < sent(other)),
        late_requests: count(&is_late),
        sent_elsewhere: count(&arrived),
        answered_elsewhere: count(&answered),
    }
}
