//! Chart: two axes with their labels, a title and a legend. The caller draws the contents.

use plotters::coord::ranged1d::ValueFormatter as _;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::Axis;
use super::sheet::{
    Area, DrawResult, FRAME, GRID, INK, MUTE, REFERENCE, Size, aligned, max_text_width, px, series,
    sheet, text_width,
};

/// Drawing context for the contents.
pub(super) type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;
/// A drawable element of any kind.
pub(super) type Element<'a, Place> = DynElement<'static, SVGBackend<'a>, Place>;

/// Maximum number of ticks of an axis.
const MAX_TICKS: usize = 9;
/// Maximum width of a name next to an axis in pixels.
const MAX_NAME_WIDTH: i32 = 420;
/// Legend in pixels: width of a sample, space around it, and line height.
const SAMPLE_WIDTH: i32 = 26;
const SPACE: i32 = 10;
const LINE: i32 = 19;
/// Height of the heading in pixels.
const HEADING_HEIGHT: i32 = 34;

/// Draws the sample of a legend entry, starting at the middle of its left edge.
pub(super) type Sample<'a> = Box<dyn Fn(&Area<'_>, (i32, i32)) -> DrawResult + 'a>;

/// A chart without its contents.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    pub(super) axes: (Axis, Axis),
    /// Labels of the axes, with units.
    pub(super) labels: (&'a str, &'a str),
    /// Size of the area between the axes.
    pub(super) size: Size,
    pub(super) legend: Vec<(&'a str, Sample<'a>)>,
    /// Free space above and below in pixels.
    pub(super) free: (i32, i32),
    /// Minimum width to the right of the vertical axis in pixels.
    pub(super) wide: i32,
    /// True if there is nothing to show.
    pub(super) empty: bool,
}

impl<'a> Frame<'a> {
    pub(super) fn new(title: &'a str, x: Axis, y: Axis, size: Size) -> Frame<'a> {
        let (axes, labels, legend) = ((x, y), ("", ""), Vec::new());
        Frame { title, axes, labels, size, legend, free: (0, 0), wide: 0, empty: false }
    }

    /// Width to the left of the vertical axis in pixels.
    fn left(&self) -> i32 {
        let ticks = self.axes.1.key_points(plotters::coord::ranged1d::BoldPoints(MAX_TICKS));
        let longest = ticks.iter().map(|tick| text_width(&self.axes.1.format_ext(tick))).max();
        let label = if self.labels.1.is_empty() { 0 } else { 20 };
        longest.unwrap_or(0).min(MAX_NAME_WIDTH) + label + 14
    }

    /// Draws the chart as SVG.
    pub(super) fn draw(self, fill: impl FnOnce(&mut Chart<'_>) -> DrawResult) -> String {
        let (left, foot) = (self.left(), if self.labels.0.is_empty() { 8 } else { 46 });
        let names = max_text_width(self.legend.iter().map(|entry| entry.0));
        let legend = if names > 0 { SAMPLE_WIDTH + 4 * SPACE + names } else { 22 };
        let height = self.size.height.max(LINE * self.legend.len() as i32 + SPACE);
        // The heading is bold and a little larger.
        let heading = text_width(self.title) * 6 / 5 + 24;
        let right = legend.max(heading.max(left + self.wide) - left - self.size.width);
        let top = HEADING_HEIGHT + self.free.0;
        let all = Size {
            width: left + self.size.width + right,
            height: top + height + foot + self.free.1,
        };
        sheet(self.title, all, |area| {
            area.draw_text(self.title, &INK.font(14.0, FontStyle::Bold), (px(12), px(8)))?;
            let mut chart = ChartBuilder::on(area)
                .margin_top(px(top))
                .margin_left(px(SPACE / 2))
                .margin_right(px(right))
                .margin_bottom(px(self.free.1))
                .y_label_area_size(px(left - SPACE / 2))
                .x_label_area_size(px(foot))
                .build_cartesian_2d(self.axes.0.clone(), self.axes.1.clone())?;
            let words = if self.axes.1.has_names() { INK } else { MUTE };
            let mut mesh = chart.configure_mesh();
            if !self.labels.0.is_empty() {
                mesh.x_desc(self.labels.0);
            }
            if !self.labels.1.is_empty() {
                mesh.y_desc(self.labels.1);
            }
            mesh.x_labels(MAX_TICKS)
                .y_labels(MAX_TICKS)
                .bold_line_style(GRID.line(10))
                .light_line_style(GRID.line(5))
                .axis_style(FRAME.line(10))
                .x_label_style(MUTE.text())
                .y_label_style(words.text())
                .axis_desc_style(INK.text())
                .set_all_tick_mark_size(px(3))
                .draw()?;
            fill(&mut chart)?;
            if self.empty {
                let style =
                    aligned(&MUTE.font(14.0, FontStyle::Normal), HPos::Center, VPos::Center);
                let middle = (px(left + self.size.width / 2), px(top + height / 2));
                area.draw_text("no data", &style, middle)?;
            }
            let style = aligned(&INK.text(), HPos::Left, VPos::Center);
            for (line, (name, sample)) in self.legend.iter().enumerate() {
                let x = left + self.size.width + SPACE;
                let y = px(top + SPACE + LINE * line as i32);
                sample(area, (px(x), y))?;
                area.draw_text(name, &style, (px(x + SAMPLE_WIDTH + SPACE), y))?;
            }
            Ok(())
        })
    }
}

/// Text next to a point of a chart.
pub(super) struct Label<'a> {
    pub(super) text: &'a str,
    pub(super) style: TextStyle<'static>,
    /// The point, in the chart's coordinates.
    pub(super) x: f64,
    pub(super) y: f64,
    /// Distance of the text from the point in pixels.
    pub(super) right: i32,
    pub(super) down: i32,
}

impl Label<'_> {
    pub(super) fn draw(self, chart: &Chart<'_>) -> DrawResult {
        let text = Text::new(self.text.to_owned(), (px(self.right), px(self.down)), self.style);
        chart.plotting_area().draw(&(EmptyElement::at((self.x, self.y)) + text))
    }
}

