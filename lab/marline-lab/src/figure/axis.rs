//! Axes: linear, logarithmic and named coordinates of the drawing library, chosen by the data.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Maximum value of an axis, because the library computes its ticks by repeated addition.
const MAX_VALUE: f64 = 1e15;
/// Minimum value of a logarithmic axis.
const MIN_LOGARITHMIC: f64 = 1e-12;

/// Coordinate system of an axis.
#[derive(Clone, Debug)]
enum Scale {
    Linear(Range<f64>),
    Log(Range<f64>),
    /// Names, where the name with index N takes the range from N to N + 1.
    Names(Vec<String>),
    /// Range from 0 to this value, without ticks.
    WithoutTicks(f64),
}

/// An axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    /// Increasing values go downwards.
    down: bool,
}

impl From<Scale> for Axis {
    fn from(scale: Scale) -> Axis {
        Axis { scale, down: false }
    }
}

impl Axis {
    /// An axis over all finite values, or over all positive ones on a logarithmic axis, which ends at powers of ten.
    pub(super) fn over(values: impl Iterator<Item = f64>, log: bool) -> Axis {
        let (from, to) = match extent(values, log) {
            Some((from, to)) if log => {
                (round_to_decade(from, f64::floor), round_to_decade(to, f64::ceil))
            }
            Some(range) => range,
            None if log => (1.0, 10.0),
            None => (0.0, 1.0),
        };
        Axis::between(from, to, log)
    }

    /// An axis from one value to another. An empty range is widened.
    pub(super) fn between(from: f64, to: f64, log: bool) -> Axis {
        let least = if log { MIN_LOGARITHMIC } else { -MAX_VALUE };
        // `max` replaces NaN with the other operand.
        let (from, to) = (from.max(least).min(MAX_VALUE), to.min(10.0 * MAX_VALUE));
        let one = if from == 0.0 { 1.0 } else { from.abs() };
        let wide = if log { 9.0 * from } else { one };
        // A smaller range is caused by rounding.
        let range = from..if to - from > 1e-9 * one { to } else { from + wide };
        if log { Scale::Log(range).into() } else { Scale::Linear(range).into() }
    }

    pub(super) fn names<'a>(names: impl Iterator<Item = &'a str>) -> Axis {
        let names: Vec<String> = names.map(str::to_owned).collect();
        Axis { scale: Scale::Names(names), down: true }
    }

    /// From 0 to `most`, without ticks.
    pub(super) fn without_labels(most: f64) -> Axis {
        Scale::WithoutTicks(most).into()
    }

    pub(super) fn downwards(self) -> Axis {
        Axis { down: true, ..self }
    }

    /// Extends the upper end by some space.
    pub(super) fn with_room(self) -> Axis {
        match self.scale {
            Scale::Linear(Range { start, end }) => {
                Axis { scale: Scale::Linear(start..end + 0.04 * (end - start)), ..self }
            }
            _ => self,
        }
    }

    pub(super) fn has_names(&self) -> bool {
        matches!(self.scale, Scale::Names(_))
    }
}

/// Minimum and maximum of the values that the axis can show.
pub(super) fn extent(values: impl Iterator<Item = f64>, log: bool) -> Option<(f64, f64)> {
    let fits = |value: &f64| value.is_finite() && (!log || *value > 0.0);
    values.filter(fits).fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((least.min(value), most.max(value))),
    })
}

/// The power of ten at a value. A value that is a power of ten except for rounding gives that power.
fn round_to_decade(value: f64, away: fn(f64) -> f64) -> f64 {
    let log = value.clamp(MIN_LOGARITHMIC, MAX_VALUE).log10();
    let whole = if (log - log.round()).abs() < 1e-9 { log.round() } else { away(log) };
    10f64.powf(whole)
}

/// The library's logarithmic axis, slightly widened so that a tick at its end is drawn.
fn logarithmic(range: &Range<f64>) -> LogCoord<f64> {
    (range.start * (1.0 - 1e-9)..range.end * (1.0 + 1e-9)).log_scale().into()
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let Range { start, end } = self.range();
        // A value beyond an end is drawn at that end, NaN at the start.
        let value = value.max(start).min(end);
        let limit = if self.down { (limit.1, limit.0) } else { limit };
        match &self.scale {
            Scale::Log(range) => logarithmic(range).map(&value, limit),
            _ => RangedCoordf64::from(start..end).map(&value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Thin lines between ticks help if ticks are not evenly spaced.
        let between = hint.weight().allow_light_points();
        match &self.scale {
            Scale::Log(range) => logarithmic(range).key_points(hint),
            _ if between => Vec::new(),
            Scale::Linear(range) => RangedCoordf64::from(range.clone()).key_points(hint),
            Scale::Names(names) => (0..names.len()).map(|name| name as f64 + 0.5).collect(),
            Scale::WithoutTicks(_) => Vec::new(),
        }
    }

    fn range(&self) -> Range<f64> {
        match &self.scale {
            Scale::Linear(range) | Scale::Log(range) => range.clone(),
            // Without names the range must not be empty.
            Scale::Names(names) => 0.0..names.len().max(1) as f64,
            Scale::WithoutTicks(most) => 0.0..most.max(1.0),
        }
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        match &self.scale {
            Scale::Names(names) => names.get(*value as usize).cloned().unwrap_or_default(),
            _ if *value != 0.0 && !(1e-5..1e7).contains(&value.abs()) => {
                format!("{value:.3e}").replace(".000", "")
            }
            _ => {
                let text = format!("{value:.6}");
                let text = text.trim_end_matches('0').trim_end_matches('.');
                if text == "-0" { "0".to_owned() } else { text.to_owned() }
            }
        }
    }
}
