//! Box plots: quartiles and tails of several variants, one below the other.

use plotters::prelude::*;

use super::axis::Axis;
use super::chart::Frame;
use super::drawing::Figure;
use super::sheet::{INK, Size, px, series};

/// Layout in pixels: width between the axes, and height of each variant.
const WIDTH: i32 = 560;
const BOX_HEIGHT: i32 = 34;

/// The values of a box, ascending: ends of the whiskers, quartiles, median.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct FiveNumbers {
    /// End of the lower whisker.
    pub low: f64,
    /// Lower quartile.
    pub q25: f64,
    /// Median.
    pub q50: f64,
    /// Median.
    pub q75: f64,
    /// End of the upper whisker.
    pub high: f64,
}

/// Distributions of several variants.
///
/// ```
/// use marline_lab::figure::{BoxPlot, FiveNumbers};
/// let box_of = FiveNumbers { low: 10.0, q25: 20.0, q50: 22.0, q75: 30.0, high: 90.0 };
/// let svg = BoxPlot::new("Echoes", "latency (ms)").add("auto", box_of).svg();
/// assert!(svg.contains("auto"));
/// ```
#[derive(Clone, Debug)]
pub struct BoxPlot {
    title: String,
    label: String,
    boxes: Vec<(String, FiveNumbers)>,
    log: bool,
}

impl BoxPlot {
    /// Creates an empty chart. The label has the quantity and its unit.
    #[must_use]
    pub fn new(title: &str, label: &str) -> BoxPlot {
        let (title, label) = (title.to_owned(), label.to_owned());
        BoxPlot { title, label, boxes: Vec::new(), log: false }
    }

    /// Adds a variant.
    #[must_use]
    pub fn add(mut self, name: &str, numbers: FiveNumbers) -> BoxPlot {
        self.boxes.push((name.to_owned(), numbers));
        self
    }

    /// Makes the axis logarithmic.
    #[must_use]
    pub fn log(mut self) -> BoxPlot {
        self.log = true;
        self
    }

    /// Builds a figure with its caption.
    #[must_use]
    pub fn figure(&self, name: &str, caption: &str) -> Figure {
        Figure::new(name, &self.title, caption, self.svg())
    }

    /// Draws the chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let finite = |of: &FiveNumbers| {
            [of.low, of.q25, of.q50, of.q75, of.high].into_iter().all(f64::is_finite)
        };
        let shown = || self.boxes.iter().enumerate().filter(|(_, (_, of))| finite(of));
        let ends = shown().flat_map(|(_, (_, of))| [of.low, of.high]);
        let values = Axis::over(ends.chain((!self.log).then_some(0.0)), self.log);
        let names = Axis::names(self.boxes.iter().map(|(name, _)| name.as_str()));
        let size = Size { width: WIDTH, height: BOX_HEIGHT * self.boxes.len().max(2) as i32 };
        let frame = Frame::new(&self.title, values.with_room(), names, size);
        let empty = shown().count() == 0;
        Frame { labels: (&self.label, ""), empty, ..frame }.draw(|chart| {
            for (number, (_, of)) in shown() {
                let middle = number as f64 + 0.5;
                let (ink, caps) = (INK.line(10), px(12) as u32);
                let whiskers = ErrorBar::new_horizontal(middle, of.low, of.q50, of.high, ink, caps);
                let quartiles = [(of.q25, middle - 0.3), (of.q75, middle + 0.3)];
                let median = vec![(of.q50, middle - 0.3), (of.q50, middle + 0.3)];
                let area = chart.plotting_area();
                area.draw(&whiskers)?;
                area.draw(&Rectangle::new(quartiles, series(number).fill()))?;
                area.draw(&PathElement::new(median, INK.line(20)))?;
            }
            Ok(())
        })
    }
}
