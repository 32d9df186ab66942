//! Plots of places in the stream over time: which bytes went on which subflow and when, what of it was sent twice and
//! why, what the peer had, and where delivery stood still.
//!
//! *Problem.* What tcptrace draws of a TCP connection has one path. With several the same bytes may go on two, as a
//! copy, or because the first is in trouble, and which of these it was is what one wants to see.
//!
//! *How.* The colour is the subflow's, the shape says in which manner: data for the first time is a bar from its first
//! to its last byte, everything that goes again has a mark at its middle. So the plot can be read without colours, too.
//! A connection of minutes has a million segments: those that fall on each other on the paper are drawn once.

use std::collections::{BTreeMap, BTreeSet};

use marline_qlog::{Course, Manner};

use super::axis::{Axis, extent};
use super::svg::{Anchor, SERIES, Shape, Svg, text_width};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 18.0;
const HEIGHT: f64 = 420.0;
const LEGEND_LINE: f64 = 18.0;
/// Half of a pixel: what is nearer falls on each other.
const GRID: f64 = 0.5;
/// Most marks of what goes again.
const MOST_MARKS: usize = 20_000;

/// A plot of places over time, of what one end of a connection sent.
///
/// ```
/// use marline_lab::figure::SequencePlot;
/// use marline_qlog::{Carried, Course, Manner};
/// let new = Carried { time_ms: 1.0, subflow: 0, dsn: 0, bytes: 1_400, manner: Manner::New };
/// let copy = Carried { time_ms: 1.1, subflow: 1, manner: Manner::Copy, ..new };
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

/// An entry of the legend.
enum Entry {
    Subflow(usize),
    Manner(Manner),
    Acked,
    Hole,
}

impl<'a> SequencePlot<'a> {
    /// The whole course.
    #[must_use]
    pub fn new(title: &str, course: &'a Course) -> SequencePlot<'a> {
        SequencePlot { title: title.to_owned(), course, range_ms: None }
    }

    /// Only these milliseconds.
    #[must_use]
    pub fn range(mut self, from_ms: f64, to_ms: f64) -> SequencePlot<'a> {
        self.range_ms = Some((from_ms, to_ms));
        self
    }

    /// The drawing.
    #[must_use]
    pub fn svg(&self) -> String {
        let legend = self.legend();
        let lines = legend.last().map_or(0.0, |(_, _, line, _)| line + 1.0);
        let top = 34.0 + LEGEND_LINE * lines;
        let mut svg = Svg::new(WIDTH, top + HEIGHT + 46.0, &self.title);
        svg.heading((LEFT, 20.0), &self.title);
        for (entry, x, line, text) in &legend {
            draw_entry(&mut svg, entry, (*x, 34.0 + LEGEND_LINE * line), text);
        }
        let (time, place) = self.axes(top);
        let (unit, name) = unit(place.to());
        let place = place.scaled(unit);
        self.frame(&mut svg, (&time, &place), top, name);
        self.holes(&mut svg, &time, top);
        self.acked(&mut svg, (&time, &place), unit);
        self.new_data(&mut svg, (&time, &place), unit);
        let left_out = self.again(&mut svg, (&time, &place), unit);
        if left_out > 0 {
            let text =
                format!("{left_out} more marks than fit are left out: draw fewer milliseconds");
            svg.text((WIDTH - RIGHT, top + HEIGHT - 6.0), Anchor::End, "mute halo", &text);
        }
        svg.finish()
    }

    /// Entries with their places: x and line.
    fn legend(&self) -> Vec<(Entry, f64, f64, String)> {
        let mut entries: Vec<(Entry, String)> = Vec::new();
        for (subflow, address) in &self.course.subflows {
            entries.push((
                Entry::Subflow(*subflow as usize),
                format!("subflow {subflow} ({address})"),
            ));
        }
        for manner in Manner::ALL {
            if self.course.carried.iter().any(|carried| carried.manner == manner) {
                entries.push((Entry::Manner(manner), manner.name().to_owned()));
            }
        }
        entries.push((Entry::Acked, "the peer has".to_owned()));
        if !self.course.holes.is_empty() {
            entries.push((Entry::Hole, "delivery stood still".to_owned()));
        }
        let (mut x, mut line) = (LEFT, 0.0);
        let mut placed = Vec::new();
        for (entry, text) in entries {
            let width = 30.0 + text_width(&text) + 14.0;
            if x > LEFT && x + width > WIDTH {
                (x, line) = (LEFT, line + 1.0);
            }
            placed.push((entry, x, line, text));
            x += width;
        }
        placed
    }

