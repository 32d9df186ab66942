//! Heat maps: a number for every pair of two lists, as colours.

use super::drawing::Figure;
use super::number::number;
use super::svg::{Anchor, Svg, text_width};

/// From good to bad, light to dark, one after the other distinguishable also without colours:
/// five stops of a scale between pale yellow and dark violet.
const SCALE: [[u8; 3]; 5] =
    [[255, 247, 214], [253, 202, 127], [240, 133, 91], [178, 62, 110], [82, 20, 99]];

/// Length of the scale below the map, pixels.
const LEGEND: f64 = 200.0;

/// Rows, columns, and a number for each pair. The larger the number, the darker its field; a value
/// that is not a number has none.
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
    /// An empty map with columns of these names; `unit` says what the numbers are.
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

    /// A row with a number for each column.
    #[must_use]
    pub fn row(mut self, name: &str, values: &[f64]) -> HeatMap {
        self.rows.push((name.to_owned(), values.to_vec()));
        self
    }

    /// What is at or below `from` is lightest, at or above `to` darkest. Without: the least and the
    /// greatest number.
    #[must_use]
    pub fn range(mut self, from: f64, to: f64) -> HeatMap {
        self.range = Some((from, to));
        self
    }

    /// The same factor is the same step of colour.
    #[must_use]
    pub fn log(mut self) -> HeatMap {
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
        const CELL: (f64, f64) = (46.0, 24.0);
        let longest = |names: &mut dyn Iterator<Item = &String>| {
            names.map(|name| text_width(name)).fold(0.0, f64::max)
        };
        let left = longest(&mut self.rows.iter().map(|row| &row.0)) + 16.0;
        // Names of columns stand at 45 degrees.
        let name = longest(&mut self.columns.iter());
        let top = 34.0 + (0.72 * name).max(16.0) + 8.0;
        let right = (0.72 * name - CELL.0 / 2.0).max(0.0) + 16.0;
        let width = left + CELL.0 * self.columns.len() as f64 + right;
        let legend = left + LEGEND + 10.0 + text_width(&self.unit) + 12.0;
        let width = width.max(text_width(&self.title) * 1.3 + 32.0).max(legend);
        let height = top + CELL.1 * self.rows.len() as f64 + 52.0;
        let mut svg = Svg::new(width, height, &self.title);
        svg.text((12.0, 20.0), Anchor::Start, "title", &self.title);
        for (index, name) in self.columns.iter().enumerate() {
            let x = left + CELL.0 * (index as f64 + 0.5);
            svg.turned((x, top - 6.0), -45, Anchor::Start, name);
        }
        for (index, (name, values)) in self.rows.iter().enumerate() {
            let y = top + CELL.1 * index as f64;
            svg.text((left - 8.0, y + 16.0), Anchor::End, "", name);
            for (column, value) in values.iter().enumerate() {
                let x = left + CELL.0 * column as f64;
                self.cell(&mut svg, (x, y), CELL, *value);
            }
        }
        self.legend(&mut svg, (left, height - 36.0));
        svg.finish()
    }

    fn cell(&self, svg: &mut Svg, (x, y): (f64, f64), (w, h): (f64, f64), value: f64) {
        let size = (w - 1.0, h - 1.0);
        let middle = (x + w / 2.0, y + h / 2.0 + 4.0);
        if value.is_nan() {
            svg.rect((x, y), size, "none");
            svg.text(middle, Anchor::Middle, "", "-");
            return;
        }
        let colour = colour(self.share(value));
        svg.tile((x, y), size, colour);
        svg.text(middle, Anchor::Middle, text_class(colour), &number(value));
    }

    fn ends(&self) -> (f64, f64) {
        self.range.unwrap_or_else(|| {
            let values = self.rows.iter().flat_map(|row| row.1.iter().copied());
            super::axis::extent(values, self.log).unwrap_or((0.0, 1.0))
        })
    }

    /// Where on the scale a value is, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let (from, to) = self.ends();
        let share = match self.log {
            true => (value.max(f64::MIN_POSITIVE) / from).ln() / (to / from).ln(),
            false => (value - from) / (to - from),
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    fn legend(&self, svg: &mut Svg, (x, y): (f64, f64)) {
        const STEPS: u32 = 40;
        for step in 0..STEPS {
            let share = f64::from(step) / f64::from(STEPS - 1);
            let at = x + LEGEND * f64::from(step) / f64::from(STEPS);
            svg.tile((at, y), (LEGEND / f64::from(STEPS) + 0.5, 10.0), colour(share));
        }
        let (from, to) = self.ends();
        svg.text((x, y + 24.0), Anchor::Start, "mute", &number(from));
        svg.text((x + LEGEND, y + 24.0), Anchor::End, "mute", &number(to));
        svg.text((x + LEGEND + 10.0, y + 10.0), Anchor::Start, "", &self.unit);
    }
}

fn colour(share: f64) -> [u8; 3] {
    let place = share * (SCALE.len() - 1) as f64;
    let below = (place.floor() as usize).min(SCALE.len() - 2);
    let part = place - below as f64;
    let mut mixed = [0; 3];
    for (channel, value) in mixed.iter_mut().enumerate() {
        let (a, b) = (f64::from(SCALE[below][channel]), f64::from(SCALE[below + 1][channel]));
        *value = (a + part * (b - a)).round() as u8;
    }
    mixed
}

/// Dark text on light fields, light text on dark ones.
fn text_class([r, g, b]: [u8; 3]) -> &'static str {
    let light = 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b);
    if light > 140.0 { "dark" } else { "light" }
}
