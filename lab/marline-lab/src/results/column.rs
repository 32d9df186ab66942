//! Column of a table: name, unit and values.

use std::borrow::Cow;

use super::cells::{Cells, Texts};

/// A column. Names end with the unit, if there is one (`latency_ms`).
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    name: Cow<'static, str>,
    unit: &'static str,
    values: Values,
}

/// Values of a column by kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Text.
    Text(Texts),
    /// Unsigned integers.
    Count(Cells<u64>),
    /// Signed integers: times relative to the start.
    Integer(Cells<i64>),
    /// Floating-point numbers.
    Real(Cells<f64>),
    /// Booleans, written as 1 or 0 in CSV.
    Flag(Cells<bool>),
}

/// Value of one row.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// Unknown value.
    Unknown,
    /// Value of a text column.
    Text(&'a str),
    /// Value of a column of counts.
    Count(u64),
    /// Value of a column of integers.
    Integer(i64),
    /// Value of a column of reals.
    Real(f64),
    /// Value of a column of flags.
    Flag(bool),
}

impl Column {
    fn new(name: impl Into<Cow<'static, str>>, unit: &'static str, values: Values) -> Column {
        Column { name: name.into(), unit, values }
    }

    /// Creates an empty column of texts.
    #[must_use]
    pub fn text(name: impl Into<Cow<'static, str>>) -> Column {
        Column::new(name, "", Values::Text(Texts::default()))
    }

    /// Creates an empty column of counts. `unit` is a unit such as `B`, or empty.
    #[must_use]
    pub fn count(name: impl Into<Cow<'static, str>>, unit: &'static str) -> Column {
        Column::new(name, unit, Values::Count(Cells::default()))
    }

    /// Creates an empty column of signed integers.
    #[must_use]
    pub fn integer(name: impl Into<Cow<'static, str>>, unit: &'static str) -> Column {
        Column::new(name, unit, Values::Integer(Cells::default()))
    }

    /// Creates an empty column of reals.
    #[must_use]
    pub fn real_column(name: impl Into<Cow<'static, str>>, unit: &'static str) -> Column {
        Column::new(name, unit, Values::Real(Cells::default()))
    }

    /// Creates an empty column of flags.
    #[must_use]
    pub fn flag(name: impl Into<Cow<'static, str>>) -> Column {
        Column::new(name, "", Values::Flag(Cells::default()))
    }

    /// Name, as in the header line of files.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Unit of the values: `ms`, `us`, `B`, `Mbit/s`, `bit/s`, `J`, `%`. Empty without a unit.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        self.unit
    }

    /// Values.
    #[must_use]
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The value of a row. Unknown if there is no such row.
    #[must_use]
    pub fn at(&self, row: usize) -> Cell<'_> {
        match &self.values {
            Values::Text(texts) => texts.at(row).map(Cell::Text),
            Values::Count(cells) => cells.at(row).map(Cell::Count),
            Values::Integer(cells) => cells.at(row).map(Cell::Integer),
            Values::Real(cells) => cells.at(row).map(Cell::Real),
            Values::Flag(cells) => cells.at(row).map(Cell::Flag),
        }
        .unwrap_or(Cell::Unknown)
    }

    /// Appends a value.
    ///
    /// # Panics
    /// The cell's kind differs from the column's, which is a bug in the caller.
    pub(super) fn push(&mut self, cell: Cell<'_>) {
        match (&mut self.values, cell) {
            (Values::Text(texts), Cell::Text(text)) => texts.push(Some(text)),
            (Values::Count(cells), Cell::Count(value)) => cells.push(Some(value)),
            (Values::Integer(cells), Cell::Integer(value)) => cells.push(Some(value)),
            (Values::Real(cells), Cell::Real(value)) => cells.push(Some(value)),
            (Values::Flag(cells), Cell::Flag(value)) => cells.push(Some(value)),
            (Values::Text(texts), Cell::Unknown) => texts.push(None),
            (Values::Count(cells), Cell::Unknown) => cells.push(None),
            (Values::Integer(cells), Cell::Unknown) => cells.push(None),
            (Values::Real(cells), Cell::Unknown) => cells.push(None),
            (Values::Flag(cells), Cell::Unknown) => cells.push(None),
            (_, other) => panic!("{other:?} in column `{}`", self.name),
        }
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        match &mut self.values {
            Values::Text(texts) => texts.truncate(rows),
            Values::Count(cells) => cells.truncate(rows),
            Values::Integer(cells) => cells.truncate(rows),
            Values::Real(cells) => cells.truncate(rows),
            Values::Flag(cells) => cells.truncate(rows),
        }
    }

    /// An empty column of this kind.
    pub(super) fn empty_copy(&self) -> Column {
        let (name, unit) = (self.name.clone(), self.unit);
        match self.values {
            Values::Text(_) => Column::text(name),
            Values::Count(_) => Column::count(name, unit),
            Values::Integer(_) => Column::integer(name, unit),
            Values::Real(_) => Column::real_column(name, unit),
            Values::Flag(_) => Column::flag(name),
        }
    }
}

impl From<f64> for Cell<'_> {
    /// NaN is an unknown value.
    fn from(value: f64) -> Self {
        if value.is_nan() { Cell::Unknown } else { Cell::Real(value) }
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Cell::Text(text)
    }
}

impl From<u64> for Cell<'_> {
    fn from(value: u64) -> Self {
        Cell::Count(value)
    }
}

impl From<u32> for Cell<'_> {
    fn from(value: u32) -> Self {
        Cell::Count(value.into())
    }
}

impl From<usize> for Cell<'_> {
    fn from(value: usize) -> Self {
        Cell::Count(value as u64)
    }
}

impl From<i64> for Cell<'_> {
    fn from(value: i64) -> Self {
        Cell::Integer(value)
    }
}

impl From<bool> for Cell<'_> {
    fn from(value: bool) -> Self {
        Cell::Flag(value)
    }
}

impl<'a, T: Into<Cell<'a>>> From<Option<T>> for Cell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Unknown, Into::into)
    }
}
