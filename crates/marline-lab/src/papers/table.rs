//! What a reproduction gives: tables, grids, figures, notes.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use super::{Row, Verdict};

/// A cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// A number.
    Number {
        /// The number; NaN: it could not be measured.
        #[serde(deserialize_with = "nan_of_null")]
        value: f64,
        /// Where it lies with the confidence that the table's title names.
        interval: Option<(f64, f64)>,
        /// Its unit, `""` without.
        unit: String,
    },
    /// Words.
    Text(String),
}

/// JSON has no NaN and writes `null`.
fn nan_of_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Value {
    /// A number with its unit.
    #[must_use]
    pub fn new(value: f64, unit: &str) -> Value {
        Value::Number { value, interval: None, unit: unit.to_owned() }
    }

    /// A number with an interval and its unit. An interval that is not one of numbers is left out.
    #[must_use]
    pub fn between(value: f64, interval: (f64, f64), unit: &str) -> Value {
        let real = interval.0.is_finite() && interval.1.is_finite();
        Value::Number { value, interval: real.then_some(interval), unit: unit.to_owned() }
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

/// A number with the three or four digits that matter; `-` for what is none.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        _ if value.is_nan() => return "-".to_owned(),
        _ if value.is_infinite() => return if value > 0.0 { "∞" } else { "-∞" }.to_owned(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.4}"),
        _ if size == 0.0 => return "0".to_owned(),
        _ => format!("{value:.2e}"),
    };
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Rows that are judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Name of its file: letters, digits, `-`.
    pub name: String,
    /// What it shows, and what intervals there are.
    pub title: String,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Table {
    /// A table of these rows.
    #[must_use]
    pub fn new(name: &str, title: impl Into<String>, rows: Vec<Row>) -> Table {
        Table { name: name.to_owned(), title: title.into(), rows }
    }

    /// Whether no row fails.
    #[must_use]
    pub fn accepted(&self) -> bool {
        self.rows.iter().all(|row| row.verdict != Verdict::NotAccepted)
    }
}

/// A column of a [`Grid`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// What it holds.
    pub name: String,
    /// The unit of its numbers, `""` without.
    pub unit: String,
}

/// Measurements without a counterpart in the paper: any columns, nothing is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// Name of its file: letters, digits, `-`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows: a cell for each column; numbers in the column's unit (their own is ignored).
    pub rows: Vec<Vec<Value>>,
}

impl Grid {
    /// An empty grid with columns of these names and units.
    #[must_use]
    pub fn new(name: &str, title: impl Into<String>, columns: &[(&str, &str)]) -> Grid {
        let column = |(name, unit): &(&str, &str)| Column {
            name: (*name).to_owned(),
            unit: (*unit).to_owned(),
        };
        let columns = columns.iter().map(column).collect();
        Grid { name: name.to_owned(), title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row that begins with words and goes on with numbers.
    ///
    /// # Panics
    /// When it has not one cell for each column.
    pub fn push(&mut self, words: &[&str], numbers: &[f64]) {
        assert_eq!(words.len() + numbers.len(), self.columns.len(), "cells of a row of {self:?}");
        let words = words.iter().map(|word| Value::Text((*word).to_owned()));
        let numbers = numbers.iter().map(|value| Value::new(*value, ""));
        self.rows.push(words.chain(numbers).collect());
    }
}

/// A drawing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of its file: letters, digits, `-`.
    pub name: String,
    /// A line above it.
    pub title: String,
    /// What is to be seen, below it.
    pub caption: String,
    /// The drawing: an `<svg>` element.
    pub svg: String,
}

impl Figure {
    /// A drawing with its name, the line above it and the words below it.
    #[must_use]
    pub fn new(name: &str, title: &str, caption: &str, svg: String) -> Figure {
        Figure { name: name.to_owned(), title: title.to_owned(), caption: caption.to_owned(), svg }
    }
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reproduction {
    /// What is judged.
    pub tables: Vec<Table>,
    /// What is only shown.
    pub grids: Vec<Grid>,
    /// Drawings.
    pub figures: Vec<Figure>,
    /// What else is to be said, a paragraph each.
    pub notes: Vec<String>,
}

impl Reproduction {
    /// Whether no row of any table fails.
    #[must_use]
    pub fn accepted(&self) -> bool {
        self.tables.iter().all(Table::accepted)
    }
}
