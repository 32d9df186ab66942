//! Download whose WiFi goes silent. The client detects it on its own and fetches the rest over LTE.

use marline::monitor::MonitorKind;
use marline_lab::figure::{Delivery, Figure, Plot, Point, Segment};
use marline_sim::Paths;
use marline_time::{Duration, Instant};
use marline_wire::TcpFlags;
use serde::{Deserialize, Serialize};

use super::ours::ParameterComparison;
use super::phone_scenario::{Download, DrawnLinks, Fetched, LTE, NAMES, PhoneScenario, WIFI, ms};
use super::published::Published;
use super::quantiles::{RankedSamples, count_where};
use super::radios::cell;
use super::systems::{self, System};
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Effort};
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// At least 105 successful roots are needed to show a share of 95 %.
const DOWNLOADS: Part = Part::new("download", 110, 1_000);
const DOWNLOAD: Download = Download {
    bytes: 20_000_000,
    dead: Duration::from_millis(1_500),
    limit: Instant::from_secs(120),
};
/// Wake-up time of a sleeping radio of the link, ms.
const PROMOTION_MS: f64 = 260.1;
/// Maximum number of points per path in the figure.
const MAX_FIGURE_POINTS: usize = 400;

/// Links of a root, and the download over them by each of [`systems::multipath`].
#[derive(Serialize, Deserialize)]
struct Links {
    lte_rtt_ms: f64,
    fetches: Vec<Fetch>,
}

/// Results of a download.
#[derive(Serialize, Deserialize)]
struct Fetch {
    /// The longest time without arrivals after WiFi died.
    hole: DeliveryGap,
    /// Time from the first SYN to the last byte.
    took_ms: f64,
    came: bool,
    /// Time and position in the stream of arrivals, by path. Only for the first root.
    arrivals: Vec<Vec<(f64, f64)>>,
}

/// Phases of the gap in arrivals, ms. `None`: the phase did not happen.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct DeliveryGap {
    whole: Option<f64>,
    /// From the last arrival until the client marked WiFi as silent or suspected.
    timer: Option<f64>,
    /// From there to the first SYN on LTE.
    decision: Option<f64>,
    /// From there to the arrival of that SYN: promotion and half a round trip.
    syn: Option<f64>,
    /// From there to the arrival of the first data over LTE.
    data: Option<f64>,
    /// True if the client detected WiFi's silence on its own.
    by_client: bool,
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
    ours: &mut ParameterComparison,
) -> anyhow::Result<()> {
    let bytes = if context.effort == Effort::Quick { 8_000_000 } else { DOWNLOAD.bytes };
    let download = Download { bytes, ..DOWNLOAD };
    let timer_ms = file.published.receive_timer_ms;
    let (links, rows) = context.judge_part(
        DOWNLOADS,
        |root| measure(root, download),
        |links| Ok(verdicts(links, timer_ms)),
    )?;
    let title =
        "20 MB by HTTP GET; WiFi loses everything from 1.5 s on; sampled links (99 % intervals)";
    all.tables.push(Table::new("download", title, rows));
    all.grids.push(parts(&links, context.master));
    compare_parameters(&links, timer_ms, ours);
    if let Some(first) = links.all().first() {
        for (system, fetch) in systems::multipath().iter().zip(&first.fetches) {
            all.figures.push(figure(system.name, fetch));
        }
    }
    Ok(())
}

fn measure(root: &Root, download: Download) -> anyhow::Result<Links> {
    let links = DrawnLinks::draw(root);
    let scenario = PhoneScenario::experiment_over_links(&links.wifi, &links.lte, None, root.seed)?;
    let fetch = |system: &System| -> anyhow::Result<Fetch> {
        let Fetched { paths, segments, is_complete: came, last } =
            scenario.fetch(system, download, root.seed)?;
        let shown = [WIFI, LTE].into_iter().filter(|_| root.number == 0);
        Ok(Fetch {
            hole: measure_gap(&paths, &segments),
            took_ms: ms(last.since(Instant::ZERO)),
            came,
            arrivals: shown.map(|path| arrivals(&segments, path)).collect(),
        })
    };
    let fetches = systems::multipath().iter().map(fetch).collect::<anyhow::Result<_>>()?;
    Ok(Links { lte_rtt_ms: ms(links.lte_rtt), fetches })
}

