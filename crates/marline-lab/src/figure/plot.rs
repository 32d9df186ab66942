//! Plots of curves and points over two axes.

use super::axis::{Axis, extent};
use super::drawing::Figure;
use super::svg::{Anchor, SERIES, Svg, stroke, text_width};

const WIDTH: f64 = 720.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
const PLOT_HEIGHT: f64 = 300.0;
/// Height of a line of the legend.
const LEGEND_LINE: f64 = 18.0;

/// A point of a series.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Point {
    /// Where on the horizontal axis.
    pub x: f64,
    /// Where on the vertical axis.
    pub y: f64,
    /// Where `y` lies with some confidence.
    pub interval: Option<(f64, f64)>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Style {
    Line,
    Steps,
    Area,
    Points,
}

#[derive(Clone, Debug)]
struct Series {
    name: String,
    style: Style,
    points: Vec<Point>,
}

/// Curves and points over two axes.
///
/// ```
/// use marline_lab::figure::{Plot, cdf};
/// let figure = Plot::new("Echoes", "round trip (ms)", "share")
///     .steps("redundant", &cdf(&[20.0, 21.0, 24.0]))
///     .log_x()
///     .figure("echo-cdf", "Redundant sending has no tail.");
/// assert!(figure.svg.starts_with("<svg"));
/// ```
#[derive(Clone, Debug)]
pub struct Plot {
    title: String,
    labels: (String, String),
    series: Vec<Series>,
    marks: Vec<(bool, f64, String)>,
    logs: (bool, bool),
    /// What was asked for.
    x_range: Option<(f64, f64)>,
    y_range: Option<(f64, f64)>,
}

impl Plot {
    /// An empty plot. Labels name the quantity and its unit: `round trip (ms)`.
    #[must_use]
    pub fn new(title: &str, x_label: &str, y_label: &str) -> Plot {
        Plot {
            title: title.to_owned(),
            labels: (x_label.to_owned(), y_label.to_owned()),
            series: Vec::new(),
            marks: Vec::new(),
            logs: (false, false),
            x_range: None,
            y_range: None,
        }
    }

    fn add(mut self, name: &str, style: Style, points: Vec<Point>) -> Plot {
        self.series.push(Series { name: name.to_owned(), style, points });
        self
    }

    /// A line through points `(x, y)`.
    #[must_use]
    pub fn line(self, name: &str, points: &[(f64, f64)]) -> Plot {
        self.add(name, Style::Line, bare(points))
    }

    /// The same in steps: the value holds until the next point. What [`cdf`](super::cdf) gives.
    #[must_use]
    pub fn steps(self, name: &str, points: &[(f64, f64)]) -> Plot {
        self.add(name, Style::Steps, bare(points))
    }

    /// A line with the area below it shaded. What [`density`](super::density) gives.
    #[must_use]
    pub fn area(self, name: &str, points: &[(f64, f64)]) -> Plot {
        self.add(name, Style::Area, bare(points))
    }

    /// Points, joined, with their intervals.
    #[must_use]
    pub fn points(self, name: &str, points: &[Point]) -> Plot {
        self.add(name, Style::Points, points.to_vec())
    }

    /// A dashed vertical line with words.
    #[must_use]
    pub fn mark_x(mut self, x: f64, text: &str) -> Plot {
        self.marks.push((true, x, text.to_owned()));
        self
    }

    /// A dashed horizontal line with words.
    #[must_use]
    pub fn mark_y(mut self, y: f64, text: &str) -> Plot {
        self.marks.push((false, y, text.to_owned()));
        self
    }

    /// The horizontal axis is logarithmic; points at or below zero are at its left end.
    #[must_use]
    pub fn log_x(mut self) -> Plot {
        self.logs.0 = true;
        self
    }

    /// The vertical axis is logarithmic; points at or below zero are at its lower end.
    #[must_use]
    pub fn log_y(mut self) -> Plot {
        self.logs.1 = true;
        self
    }

    /// Only this part of the horizontal axis. Without: what the points need.
    #[must_use]
    pub fn x_range(mut self, from: f64, to: f64) -> Plot {
        self.x_range = Some((from, to));
        self
    }

    /// Only this part of the vertical axis. Without: what the points need, and zero.
    #[must_use]
    pub fn y_range(mut self, from: f64, to: f64) -> Plot {
        self.y_range = Some((from, to));
        self
    }

    /// As a figure of a reproduction.
    #[must_use]
    pub fn figure(&self, name: &str, caption: &str) -> Figure {
        Figure::new(name, &self.title, caption, self.svg())
    }

    /// The drawing.
    #[must_use]
    pub fn svg(&self) -> String {
        let legend = legend_places(self.series.iter().map(|series| series.name.as_str()));
        let lines = legend.last().map_or(0.0, |place| place.1 + 1.0);
        let top = 34.0 + LEGEND_LINE * lines;
        let height = top + PLOT_HEIGHT + 46.0;
        let mut svg = Svg::new(WIDTH, height, &self.title);
        svg.heading((LEFT, 20.0), &self.title);
        for (index, (series, (x, line))) in self.series.iter().zip(&legend).enumerate() {
            let at = (*x, 38.0 + LEGEND_LINE * line);
            legend_entry(&mut svg, at, (index, series.style == Style::Points), &series.name);
        }
        let (x, y) = self.axes(top);
        draw_axes(&mut svg, (&x, &y), (&self.labels.0, &self.labels.1), top);
        for (vertical, value, text) in &self.marks {
            draw_mark(&mut svg, (&x, &y), (*vertical, *value, text), top);
        }
        for (index, series) in self.series.iter().enumerate() {
            draw_series(&mut svg, (&x, &y), index, series);
        }
        svg.finish()
    }

