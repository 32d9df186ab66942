//! Peers without extensions, and middleboxes that remove the extensions. Nothing may break, and all features that do
//! not depend on the peer must work.

use marline::monitor::MonitorKind;
use marline_lab::figure::Segment;
use marline_time::{Duration, Instant, Rng};
use marline_wire::TcpFlags;
use marline_wire::mptcp::ExperimentalMessage;
use serde::{Deserialize, Serialize};

use super::phone_scenario::{Download, DrawnLinks, Fetched, LTE, PhoneScenario, ms};
use super::radios::cell;
use super::systems::{self, System};
use crate::estimate::Samples;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// At least 105 successful roots are needed to show a share of 95 %.
const PEERS: Part = Part::new("peers", 110, 220);
const BYTES: u64 = 4_000_000;
/// Start of the half second within which WiFi dies.
const DEAD: Duration = Duration::from_millis(800);
const DEATH_WINDOW: Duration = Duration::from_millis(500);
/// Maximum number of HELLO messages of a client.
const MAX_HELLO_COUNT: usize = 5;
/// SYNs of a join with a fallback: one with the data, one without.
const SYNS: usize = 2;

/// Requirement of a case.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum CaseRequirement {
    /// No requirement. The case is the reference for the others.
    Nothing,
    /// An end without extensions.
    WithoutExtensions,
    /// Options that a middlebox removes or corrupts.
    Options,
    /// Whole segments that a middlebox drops.
    Segments,
}

impl CaseRequirement {
    fn text(self) -> String {
        let asked = match self {
            CaseRequirement::Nothing => return String::new(),
            CaseRequirement::WithoutExtensions => format!(
                "all bytes arrive over the other path, Multipath TCP, at most {MAX_HELLO_COUNT} HELLO and no other \
                 experimental option"
            ),
            CaseRequirement::Options => {
                "bytes intact, Multipath TCP, joined by the second SYN".into()
            }
            // Stricter than the requirement.
            CaseRequirement::Segments => "bytes intact".to_owned(),
        };
        format!("at least 95 % of the runs: {asked}")
    }
}

/// A download between two ends through middleboxes.
struct Case {
    name: String,
    system: System,
    wifi: String,
    lte: String,
    required: CaseRequirement,
}

/// Result of a case.
#[derive(Serialize, Deserialize)]
struct Outcome {
    came: bool,
    multipath: bool,
    took_s: f64,
    /// Longest time without arrivals after WiFi died, ms.
    hole_ms: f64,
    hellos: usize,
    /// Other experimental messages, in both directions.
    messages: usize,
    /// SYNs sent over LTE.
    syns: usize,
}

impl Outcome {
    fn satisfies(&self, required: CaseRequirement) -> bool {
        match required {
            CaseRequirement::Nothing => true,
            CaseRequirement::WithoutExtensions => {
                self.came && self.multipath && self.hellos <= MAX_HELLO_COUNT && self.messages == 0
            }
            CaseRequirement::Options => self.came && self.multipath && self.syns <= SYNS,
            CaseRequirement::Segments => self.came,
        }
    }
}

/// Results of every case on the links of a root.
#[derive(Serialize, Deserialize)]
struct Downloads {
    seed: u64,
    cases: Vec<Outcome>,
}

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let cases = cases();
    let bytes = context.count(BYTES as usize).max(2_000_000) as u64;
    let (downloads, rows) = context.judge_part(
        PEERS,
        |root| {
            let dead = DEAD + DEATH_WINDOW.mul_f64(root.rng("dead").unit());
            let outcomes = cases.iter().map(|case| fetch(case, root, bytes, dead));
            Ok(Downloads { seed: root.seed, cases: outcomes.collect::<anyhow::Result<_>>()? })
        },
        |downloads| Ok(verdicts(&cases, downloads)),
    )?;
    let title =
        "Peers without extensions; middleboxes that strip, drop or mangle them (99 % intervals)";
    all.tables.push(Table::new("strangers", title, rows));
    all.grids.push(grid(&cases, &downloads));
    Ok(())
}

fn verdicts(cases: &[Case], downloads: &Samples<Downloads>) -> Vec<Row> {
    let asked =
        cases.iter().enumerate().filter(|(_, case)| case.required != CaseRequirement::Nothing);
    let row = |(place, case): (usize, &Case)| {
        let met = |root: &Downloads| root.cases[place].satisfies(case.required);
        let share = downloads.share(|root| (u64::from(met(root)), 1));
        let failed: Vec<String> = downloads
            .all()
            .iter()
            .filter(|root| !met(root))
            .map(|root| root.seed.to_string())
            .collect();
        let row = Row::new(case.name.clone()).estimate(&share.percent(), "%");
        let row =
            row.require_range(crate::estimate::RequiredRange::at_least(95.0), case.required.text());
        match failed.len() {
            0 => row,
            _ => row.with_remark(format!(
                "failed with roots {}",
                failed[..failed.len().min(5)].join(", ")
            )),
        }
    };
    asked.map(row).collect()
}

