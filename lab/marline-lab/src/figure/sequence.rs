//! Plots of the stream's bytes over time: the subflow and time of each segment, retransmitted bytes with the
//! cause, the data that the peer had received, and times when delivery stalled.
//!
//! *Problem.* tcptrace's plot of a TCP connection has one path. With several paths, the same bytes may be sent on two
//! of them, as a copy or because the first path failed. This plot shows the cause.
//!
//! *How.* The color shows the subflow, and the shape shows the kind of transmission: new data is a bar from its first
//! to its last byte, and data sent again has a marker at its middle. The plot can therefore also be read without
//! colors. A connection that lasts minutes has a million segments, so segments at the same position are drawn only
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use marline_qlog::{Course, TransmissionKind};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, extent};
use super::chart::{Chart, Element, Frame, Label, Sample};
use super::sheet::{
    DrawResult, INK, MUTE, Size, Tone, aligned, neutral_tone, px, series, text_width,
};

/// Width and height between the axes in pixels.
const SIZE: Size = Size { width: 840, height: 420 };
/// Opacity of a shaded time without delivery.
const SHADE_OPACITY: f64 = 0.15;
/// Resolution in plot units (half a pixel). Elements closer than this are drawn once.
const GRID: i32 = 5;
/// Maximum number of markers of data sent again.
const MAX_MARKS: usize = 8_000;

/// A plot of the bytes that one end of a connection sent, over time.
///
/// ```
/// use marline_lab::figure::SequencePlot;
/// use marline_qlog::{CarriedBytes, Course, TransmissionKind};
/// let manner = TransmissionKind::New;
/// let new = CarriedBytes { time_ms: 1.0, subflow: 0, dsn: 0, bytes: 1_400, manner };
/// let manner = TransmissionKind::Copy;
/// let copy = CarriedBytes { time_ms: 1.1, subflow: 1, manner, ..new };
/// let course = Course { carried: vec![new, copy], acked: vec![(9.0, 1_400)], ..Course::default() };
/// let drawn = SequencePlot::new("a copy", &course).svg();
/// assert!(drawn.contains("copy") && drawn.starts_with("<svg"));
/// ```
#[derive(Debug)]
pub struct SequencePlot<'a> {
    title: String,
    course: &'a Course,
    range_ms: Option<(f64, f64)>,
}

impl<'a> SequencePlot<'a> {
    /// Creates a plot of the whole connection.
    #[must_use]
    pub fn new(title: &str, course: &'a Course) -> SequencePlot<'a> {
        SequencePlot { title: title.to_owned(), course, range_ms: None }
    }

    /// Limits the plot to this time span in milliseconds.
    #[must_use]
    pub fn range(mut self, from_ms: f64, to_ms: f64) -> SequencePlot<'a> {
        self.range_ms = Some((from_ms, to_ms));
        self
    }