/// Time of arrival of a segment.
fn arrival_time(segment: &Segment) -> Option<Instant> {
    match segment.delivery {
        Delivery::Arrived(at) => Some(at),
        Delivery::Lost => None,
    }
}

fn measure_gap(paths: &Paths, segments: &[Segment]) -> DeliveryGap {
    let dead = Instant::ZERO + DOWNLOAD.dead;
    let data = |path: usize| {
        let mine =
            segments.iter().filter(move |s| s.path == path && !s.from_client && s.payload > 0);
        mine.filter_map(arrival_time)
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
                | MonitorKind::SubflowReachability { reachable: false, .. }
        );
        judged && event.at > dead
    });
    let since = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
        (Some(from), Some(to)) => Some(to.as_nanos() as f64 / 1e6 - from.as_nanos() as f64 / 1e6),
        _ => None,
    };
    let (silent_at, syn_at) = (silent.map(|event| event.at), syn.map(|syn| syn.sent));
    let syn_came = syn.and_then(arrival_time);
    DeliveryGap {
        whole: since(Some(last), first),
        timer: since(Some(last), silent_at),
        decision: since(silent_at, syn_at),
        syn: since(syn_at, syn_came),
        data: since(syn_came, first),
        by_client: silent.is_some_and(|e| matches!(e.kind, MonitorKind::SubflowSilent { .. })),
    }
}

fn median(
    links: &Samples<Links>,
    master: u64,
    place: usize,
    of: fn(&Fetch) -> Option<f64>,
) -> Estimate {
    let ranked = RankedSamples::rank_samples(links, |links| of(&links.fetches[place]));
    count_where(links, master, |drawn| ranked.quantile(drawn, 0.5))
}

/// Share of the downloads of a system with this property.
fn share(
    links: &Samples<Links>,
    place: usize,
    is_met: impl Fn(&Links, &Fetch) -> bool,
) -> Estimate {
    let met = |links: &Links| is_met(links, &links.fetches[place]);
    links.share(|links| (u64::from(met(links)), 1)).percent()
}

impl Fetch {
    /// True if the client's receive timer fired, no later than this.
    fn has_timer_within(&self, most_ms: f64) -> bool {
        // Times of packets are rounded.
        self.hole.by_client && self.hole.timer.is_some_and(|ms| ms <= most_ms + 1.0)
    }

    /// True if the client opened the LTE path after its receive timer.
    const fn has_opened_after_timer(&self) -> bool {
        self.hole.by_client && self.hole.decision.is_some()
    }

    /// True if the download ended, and its gap was no longer than the receive timer and the join.
    fn has_continued(&self, links: &Links, timer_ms: f64) -> bool {
        let limit_ms = timer_ms + PROMOTION_MS + 2.0 * links.lte_rtt_ms;
        self.came && self.hole.whole.is_some_and(|ms| ms <= limit_ms)
    }
}

fn verdicts(links: &Samples<Links>, timer_ms: f64) -> Vec<Row> {
    let authors = systems::index_of(&systems::authors());
    let row = |what: &str, is_met: &dyn Fn(&Links, &Fetch) -> bool| {
        let share = share(links, authors, is_met);
        Row::new(format!("authors' parameters: {what}")).estimate(&share, "%").at_least(95.0)
    };
    vec![
        row("receive timer follows the sender's timeout", &|_, fetch| fetch.has_timer_within(timer_ms))
            .statement("sender-announces-its-timeout")
            .paper_claim("reset to the sender's RTO")
            .with_remark(format!("within {timer_ms:.0} ms, the module's minimum; 1.5 s if unknown")),
        row("LTE opened after the receive timer", &|_, fetch| fetch.has_opened_after_timer())
            .statement("inactivity-opens-a-path")
            .paper_claim("client opens an additional path after an inactivity period"),
        row("download continued over LTE", &|links, fetch| fetch.has_continued(links, timer_ms))
            .statement("server-continues-over-the-new-path")
            .paper_claim("server continues the connection on the additional path")
            .with_remark(
                "every byte arrives; gap within timer, promotion (260 ms) and two round trips of LTE",
            ),
    ]
}

