//! Timing diagrams of the paper (figures 5 and 8), drawn from simulated packets.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use marline_lab::experiment::{START, Variant};
use marline_lab::figure::{Segment, SegmentLog, TimingDiagram};
use marline_time::Instant;

use super::contestants::{Windows, both_variants};
use super::run::scene;
use super::traffic::{Repetition, Trace, WLAN, WLAN_MBIT};
use crate::table::Reproduction;

/// Number of bursts before the drawn one.
const BURSTS_BEFORE: u32 = 15;
/// Time from the death of WLAN to the burst, or from a large burst to the death of WLAN.
const EARLY: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_millis(9);

struct DiagramSpec {
    name: &'static str,
    title: &'static str,
    figure: &'static str,
    bytes: u64,
    /// True if WLAN dies within the burst.
    within: bool,
    /// End of the diagram, ms after the burst was written.
    until_ms: f64,
}

const DIAGRAMS: [DiagramSpec; 2] = [
    DiagramSpec {
        name: "short",
        title: "a burst of one packet (Docs)",
        figure: "5",
        bytes: 400,
        within: false,
        until_ms: 520.0,
    },
    DiagramSpec {
        name: "large",
        title: "a large burst (Netflix, 600 kB)",
        figure: "8",
        bytes: 600_000,
        within: true,
        until_ms: 700.0,
    },
];

pub(super) fn draw(all: &mut Reproduction) -> anyhow::Result<()> {
    for scene in &DIAGRAMS {
        for variant in both_variants(Windows::Kept) {
            all.figures.push(diagram(scene, &variant)?);
        }
    }
    Ok(())
}

fn diagram(drawn: &DiagramSpec, variant: &Variant) -> anyhow::Result<marline_lab::figure::Figure> {
    let begins = Duration::from_secs(1) * (BURSTS_BEFORE + 1);
    let bursts =
        (1..=BURSTS_BEFORE + 1).map(|n| (Duration::from_secs(1) * n, drawn.bytes)).collect();
    let trace = Trace { bursts, rtts_ms: (13.0, 85.0), wlan_mbit: WLAN_MBIT };
    let dies = if drawn.within { begins + LATE } else { begins - EARLY };
    let mut paths = scene(&trace, &Repetition { seed: 5, death_time: dies }, variant)?;
    let log = SegmentLog::for_paths(&paths);
    paths.world.observe(Box::new(log));
    paths.world.run_until(START + begins + Duration::from_secs(2));
    let log = paths.world.observer::<SegmentLog>().context("the simulation has no observer")?;
    let zero = START + begins;
    let dead_ms = (dies.as_secs_f64() - begins.as_secs_f64()) * 1e3;
    let from_ms = dead_ms.min(0.0);
    let title = format!("{}: {} when WLAN dies", variant.name, drawn.title);
    let before = drawn.bytes * u64::from(BURSTS_BEFORE);
    let mut diagram = TimingDiagram::new(&title, &["WLAN", "4G"], from_ms, drawn.until_ms)
        .height(640.0)
        .segments(log.segments(), zero, |segment| Some(label(segment, before)))
        .span(WLAN, dead_ms, drawn.until_ms, "dead");
    // On a dead path, the first retransmission is the probe and the second is caused by the timer.
    for (at, timer) in repeats(log.segments(), before).into_iter().zip(["PTO", "RTO"]) {
        let at_ms = at.since(zero).as_secs_f64() * 1e3;
        diagram = diagram.add_note(WLAN, false, at_ms, timer);
    }
    let name = format!("timing-{}-{}", drawn.name, variant.name.to_lowercase());
    let caption = format!(
        "Like figure {} of the paper. Every arrow is a simulated packet; a cross is a loss. \
         Segments and the range of a DATA_ACK are counted from the beginning of the burst.",
        drawn.figure
    );
    Ok(diagram.figure(&name, &caption))
}

/// Bytes of payload of a full segment.
const SEGMENT: u64 = 1_428;

/// Segment number in the burst, or the acknowledged part of the burst.
fn label(segment: &Segment, before: u64) -> String {
    match (segment.stream_offset, segment.data_acked) {
        (Some(at), _) if at >= before => format!("#{}", 1 + (at - before) / SEGMENT),
        (_, Some(acked)) if acked >= before => {
            format!("DATA_ACK {}", (acked - before).div_ceil(SEGMENT))
        }
        _ => segment.describe(),
    }
}

/// Times at which data of the burst was retransmitted on WLAN.
fn repeats(segments: &[Segment], before: u64) -> Vec<Instant> {
    let mut seen = BTreeSet::new();
    let of_burst = segments.iter().filter(|segment| segment.path == WLAN && !segment.from_client);
    of_burst
        .filter_map(|segment| {
            let at = segment.stream_offset.filter(|at| *at >= before)?;
            (!seen.insert(at)).then_some(segment.sent)
        })
        .collect()
}
