//! Grouped bar charts with intervals.

use super::axis::{Axis, extent};
use super::drawing::Figure;
use super::plot::legend_places;
use super::svg::{Anchor, SERIES, Svg, text_width};

const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
const PLOT_HEIGHT: f64 = 280.0;
const LEAST_WIDTH: f64 = 720.0;
/// No drawing is wider.
const MOST_WIDTH: f64 = 1_400.0;

/// The height of a bar, and where it lies with some confidence.
type Bar = (f64, Option<(f64, f64)>);

/// Values of several contestants in several cases. A value that is not a number has no bar.
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
    /// An empty chart for contestants of these names; the label has the quantity and its unit.
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

    /// A case, with a bar for each contestant in their order.
    #[must_use]
    pub fn group(mut self, name: &str, bars: &[Bar]) -> Bars {
        self.groups.push((name.to_owned(), bars.to_vec()));
        self
    }

    /// A dashed line across, with words.
    #[must_use]
    pub fn mark(mut self, value: f64, text: &str) -> Bars {
        self.mark = Some((value, text.to_owned()));
        self
    }

    /// The axis is logarithmic and begins at a power of ten below the least bar.
    #[must_use]
    pub fn log(mut self) -> Bars {
        self.log = true;
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
        let count = (self.groups.len().max(1) * (self.series.len() + 1)) as f64;
        let width = (LEFT + RIGHT + 14.0 * count).clamp(LEAST_WIDTH, MOST_WIDTH);
        let legend = legend_places(self.series.iter().map(String::as_str));
        let top = 34.0 + 18.0 * legend.last().map_or(0.0, |place| place.1 + 1.0);
        let slot = (width - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let longest = self.groups.iter().map(|group| text_width(&group.0)).fold(0.0, f64::max);
        let turned = longest > slot - 4.0;
        let foot = if turned { (0.72 * longest).min(150.0) + 22.0 } else { 26.0 };
        let mut svg = Svg::new(width, top + PLOT_HEIGHT + foot, &self.title);
        svg.heading((LEFT, 20.0), &self.title);
        for (index, (name, (x, line))) in self.series.iter().zip(&legend).enumerate() {
            let y = 38.0 + 18.0 * line;
            svg.rect((x + 14.0, y - 10.0), (12.0, 12.0), &format!("f{}", index % SERIES));
            svg.text((x + 32.0, y), Anchor::Start, "", name);
        }
        let axis = self.axis(top);
        axis.draw_heights(&mut svg, (LEFT, width - RIGHT));
        for (index, group) in self.groups.iter().enumerate() {
            let x = LEFT + slot * index as f64;
            self.draw_group(&mut svg, &axis, (x, slot), group);
            let below = (x + slot / 2.0, top + PLOT_HEIGHT + 16.0);
            match turned {
                true => svg.turned((below.0 + 4.0, below.1), -45, Anchor::End, &group.0),
                false => svg.text(below, Anchor::Middle, "", &group.0),
            }
        }
        let bottom = top + PLOT_HEIGHT;
        svg.path(&[(LEFT, top), (LEFT, bottom), (width - RIGHT, bottom)], false, "axis");
        svg.turned((16.0, top + PLOT_HEIGHT / 2.0), -90, Anchor::Middle, &self.label);
        if let Some((value, text)) = self.mark.as_ref().filter(|mark| axis.holds(mark.0)) {
            let y = axis.place(*value);
            svg.line((LEFT, y), (width - RIGHT, y), "ref");
            svg.text((width - RIGHT - 4.0, y - 4.0), Anchor::End, "mute halo", text);
        }
        svg.finish()
    }

    fn axis(&self, top: f64) -> Axis {
        let bars = self.groups.iter().flat_map(|group| &group.1);
        let ends = |(value, interval): &Bar| {
            let (low, high) = interval.unwrap_or((*value, *value));
            [*value, low, high]
        };
        let marked = self.mark.iter().map(|mark| mark.0);
        let zero = (!self.log).then_some(0.0);
        let values = bars.flat_map(ends).chain(marked).chain(zero);
        let range = extent(values, self.log).unwrap_or((0.0, 1.0));
        Axis::new(range, self.log, (top + PLOT_HEIGHT, top)).rounded()
    }

    fn draw_group(
        &self,
        svg: &mut Svg,
        axis: &Axis,
        (x, slot): (f64, f64),
        group: &(String, Vec<Bar>),
    ) {
        let gap = (slot * 0.15).max(1.0);
        let each = (slot - gap) / self.series.len().max(1) as f64;
        let foot = axis.place(if self.log { axis.from() } else { 0.0 });
        for (index, (value, interval)) in group.1.iter().enumerate() {
            if !value.is_finite() {
                continue;
            }
            let (left, head) = (x + gap / 2.0 + each * index as f64, axis.place(*value));
            let size = ((each - 1.0).max(1.0), (foot - head).abs());
            svg.rect((left, head.min(foot)), size, &format!("f{}", index % SERIES));
            if let Some((low, high)) = interval {
                let ends = (axis.place(*low), axis.place(*high));
                svg.whisker(left + size.0 / 2.0, ends, "ink");
            }
        }
    }
}
