//! Axes: the library's coordinates, linear and logarithmic, chosen by what is to be shown, and names beside each other.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Values of an axis are no larger: the library counts its ticks by adding.
const LARGEST: f64 = 1e15;
/// Least value of a logarithmic axis.
const LEAST: f64 = 1e-12;

/// What an axis shows.
#[derive(Clone, Debug)]
enum Scale {
    Linear(Range<f64>),
    Log(Range<f64>),
    /// The name of this number lies from it to the next.
    Names(Vec<String>),
    /// So many of something, without ticks.
    Bare(f64),
}

/// A line of values.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    /// From the top to the bottom.
    down: bool,
}

impl From<Scale> for Axis {
    fn from(scale: Scale) -> Axis {
        Axis { scale, down: false }
    }
}

impl Axis {
    /// What shows the values that are finite, on a logarithmic axis those that are positive. That one ends at powers of
    /// ten.
    pub(super) fn over(values: impl Iterator<Item = f64>, log: bool) -> Axis {
        let range = match extent(values, log) {
            Some((from, to)) if log => (decade(from, f64::floor), decade(to, f64::ceil)),
            Some(range) => range,
            None if log => (1.0, 10.0),
            None => (0.0, 1.0),
        };
        Axis::between(range, log)
    }

    /// From one value to the other. A range without extent gets one.
    pub(super) fn between((from, to): (f64, f64), log: bool) -> Axis {
        let least = if log { LEAST } else { -LARGEST };
        // Of what is no number, the greater of both is the other.
        let (from, to) = (from.max(least).min(LARGEST), to.min(10.0 * LARGEST));
        let one = if from == 0.0 { 1.0 } else { from.abs() };
        let wide = if log { 9.0 * from } else { one };
        // What is nearer to each other differs by rounding.
        let range = from..if to - from > 1e-9 * one { to } else { from + wide };
        if log { Scale::Log(range).into() } else { Scale::Linear(range).into() }
    }

    pub(super) fn names<'a>(names: impl Iterator<Item = &'a str>) -> Axis {
        let names: Vec<String> = names.map(str::to_owned).collect();
        Axis { scale: Scale::Names(names), down: true }
    }

    /// From 0 to `most`, without ticks.
    pub(super) fn bare(most: f64) -> Axis {
        Scale::Bare(most).into()
    }

    pub(super) fn downwards(self) -> Axis {
        Axis { down: true, ..self }
    }

    /// The same with some room above what it shows.
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

/// Least and greatest of the values that can be shown.
pub(super) fn extent(values: impl Iterator<Item = f64>, log: bool) -> Option<(f64, f64)> {
    let fits = |value: &f64| value.is_finite() && (!log || *value > 0.0);
    values.filter(fits).fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((least.min(value), most.max(value))),
    })
}

/// The power of ten at a value; one that is a power up to rounding is that.
fn decade(value: f64, away: fn(f64) -> f64) -> f64 {
    let log = value.clamp(LEAST, LARGEST).log10();
    let whole = if (log - log.round()).abs() < 1e-9 { log.round() } else { away(log) };
    10f64.powf(whole)
}

/// The library's logarithmic axis. A hair wider: a tick at its end is one.
fn logarithmic(range: &Range<f64>) -> LogCoord<f64> {
    (range.start * (1.0 - 1e-9)..range.end * (1.0 + 1e-9)).log_scale().into()
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let Range { start, end } = self.range();
        // What lies beyond an end is at it, and what is no number at the beginning.
        let value = value.max(start).min(end);
        let limit = if self.down { (limit.1, limit.0) } else { limit };
        match &self.scale {
            Scale::Log(range) => logarithmic(range).map(&value, limit),
            _ => RangedCoordf64::from(start..end).map(&value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Thin lines between ticks help where these are not evenly spaced.
        let between = hint.weight().allow_light_points();
        match &self.scale {
            Scale::Log(range) => logarithmic(range).key_points(hint),
            _ if between => Vec::new(),
            Scale::Linear(range) => RangedCoordf64::from(range.clone()).key_points(hint),
            Scale::Names(names) => (0..names.len()).map(|name| name as f64 + 0.5).collect(),
            Scale::Bare(_) => Vec::new(),
        }
    }

    fn range(&self) -> Range<f64> {
        match &self.scale {
            Scale::Linear(range) | Scale::Log(range) => range.clone(),
            // Without names there is still something to be divided by.
            Scale::Names(names) => 0.0..names.len().max(1) as f64,
            Scale::Bare(most) => 0.0..most.max(1.0),
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
