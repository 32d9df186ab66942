use marline_time::Instant;

use super::*;
use crate::experiment::{Experiment, Variant, stage};
use crate::workload::{Gap, Workload};

/// Checks that every element is closed in order; returns the number of `wanted` elements.
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
fn a_plot_draws_every_series_and_escapes_its_text() {
    let svg = Plot::new("a < b & \"c\"", "time (ms)", "share")
        .steps("<script>", &cdf(&[1.0, 2.0, 300.0]))
        .area("density", &density(&[5.0, 9.0], 0.0, 20.0, 2.0))
        .line("broken", &[(1.0, f64::NAN), (2.0, 0.5), (f64::INFINITY, 0.7)])
        .points("points", &[Point { x: 3.0, y: 0.2, interval: Some((0.1, 0.4)) }])
        .add_vertical_line(10.0, "RTO")
        .add_horizontal_line(0.5, "half")
        .log_x()
        .svg();
    assert!(svg.contains("&lt;script&gt;") && !svg.contains("<script"));
    assert!(svg.contains("<title>a &lt; b &amp; &quot;c&quot;</title>"));
    // Four lines, in the drawing and in the legend, above two dashed ones; the shaded area; a point with its
    // interval, and its sample.
    let lines = |color: &str| {
        svg.matches(&format!("<polyline fill=\"none\" opacity=\"1\" stroke=\"{color}")).count()
    };
    assert_eq!(["#0072B2", "#D55E00", "#009E73", "#B0578D"].map(lines), [2; 4]);
    assert_eq!((lines("#888888"), elements(&svg, "polygon")), (2, 1));
    assert_eq!(svg.matches("r=\"30\" opacity=\"1\" fill=\"none\" stroke=\"#B0578D\"").count(), 3);
    assert_eq!(elements(&svg, "style"), 1);
    assert!(!svg.contains("href") && !svg.contains("url("), "no external resources");
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
        TimingDiagram::new("t", &[], 0.0, 0.0).svg(),
    ] {
        assert_eq!(elements(&svg, "svg"), 1);
        assert!(
            svg.contains("no data") || svg.contains("stroke=\"#0072B2\"") || svg.contains("\n-\n"),
            "{svg}"
        );
    }
}

/// Values of every size: no panic, no endless loop for ticks, a drawing of bounded size.
#[test]
fn values_of_every_size_have_a_place() {
    let sizes = [0.0, 5e-324, 1e-300, 1e-9, 0.1, 1.0 + 1e-12, 97.0, 1e7, 1e16, 1e300, f64::MAX];
    let signed = |value: &f64| [*value, -*value];
    let values: Vec<f64> = sizes.iter().flat_map(signed).chain([f64::NAN, f64::INFINITY]).collect();
    for from in &values {
        for to in &values {
            let (points, interval) = ([(*from, *to), (*to, *from)], Some((*from, *to)));
            let plain = Plot::new("t", "x", "y").line("l", &points);
            let point = Point { x: *from, y: *to, interval };
            let drawn = [
                plain.clone().svg(),
                plain.clone().log_x().log_y().points("p", &[point]).svg(),
                plain.x_range(*from, *to).y_range(*to, *from).add_vertical_line(*to, "m").svg(),
                Bars::new("t", "y", &["a"]).group("g", &[(*from, interval)]).svg(),
                HeatMap::new("t", "ms", &["a", "b"]).log().row("r", &[*from, *to]).svg(),
                TimingDiagram::new("t", &["p"], *from, *to).add_note(0, true, *to, "n").svg(),
            ];
            for svg in drawn {
                assert!(elements(&svg, "svg") == 1 && svg.len() < 40_000, "{from} {to}");
            }
        }
    }
}

#[test]
fn fourteen_series_are_distinct_and_adapt_to_dark_mode() {
    let curve = |n: u32| [(0.0, f64::from(n)), (1.0, f64::from(n))];
    let name = |n: u32| format!("variant {n}");
    let plot = (0..14).fold(Plot::new("t", "x", "y"), |plot, n| plot.line(&name(n), &curve(n)));
    let svg = plot.svg();
    elements(&svg, "polyline");
    let strokes: std::collections::BTreeSet<&str> = svg
        .lines()
        .filter(|line| line.starts_with("<polyline") && line.contains("stroke-width=\"20\""))
        .filter_map(|line| line.split("stroke=\"").nth(1)?.split('"').next())
        .collect();
    assert_eq!(strokes.len(), 14);
    let (light, dark) = svg.split_once("@media(prefers-color-scheme:dark)").expect("rules");
    for color in strokes {
        assert!(light.contains(&format!("[stroke=\"{color}\"]{{stroke-dasharray:")), "{color}");
        assert!(dark.contains(&format!("[stroke^=\"{}\"]{{stroke:#", &color[..6])), "{color}");
    }
    assert!(dark.contains("[fill^=\"#FFFFF\"]{fill:#16181c}"), "the paper");
}

