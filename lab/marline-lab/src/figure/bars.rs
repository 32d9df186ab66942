//! Grouped bar charts with intervals.

use plotters::prelude::*;

use super::axis::Axis;
use super::chart::{Chart, Frame, reference};
use super::drawing::Figure;
use super::sheet::{Area, DrawResult, INK, Size, px, series};

/// Layout in pixels: width between the axes, height of a bar, and space around the bars of a group.
const WIDTH: i32 = 560;
const BAR: i32 = 13;
const GAP: i32 = 12;

/// The length of a bar, and its confidence interval.
type Bar = (f64, Option<(f64, f64)>);

/// Values of several variants in several cases. NaN has no bar.
///
/// ```
/// use marline_lab::figure::Bars;
/// let figure = Bars::new("Completion", "time (ms)", &["TLP-STD", "TLP-MP"])
///     .group("Docs", &[(480.0, Some((470.0, 490.0))), (250.0, None)])
///     .figure("completion", "");
/// assert!(figure.svg.contains("TLP-MP"));
/// ```
#[derive(Clone, Debug)]
pub struct Bars {
    title: String,
    label: String,
    series: Vec<String>,
    groups: Vec<(String, Vec<Bar>)>,
    mark: Option<(f64, String)>,
    log: bool,
}

impl Bars {
    /// Creates an empty chart for variants with these names. The label has the quantity and its unit.
    #[must_use]
    pub fn new(title: &str, label: &str, series: &[&str]) -> Bars {
        Bars {
            title: title.to_owned(),
            label: label.to_owned(),
            series: series.iter().map(|name| (*name).to_owned()).collect(),
            groups: Vec::new(),
            mark: None,
            log: false,
        }
    }

    /// Adds a case, with a bar for each variant in their order.
    #[must_use]
    pub fn group(mut self, name: &str, bars: &[Bar]) -> Bars {
        self.groups.push((name.to_owned(), bars.to_vec()));
        self
    }

    /// Adds a dashed line with a label at a value.
    #[must_use]
    pub fn add_line(mut self, value: f64, text: &str) -> Bars {
        self.mark = Some((value, text.to_owned()));
        self
    }

    /// Makes the axis logarithmic, starting at a power of ten below the shortest bar.
    #[must_use]
    pub fn log(mut self) -> Bars {
        self.log = true;
        self
    }

    /// Builds a figure of a reproduction.
    #[must_use]
    pub fn figure(&self, name: &str, caption: &str) -> Figure {
        Figure::new(name, &self.title, caption, self.svg())
    }

    /// Draws the chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let ends = |(value, interval): &Bar| {
            let (low, high) = interval.unwrap_or((*value, *value));
            [*value, low, high]
        };
        let bars = || self.groups.iter().flat_map(|group| &group.1);
        let marked = self.mark.iter().map(|mark| mark.0);
        let zero = (!self.log).then_some(0.0);
        let values = Axis::over(bars().flat_map(ends).chain(marked).chain(zero), self.log);
        let names = Axis::names(self.groups.iter().map(|group| group.0.as_str()));
        let group = GAP + BAR * self.series.len() as i32;
        let height = group * self.groups.len().max(1) as i32;
        let size = Size { width: WIDTH, height };
        let mut frame = Frame::new(&self.title, values.with_room(), names, size);
        for (number, name) in self.series.iter().enumerate() {
            let sample = move |area: &Area<'_>, (x, y)| {
                let ends = [(x + px(7), y - px(6)), (x + px(19), y + px(6))];
                area.draw(&Rectangle::new(ends, series(number).fill()))
            };
            frame.legend.push((name, Box::new(sample)));
        }
        let empty = bars().all(|bar| !bar.0.is_finite());
        Frame { labels: (&self.label, ""), empty, ..frame }.draw(|chart| {
            (0..self.series.len()).try_for_each(|number| self.draw_series(chart, number))?;
            let mark = self.mark.as_ref();
            mark.map_or(Ok(()), |(value, text)| reference(chart, true, *value, text))
        })
    }

    /// Draws the bars of a variant in all groups.
    fn draw_series(&self, chart: &mut Chart<'_>, number: usize) -> DrawResult {
        let tone = series(number);
        let group = f64::from(GAP + BAR * self.series.len() as i32);
        let (first, each) = (f64::from(GAP) / 2.0 / group, f64::from(BAR) / group);
        let place = |group: usize| group as f64 + first + each * number as f64;
        let mine = self.groups.iter().enumerate().filter_map(|(group, (_, bars))| {
            bars.get(number).filter(|bar| bar.0.is_finite()).map(|bar| (place(group), *bar))
        });
        let mine: Vec<(f64, Bar)> = mine.collect();
        let foot = if self.log { chart.x_range().start } else { 0.0 };
        let bar = |(at, (value, _)): &(f64, Bar)| {
            let mut bar = Rectangle::new([(foot, *at), (*value, at + each)], tone.fill());
            bar.set_margin(5, 5, 0, 0);
            bar
        };
        chart.draw_series(mine.iter().map(bar))?;
        let finite = |(low, high): &(f64, f64)| low.is_finite() && high.is_finite();
        chart.draw_series(mine.iter().filter_map(|(at, (value, interval))| {
            let (low, high) = interval.filter(finite)?;
            let middle = at + each / 2.0;
            Some(ErrorBar::new_horizontal(middle, low, *value, high, INK.line(10), px(4) as u32))
        }))?;
        Ok(())
    }
}