    fn axes(&self, top: f64) -> (Axis, Axis) {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let marked = |vertical: bool| {
            let of = move |mark: &&(bool, f64, String)| mark.0 == vertical;
            self.marks.iter().filter(of).map(|mark| mark.1)
        };
        let horizontal = (LEFT, WIDTH - RIGHT);
        let x = match self.x_range {
            Some(range) => Axis::new(range, self.logs.0, horizontal),
            None => {
                let values = all().map(|point| point.x).chain(marked(true));
                let range = extent(values, self.logs.0).unwrap_or((0.0, 1.0));
                Axis::new(range, self.logs.0, horizontal)
            }
        };
        let vertical = (top + PLOT_HEIGHT, top);
        let y = match self.y_range {
            Some(range) => Axis::new(range, self.logs.1, vertical),
            None => {
                let ends = |point: &Point| {
                    let (low, high) = point.interval.unwrap_or((point.y, point.y));
                    [point.y, low, high]
                };
                let zero = (!self.logs.1).then_some(0.0);
                let values = all().flat_map(ends).chain(marked(false)).chain(zero);
                let range = extent(values, self.logs.1).unwrap_or((0.0, 1.0));
                Axis::new(range, self.logs.1, vertical).rounded()
            }
        };
        (x, y)
    }
}

fn bare(points: &[(f64, f64)]) -> Vec<Point> {
    points.iter().map(|(x, y)| Point { x: *x, y: *y, interval: None }).collect()
}

/// Places of names that follow each other in lines: `(x, line)`.
pub(super) fn legend_places<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(f64, f64)> {
    let (mut x, mut line) = (LEFT, 0.0);
    let mut places = Vec::new();
    for name in names {
        let width = 32.0 + text_width(name) + 18.0;
        if x > LEFT && x + width > WIDTH {
            (x, line) = (LEFT, line + 1.0);
        }
        places.push((x, line));
        x += width;
    }
    places
}

fn legend_entry(svg: &mut Svg, (x, y): (f64, f64), (index, marks): (usize, bool), name: &str) {
    svg.line((x, y - 4.0), (x + 26.0, y - 4.0), &stroke(index));
    if marks {
        svg.mark((x + 13.0, y - 4.0), index);
    }
    svg.text((x + 32.0, y), Anchor::Start, "", name);
}

fn draw_axes(svg: &mut Svg, (x, y): (&Axis, &Axis), labels: (&str, &str), top: f64) {
    let bottom = top + PLOT_HEIGHT;
    for (value, text) in x.ticks() {
        let at = x.place(value);
        svg.line((at, top), (at, bottom), "grid");
        let cut = at + text_width(&text) / 2.0 > WIDTH;
        let (at, anchor) = if cut { (WIDTH - 2.0, Anchor::End) } else { (at, Anchor::Middle) };
        svg.text((at, bottom + 16.0), anchor, "mute", &text);
    }
    y.draw_heights(svg, (LEFT, WIDTH - RIGHT));
    svg.path(&[(LEFT, top), (LEFT, bottom), (WIDTH - RIGHT, bottom)], false, "axis");
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    svg.text((middle, bottom + 36.0), Anchor::Middle, "", labels.0);
    svg.turned((16.0, top + PLOT_HEIGHT / 2.0), -90, Anchor::Middle, labels.1);
}

fn draw_mark(svg: &mut Svg, (x, y): (&Axis, &Axis), mark: (bool, f64, &str), top: f64) {
    let (vertical, value, text) = mark;
    let bottom = top + PLOT_HEIGHT;
    if vertical && x.holds(value) {
        let at = x.place(value);
        svg.line((at, top), (at, bottom), "ref");
        let right = at + 4.0 + text_width(text) > WIDTH - RIGHT;
        let (anchor, at) = if right { (Anchor::End, at - 4.0) } else { (Anchor::Start, at + 4.0) };
        svg.text((at, top + 12.0), anchor, "mute halo", text);
    } else if !vertical && y.holds(value) {
        let at = y.place(value);
        svg.line((LEFT, at), (WIDTH - RIGHT, at), "ref");
        svg.text((WIDTH - RIGHT - 4.0, at - 4.0), Anchor::End, "mute halo", text);
    }
}

fn draw_series(svg: &mut Svg, (x, y): (&Axis, &Axis), index: usize, series: &Series) {
    let look = index % SERIES;
    let place = |point: &Point| (x.place(point.x), y.place(point.y));
    let real = |point: &&Point| point.x.is_finite() && point.y.is_finite();
    let points: Vec<&Point> = series.points.iter().filter(real).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    let mut line: Vec<(f64, f64)> = Vec::new();
    let foot = y.place(y.from());
    match series.style {
        Style::Steps => {
            let mut before = foot;
            for point in &points {
                let (px, py) = place(point);
                line.extend([(px, before), (px, py)]);
                before = py;
            }
        }
        Style::Line | Style::Area | Style::Points => {
            line = points.iter().map(|p| place(p)).collect()
        }
    }
    if series.style == Style::Area {
        let mut area = vec![(x.place(first.x), foot)];
        area.extend(&line);
        area.push((x.place(last.x), foot));
        svg.path(&area, true, &format!("a f{look}"));
    }
    svg.path(&line, false, &stroke(index));
    if series.style == Style::Points {
        for point in &points {
            if let Some((low, high)) = point.interval {
                let ends = (y.place(low), y.place(high));
                svg.whisker(x.place(point.x), ends, &format!("l l{look}"));
            }
            svg.mark(place(point), index);
        }
    }
}
