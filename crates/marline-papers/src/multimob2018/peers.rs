//! Peers without extensions, and middleboxes that remove the extensions: nothing may break, and
//! whatever needs no help from the peer still works.

use marline::MonitorKind;
use marline_lab::figure::Segment;
use marline_time::{Duration, Instant};
use marline_wire::TcpFlags;
use marline_wire::mptcp::ExperimentalMessage;

use super::phone_scenario::{Download, Fetched, LTE, PhoneScenario, ms};
use super::systems::{self, System};
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

const DOWNLOAD: Download =
    Download { bytes: 4_000_000, dead: Duration::from_millis(800), limit: Instant::from_secs(60) };
const WIFI_LINK: &str = "rate=20M,delay=10ms,queue=100ms";
const LTE_LINK: &str = "rate=15M,delay=25ms,queue=300ms,radio=lte";
/// A client says HELLO so often at most.
const MOST_HELLOS: usize = 5;
/// SYNs of a join with a fallback: one with the data, one without.
const SYNS: usize = 2;

/// What became of a download.
struct Outcome {
    came: bool,
    multipath: bool,
    took_ms: f64,
    /// Longest time without arrivals after WiFi died.
    hole_ms: f64,
    hellos: usize,
    /// Other experimental messages, both ways.
    messages: usize,
    /// SYNs over LTE.
    syns: usize,
}

impl Outcome {
    fn told(&self) -> String {
        format!(
            "{:.1} s, hole {:.0} ms, {} HELLO, {} other messages, {} SYN over LTE",
            self.took_ms / 1e3,
            self.hole_ms,
            self.hellos,
            self.messages,
            self.syns
        )
    }

    fn numbers(&self) -> [f64; 5] {
        [
            self.took_ms / 1e3,
            self.hole_ms,
            self.hellos as f64,
            self.messages as f64,
            self.syns as f64,
        ]
    }
}

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let columns = [
        ("case", ""),
        ("download", "s"),
        ("hole", "ms"),
        ("HELLO", ""),
        ("other messages", ""),
        ("SYN over LTE", ""),
    ];
    let title = "4 MB by GET, WiFi dies after 0.8 s: with peers and boxes of all kinds";
    let mut grid = Grid::new("peers", title, &columns);
    let mut rows = Vec::new();
    let plain = fetch(&systems::tuned(), ("", ""), context.master)?;
    grid.push(&["both ends MultiMob, no box"], &plain.numbers());
    for (name, system) in stock() {
        let fetched = fetch(&system, ("", ""), context.master)?;
        grid.push(&[name], &fetched.numbers());
        let met = fetched.came
            && fetched.multipath
            && fetched.hellos <= MOST_HELLOS
            && fetched.messages == 0;
        rows.push(Row::new(name).ours_says(fetched.told()).holds(
            met,
            format!(
                "all bytes come over the other path, Multipath TCP, at most {MOST_HELLOS} HELLO and \
                 nothing else experimental"
            ),
        ));
    }
    for (name, wifi, lte) in boxes() {
        let fetched = fetch(&systems::tuned(), (&wifi, &lte), context.master)?;
        grid.push(&[&name], &fetched.numbers());
        let met = fetched.came && fetched.multipath && fetched.syns <= SYNS;
        let row = Row::new(name.clone()).ours_says(fetched.told());
        rows.push(match name.contains("block") {
            // More than is asked for: a middlebox that drops whole segments.
            true => row.holds(fetched.came, "bytes intact"),
            false => row.holds(
                met,
                "bytes intact, Multipath TCP, joined with the second SYN at the latest",
            ),
        });
    }
    let title = "Peers without extensions; boxes that strip, drop or mangle them";
    all.tables.push(Table::new("strangers", title, rows));
    all.grids.push(grid);
    Ok(())
}

/// Ends that know nothing of MultiMob.
fn stock() -> Vec<(&'static str, System)> {
    vec![
        ("MultiMob client, server without extensions", systems::to_stock_server()),
        ("client without extensions, MultiMob server", systems::from_stock_client()),
    ]
}

/// Middleboxes on WiFi, on LTE or on both, by what they do to which segments.
fn boxes() -> Vec<(String, String, String)> {
    let mut boxes = Vec::new();
    for what in ["strip", "block", "mangle"] {
        for segments in ["all", "syn", "synack", "rest"] {
            let item = format!(",{what}=mp_experimental:{segments}");
            boxes.push((format!("LTE: {}", &item[1..]), String::new(), item.clone()));
            // On WiFi only what comes after the handshake is experimental.
            if segments == "all" {
                boxes.push((format!("WiFi: {}", &item[1..]), item.clone(), String::new()));
                boxes.push((format!("both: {}", &item[1..]), item.clone(), item));
            }
        }
    }
    boxes
}

fn fetch(system: &System, (wifi, lte): (&str, &str), seed: u64) -> anyhow::Result<Outcome> {
    let (wifi, lte) = (format!("{WIFI_LINK}{wifi}"), format!("{LTE_LINK}{lte}"));
    let Fetched { paths, report, segments, came, last } =
        PhoneScenario::of(&wifi, &lte, None, seed)?.fetch(system, DOWNLOAD, seed)?;
    let monitor = paths.world.node(paths.client).monitor().iter();
    let syn =
        |s: &&Segment| s.path == LTE && s.from_client && s.header.flags.contains(TcpFlags::SYN);
    Ok(Outcome {
        came,
        multipath: !monitor.into_iter().any(|e| matches!(e.kind, MonitorKind::Fallback(_))),
        took_ms: ms(last.since(Instant::ZERO)),
        hole_ms: ms(report.hole_within(Instant::ZERO + DOWNLOAD.dead, last).length),
        hellos: count(&segments, |message| matches!(message, ExperimentalMessage::Hello(_))),
        messages: count(&segments, |message| !matches!(message, ExperimentalMessage::Hello(_))),
        syns: segments.iter().filter(syn).count(),
    })
}

/// Experimental messages that were sent.
fn count(segments: &[Segment], which: impl Fn(&ExperimentalMessage) -> bool) -> usize {
    let messages = segments.iter().flat_map(|segment| segment.options.mptcp.experimental());
    messages.filter(|message| which(message)).count()
}