fn compare_parameters(links: &Samples<Links>, timer_ms: f64, ours: &mut ParameterComparison) {
    ours.push("download: receive timer follows the sender's timeout", "%", |place| {
        share(links, place, |_, fetch| fetch.has_timer_within(timer_ms))
    });
    ours.push("download: LTE opened after the receive timer", "%", |place| {
        share(links, place, |_, fetch| fetch.has_opened_after_timer())
    });
    ours.push("download: continued over LTE", "%", |place| {
        share(links, place, |links, fetch| fetch.has_continued(links, timer_ms))
    });
}

fn parts(links: &Samples<Links>, master: u64) -> Grid {
    let columns = [
        ("system", ""),
        ("gap", "ms"),
        ("timer", "ms"),
        ("decision", "ms"),
        ("SYN, promotion", "ms"),
        ("data", "ms"),
        ("download", "s"),
    ];
    let mut grid = Grid::new("hole", "Parts of the gap, from simulated packets: medians", &columns);
    for (place, system) in systems::multipath().iter().enumerate() {
        let of: [fn(&Fetch) -> Option<f64>; 6] = [
            |fetch| fetch.hole.whole,
            |fetch| fetch.hole.timer,
            |fetch| fetch.hole.decision,
            |fetch| fetch.hole.syn,
            |fetch| fetch.hole.data,
            |fetch| Some(fetch.took_ms / 1e3),
        ];
        let mut cells = vec![Value::Text(system.name.to_owned())];
        cells.extend(of.map(|of| cell(median(links, master, place, of))));
        grid.rows.push(cells);
    }
    grid
}

/// Position in the stream (MB) over time (s), thinned to the arrivals that a figure can show.
fn arrivals(segments: &[Segment], path: usize) -> Vec<(f64, f64)> {
    let mine = segments.iter().filter(|s| s.path == path && !s.from_client && s.payload > 0);
    let point = |segment: &Segment| {
        let seconds = arrival_time(segment)?.as_nanos() as f64 / 1e9;
        Some((seconds, segment.stream_offset? as f64 / 1e6))
    };
    let all: Vec<(f64, f64)> = mine.filter_map(point).collect();
    let step = all.len().div_ceil(MAX_FIGURE_POINTS).max(1);
    // All arrivals around the gap are kept.
    let near = |(x, _): &(f64, f64)| (x - DOWNLOAD.dead.as_secs_f64()).abs() < 0.05;
    let shown = all.iter().enumerate().filter(|(index, p)| index % step == 0 || near(p));
    shown.map(|(_, point)| *point).collect()
}

fn figure(name: &str, fetch: &Fetch) -> Figure {
    let mut plot =
        Plot::new(&format!("Download, {name}"), "time (s)", "position in the stream (MB)");
    for (arrivals, label) in fetch.arrivals.iter().zip(NAMES) {
        let points = arrivals.iter().map(|(x, y)| Point { x: *x, y: *y, interval: None });
        plot = plot.points(label, &points.collect::<Vec<_>>());
    }
    let key: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == ' ').collect::<String>();
    let key = key.to_lowercase().replace(' ', "-");
    let caption = "Arrivals at the client, on the links of the first root; WiFi loses everything \
                   from 1.5 s on.";
    plot.add_vertical_line(DOWNLOAD.dead.as_secs_f64(), "WiFi dies")
        .figure(&format!("sequence-{key}"), caption)
}
