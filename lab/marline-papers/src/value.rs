//! Cell of a table: a number with its unit, or text.

use std::fmt;

use marline_lab::estimate::Estimate;
use marline_lab::figure::number;
use serde::{Deserialize, Deserializer, Serialize};

/// A cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// A number.
    Number {
        /// The number. NaN: it could not be measured.
        #[serde(deserialize_with = "nan_of_null")]
        value: f64,
        /// Confidence interval. The table's title states the confidence.
        interval: Option<(f64, f64)>,
        /// Unit. Empty: none.
        unit: String,
    },
    /// Text.
    Text(String),
}

/// Reads `null` as NaN, because JSON has no NaN.
fn nan_of_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Value {
    /// A number with its unit.
    #[must_use]
    pub fn new(value: f64, unit: &str) -> Value {
        Value::Number { value, interval: None, unit: unit.to_owned() }
    }

    /// An estimate with its interval, as [`Value::with_interval`].
    #[must_use]
    pub fn from_estimate(estimate: &Estimate, unit: &str) -> Value {
        Value::with_interval(estimate.value, estimate.low, estimate.high, unit)
    }

    /// A number with an interval and its unit. An interval with a non-finite end is left out.
    #[must_use]
    pub fn with_interval(value: f64, low: f64, high: f64, unit: &str) -> Value {
        let real = low.is_finite() && high.is_finite();
        Value::Number { value, interval: real.then_some((low, high)), unit: unit.to_owned() }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Number { value, interval, unit } => {
                f.write_str(&number(*value))?;
                if let Some((from, to)) = interval {
                    write!(f, " [{}, {}]", number(*from), number(*to))?;
                }
                if !unit.is_empty() {
                    write!(f, " {unit}")?;
                }
                Ok(())
            }
        }
    }
}
