//! Axes: the scale from values to coordinates, and the ticks.

use super::svg::{Anchor, Svg};

/// A range of values along a line of pixels.
#[derive(Copy, Clone, Debug)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    log: bool,
    pixels: (f64, f64),
}

/// Least and greatest of the finite values; positive ones only where `log`.
pub(super) fn extent(values: impl Iterator<Item = f64>, log: bool) -> Option<(f64, f64)> {
    let fits = |value: &f64| value.is_finite() && (!log || *value > 0.0);
    values.filter(fits).fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((least.min(value), most.max(value))),
    })
}

impl Axis {
    /// An axis for values from `from` to `to`, drawn between two coordinates. A range without
    /// extent gets one.
    pub(super) fn new((from, to): (f64, f64), log: bool, pixels: (f64, f64)) -> Axis {
        let (mut from, mut to) = (from, to);
        if log {
            from = if from > 0.0 { from } else { 1e-3 };
            to = if to > from { to } else { 10.0 * from };
        } else if to <= from {
            to = from + if from == 0.0 { 1.0 } else { from.abs() };
        }
        Axis { from, to, log, pixels }
    }

    /// The same up to ticks at both ends.
    pub(super) fn rounded(self) -> Axis {
        if self.log {
            let power = |value: f64, up: bool| {
                let log = value.log10();
                // A value that is a power of ten up to rounding is one.
                let nearest = log.round();
                let whole = match ((log - nearest).abs() < 1e-9, up) {
                    (true, _) => nearest,
                    (_, true) => log.ceil(),
                    (_, false) => log.floor(),
                };
                10f64.powf(whole)
            };
            return Axis { from: power(self.from, false), to: power(self.to, true), ..self };
        }
        let step = self.step();
        let from = (self.from / step + 1e-9).floor() * step;
        let to = (self.to / step - 1e-9).ceil() * step;
        Axis { from, to, ..self }
    }

    /// The coordinate of a value; beyond the ends it stays at them.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = match self.log {
            true if value <= 0.0 => 0.0,
            true => (value / self.from).log10() / (self.to / self.from).log10(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.pixels.0 + share.clamp(0.0, 1.0) * (self.pixels.1 - self.pixels.0)
    }

    /// Whether a value lies on it.
    pub(super) fn holds(&self, value: f64) -> bool {
        value >= self.from && value <= self.to
    }

    /// The same in a unit of so many.
    pub(super) fn scaled(self, unit: f64) -> Axis {
        Axis { from: self.from / unit, to: self.to / unit, ..self }
    }

    pub(super) const fn to(&self) -> f64 {
        self.to
    }

    pub(super) const fn from(&self) -> f64 {
        self.from
    }

    /// 1, 2 or 5 times a power of ten, so that there are 4 to 10 steps.
    fn step(&self) -> f64 {
        let rough = (self.to - self.from) / 7.0;
        let power = 10f64.powf(rough.log10().floor());
        let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|n| n * power >= rough);
        times.unwrap_or(10.0) * power
    }

    /// Where ticks are and what they say.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        if self.log {
            return self.log_ticks();
        }
        let step = self.step();
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let first = (self.from / step - 1e-9).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last)
            .map(|n| {
                let value = n as f64 * step;
                (value, format!("{:.decimals$}", if n == 0 { 0.0 } else { value }))
            })
            .collect()
    }

    /// Draws it as one of heights: a line from `left` to `right` at each tick, and left of it what that says.
    pub(super) fn draw_heights(&self, svg: &mut Svg, (left, right): (f64, f64)) {
        for (value, text) in self.ticks() {
            let y = self.place(value);
            svg.line((left, y), (right, y), "grid");
            svg.text((left - 6.0, y + 4.0), Anchor::End, "mute", &text);
        }
    }

    fn log_ticks(&self) -> Vec<(f64, String)> {
        let decades = (self.to / self.from).log10();
        let between: &[f64] = if decades <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let all = (first..=last).flat_map(|n| between.iter().map(move |m| (n, m * 10f64.powi(n))));
        let near = 1.0 + 1e-9;
        all.filter(|(_, value)| *value >= self.from / near && *value <= self.to * near)
            .map(|(power, value)| {
                let decimals = (-power).max(0) as usize;
                (value, format!("{value:.decimals$}"))
            })
            .collect()
    }
}
