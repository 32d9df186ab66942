//! Heat maps: a number for every pair of two lists, as colors.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, extent};
use super::chart::{Chart, Frame, Label};
use super::drawing::Figure;
use super::label::number;
use super::sheet::{
    DrawResult, INK, MUTE, NONE, Size, Tone, aligned, max_text_width, px, text_width,
};

/// Color scale from good to bad, light to dark, also distinguishable without color: five stops between pale yellow and
/// dark violet.
const SCALE: [RGBColor; 5] = [
    RGBColor(255, 247, 214),
    RGBColor(253, 202, 127),
    RGBColor(240, 133, 91),
    RGBColor(178, 62, 110),
    RGBColor(82, 20, 99),
];
/// Text on light and dark cells, independent of the reader's color scheme.
const ON_LIGHT: Tone = Tone::fixed(0x111111);
const ON_DARK: Tone = Tone::fixed(0xfefefe);
/// Cell size in pixels.
const CELL_SIZE: (i32, i32) = (48, 24);
/// Scale below the map: number of steps, and pixels per step.
const STEPS: i32 = 40;
const STEP: i32 = 5;

/// A number for each pair of row and column. Larger numbers have darker cells, and NaN has no cell.
#[derive(Clone, Debug)]
pub struct HeatMap {
    title: String,
    unit: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<f64>)>,
    range: Option<(f64, f64)>,
    log: bool,
}

impl HeatMap {
    /// Creates an empty map with these columns. `unit` is the unit of the numbers.
    #[must_use]
    pub fn new(title: &str, unit: &str, columns: &[&str]) -> HeatMap {
        HeatMap {
            title: title.to_owned(),
            unit: unit.to_owned(),
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            rows: Vec::new(),
            range: None,
            log: false,
        }
    }

    /// Adds a row with a number for each column.
    #[must_use]
    pub fn row(mut self, name: &str, values: &[f64]) -> HeatMap {
        self.rows.push((name.to_owned(), values.to_vec()));
        self
    }

    /// Sets the range of the scale: values up to `from` are lightest, and values of at least `to` are darkest. By
    /// default it spans all numbers.
    #[must_use]
    pub fn range(mut self, from: f64, to: f64) -> HeatMap {
        self.range = Some((from, to));
        self
    }

    /// Makes the scale logarithmic.
    #[must_use]
    pub fn log(mut self) -> HeatMap {
        self.log = true;
        self
    }

    /// Builds a figure of a reproduction.
    #[must_use]
    pub fn figure(&self, name: &str, caption: &str) -> Figure {
        Figure::new(name, &self.title, caption, self.svg())
    }

    /// Draws the map as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let columns = self.columns.len() as f64;
        let rows = Axis::names(self.rows.iter().map(|row| row.0.as_str()));
        // Column names are vertical, above the map.
        let above = max_text_width(self.columns.iter().map(String::as_str)) + 4;
        let scale = STEPS * STEP + 12 + text_width(&self.unit);
        let width = (CELL_SIZE.0 * self.columns.len() as i32).max(1);
        let size = Size { width, height: CELL_SIZE.1 * self.rows.len().max(1) as i32 };
        let frame = Frame::new(&self.title, Axis::without_labels(columns), rows, size);
        let empty = self.rows.is_empty() || self.columns.is_empty();
        Frame { free: (above, 40), wide: scale, empty, ..frame }.draw(|chart| {
            let upright = aligned(&INK.text(), HPos::Left, VPos::Center);
            let upright = upright.transform(FontTransform::Rotate270);
            for (column, name) in self.columns.iter().enumerate() {
                let (x, style) = (column as f64 + 0.5, upright.clone());
                Label { text: name, style, x, y: 0.0, right: 0, down: -6 }.draw(chart)?;
            }
            for (row, (_, values)) in self.rows.iter().enumerate() {
                for (column, value) in values.iter().enumerate() {
                    self.field(chart, column as f64, row as f64, *value)?;
                }
            }
            self.legend(chart)
        })
    }

    fn field(&self, chart: &Chart<'_>, x: f64, y: f64, value: f64) -> DrawResult {
        let known = !value.is_nan();
        let (fill, ink) = match color(self.share(value)) {
            _ if !known => (NONE.fill(), INK),
            light if is_light(light) => (light.filled(), ON_LIGHT),
            dark => (dark.filled(), ON_DARK),
        };
        let mut field = Rectangle::new([(x, y), (x + 1.0, y + 1.0)], fill);
        field.set_margin(5, 5, 5, 5);
        chart.plotting_area().draw(&field)?;
        let style = aligned(&ink.text(), HPos::Center, VPos::Center);
        let (x, y) = (x + 0.5, y + 0.5);
        Label { text: &number(value), style, x, y, right: 0, down: 0 }.draw(chart)
    }

    fn ends(&self) -> (f64, f64) {
        self.range.unwrap_or_else(|| {
            let values = self.rows.iter().flat_map(|row| row.1.iter().copied());
            extent(values, self.log).unwrap_or((0.0, 1.0))
        })
    }

    /// Position of a value on the scale, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let (from, to) = self.ends();
        let share = match self.log {
            true => (value.max(f64::MIN_POSITIVE) / from).ln() / (to / from).ln(),
            false => (value - from) / (to - from),
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// Draws the scale below the map.
    fn legend(&self, chart: &Chart<'_>) -> DrawResult {
        let foot = chart.y_range().end;
        for step in 0..STEPS {
            let color = color(f64::from(step) / f64::from(STEPS - 1));
            let (left, right) = (px(STEP * step), px(STEP * (step + 1)));
            let field = Rectangle::new([(left, px(10)), (right, px(20))], color.filled());
            chart.plotting_area().draw(&(EmptyElement::at((0.0, foot)) + field))?;
        }
        let (from, to) = self.ends();
        let say = |right: i32, down: i32, h: HPos, text: &str, tone: Tone| {
            let style = aligned(&tone.text(), h, VPos::Center);
            Label { text, style, x: 0.0, y: foot, right, down }.draw(chart)
        };
        say(0, 30, HPos::Left, &number(from), MUTE)?;
        say(STEPS * STEP, 30, HPos::Right, &number(to), MUTE)?;
        say(STEPS * STEP + 10, 15, HPos::Left, &self.unit, INK)
    }
}

fn color(share: f64) -> RGBColor {
    DerivedColorMap::new(&SCALE).get_color(share)
}

fn is_light(RGBColor(r, g, b): RGBColor) -> bool {
    0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b) > 140.0
}
