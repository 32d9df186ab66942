//! Download whose WiFi goes silent: the client detects it on its own and fetches the rest over LTE.

use marline::MonitorKind;
use marline_lab::figure::{Fate, Figure, Plot, Point, Segment};
use marline_sim::Paths;
use marline_time::{Duration, Instant};
use marline_wire::TcpFlags;

use super::phone_scenario::{Download, Fetched, LTE, NAMES, PhoneScenario, WIFI, ms};
use super::published::Published;
use super::systems::{self, System};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

const DOWNLOAD: Download = Download {
    bytes: 20_000_000,
    dead: Duration::from_millis(1_500),
    limit: Instant::from_secs(120),
};
const WIFI_LINK: &str = "rate=20M,delay=10ms,queue=100ms,radio=wifi";
const LTE_LINK: &str = "rate=15M,delay=25ms,queue=300ms,radio=lte";
/// Of LTE's link, with a full packet one way (1,500 B at 15 Mbit/s).
const LTE_RTT: Duration = Duration::from_micros(50_800);
/// What a radio that sleeps takes to wake (the link's).
const PROMOTION_MS: f64 = 260.1;
/// Points of a path in the figure.
const SHOWN: usize = 400;

/// A download.
struct Fetch {
    system: System,
    /// The longest time without arrivals after WiFi died.
    hole: Hole,
    /// From the first SYN to the last byte.
    took_ms: f64,
    came: bool,
    arrivals: [Vec<Point>; 2],
}

/// The parts of the hole, ms; what did not happen is not a number.
#[derive(Copy, Clone, Debug)]
struct Hole {
    whole: f64,
    /// From the last arrival to the verdict on WiFi.
    timer: f64,
    /// To the first SYN on LTE.
    decision: f64,
    /// Until that SYN arrived: promotion and half a round trip.
    syn: f64,
    /// To the arrival of the first data over LTE.
    data: f64,
    /// WiFi was judged by the client.
    by_client: bool,
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let systems = systems::multipath();
    let fetches = context.parallel("download", &systems, |system| fetch(system, context.master))?;
    let mut rows = Vec::new();
    for fetch in &fetches {
        rows.extend(judge(fetch, file));
    }
    let title = "20 MB by HTTP GET; WiFi loses everything from 1.5 s on";
    all.tables.push(Table::new("download", title, rows));
    all.grids.push(parts(&fetches));
    for fetch in fetches.iter().filter(|fetch| fetch.system.judged || !fetch.system.multimob) {
        all.figures.push(figure(fetch));
    }
    Ok(())
}

fn fetch(system: &System, seed: u64) -> anyhow::Result<Fetch> {
    let scenario = PhoneScenario::of(WIFI_LINK, LTE_LINK, None, seed)?;
    let Fetched { paths, segments, came, last, .. } = scenario.fetch(system, DOWNLOAD, seed)?;
    Ok(Fetch {
        system: system.clone(),
        hole: hole(&paths, &segments),
        took_ms: ms(last.since(Instant::ZERO)),
        came,
        arrivals: [WIFI, LTE].map(|path| arrivals(&segments, path)),
    })
}

/// When a segment arrived.
fn arrived(segment: &Segment) -> Option<Instant> {
    match segment.fate {
        Fate::Arrived(at) => Some(at),
        Fate::Lost => None,
    }
}

fn hole(paths: &Paths, segments: &[Segment]) -> Hole {
    let dead = Instant::ZERO + DOWNLOAD.dead;
    let data = |path: usize| {
        let mine =
            segments.iter().filter(move |s| s.path == path && !s.from_client && s.payload > 0);
        mine.filter_map(arrived)
    };
    let last = data(WIFI).max().unwrap_or(dead);
    let first = data(LTE).filter(|at| *at > last).min();
    let syn = segments.iter().find(|segment| {
        let opens = segment.header.flags.contains(TcpFlags::SYN) && segment.from_client;
        segment.path == LTE && opens && segment.sent > dead
    });
    let silent = paths.world.node(paths.client).monitor().iter().find(|event| {
        let judged = matches!(
            event.kind,
            MonitorKind::SubflowSilent { .. }
                | MonitorKind::SubflowSuspected { suspected: true, .. }
        );
        judged && event.at > dead
    });
    let since = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
        (Some(from), Some(to)) => to.as_nanos() as f64 / 1e6 - from.as_nanos() as f64 / 1e6,
        _ => f64::NAN,
    };
    let (silent_at, syn_at) = (silent.map(|event| event.at), syn.map(|syn| syn.sent));
    let syn_came = syn.and_then(arrived);
    Hole {
        whole: since(Some(last), first),
        timer: since(Some(last), silent_at),
        decision: since(silent_at, syn_at),
        syn: since(syn_at, syn_came),
        data: since(syn_came, first),
        by_client: silent.is_some_and(|e| matches!(e.kind, MonitorKind::SubflowSilent { .. })),
    }
}