/// A labeled dashed line across the chart, at a value of the horizontal axis (`at_x`) or the vertical one.
pub(super) fn reference(chart: &Chart<'_>, at_x: bool, value: f64, text: &str) -> DrawResult {
    let (x, y) = (chart.x_range(), chart.y_range());
    let range = if at_x { &x } else { &y };
    if !(range.start..=range.end).contains(&value) {
        return Ok(());
    }
    let line = match at_x {
        true => vec![(value, y.start), (value, y.end)],
        false => vec![(x.start, value), (x.end, value)],
    };
    chart.plotting_area().draw(&PathElement::new(line, REFERENCE.line(15)))?;
    let edge = chart.plotting_area().get_pixel_range().0.end;
    // On a downward axis the end is at the bottom.
    let height = |y: f64| chart.backend_coord(&(x.start, y)).1;
    let top = if height(y.end) < height(y.start) { y.end } else { y.start };
    let ((x, y), fits) = match at_x {
        true => {
            ((value, top), chart.backend_coord(&(value, top)).0 + px(4 + text_width(text)) < edge)
        }
        false => ((x.end, value), false),
    };
    let (h, right) = if fits { (HPos::Left, 4) } else { (HPos::Right, -4) };
    let (v, down) = if at_x { (VPos::Top, 3) } else { (VPos::Bottom, -3) };
    let style = aligned(&MUTE.text(), h, v);
    Label { text, style, x, y, right, down }.draw(chart)
}

/// The marker of a series at a point.
pub(super) fn marker<'a, Place: Clone + 'static>(number: usize, at: Place) -> Element<'a, Place>
where
    for<'b> &'b Circle<Place, i32>: plotters::element::PointCollection<'b, Place>,
    for<'b> &'b TriangleMarker<Place, i32>: plotters::element::PointCollection<'b, Place>,
    for<'b> &'b Cross<Place, i32>: plotters::element::PointCollection<'b, Place>,
{
    let tone = series(number);
    match number % 4 {
        0 => Circle::new(at, px(3), tone.fill()).into_dyn(),
        1 => TriangleMarker::new(at, px(4), tone.fill()).into_dyn(),
        2 => Cross::new(at, px(3), tone.line(15)).into_dyn(),
        _ => Circle::new(at, px(3), tone.line(15)).into_dyn(),
    }
}