    /// Draws the plot as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let (time, place) = self.axes();
        let (unit, name) = unit(place.range().end);
        let place = Axis::between(place.range().start / unit, place.range().end / unit, false);
        let label = format!("position in the stream ({name})");
        let name = |(subflow, address): &(u64, String)| {
            (*subflow as usize, format!("subflow {subflow} ({address})"))
        };
        let subflows: Vec<(usize, String)> = self.course.subflows.iter().map(name).collect();
        let legend = self.legend(&subflows);
        let (labels, empty) = (("time (ms)", label.as_str()), self.course.carried.is_empty());
        let frame = Frame::new(&self.title, time, place, SIZE);
        Frame { labels, legend, empty, ..frame }.draw(|chart| {
            self.holes(chart)?;
            self.acked(chart, unit)?;
            self.draw_new_data(chart, unit)?;
            self.draw_repeats(chart, unit)
        })
    }

    fn legend<'b>(&self, subflows: &'b [(usize, String)]) -> Vec<(&'b str, Sample<'b>)> {
        let field = |(x, y): (i32, i32), half: i32, style: ShapeStyle| {
            Rectangle::new([(x + px(13 - half), y - px(6)), (x + px(13 + half), y + px(6))], style)
        };
        let mut legend: Vec<(&str, Sample<'_>)> = Vec::new();
        for (subflow, name) in subflows {
            let fill = series(*subflow).fill();
            legend.push((name, Box::new(move |area, at| area.draw(&field(at, 8, fill)))));
        }
        let seen =
            |manner: &TransmissionKind| self.course.carried.iter().any(|c| c.manner == *manner);
        for manner in TransmissionKind::ALL.into_iter().filter(seen) {
            let sample: Sample<'_> = Box::new(move |area, (x, y)| match manner {
                TransmissionKind::New => area.draw(&field((x, y), 1, neutral_tone().fill())),
                _ => area.draw(&shape(manner, x + px(13), y, neutral_tone())),
            });
            legend.push((manner.name(), sample));
        }
        let acked: Sample<'_> = Box::new(|area, (x, y)| {
            let (low, high, middle) = (y + px(4), y - px(4), x + px(13));
            let step = [(x, low), (middle, low), (middle, high), (x + px(26), high)];
            area.draw(&PathElement::new(step, INK.line(10)))
        });
        legend.push(("received by the peer", acked));
        if !self.course.holes.is_empty() {
            let sample: Sample<'_> = Box::new(move |area, at| area.draw(&field(at, 8, shade())));
            legend.push(("delivery stalled", sample));
        }
        legend
    }

    fn axes(&self) -> (Axis, Axis) {
        let carried = || self.course.carried.iter();
        let times = || {
            let acked = self.course.acked.iter().map(|(time_ms, _)| *time_ms);
            carried().map(|carried| carried.time_ms).chain(acked)
        };
        let (from, to) = self.range_ms.or_else(|| extent(times(), false)).unwrap_or((0.0, 1.0));
        let time = Axis::between(from, to, false);
        let Range { start, end } = time.range();
        let shown = carried().filter(|carried| (start..=end).contains(&carried.time_ms));
        let ends = shown.flat_map(|c| [c.dsn as f64, (c.dsn + c.bytes) as f64]);
        let place = Axis::over(ends, false);
        (time, place)
    }

    fn holes(&self, chart: &mut Chart<'_>) -> DrawResult {
        let (time, place) = (chart.x_range(), chart.y_range());
        let edge = chart.plotting_area().get_pixel_range().0.end;
        for hole in &self.course.holes {
            if hole.ended_ms < time.start || hole.began_ms > time.end {
                continue;
            }
            let area = [(hole.began_ms, place.start), (hole.ended_ms, place.end)];
            chart.plotting_area().draw(&Rectangle::new(area, shade()))?;
            let lasted = hole.ended_ms - hole.began_ms;
            let cause = hole.unreachable.as_ref().map_or(String::new(), |(subflow, cause)| {
                format!(", subflow {subflow} unreachable: {}", cause.replace('_', " "))
            });
            let text = format!("{lasted:.0} ms{cause}");
            let begin = chart.backend_coord(&(hole.began_ms, place.end)).0;
            let (h, x, right) = match begin + px(4 + text_width(&text)) > edge {
                true => (HPos::Right, hole.ended_ms, -4),
                false => (HPos::Left, hole.began_ms, 4),
            };
            let style = aligned(&MUTE.text(), h, VPos::Top);
            Label { text: &text, style, x, y: place.end, right, down: 4 }.draw(chart)?;
        }
        Ok(())
    }

    /// Draws bars of new data. Adjacent bars at the same time are merged.
    fn draw_new_data(&self, chart: &mut Chart<'_>, unit: f64) -> DrawResult {
        let time = chart.x_range();
        let mut bars: BTreeMap<(i32, u64), Vec<(i32, i32)>> = BTreeMap::new();
        let new =
            self.course.carried.iter().filter(|carried| carried.manner == TransmissionKind::New);
        for carried in new.filter(|carried| (time.start..=time.end).contains(&carried.time_ms)) {
            let at = |dsn: u64| chart.backend_coord(&(carried.time_ms, dsn as f64 / unit));
            let ((column, low), (_, high)) = (at(carried.dsn), at(carried.dsn + carried.bytes));
            let column = column / GRID * GRID;
            let column = bars.entry((column, carried.subflow)).or_default();
            match column.last_mut() {
                Some((_, end)) if (low - *end).abs() <= GRID => *end = high,
                _ => column.push((low, high)),
            }
        }
        let screen = chart.plotting_area().use_screen_coord();
        for ((column, subflow), parts) in bars {
            for (low, high) in parts {
                let bar = [(column - 7, high), (column + 8, low.max(high + px(1)))];
                screen.draw(&Rectangle::new(bar, series(subflow as usize).fill()))?;
            }
        }
        Ok(())
    }

    fn acked(&self, chart: &mut Chart<'_>, unit: f64) -> DrawResult {
        let time = chart.x_range();
        let mut line: Vec<(f64, f64)> = Vec::new();
        let acked = self.course.acked.iter();
        for (time_ms, dsn) in acked.filter(|(time_ms, _)| *time_ms <= time.end) {
            let place = *dsn as f64 / unit;
            let before = line.last().map_or(place, |(_, before)| *before);
            line.extend([(*time_ms, before), (*time_ms, place)]);
        }
        line.dedup_by_key(|corner| chart.backend_coord(corner));
        chart.draw_series(LineSeries::new(line, INK.line(10)))?;
        Ok(())
    }

    /// Draws markers of data sent again, and a note with the number of markers beyond the limit.
    fn draw_repeats(&self, chart: &mut Chart<'_>, unit: f64) -> DrawResult {
        let time = chart.x_range();
        let screen = chart.plotting_area().use_screen_coord();
        let (mut seen, mut left_out) = (BTreeSet::new(), 0);
        let again =
            self.course.carried.iter().filter(|carried| carried.manner != TransmissionKind::New);
        for carried in again.filter(|carried| (time.start..=time.end).contains(&carried.time_ms)) {
            let middle = (carried.dsn as f64 + carried.bytes as f64 / 2.0) / unit;
            let (x, y) = chart.backend_coord(&(carried.time_ms, middle));
            let at = (x / GRID * GRID, y / GRID * GRID);
            if seen.contains(&(at, carried.subflow, carried.manner)) {
                continue;
            }
            if seen.len() == MAX_MARKS {
                left_out += 1;
                continue;
            }
            seen.insert((at, carried.subflow, carried.manner));
            screen.draw(&shape(carried.manner, at.0, at.1, series(carried.subflow as usize)))?;
        }
        if left_out == 0 {
            return Ok(());
        }
        let text = format!("{left_out} markers left out: draw a shorter time span");
        let style = aligned(&MUTE.text(), HPos::Right, VPos::Bottom);
        let (x, y) = (time.end, chart.y_range().start);
        Label { text: &text, style, x, y, right: 0, down: -4 }.draw(chart)
    }
}

