//! Box plots: quartiles and tails of several contestants side by side.

use super::axis::{Axis, extent};
use super::drawing::Figure;
use super::svg::{Anchor, SERIES, Svg, text_width};

const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 40.0;
const PLOT_HEIGHT: f64 = 280.0;
const LEAST_WIDTH: f64 = 480.0;
/// No drawing is wider.
const MOST_WIDTH: f64 = 1_400.0;

/// What a box shows of a distribution, ascending: ends of the whiskers, quartiles, median.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct FiveNumbers {
    /// Foot of the lower whisker.
    pub low: f64,
    /// Lower quartile.
    pub q25: f64,
    /// Median.
    pub q50: f64,
    /// Upper quartile.
    pub q75: f64,
    /// Head of the upper whisker.
    pub high: f64,
}

/// Distributions of several contestants.
///
/// ```
/// use marline_lab::figure::{Boxes, FiveNumbers};
/// let box_of = FiveNumbers { low: 10.0, q25: 20.0, q50: 22.0, q75: 30.0, high: 90.0 };
/// let svg = Boxes::new("Echoes", "latency (ms)").add("auto", box_of).svg();
/// assert!(svg.contains("auto"));
/// ```
#[derive(Clone, Debug)]
pub struct Boxes {
    title: String,
    label: String,
    boxes: Vec<(String, FiveNumbers)>,
    log: bool,
}

impl Boxes {
    /// An empty chart; the label has the quantity and its unit.
    #[must_use]
    pub fn new(title: &str, label: &str) -> Boxes {
        let (title, label) = (title.to_owned(), label.to_owned());
        Boxes { title, label, boxes: Vec::new(), log: false }
    }

    /// A contestant.
    #[must_use]
    pub fn add(mut self, name: &str, numbers: FiveNumbers) -> Boxes {
        self.boxes.push((name.to_owned(), numbers));
        self
    }

    /// The axis is logarithmic.
    #[must_use]
    pub fn log(mut self) -> Boxes {
        self.log = true;
        self
    }

    /// As a figure with its caption.
    #[must_use]
    pub fn figure(&self, name: &str, caption: &str) -> Figure {
        Figure::new(name, &self.title, caption, self.svg())
    }

    /// The drawing.
    #[must_use]
    pub fn svg(&self) -> String {
        let count = self.boxes.len().max(1) as f64;
        let width = (LEFT + RIGHT + 70.0 * count).clamp(LEAST_WIDTH, MOST_WIDTH);
        let slot = (width - LEFT - RIGHT) / count;
        let longest = self.boxes.iter().map(|(name, _)| text_width(name)).fold(0.0, f64::max);
        let turned = longest > slot - 4.0;
        let foot = if turned { (0.72 * longest).min(150.0) + 22.0 } else { 26.0 };
        let (bottom, mut svg) =
            (TOP + PLOT_HEIGHT, Svg::new(width, TOP + PLOT_HEIGHT + foot, &self.title));
        svg.heading((LEFT, 20.0), &self.title);
        let values = self.boxes.iter().flat_map(|(_, of)| [of.low, of.high]);
        let values = values.chain((!self.log).then_some(0.0));
        let range = extent(values, self.log).unwrap_or((0.0, 1.0));
        let axis = Axis::new(range, self.log, (bottom, TOP)).rounded();
        axis.draw_heights(&mut svg, (LEFT, width - RIGHT));
        for (index, (name, of)) in self.boxes.iter().enumerate() {
            let middle = LEFT + slot * (index as f64 + 0.5);
            let half = (slot * 0.3).min(30.0);
            let at = |value: f64| axis.place(value);
            svg.whisker(middle, (at(of.low), at(of.high)), "ink");
            let (head, foot) = (at(of.q75), at(of.q25));
            let size = (2.0 * half, (foot - head).max(1.0));
            svg.rect((middle - half, head), size, &format!("f{}", index % SERIES));
            svg.line((middle - half, at(of.q50)), (middle + half, at(of.q50)), "ink");
            match turned {
                true => svg.turned((middle + 4.0, bottom + 16.0), -45, Anchor::End, name),
                false => svg.text((middle, bottom + 16.0), Anchor::Middle, "", name),
            }
        }
        svg.path(&[(LEFT, TOP), (LEFT, bottom), (width - RIGHT, bottom)], false, "axis");
        svg.turned((16.0, TOP + PLOT_HEIGHT / 2.0), -90, Anchor::Middle, &self.label);
        svg.finish()
    }
}