fn judge(fetch: &Fetch, file: &PaperFile<Published>) -> Vec<Row> {
    let (name, hole) = (fetch.system.name, &fetch.hole);
    if !fetch.system.multimob {
        let row = Row::new(format!("{name}: hole")).ours(hole.whole, "ms");
        return vec![row.remark(format!("download over after {:.1} s", fetch.took_ms / 1e3))];
    }
    let limit = file.published.receive_timer_ms + PROMOTION_MS + 2.0 * ms(LTE_RTT);
    let opened = hole.by_client && hole.timer <= file.published.receive_timer_ms + 1.0;
    let by = if hole.by_client { "its receive timer" } else { "something else" };
    vec![
        Row::new(format!("{name}: the client opens the cellular path by itself"))
            .paper_says("receive timer")
            .ours_says(format!("by {by}, after {:.0} ms", hole.timer))
            .holds(opened, "by its receive timer"),
        Row::new(format!("{name}: hole")).ours(hole.whole, "ms").at_most(limit).remark(format!(
            "timer {:.0}, decision {:.0}, SYN with promotion {:.0}, data {:.0} ms; the limit is the \
             authors' shortest timer ({:.0}), promotion (260) and two round trips of LTE (102)",
            hole.timer, hole.decision, hole.syn, hole.data, file.published.receive_timer_ms
        )),
        Row::new(format!("{name}: the download ends"))
            .ours(fetch.took_ms / 1e3, "s")
            .holds(fetch.came, "all bytes, each the right one"),
    ]
}

fn parts(fetches: &[Fetch]) -> Grid {
    let columns = [
        ("system", ""),
        ("hole", "ms"),
        ("timer", "ms"),
        ("decision", "ms"),
        ("SYN, promotion", "ms"),
        ("data", "ms"),
        ("download", "s"),
    ];
    let mut grid = Grid::new("hole", "Parts of the hole, from simulated packets", &columns);
    for Fetch { system, hole, took_ms, .. } in fetches {
        let numbers = [hole.whole, hole.timer, hole.decision, hole.syn, hole.data, took_ms / 1e3];
        grid.push(&[system.name], &numbers);
    }
    grid
}

/// Place in the stream over time, of as many arrivals as can be seen.
fn arrivals(segments: &[Segment], path: usize) -> Vec<Point> {
    let mine = segments.iter().filter(|s| s.path == path && !s.from_client && s.payload > 0);
    let point = |segment: &Segment| {
        let x = arrived(segment)?.as_nanos() as f64 / 1e9;
        Some(Point { x, y: segment.stream_offset? as f64 / 1e6, interval: None })
    };
    let all: Vec<Point> = mine.filter_map(point).collect();
    let step = all.len().div_ceil(SHOWN).max(1);
    // Around the hole every one counts.
    let near = |p: &Point| (p.x - DOWNLOAD.dead.as_secs_f64()).abs() < 0.05;
    let shown = all.iter().enumerate().filter(|(index, p)| index % step == 0 || near(p));
    shown.map(|(_, point)| *point).collect()
}

fn figure(fetch: &Fetch) -> Figure {
    let name = fetch.system.name;
    let mut plot = Plot::new(&format!("Download, {name}"), "time (s)", "place in the stream (MB)");
    for (path, label) in NAMES.iter().enumerate() {
        plot = plot.points(label, &fetch.arrivals[path]);
    }
    let key: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == ' ').collect::<String>();
    let key = key.to_lowercase().replace(' ', "-");
    let caption = "Arrivals at the client; WiFi loses everything from 1.5 s on.";
    plot.mark_x(DOWNLOAD.dead.as_secs_f64(), "WiFi dies")
        .figure(&format!("sequence-{key}"), caption)
}
