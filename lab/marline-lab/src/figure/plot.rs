//! Plots of curves and points over two axes.

use plotters::prelude::*;

use super::axis::Axis;
use super::chart::{Chart, Frame, marker, reference};
use super::drawing::Figure;
use super::sheet::{Area, DrawResult, Size, px, series};

/// Width and height between the axes in pixels.
const SIZE: Size = Size { width: 620, height: 300 };
/// Opacity of a shaded area.
const SHADE_OPACITY: f64 = 0.15;

/// A point of a series.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Point {
    /// Horizontal value.
    pub x: f64,
    /// Vertical value.
    pub y: f64,
    /// Confidence interval of `y`.
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
    /// Requested range.
    x_range: Option<(f64, f64)>,
    y_range: Option<(f64, f64)>,
}

impl Plot {
    /// Creates an empty plot. Labels name the quantity and its unit: `round trip (ms)`.
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

    /// Adds a line through points `(x, y)`.
    #[must_use]
    pub fn line(self, name: &str, points: &[(f64, f64)]) -> Plot {
        self.add(name, Style::Line, points_without_notes(points))
    }

    /// Adds a step line, as for [`cdf`](super::cdf): a value holds until the next point.
    #[must_use]
    pub fn steps(self, name: &str, points: &[(f64, f64)]) -> Plot {
        self.add(name, Style::Steps, points_without_notes(points))
    }

    /// Adds a line with the area below it shaded, as for [`density`](super::density).
    #[must_use]
    pub fn area(self, name: &str, points: &[(f64, f64)]) -> Plot {
        self.add(name, Style::Area, points_without_notes(points))
    }

    /// Adds joined points with their intervals.
    #[must_use]
    pub fn points(self, name: &str, points: &[Point]) -> Plot {
        self.add(name, Style::Points, points.to_vec())
    }

    /// Adds a labeled dashed vertical line.
    #[must_use]
    pub fn add_vertical_line(mut self, x: f64, text: &str) -> Plot {
        self.marks.push((true, x, text.to_owned()));
        self
    }

    /// Adds a labeled dashed horizontal line.
    #[must_use]
    pub fn add_horizontal_line(mut self, y: f64, text: &str) -> Plot {
        self.marks.push((false, y, text.to_owned()));
        self
    }

    /// Makes the horizontal axis logarithmic. Points at or below zero are drawn at its left end.
    #[must_use]
    pub fn log_x(mut self) -> Plot {
        self.logs.0 = true;
        self
    }

    /// Makes the vertical axis logarithmic. Points at or below zero are drawn at its lower end.
    #[must_use]
    pub fn log_y(mut self) -> Plot {
        self.logs.1 = true;
        self
    }

    /// Limits the horizontal axis. By default it spans the points.
    #[must_use]
    pub fn x_range(mut self, from: f64, to: f64) -> Plot {
        self.x_range = Some((from, to));
        self
    }

    /// Limits the vertical axis. By default it spans the points and zero.
    #[must_use]
    pub fn y_range(mut self, from: f64, to: f64) -> Plot {
        self.y_range = Some((from, to));
        self
    }

    /// Builds a figure of a reproduction.
    #[must_use]
    pub fn figure(&self, name: &str, caption: &str) -> Figure {
        Figure::new(name, &self.title, caption, self.svg())
    }

    /// Draws the plot as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let (x, y) = self.axes();
        let places = self.series.iter().map(|series| series.real_points().count()).sum::<usize>();
        let mut frame = Frame::new(&self.title, x, y, SIZE);
        for (number, of) in self.series.iter().enumerate() {
            let sample = move |area: &Area<'_>, (x, y)| of.sample(area, x, y, number);
            frame.legend.push((&of.name, Box::new(sample)));
        }
        let labels = (self.labels.0.as_str(), self.labels.1.as_str());
        Frame { labels, empty: places == 0, ..frame }.draw(|chart| {
            for (at_x, value, text) in &self.marks {
                reference(chart, *at_x, *value, text)?;
            }
            self.series.iter().enumerate().try_for_each(|(number, of)| of.draw(chart, number))
        })
    }

    fn axes(&self) -> (Axis, Axis) {
        let all = || self.series.iter().flat_map(Series::real_points);
        let marked = |at_x: bool| {
            let of = move |mark: &&(bool, f64, String)| mark.0 == at_x;
            self.marks.iter().filter(of).map(|mark| mark.1)
        };
        let x = || Axis::over(all().map(|point| point.x).chain(marked(true)), self.logs.0);
        let y = || {
            let ends = |point: &Point| {
                let (low, high) = point.interval.unwrap_or((point.y, point.y));
                [point.y, low, high]
            };
            let zero = (!self.logs.1).then_some(0.0);
            let values = all().flat_map(ends).chain(marked(false)).chain(zero);
            Axis::over(values, self.logs.1).with_room()
        };
        (
            self.x_range.map_or_else(x, |(from, to)| Axis::between(from, to, self.logs.0)),
            self.y_range.map_or_else(y, |(from, to)| Axis::between(from, to, self.logs.1)),
        )
    }
}

fn points_without_notes(points: &[(f64, f64)]) -> Vec<Point> {
    points.iter().map(|(x, y)| Point { x: *x, y: *y, interval: None }).collect()
}

impl Series {
    /// The points with finite coordinates.
    fn real_points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| point.x.is_finite() && point.y.is_finite())
    }

    /// The vertices of the line, without repeated ones, which would only make the file longer.
    fn line(&self, chart: &Chart<'_>) -> Vec<(f64, f64)> {
        let mut before = chart.y_range().start;
        let mut corners: Vec<(f64, f64)> = Vec::new();
        for Point { x, y, .. } in self.real_points() {
            if self.style == Style::Steps {
                corners.push((*x, before));
            }
            corners.push((*x, *y));
            before = *y;
        }
        corners.dedup_by_key(|corner| chart.backend_coord(corner));
        corners
    }

    /// The legend's sample of the series.
    fn sample(&self, area: &Area<'_>, x: i32, y: i32, number: usize) -> DrawResult {
        area.draw(&PathElement::new([(x, y), (x + px(26), y)], series(number).line(20)))?;
        let marked = self.style == Style::Points;
        if marked { area.draw(&marker(number, (x + px(13), y))) } else { Ok(()) }
    }

    fn draw(&self, chart: &mut Chart<'_>, number: usize) -> DrawResult {
        let (tone, line) = (series(number), self.line(chart));
        let foot = chart.y_range().start;
        if self.style == Style::Area {
            let shade = tone.color().mix(SHADE_OPACITY);
            chart.draw_series(AreaSeries::new(line.iter().copied(), foot, shade))?;
        }
        chart.draw_series(LineSeries::new(line, tone.line(20)))?;
        if self.style != Style::Points {
            return Ok(());
        }
        let finite = |(low, high): &(f64, f64)| low.is_finite() && high.is_finite();
        let intervals = self.real_points().filter_map(|Point { x, y, interval }| {
            let (low, high) = interval.filter(finite)?;
            Some(ErrorBar::new_vertical(*x, low, *y, high, tone.line(10), px(6) as u32))
        });
        chart.draw_series(intervals)?;
        chart.draw_series(self.real_points().map(|point| marker(number, (point.x, point.y))))?;
        Ok(())
    }
}