/// The texts of a drawing in one color, in order.
fn texts<'a>(svg: &'a str, color: &str) -> Vec<&'a str> {
    let mut lines = svg.lines();
    let mut texts = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with("<text") && line.contains(&format!("fill=\"{color}\"")) {
            texts.extend(lines.next());
        }
    }
    texts
}

#[test]
fn ticks_are_round_numbers_and_powers_of_ten() {
    let ticks = |plot: Plot| {
        let svg = plot.svg();
        texts(&svg, "#666666").join(" ")
    };
    let line = |to: (f64, f64)| Plot::new("t", "x", "y").line("l", &[(0.03, 0.0), to]);
    let said = ticks(line((97.0, 0.31)));
    assert!(
        said.contains("10 20 30 40") && said.contains("0 0.05 0.1 0.15 0.2 0.25 0.3"),
        "{said}"
    );
    let said = ticks(line((97.0, 4_000.0)).log_x().log_y());
    assert!(said.contains("0.01 0.1 1 10 100") && !said.contains('-'), "{said}");
    let said = ticks(line((2.5e9, 1.0)));
    assert!(said.contains("5e8 1e9 1.500e9 2e9"), "{said}");
}

#[test]
fn bars_have_the_lengths_of_their_values() {
    let svg = Bars::new("t", "time (ms)", &["a", "b"])
        .group("one", &[(100.0, Some((90.0, 110.0))), (50.0, None)])
        .group("two", &[(f64::NAN, None), (25.0, None)])
        .add_line(75.0, "limit")
        .svg();
    // Three bars, two in the legend, the background.
    assert_eq!(elements(&svg, "rect"), 6);
    let lengths: Vec<f64> = svg
        .lines()
        .filter(|line| line.starts_with("<rect") && line.contains("x=\"350\""))
        .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
        .collect();
    // In order of the variants: 100, 50 and 25 ms.
    assert_eq!(lengths.len(), 3, "{svg}");
    assert!((lengths[0] / lengths[1] - 2.0).abs() < 0.01, "{lengths:?}");
    assert!((lengths[0] / lengths[2] - 4.0).abs() < 0.02, "{lengths:?}");
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
    assert!(svg.contains("fill=\"#FFF7D6\""), "the least is lightest");
    assert_eq!(texts(&svg, "#FEFEFE"), ["8"], "light on dark");
    assert!(texts(&svg, "#111111").contains(&"1"), "dark on light");
    assert!(texts(&svg, "#222222").contains(&"-"));
}

/// One burst over a path that loses the second data packet.
fn log() -> (Vec<Segment>, Instant) {
    let gap = Gap { least_ms: 1.0, most_ms: 1.0 };
    let bursts = Workload::Bursts { bytes: 6_000, gap, count: 1 };
    // The server's first packets are the SYN ACK and the answer to MP_CAPABLE.
    let links = [("wlan", "rate=20M,delay=6ms,down.drop=4")];
    let experiment = Experiment::over(&links, bursts);
    let mut paths = stage(&experiment, &Variant::new("default"), 1).unwrap();
    let log = SegmentLog::for_paths(&paths);
    paths.world.observe(Box::new(log));
    paths.world.run_until(Instant::from_secs(3));
    let segments = paths.world.observer::<SegmentLog>().unwrap().segments().to_vec();
    (segments, crate::experiment::START)
}

#[test]
fn a_segment_log_shows_paths_and_losses() {
    let (segments, start) = log();
    let told: Vec<String> = segments.iter().map(Segment::describe).collect();
    assert_eq!(told[..2], ["SYN", "SYN ACK"]);
    let data = || segments.iter().filter(|segment| !segment.from_client && segment.payload > 0);
    let lost: Vec<&Segment> = data().filter(|segment| segment.delivery == Delivery::Lost).collect();
    assert_eq!(lost.len(), 1, "{told:?}");
    assert!(lost[0].sent >= start);
    // The whole stream arrived: every byte was in a segment that arrived, the lost one's on the second attempt.
    let arrived = data().filter(|segment| segment.delivery != Delivery::Lost);
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
        let Delivery::Arrived(at) = segment.delivery else { continue };
        assert!(at.as_nanos() - segment.sent.as_nanos() >= 6_000_000, "{segment:?}");
    }
}

#[test]
fn a_timing_diagram_shows_arrows_crosses_and_words() {
    let (segments, start) = log();
    let diagram = TimingDiagram::new("One burst", &["WLAN"], 0.0, 60.0)
        .segments(&segments, start, |segment| Some(segment.describe()))
        .add_note(0, false, 10.0, "probe")
        .span(0, 20.0, 30.0, "down");
    let svg = diagram.svg();
    elements(&svg, "line");
    // The arrow of the lost segment, and the two strokes of a cross.
    assert_eq!(svg.matches(" stroke=\"#C03000\"").count(), 3);
    assert!(svg.contains("\n0+") && svg.contains("probe") && svg.contains("down"), "{svg}");
    assert_eq!(svg, diagram.svg(), "equal data gives equal text");
    let none =
        TimingDiagram::new("One burst", &["WLAN"], 0.0, 60.0).segments(&segments, start, |_| None);
    assert!(!none.svg().contains(" stroke=\"#C03000\""));
}