    fn axes(&self, top: f64) -> (Axis, Axis) {
        let times = || {
            let carried = self.course.carried.iter().map(|carried| carried.time_ms);
            carried.chain(self.course.acked.iter().map(|(time_ms, _)| *time_ms))
        };
        let range = self.range_ms.or_else(|| extent(times(), false)).unwrap_or((0.0, 1.0));
        let time = Axis::new(range, false, (LEFT, WIDTH - RIGHT));
        let shown = self.course.carried.iter().filter(|carried| time.holds(carried.time_ms));
        let ends = shown.flat_map(|c| [c.dsn as f64, (c.dsn + c.bytes) as f64]);
        let range = extent(ends, false).unwrap_or((0.0, 1.0));
        (time, Axis::new(range, false, (top + HEIGHT, top)))
    }

    fn frame(&self, svg: &mut Svg, (time, place): (&Axis, &Axis), top: f64, unit: &str) {
        let bottom = top + HEIGHT;
        for (value, text) in time.ticks() {
            let x = time.place(value);
            svg.line((x, top), (x, bottom), "grid");
            svg.text((x, bottom + 16.0), Anchor::Middle, "mute", &text);
        }
        place.draw_heights(svg, (LEFT, WIDTH - RIGHT));
        svg.path(&[(LEFT, top), (LEFT, bottom), (WIDTH - RIGHT, bottom)], false, "axis");
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        svg.text((middle, bottom + 36.0), Anchor::Middle, "", "time (ms)");
        let label = format!("place in the stream ({unit})");
        svg.turned((16.0, top + HEIGHT / 2.0), -90, Anchor::Middle, &label);
    }

    fn holes(&self, svg: &mut Svg, time: &Axis, top: f64) {
        for hole in &self.course.holes {
            if hole.ended_ms < time.from() || hole.began_ms > time.to() {
                continue;
            }
            let (from, to) = (time.place(hole.began_ms), time.place(hole.ended_ms));
            svg.rect((from, top), ((to - from).max(1.0), HEIGHT), "a inkf");
            let lasted = hole.ended_ms - hole.began_ms;
            let cause = hole.silent.as_ref().map_or(String::new(), |(subflow, cause)| {
                format!(", subflow {subflow} silent: {}", cause.replace('_', " "))
            });
            let text = format!("{lasted:.0} ms{cause}");
            let right = from + 4.0 + text_width(&text) > WIDTH - RIGHT;
            let (anchor, x) =
                if right { (Anchor::End, to - 4.0) } else { (Anchor::Start, from + 4.0) };
            svg.text((x, top + 14.0), anchor, "mute halo", &text);
        }
    }

    /// Bars; those of one moment that touch are one.
    fn new_data(&self, svg: &mut Svg, (time, place): (&Axis, &Axis), unit: f64) {
        let mut bars: BTreeMap<(i64, u64), Vec<(f64, f64)>> = BTreeMap::new();
        let new = self.course.carried.iter().filter(|carried| carried.manner == Manner::New);
        for carried in new.filter(|carried| time.holds(carried.time_ms)) {
            let column = (time.place(carried.time_ms) / GRID).round() as i64;
            let low = place.place(carried.dsn as f64 / unit);
            let high = place.place((carried.dsn + carried.bytes) as f64 / unit);
            let column = bars.entry((column, carried.subflow)).or_default();
            match column.last_mut() {
                Some((_, end)) if (low - *end).abs() <= GRID => *end = high,
                _ => column.push((low, high)),
            }
        }
        for ((column, subflow), parts) in bars {
            let look = format!("l l{}", subflow as usize % SERIES);
            let x = column as f64 * GRID;
            for (low, high) in parts {
                svg.line((x, low.max(high + 1.0)), (x, high), &look);
            }
        }
    }

    fn acked(&self, svg: &mut Svg, (time, place): (&Axis, &Axis), unit: f64) {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (time_ms, dsn) in &self.course.acked {
            let (x, y) = (time.place(*time_ms), place.place(*dsn as f64 / unit));
            let before = line.last().map_or(y, |(_, y)| *y);
            line.extend([(x, before), (x, y)]);
        }
        if !line.is_empty() {
            svg.path(&line, false, "ink");
        }
    }

    /// Marks of what goes again; how many there was no room for.
    fn again(&self, svg: &mut Svg, (time, place): (&Axis, &Axis), unit: f64) -> usize {
        let mut seen = BTreeSet::new();
        let mut left_out = 0;
        for carried in self.course.carried.iter().filter(|c| time.holds(c.time_ms)) {
            let Some(shape) = shape(carried.manner) else { continue };
            let middle = (carried.dsn as f64 + carried.bytes as f64 / 2.0) / unit;
            let (x, y) = (time.place(carried.time_ms), place.place(middle));
            let cell = ((x / GRID).round() as i64, (y / GRID).round() as i64);
            if !seen.insert((cell, carried.subflow, carried.manner)) {
                continue;
            }
            if seen.len() > MOST_MARKS {
                left_out += 1;
                continue;
            }
            svg.shape((x, y), shape, carried.subflow as usize % SERIES);
        }
        left_out
    }
}