/// The marker for this kind of retransmission.
fn shape<'a>(manner: TransmissionKind, x: i32, y: i32, tone: Tone) -> Element<'a, (i32, i32)> {
    let at = (x, y);
    match manner {
        TransmissionKind::New | TransmissionKind::Copy => {
            Circle::new(at, px(3), tone.line(15)).into_dyn()
        }
        TransmissionKind::Reinjection => TriangleMarker::new(at, px(4), tone.fill()).into_dyn(),
        TransmissionKind::Repeat => Cross::new(at, px(3), tone.line(15)).into_dyn(),
    }
}

fn shade() -> ShapeStyle {
    INK.color().mix(SHADE_OPACITY).filled()
}

/// Unit for positions up to `most`: its size in bytes and its name.
fn unit(most: f64) -> (f64, &'static str) {
    match most {
        most if most >= 2e6 => (1e6, "MB"),
        most if most >= 2e3 => (1e3, "kB"),
        _ => (1.0, "B"),
    }
}

#[cfg(test)]
mod tests {
    use marline_qlog::{CarriedBytes, Hole};

    use super::*;

    fn carried(time_ms: f64, subflow: u64, dsn: u64, manner: TransmissionKind) -> CarriedBytes {
        CarriedBytes { time_ms, subflow, dsn, bytes: 1_000, manner }
    }

    fn course() -> Course {
        let hole = Hole {
            began_ms: 20.0,
            ended_ms: 240.0,
            unreachable: Some((0, "probe_timeout".into())),
        };
        Course {
            carried: vec![
                carried(0.0, 0, 0, TransmissionKind::New),
                carried(0.0, 0, 1_000, TransmissionKind::New),
                carried(10.0, 1, 2_000, TransmissionKind::New),
                carried(11.0, 1, 0, TransmissionKind::Copy),
                carried(200.0, 1, 1_000, TransmissionKind::Reinjection),
                carried(220.0, 0, 1_000, TransmissionKind::Repeat),
            ],
            acked: vec![(30.0, 1_000), (240.0, 3_000)],
            holes: vec![hole],
            subflows: vec![(0, "10.0.0.1".into()), (1, "10.0.1.1".into())],
        }
    }

    #[test]
    fn each_manner_has_a_shape_and_each_subflow_a_color() {
        let svg = SequencePlot::new("x", &course()).svg();
        // One of each in the drawing, and one in the legend.
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        assert_eq!(svg.matches("<polygon").count(), 2, "{svg}");
        assert_eq!(
            svg.matches("fill=\"#D55E00\"").count(),
            3,
            "a bar, the triangle, and the legend of their subflow: {svg}"
        );
        // Two segments at the same time are one bar; then the two strokes of a cross.
        assert_eq!(svg.matches("fill=\"#0072B2\"").count(), 2, "a bar, and the legend: {svg}");
        assert_eq!(svg.matches("<line opacity=\"1\" stroke=\"#0072B2\"").count(), 2, "{svg}");
        assert!(svg.contains("220 ms, subflow 0 unreachable: probe timeout"), "{svg}");
        assert_eq!(svg, SequencePlot::new("x", &course()).svg());
    }

    #[test]
    fn a_partial_plot_shows_only_its_range() {
        let course = course();
        let svg = SequencePlot::new("x", &course).range(0.0, 15.0).svg();
        assert_eq!(svg.matches("fill=\"#0072B2\"").count(), 2, "a bar, and the legend");
        assert!(!svg.contains("<line opacity=\"1\" stroke=\"#0072B2\""), "no cross: {svg}");
        assert!(!svg.contains("220 ms"));
    }

    #[test]
    fn a_million_segments_are_a_drawing_of_bounded_size() {
        let some = |n: u64| {
            let manner =
                if n.is_multiple_of(2) { TransmissionKind::New } else { TransmissionKind::Copy };
            carried(n as f64 / 10.0, n % 3, n * 1_000, manner)
        };
        let course = Course { carried: (0..1_000_000).map(some).collect(), ..Course::default() };
        let svg = SequencePlot::new("x", &course).svg();
        assert!(svg.len() < 2_000_000, "{}", svg.len());
    }
}