fn grid(cases: &[Case], downloads: &Samples<Downloads>) -> Grid {
    let columns = [
        ("case", ""),
        ("download", "s"),
        ("gap", "ms"),
        ("longest gap", "ms"),
        ("HELLO", ""),
        ("other messages", ""),
        ("SYN over LTE", ""),
        ("maximum SYNs over LTE", ""),
    ];
    let title =
        "4 MB by GET, WiFi dies after about 1 s: means with every kind of peer and middlebox";
    let mut grid = Grid::new("peers", title, &columns);
    for (place, case) in cases.iter().enumerate() {
        let mean = |of: &dyn Fn(&Outcome) -> f64| cell(downloads.mean(|d| of(&d.cases[place])));
        let most = |of: &dyn Fn(&Outcome) -> f64| {
            let all = downloads.all().iter().map(|d| of(&d.cases[place]));
            Value::new(all.fold(0.0, f64::max), "")
        };
        grid.rows.push(vec![
            Value::Text(case.name.clone()),
            mean(&|outcome| outcome.took_s),
            mean(&|outcome| outcome.hole_ms),
            most(&|outcome| outcome.hole_ms),
            mean(&|outcome| outcome.hellos as f64),
            mean(&|outcome| outcome.messages as f64),
            mean(&|outcome| outcome.syns as f64),
            most(&|outcome| outcome.syns as f64),
        ]);
    }
    grid
}

/// Cases with MultiMob at both ends, with ends that do not know it, and with middleboxes on WiFi, on LTE or on
/// both, by their action and the segments they act on.
fn cases() -> Vec<Case> {
    let of = |name: &str, system: System, required: CaseRequirement| Case {
        name: name.to_owned(),
        system,
        wifi: String::new(),
        lte: String::new(),
        required,
    };
    let mut cases = vec![
        of("both ends MultiMob, no middlebox", systems::tuned(), CaseRequirement::Nothing),
        of(
            "MultiMob client, server without extensions",
            systems::to_stock_server(),
            CaseRequirement::WithoutExtensions,
        ),
        of(
            "client without extensions, MultiMob server",
            systems::from_stock_client(),
            CaseRequirement::WithoutExtensions,
        ),
    ];
    for (what, required) in [
        ("strip", CaseRequirement::Options),
        ("block", CaseRequirement::Segments),
        ("mangle", CaseRequirement::Options),
    ] {
        for segments in ["all", "syn", "synack", "rest"] {
            let item = format!("{what}=mp_experimental:{segments}");
            let mut push = |place: &str, wifi: bool, lte: bool| {
                let on = |there: bool| if there { format!(",{item}") } else { String::new() };
                let case = of(&format!("{place}: {item}"), systems::tuned(), required);
                cases.push(Case { wifi: on(wifi), lte: on(lte), ..case });
            };
            push("LTE", false, true);
            // On WiFi, only messages after the handshake are experimental.
            if segments == "all" {
                push("WiFi", true, false);
                push("both", true, true);
            }
        }
    }
    cases
}

fn fetch(case: &Case, root: &Root, bytes: u64, dead: Duration) -> anyhow::Result<Outcome> {
    let links = DrawnLinks::draw(root);
    let (wifi, lte) =
        (format!("{}{}", links.wifi, case.wifi), format!("{}{}", links.lte, case.lte));
    let download = Download { bytes, dead, limit: Instant::from_secs(60) };
    let Fetched { paths, report, segments, is_complete: came, last } =
        PhoneScenario::experiment_over_links(&wifi, &lte, None, root.seed)?.fetch(
            &case.system,
            download,
            root.seed,
        )?;
    let monitor = paths.world.node(paths.client).monitor().iter();
    let syn =
        |s: &&Segment| s.path == LTE && s.from_client && s.header.flags.contains(TcpFlags::SYN);
    Ok(Outcome {
        came,
        multipath: !monitor.into_iter().any(|e| matches!(e.kind, MonitorKind::Fallback(_))),
        took_s: last.since(Instant::ZERO).as_secs_f64(),
        hole_ms: ms(report.hole_within(Instant::ZERO + dead, last).length),
        hellos: count(&segments, |message| matches!(message, ExperimentalMessage::Hello(_))),
        messages: count(&segments, |message| !matches!(message, ExperimentalMessage::Hello(_))),
        syns: segments.iter().filter(syn).count(),
    })
}

/// Number of experimental messages that match.
fn count(segments: &[Segment], which: impl Fn(&ExperimentalMessage) -> bool) -> usize {
    let messages = segments.iter().flat_map(|segment| segment.options.mptcp.experimental());
    messages.filter(|message| which(message)).count()
}