/// The mark of what goes in this manner; new data has a bar.
const fn shape(manner: Manner) -> Option<Shape> {
    match manner {
        Manner::New => None,
        Manner::Copy => Some(Shape::Ring),
        Manner::Reinjection => Some(Shape::Triangle),
        Manner::Repeat => Some(Shape::Cross),
    }
}

/// Bytes of the unit in which places up to this are told, and its name.
fn unit(most: f64) -> (f64, &'static str) {
    match most {
        most if most >= 2e6 => (1e6, "MB"),
        most if most >= 2e3 => (1e3, "kB"),
        _ => (1.0, "B"),
    }
}

fn draw_entry(svg: &mut Svg, entry: &Entry, (x, y): (f64, f64), text: &str) {
    let middle = (x + 12.0, y);
    match entry {
        Entry::Subflow(subflow) => {
            svg.rect((x + 4.0, y - 5.0), (16.0, 10.0), &format!("f{}", subflow % SERIES));
        }
        Entry::Manner(manner) => match shape(*manner) {
            Some(shape) => svg.shape(middle, shape, SERIES - 1),
            None => svg.line((x + 12.0, y - 6.0), (x + 12.0, y + 6.0), "l l6"),
        },
        Entry::Acked => {
            let (low, high) = (y + 4.0, y - 4.0);
            let step = [(x, low), (x + 12.0, low), (x + 12.0, high), (x + 24.0, high)];
            svg.path(&step, false, "ink");
        }
        Entry::Hole => svg.rect((x + 4.0, y - 6.0), (16.0, 12.0), "a inkf"),
    }
    svg.text((x + 30.0, y + 4.0), Anchor::Start, "", text);
}

#[cfg(test)]
mod tests {
    use marline_qlog::{Carried, Hole};

    use super::*;

    fn carried(time_ms: f64, subflow: u64, dsn: u64, manner: Manner) -> Carried {
        Carried { time_ms, subflow, dsn, bytes: 1_000, manner }
    }

    fn course() -> Course {
        let hole =
            Hole { began_ms: 20.0, ended_ms: 240.0, silent: Some((0, "probe_timeout".into())) };
        Course {
            carried: vec![
                carried(0.0, 0, 0, Manner::New),
                carried(0.0, 0, 1_000, Manner::New),
                carried(10.0, 1, 2_000, Manner::New),
                carried(11.0, 1, 0, Manner::Copy),
                carried(200.0, 1, 1_000, Manner::Reinjection),
                carried(220.0, 0, 1_000, Manner::Repeat),
            ],
            acked: vec![(30.0, 1_000), (240.0, 3_000)],
            holes: vec![hole],
            subflows: vec![(0, "10.0.0.1".into()), (1, "10.0.1.1".into())],
        }
    }

    #[test]
    fn each_manner_has_a_shape_and_each_subflow_a_colour() {
        let svg = SequencePlot::new("x", &course()).svg();
        // One of each in the drawing and one in the legend.
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        assert_eq!(
            svg.matches("class=\"f1\"").count(),
            2,
            "the triangle, and the legend of its subflow"
        );
        // Two segments of one moment are one bar.
        assert_eq!(
            svg.matches("class=\"l l0\"").count(),
            1 + 2,
            "a bar, and the strokes of a cross: {svg}"
        );
        assert!(svg.contains("220 ms, subflow 0 silent: probe timeout"), "{svg}");
        assert_eq!(svg, SequencePlot::new("x", &course()).svg());
    }

    #[test]
    fn a_part_has_what_is_in_it_and_nothing_of_the_rest() {
        let course = course();
        let svg = SequencePlot::new("x", &course).range(0.0, 15.0).svg();
        assert_eq!(svg.matches("class=\"l l0\"").count(), 1);
        assert!(!svg.contains("220 ms"));
    }

    #[test]
    fn a_million_segments_are_a_drawing_of_bounded_size() {
        let some = |n: u64| {
            let manner = if n.is_multiple_of(2) { Manner::New } else { Manner::Copy };
            carried(n as f64 / 10.0, n % 3, n * 1_000, manner)
        };
        let course = Course { carried: (0..1_000_000).map(some).collect(), ..Course::default() };
        let svg = SequencePlot::new("x", &course).svg();
        assert!(svg.len() < 2_000_000, "{}", svg.len());
    }
}
