use marline_time::Instant;

use super::*;
use crate::experiment::{Experiment, Variant, stage};
use crate::workload::{Gap, Workload};

/// Every element that is opened is closed, in order; returns how many there are of a name.
fn elements(svg: &str, wanted: &str) -> usize {
    let mut open: Vec<&str> = Vec::new();
    let mut found = 0;
    for piece in svg.split('<').skip(1) {
        let (tag, rest) = piece.split_once('>').expect("a tag ends");
        assert!(!rest.contains('>'), "a bare > in {rest:?}");
        let name = tag.split([' ', '/']).next().unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
            continue;
        }
        found += usize::from(name == wanted);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    found
}

#[test]
fn a_plot_draws_every_series_and_escapes_what_it_is_told() {
    let svg = Plot::new("a < b & \"c\"", "time (ms)", "share")
        .steps("<script>", &cdf(&[1.0, 2.0, 300.0]))
        .area("density", &density(&[5.0, 9.0], (0.0, 20.0), 2.0))
        .line("broken", &[(1.0, f64::NAN), (2.0, 0.5), (f64::INFINITY, 0.7)])
        .points("points", &[Point { x: 3.0, y: 0.2, interval: Some((0.1, 0.4)) }])
        .mark_x(10.0, "RTO")
        .mark_y(0.5, "half")
        .log_x()
        .svg();
    assert!(svg.contains("&lt;script&gt;") && !svg.contains("<script"));
    assert!(svg.contains("<title>a &lt; b &amp; &quot;c&quot;</title>"));
    // Four lines, one area, the frame, and the mark of the fourth series twice.
    assert_eq!(elements(&svg, "path"), 8);
    assert_eq!(elements(&svg, "style"), 1);
    assert!(!svg.contains("href") && !svg.contains("url("), "nothing from outside");
}

#[test]
fn a_plot_of_nothing_is_a_plot() {
    for svg in [
        Plot::new("t", "x", "y").svg(),
        Plot::new("t", "x", "y").log_x().log_y().line("none", &[]).svg(),
        Plot::new("t", "x", "y").log_y().line("zero", &[(0.0, 0.0)]).svg(),
        Plot::new("t", "x", "y").line("same", &[(5.0, 5.0), (5.0, 5.0)]).svg(),
        Bars::new("t", "y", &[]).svg(),
        Bars::new("t", "y", &["a"]).log().group("g", &[(f64::NAN, None)]).svg(),
        HeatMap::new("t", "ms", &[]).svg(),
        HeatMap::new("t", "ms", &["a"]).log().row("r", &[f64::NAN]).svg(),
        TimingDiagram::new("t", &[], (0.0, 0.0)).svg(),
    ] {
        assert_eq!(elements(&svg, "svg"), 1);
    }
}

#[test]
fn places_are_right_to_the_pixel() {
    use super::axis::Axis;
    let axis = Axis::new((0.0, 97.0), false, (300.0, 0.0)).rounded();
    let ticks: Vec<String> = axis.ticks().into_iter().map(|tick| tick.1).collect();
    assert_eq!(ticks, ["0", "20", "40", "60", "80", "100"]);
    assert_eq!((axis.place(50.0), axis.place(-9.0), axis.place(1e9)), (150.0, 300.0, 0.0));
    let fine = Axis::new((0.0, 0.31), false, (0.0, 1.0)).ticks();
    assert_eq!(
        fine.iter().map(|tick| tick.1.as_str()).collect::<Vec<_>>()[..3],
        ["0.00", "0.05", "0.10"]
    );
    let log = Axis::new((3.0, 4_000.0), true, (0.0, 400.0)).rounded();
    let ticks: Vec<String> = log.ticks().into_iter().map(|tick| tick.1).collect();
    assert_eq!(ticks, ["1", "10", "100", "1000", "10000"]);
    assert_eq!(log.place(100.0), 200.0);
    let below = Axis::new((0.05, 2.0), true, (0.0, 1.0)).ticks();
    let told: Vec<&str> = below.iter().map(|tick| tick.1.as_str()).collect();
    assert_eq!(told, ["0.05", "0.1", "0.2", "0.5", "1", "2"]);
}

#[test]
fn bars_have_the_heights_of_their_values() {
    let svg = Bars::new("t", "time (ms)", &["a", "b"])
        .group("one", &[(100.0, Some((90.0, 110.0))), (50.0, None)])
        .group("two", &[(f64::NAN, None), (25.0, None)])
        .mark(75.0, "limit")
        .svg();
    // Three bars, two in the legend, the background.
    assert_eq!(elements(&svg, "rect"), 6);
    let heights: Vec<f64> = svg
        .lines()
        .filter(|line| line.starts_with("<rect x=") && !line.contains("height=\"12\""))
        .map(|line| line.split("height=\"").nth(1).unwrap().split('"').next().unwrap())
        .map(|height| height.parse().unwrap())
        .collect();
    assert_eq!(heights.len(), 3);
    assert!((heights[0] / heights[1] - 2.0).abs() < 0.01, "{heights:?}");
    assert!((heights[0] / heights[2] - 4.0).abs() < 0.02, "{heights:?}");
}

#[test]
fn a_heat_map_is_darker_where_the_number_is_larger() {
    let svg = HeatMap::new("ratio", "times the bound", &["min-rtt", "redundant"])
        .row("ATT + TMobile", &[8.0, 1.0])
        .row("Verizon", &[f64::NAN, 2.0])
        .range(1.0, 8.0)
        .log()
        .svg();
    elements(&svg, "rect");
    assert!(svg.contains("fill=\"#521463\""), "the largest is darkest");
    assert!(svg.contains("fill=\"#fff7d6\""), "the least is lightest");
    assert!(svg.contains("class=\"light\">8</text>") && svg.contains("class=\"dark\">1</text>"));
    assert!(svg.contains(">-</text>"));
}

/// One burst over a path that loses the second data packet.
fn log() -> (Vec<Segment>, Instant) {
    let gap = Gap { least_ms: 1.0, most_ms: 1.0 };
    let bursts = Workload::Bursts { bytes: 6_000, gap, count: 1 };
    // The server's first packets are the SYN ACK and the answer to MP_CAPABLE.
    let links = [("wlan", "rate=20M,delay=6ms,down.drop=4")];
    let experiment = Experiment::over(&links, bursts);
    let mut paths = stage(&experiment, &Variant::new("default"), 1).unwrap();
    let log = SegmentLog::of(&paths);
    paths.world.observe(Box::new(log));
    paths.world.run_until(Instant::from_secs(3));
    let segments = paths.world.observer::<SegmentLog>().unwrap().segments().to_vec();
    (segments, crate::experiment::START)
}

#[test]
fn a_segment_log_tells_what_went_where_and_what_was_lost() {
    let (segments, start) = log();
    let told: Vec<String> = segments.iter().map(Segment::describe).collect();
    assert_eq!(told[..2], ["SYN", "SYN ACK"]);
    let data = || segments.iter().filter(|segment| !segment.from_client && segment.payload > 0);
    let lost: Vec<&Segment> = data().filter(|segment| segment.fate == Fate::Lost).collect();
    assert_eq!(lost.len(), 1, "{told:?}");
    assert!(lost[0].sent >= start);
    // The stream came whole: every byte was in a segment that arrived, the lost one's twice.
    let arrived = data().filter(|segment| segment.fate != Fate::Lost);
    let mut ranges: Vec<(u64, u64)> = arrived
        .map(|segment| {
            let offset = segment.stream_offset.expect("mapped");
            (offset, offset + u64::from(segment.payload))
        })
        .collect();
    ranges.sort_unstable();
    let mut end = 0;
    for (from, to) in ranges {
        assert!(from <= end, "a hole at {end}");
        end = end.max(to);
    }
    assert_eq!(end, 6_000);
    let again = data().filter(|segment| segment.stream_offset == lost[0].stream_offset).count();
    assert_eq!(again, 2);
    assert!(segments.iter().any(|segment| segment.data_acked == Some(6_000)));
    for segment in &segments {
        let Fate::Arrived(at) = segment.fate else { continue };
        assert!(at.as_nanos() - segment.sent.as_nanos() >= 6_000_000, "{segment:?}");
    }
}

#[test]
fn a_timing_diagram_shows_arrows_crosses_and_words() {
    let (segments, start) = log();
    let diagram = TimingDiagram::new("One burst", &["WLAN"], (0.0, 60.0))
        .segments(&segments, start, |segment| Some(segment.describe()))
        .note(0, false, 10.0, "probe")
        .span(0, (20.0, 30.0), "down");
    let svg = diagram.svg();
    elements(&svg, "line");
    assert!(svg.contains("class=\"lost\""));
    assert!(svg.contains(">0+") && svg.contains("probe") && svg.contains("down"), "{svg}");
    assert_eq!(svg, diagram.svg(), "the same data is the same text");
    let none =
        TimingDiagram::new("One burst", &["WLAN"], (0.0, 60.0))
            .segments(&segments, start, |_| None);
    assert!(!none.svg().contains("class=\"lost\""));
}
